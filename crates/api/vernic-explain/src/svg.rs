//! Sequence diagrams as SVG, for documents and issues: text and lines, no fonts, no scripts.

use std::fmt::Write as _;

use crate::story::{Arrow, Flow, Tone};
use crate::text::{end, title};
use crate::units::duration;

/// Places, in pixels.
const LEFT: u32 = 110;
const RIGHT: u32 = 790;
const WIDTH: u32 = 900;
const ROW: u32 = 26;
const TOP: u32 = 40;

/// The sequence diagrams of some flows, one below the other.
pub fn svg(flows: &[Flow]) -> String {
    let mut body = String::new();
    let mut y = 0;
    for flow in flows {
        y = of_flow(&mut body, flow, y + TOP);
    }
    let height = y + TOP;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

/// Draws a flow from `top` on; returns where it ends.
fn of_flow(out: &mut String, flow: &Flow, top: u32) -> u32 {
    words(out, (10, top), "start", "black", &format!("[{}] {}", flow.number, title(flow)));
    words(out, (LEFT, top + ROW), "middle", "black", &format!("A  {}", end(&flow.a)));
    words(out, (RIGHT, top + ROW), "middle", "black", &format!("B  {}", end(&flow.b)));
    let first = top + 2 * ROW;
    let mut y = first;
    for arrow in &flow.arrows {
        words(out, (LEFT - 12, y + 4), "end", "#666", &duration(arrow.time_ns));
        draw(out, arrow, y);
        y += ROW;
    }
    for x in [LEFT, RIGHT] {
        line(out, (x, first - ROW / 2), (x, y), "#999");
    }
    y
}

fn draw(out: &mut String, arrow: &Arrow, y: u32) {
    let middle = u32::midpoint(LEFT, RIGHT);
    let color = match arrow.tone {
        Tone::Plain => "#1f5fa8",
        Tone::Connection => "#3a7d2c",
        Tone::Trouble | Tone::Lost => "#c0281c",
        Tone::Left => {
            return words(out, (middle, y + 4), "middle", "#666", &format!("… {} …", arrow.label));
        }
    };
    let (from, to) = if arrow.is_from_a { (LEFT, RIGHT) } else { (RIGHT, LEFT) };
    words(out, (middle, y - 4), "middle", color, &arrow.label);
    if arrow.tone == Tone::Lost {
        line(out, (from, y), (middle, y), color);
        line(out, (middle - 5, y - 5), (middle + 5, y + 5), color);
        line(out, (middle - 5, y + 5), (middle + 5, y - 5), color);
        return;
    }
    line(out, (from, y), (to, y), color);
    let back = if arrow.is_from_a { to - 8 } else { to + 8 };
    line(out, (back, y - 4), (to, y), color);
    line(out, (back, y + 4), (to, y), color);
}

fn line(out: &mut String, (x1, y1): (u32, u32), (x2, y2): (u32, u32), color: &str) {
    // Writing to a String does not fail.
    let _ =
        writeln!(out, "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"{color}\"/>");
}

fn words(out: &mut String, (x, y): (u32, u32), anchor: &str, color: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" fill=\"{color}\">{text}</text>"
    );
}
