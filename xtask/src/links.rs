//! Links of Markdown pages: each leads to a file that is there and, behind a `#`, to a heading of
//! that page.
//!
//! Owns how headings become anchors, which is the same on a repository's web view and in mdBook.
//! Called by `rules` and by `book`. Links to other hosts are left alone.

use std::collections::HashMap;
use std::path::{Component, Path};

/// A page: where it is, relative to the root, and its text.
pub(crate) type Page<'a> = (&'a str, &'a str);

/// Links that lead nowhere. `exists` says whether a path, relative to the root, is there.
pub(crate) fn check<'a>(
    pages: impl Iterator<Item = Page<'a>>,
    exists: impl Fn(&str) -> bool,
) -> Vec<String> {
    let pages: HashMap<_, _> = pages.collect();
    let anchors: HashMap<_, _> =
        pages.iter().map(|(path, text)| (*path, anchors(text).collect::<Vec<_>>())).collect();
    let mut names: Vec<_> = pages.keys().copied().collect();
    names.sort_unstable();
    let mut findings = Vec::new();
    for page in names {
        let apart = prose(pages[page]).flat_map(str::lines).filter(|line| is_definition(line));
        findings.extend(apart.map(|line| {
            format!("{page}: the target of a link stands where the link does, not in `{line}`")
        }));
        for target in targets(pages[page]) {
            let (path, anchor) =
                target.split_once('#').map_or((target, None), |(p, a)| (p, Some(a)));
            let whole = if path.is_empty() { page.to_owned() } else { beside(page, path) };
            if !exists(&whole) {
                findings.push(format!("{page}: link to `{path}`, which is not there"));
            } else if let Some(anchor) = anchor {
                let has =
                    anchors.get(&*whole).is_some_and(|known| known.iter().any(|a| a == anchor));
                if !has {
                    findings.push(format!("{page}: `{target}` names no heading of {whole}"));
                }
            }
        }
    }
    findings
}

/// The path of a link of a page, relative to the root, as far as it can be.
pub(crate) fn beside(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            Component::ParentDir => parts.push(".."),
            Component::Normal(name) => parts.extend(name.to_str()),
            _ => {}
        }
    }
    parts.join("/")
}

/// Where the links and pictures of a page lead, those to other hosts apart. Code has none.
pub(crate) fn targets(markdown: &str) -> impl Iterator<Item = &str> {
    prose(markdown)
        .flat_map(|piece| piece.split("](").skip(1))
        .filter_map(|rest| rest.split([')', ' ']).next())
        // Paths of items (`crate::Mr`) are rustdoc's, which checks them.
        .filter(|target| is_relative(target))
}

/// Whether a link leads to a file, and not to another host or an item of Rust.
pub(crate) fn is_relative(target: &str) -> bool {
    !target.is_empty() && !target.contains("://") && !target.contains("::")
}

/// Whether a line only says where a link leads that stands elsewhere: `[text]: file`.
fn is_definition(line: &str) -> bool {
    let target = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    target.is_some_and(|(_, target)| is_relative(target))
}

/// The text outside of fences.
fn prose(markdown: &str) -> impl Iterator<Item = &str> {
    markdown.split("```").step_by(2)
}

/// The anchors of a page's headings, and those that it names itself (`<a id="name">`).
fn anchors(markdown: &str) -> impl Iterator<Item = String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let headings = prose(markdown).flat_map(str::lines).filter(|line| line.starts_with('#'));
    let of_headings = headings.map(move |line| {
        let anchor = anchor(line.trim_start_matches('#'));
        let count = seen.entry(anchor.clone()).or_default();
        *count += 1;
        if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
    });
    let named = prose(markdown)
        .flat_map(|piece| piece.split("<a id=\"").skip(1))
        .filter_map(|rest| rest.split('"').next())
        .map(str::to_owned);
    of_headings.chain(named)
}

/// The anchor of a heading: its letters, digits, `-` and `_`, in lower case, with `-` for blanks.
fn anchor(heading: &str) -> String {
    // Of a link the text alone counts.
    let mut text = String::new();
    for (at, piece) in heading.trim().split("](").enumerate() {
        let piece =
            if at == 0 { piece } else { piece.split_once(')').map_or("", |(_, rest)| rest) };
        text += piece;
    }
    text.chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .flat_map(char::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_without_a_file_or_a_heading_are_found() {
        let pages = [
            (
                "docs/a.md",
                "# A [b](b.md) [c](no.md) [d](b.md#two-words) [e](b.md#no) [f](#a) [g](#no)",
            ),
            ("docs/b.md", "# Two `words`\n\n```sh\n# no\n[x](no.md)\n```\n[r](../README.md)"),
            (
                "README.md",
                "[u]: https://x.y\n[n]: docs/b.md\n[b](docs/b.md#two-words) <a id=\"here\"></a>[h](#here) ![p](pic.svg)",
            ),
        ];
        let is_there = |path: &str| path.ends_with(".svg") || pages.iter().any(|(p, _)| *p == path);
        let findings = check(pages.into_iter(), is_there);
        assert_eq!(
            findings,
            [
                "README.md: the target of a link stands where the link does, not in `[n]: docs/b.md`",
                "docs/a.md: link to `no.md`, which is not there",
                "docs/a.md: `b.md#no` names no heading of docs/b.md",
                "docs/a.md: `#a` names no heading of docs/a.md",
                "docs/a.md: `#no` names no heading of docs/a.md",
            ]
        );
    }

    #[test]
    fn an_anchor_is_the_headings_text_and_a_number_where_it_comes_again() {
        let page =
            "# `vernic stat`: who, what?\n## See [the_other](x.md) page\n## Twice\n## Twice\n";
        let found: Vec<_> = anchors(page).collect();
        assert_eq!(found, ["vernic-stat-who-what", "see-the_other-page", "twice", "twice-1"]);
    }

    #[test]
    fn only_relative_links_are_looked_up() {
        let text = "[a](b.md) [c](https://x.y/z) [d](e.md#f) [g](#h) [i](crate::I)";
        assert_eq!(targets(text).collect::<Vec<_>>(), ["b.md", "e.md#f", "#h"]);
    }

    #[test]
    fn a_path_is_seen_from_the_root() {
        assert_eq!(beside("docs/a.md", "../charts/x.svg"), "charts/x.svg");
        assert_eq!(beside("docs/a.md", "b.md"), "docs/b.md");
        assert_eq!(beside("README.md", "docs/b.md"), "docs/b.md");
        assert_eq!(beside("docs/a.md", "../../x"), "../x");
    }
}
