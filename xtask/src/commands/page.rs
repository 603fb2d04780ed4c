//! The fenced blocks of a Markdown page, and what their first lines say of them.

use std::ops::Range;

use crate::Result;

/// Why a block of commands is not run, behind this.
const NOT_RUN: &str = "norun:";

/// What is to be done with a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Commands, to be run as they stand.
    Run,
    /// Commands that are not run, for this reason.
    NotRun(String),
    /// What the commands before it print.
    Output,
    /// Nothing.
    Other,
}

/// A fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Line of its first fence, from 1.
    pub(super) line: usize,
    pub(super) mark: Mark,
    /// Bytes between its fences.
    pub(super) range: Range<usize>,
}

impl Block {
    /// What stands between its fences.
    pub(super) fn text<'a>(&self, page: &'a str) -> &'a str {
        &page[self.range.clone()]
    }
}

/// The blocks of a page, in order.
///
/// # Errors
/// A fence that is not closed, or a mark that means nothing.
pub(super) fn blocks(page: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    // The line, the mark and the first byte of the block that is open.
    let mut open: Option<(usize, Mark, usize)> = None;
    let mut at = 0;
    for (number, line) in page.split_inclusive('\n').enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, open.take()) {
            (None, still) => open = still,
            (Some(info), None) => {
                let mark =
                    mark(info.trim()).map_err(|why| format!("line {}: {why}", number + 1))?;
                open = Some((number + 1, mark, at + line.len()));
            }
            (Some(_), Some((line, mark, start))) => {
                blocks.push(Block { line, mark, range: start..at });
            }
        }
        at += line.len();
    }
    match open {
        None => Ok(blocks),
        Some((line, ..)) => Err(format!("line {line}: a fence that is not closed")),
    }
}

/// The meaning of what stands behind the first fence: a language, and a mark.
fn mark(info: &str) -> Result<Mark> {
    let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
    match (language, rest.trim()) {
        ("sh", "") => Ok(Mark::Run),
        ("sh", rest) => match rest.strip_prefix(NOT_RUN).map(str::trim) {
            Some(why) if !why.is_empty() => Ok(Mark::NotRun(why.to_owned())),
            _ => Err(format!("`sh {rest}`: only `{NOT_RUN} REASON` may stand behind `sh`")),
        },
        ("text", "output") => Ok(Mark::Output),
        (_, "") => Ok(Mark::Other),
        (language, rest) => Err(format!("`{language} {rest}`: what is `{rest}`?")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_their_marks_and_their_bytes() {
        let page = "# A\n```sh\nls\n```\n```text output\na\nb\n```\n- in a list\n\n  ```sh norun: two hosts\n  x\n  ```\n```rust\n```\n";
        let blocks = blocks(page).unwrap();
        let marks: Vec<_> = blocks.iter().map(|block| block.mark.clone()).collect();
        assert_eq!(marks, [Mark::Run, Mark::Output, Mark::NotRun("two hosts".into()), Mark::Other]);
        let texts: Vec<_> = blocks.iter().map(|block| block.text(page)).collect();
        assert_eq!(texts, ["ls\n", "a\nb\n", "  x\n", ""]);
        assert_eq!(blocks[1].line, 5);
    }

    #[test]
    fn a_mark_without_meaning_and_an_open_fence_are_errors() {
        for page in
            ["```sh norun:\n```\n", "```sh later\n```\n", "```text out\n```\n", "```sh\nls\n"]
        {
            assert!(blocks(page).unwrap_err().starts_with("line 1: "), "{page}");
        }
    }
}
