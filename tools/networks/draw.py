#!/usr/bin/env python3
"""The pictures of docs/networks.md, from the figures in charts/networks/figures.json.

    python3 tools/networks/draw.py

Writes one SVG file beside the figures for each picture: horizontal bars, a group for each network,
a bar for each congestion control. A figure that is `null` is skipped. Needs nothing but Python. To
look at a picture: `rsvg-convert FILE.svg -o FILE.png`.
"""

import html
import json
import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "charts", "networks")

WIDTH, LEAST_HEIGHT = 640, 260
# Where the names of groups begin, where those of bars end, and where bars begin and end. Behind
# the longest bar there is room for what it says.
GROUP_X, NAME_X, BAR_X, END_X = 14, 292, 300, 480
TOP, BOTTOM, BETWEEN = 66, 14, 14
# From the top of a bar to the next, and the thickest bar.
STEP, THICKEST_STEP = 18, 30

COLOURS = {
    "TCP, BBR": "#4A4A4A",
    "TCP": "#8A8A8A",
    "aimd": "#1F6FB4",
    "dcqcn": "#2E8B57",
    "swift": "#C77700",
    "none": "#B5302B",
}


def text(x, y, size, words, more=""):
    shown = html.escape(words, quote=False)
    return f'<text x="{x}" y="{y:g}" font-family="sans-serif" font-size="{size}" {more}>{shown}</text>'


def colour(name):
    return next(c for kind, c in COLOURS.items() if name.startswith(kind))


def draw(picture):
    groups = []
    for group in picture["groups"]:
        bars = [bar for bar in group["bars"] if bar["value"] is not None]
        if bars:
            groups.append((group["path"], bars))
    count = sum(len(bars) for _, bars in groups)
    gaps = BETWEEN * (len(groups) - 1)
    height = max(LEAST_HEIGHT, TOP + count * STEP + gaps + BOTTOM)
    step = min(THICKEST_STEP, (height - TOP - BOTTOM - gaps) / count)
    most = max(bar["value"] for _, bars in groups for bar in bars)

    lines = [
        f'<svg width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'xmlns="http://www.w3.org/2000/svg">',
        f'<rect width="{WIDTH}" height="{height}" fill="#FFFFFF"/>',
        text(14, 28, 18, picture["title"], 'font-weight="bold" fill="#000000"'),
        text(14, 48, 13, picture["what"], 'fill="#5A5A5A"'),
    ]
    y = TOP
    for path, bars in groups:
        lines.append(text(GROUP_X, y + step / 2 + 5, 13, path, 'font-weight="bold" fill="#000000"'))
        for bar in bars:
            long = max(1, (END_X - BAR_X) * bar["value"] / most)
            name, shown = bar["name"], bar.get("text", f'{bar["value"]:g}')
            base = y + step / 2 + 5
            lines += [
                text(NAME_X, base, 13, name, 'text-anchor="end" fill="#000000"'),
                f'<rect x="{BAR_X}" y="{y + 2:g}" width="{long:.1f}" height="{step - 4:g}" '
                f'fill="{colour(name)}"/>',
                text(round(BAR_X + long + 6, 1), base, 13, shown, 'fill="#000000"'),
            ]
            y += step
        y += BETWEEN
    bottom = y - BETWEEN
    lines.append(
        f'<line x1="{BAR_X}" y1="{TOP}" x2="{BAR_X}" y2="{bottom:g}" stroke="#000000"/>'
    )
    return "\n".join(lines + ["</svg>", ""])


def main():
    with open(os.path.join(FOLDER, "figures.json"), encoding="utf-8") as file:
        pictures = json.load(file)["pictures"]
    for picture in pictures:
        with open(os.path.join(FOLDER, picture["file"]), "w", encoding="utf-8") as file:
            file.write(draw(picture))


if __name__ == "__main__":
    main()
