//! Checks of prose: the pages about the architecture, and how doc comments begin.
//!
//! [`ALLOWED`] is a ratchet: doc comments of each crate that begin with a word of [`BANNED`]. More
//! are errors; fewer are welcome, and are written down here now and then.

use std::collections::BTreeMap;

/// The longest page: what a person reads in one go.
const LONGEST_PAGE_BYTES: usize = 12 * 1024;

/// The longest sentence.
const LONGEST_SENTENCE_WORDS: usize = 30;

/// Words that a doc comment must not begin with: it begins with the noun that it documents, or
/// with the verb of what a function does.
const BANNED: &[&str] = &[
    "And ",
    "It ",
    "Its ",
    "Of ",
    "That ",
    "The other",
    "The same",
    "Their ",
    "They ",
    "Those ",
    "Who ",
    "Whoever ",
    "Whom ",
    "Whose ",
];

/// Doc comments of a crate that may begin so; none where a crate is not named.
const ALLOWED: &[(&str, usize)] = &[
    ("vernic", 36),
    ("vernic-abi", 34),
    ("vernic-cli", 15),
    ("vernic-cm", 53),
    ("vernic-engine", 0),
    ("vernic-mem", 24),
    ("vernic-paths", 4),
    ("vernic-proto", 73),
    ("vernic-rsocket", 36),
    ("vernic-rspreload", 6),
    ("vernic-sim", 5),
    ("vernic-wire", 13),
    ("xtask", 52),
];

/// Whether a file is one of the pages about the architecture.
pub(crate) fn is_page(path: &str) -> bool {
    path == "ARCHITECTURE.md" || path.starts_with("docs/") && path.ends_with(".md")
}

/// A page is short, and so are its sentences.
pub(crate) fn page(path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    if text.len() > LONGEST_PAGE_BYTES {
        findings.push(format!("{path}: {} bytes, at most {LONGEST_PAGE_BYTES}", text.len()));
    }
    for sentence in sentences(text) {
        let words: Vec<_> =
            sentence.split_whitespace().filter(|w| w.contains(char::is_alphanumeric)).collect();
        if words.len() > LONGEST_SENTENCE_WORDS {
            let (first, count) = (words[..6].join(" "), words.len());
            findings.push(format!(
                "{path}: a sentence of {count} words, at most {LONGEST_SENTENCE_WORDS}: {first} ..."
            ));
        }
    }
    findings
}

/// The sentences of Markdown. Each item of a list and each cell of a table begins one; code in
/// fences has none.
fn sentences(markdown: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    for (at, text) in markdown.split("```").enumerate() {
        if at % 2 == 1 {
            blocks.push(String::new());
            continue;
        }
        for line in text.lines() {
            let start = line.trim_start();
            if start.starts_with('|') {
                blocks.extend(start.split('|').map(str::to_owned));
            } else if start.is_empty() || begins_block(start) {
                blocks.push(start.to_owned());
            } else if let Some(block) = blocks.last_mut() {
                *block += " ";
                *block += start;
            }
        }
    }
    blocks.iter().flat_map(|block| split(block)).collect()
}

/// Whether a line begins a heading or an item of a list.
fn begins_block(line: &str) -> bool {
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    ["#", "- ", "* "].iter().any(|mark| line.starts_with(mark))
        || number.len() < line.len() && number.starts_with(". ")
}

fn split(block: &str) -> Vec<String> {
    let mut sentences = vec![String::new()];
    for word in block.split_whitespace() {
        if let Some(sentence) = sentences.last_mut() {
            *sentence += word;
            *sentence += " ";
        }
        if word.trim_end_matches(['*', ')', '"']).ends_with(['.', '!', '?']) {
            sentences.push(String::new());
        }
    }
    sentences
}

/// Crates whose doc comments begin with words of [`BANNED`] more often than they may.
pub(crate) fn openings<'a>(sources: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    over(sources, ALLOWED)
}

fn over<'a>(
    sources: impl Iterator<Item = (&'a str, &'a str)>,
    allowed: &[(&str, usize)],
) -> Vec<String> {
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (path, text) in sources {
        let lines = banned_lines(text).map(|(number, line)| format!("  {path}:{number}: {line}"));
        found.entry(crate_of(path)).or_default().extend(lines);
    }
    let mut findings = Vec::new();
    for (name, lines) in found {
        let may = allowed.iter().find(|(krate, _)| *krate == name).map_or(0, |(_, count)| *count);
        if lines.len() > may {
            let (count, lines) = (lines.len(), lines.join("\n"));
            findings.push(format!(
                "{name}: {count} doc comments do not begin with what they document, at most {may}\n{lines}"
            ));
        }
    }
    findings
}

/// The crate that a path belongs to: a folder below those of the layers, or at the root.
fn crate_of(path: &str) -> &str {
    let mut folders = path.split('/');
    match folders.next() {
        Some("crates") => folders.nth(1).unwrap_or_default(),
        first => first.unwrap_or_default(),
    }
}

/// First lines of doc comments that begin with a banned word, with their numbers.
fn banned_lines(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut was_doc = false;
    code.lines().enumerate().filter_map(move |(at, line)| {
        let line = line.trim_start();
        let begins = line.starts_with("///") && !was_doc;
        was_doc = line.starts_with("///");
        let said = line.strip_prefix("/// ").filter(|_| begins)?;
        BANNED.iter().any(|word| said.starts_with(word)).then_some((at + 1, line))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_page_and_a_long_sentence_are_found() {
        assert!(page("docs/a.md", &"Short. ".repeat(100)).is_empty());
        let long = page("docs/a.md", &"Short. ".repeat(2000));
        assert_eq!(long, ["docs/a.md: 14000 bytes, at most 12288"]);
        let sentence = format!("One {}two. Short.", "word ".repeat(29));
        let findings = page("ARCHITECTURE.md", &sentence);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].contains("31 words") && findings[0].contains("One word word"));
    }

    #[test]
    fn cells_items_and_headings_are_sentences_of_their_own_and_code_is_none() {
        let words = "word ".repeat(20);
        for text in [
            format!("# {words}\n{words}."),
            format!("- {words}\n- {words}\n1. {words}"),
            format!("| {words} | {words} |\n| {words} |"),
            format!("{words}\n\n{words}"),
            format!("{words}:\n```text\n{words}{words}\n```\n{words}"),
            format!("{words}(a.) {words}"),
        ] {
            let findings = page("docs/a.md", &text);
            let is_joined = text.starts_with('#');
            assert_eq!(findings.len(), usize::from(is_joined), "{text}: {findings:?}");
        }
    }

    #[test]
    fn more_banned_openings_than_allowed_are_found_and_fewer_are_not() {
        let code =
            "/// Who reads.\nstruct A;\n/// A name.\n/// Of a thing.\n    /// It is b.\nfn b();";
        let lines: Vec<_> = banned_lines(code).map(|(number, _)| number).collect();
        assert_eq!(lines, [1]);
        let code = "/// Who reads.\nstruct A;\n    /// It is b.\n    b: u8,\n// Of no matter.";
        let sources = || [("crates/core/vernic-x/src/a.rs", code)].into_iter();
        assert_eq!(over(sources(), &[]).len(), 1);
        assert_eq!(over(sources(), &[("vernic-x", 1)]).len(), 1);
        assert!(over(sources(), &[("vernic-x", 2)]).is_empty());
        assert!(over(sources(), &[("vernic-x", 3)]).is_empty());
    }
}
