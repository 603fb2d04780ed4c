//! Lists of what is expected not to pass, each entry with its reason.
//!
//! A line is `PATTERN: reason`; `*` in the pattern stands for anything. An entry that matches
//! nothing any more, or something that passes, is an error: a list can only shrink by itself. What
//! passes or not by chance has `? ` before its pattern, and may do either.

use crate::{Result, root};

/// One list.
pub(crate) struct Skips {
    /// The file, relative to the root.
    file: &'static str,
    entries: Vec<Entry>,
}

/// One entry.
pub(crate) struct Entry {
    pattern: String,
    /// Whether it may pass.
    by_chance: bool,
    /// Why.
    pub(crate) reason: String,
    line: usize,
}

impl Skips {
    /// Reads a list.
    pub(crate) fn read(file: &'static str) -> Result<Self> {
        let text =
            std::fs::read_to_string(root().join(file)).map_err(|e| format!("{file}: {e}"))?;
        Self::parse(file, &text)
    }

    fn parse(file: &'static str, text: &str) -> Result<Self> {
        let mut entries = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || format!("{file}:{}: not of the form `PATTERN: reason`", number + 1);
            let (pattern, reason) = line.split_once(": ").ok_or_else(wrong)?;
            let (pattern, by_chance) = match pattern.strip_prefix("? ") {
                Some(pattern) => (pattern, true),
                None => (pattern, false),
            };
            let (pattern, reason) = (pattern.trim().to_owned(), reason.trim().to_owned());
            if pattern.is_empty() || reason.is_empty() {
                return Err(wrong());
            }
            entries.push(Entry { pattern, by_chance, reason, line: number + 1 });
        }
        Ok(Self { file, entries })
    }

    /// The entry that covers a name.
    pub(crate) fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| matches(&entry.pattern, name))
    }

    /// What is wrong with the list: entries that cover none of `names`, or one of those that
    /// `passed`.
    pub(crate) fn rotten(&self, names: &[String], passed: &[String]) -> Vec<String> {
        let mut findings = Vec::new();
        for Entry { pattern, by_chance, line, .. } in &self.entries {
            let place = format!("{}:{line}: `{pattern}`", self.file);
            if !names.iter().any(|name| matches(pattern, name)) {
                findings.push(format!("{place} matches nothing; remove it"));
            }
            let first = |name: &&String| self.find(name).is_some_and(|entry| entry.line == *line);
            if let (Some(name), false) = (passed.iter().find(first), by_chance) {
                findings.push(format!("{place} covers `{name}`, which passes; remove it"));
            }
        }
        findings
    }
}

/// Whether a name is what a pattern says; `*` stands for anything.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut last = None;
    for piece in pieces {
        // The piece before was not the last: where it is found first leaves most to the others.
        if let Some(piece) = last.replace(piece) {
            match rest.find(piece) {
                Some(at) => rest = &rest[at + str::len(piece)..],
                None => return false,
            }
        }
    }
    match last {
        None => rest.is_empty(),
        Some(piece) => rest.ends_with(piece),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("a*c", "abc", true),
            ("a*c", "abcd", false),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXc", false),
            ("*", "", true),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn every_entry_needs_a_reason() {
        assert!(Skips::parse("x", "a:\n").is_err());
        assert!(Skips::parse("x", "a\n").is_err());
        let skips = Skips::parse("x", "# note\n\na *: why\n").unwrap();
        assert_eq!(skips.find("a b").unwrap().reason, "why");
        assert!(skips.find("b").is_none());
    }

    #[test]
    fn entries_that_match_nothing_or_what_passes_are_found() {
        let skips = Skips::parse("x", "a *: why\nb *: why\nc *: why\n").unwrap();
        let names = ["a 1", "a 2", "c 1"].map(String::from);
        let findings = skips.rotten(&names, &["a 2".into()]);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].contains("x:1") && findings[0].contains("a 2"), "{findings:?}");
        assert!(findings[1].contains("x:2"), "{findings:?}");
        let by_chance = Skips::parse("x", "? a *: why\n").unwrap();
        assert!(by_chance.rotten(&names, &["a 2".into()]).is_empty());
        assert_eq!(by_chance.rotten(&["b".into()], &[]).len(), 1);
    }

    #[test]
    fn the_committed_lists_can_be_read() {
        let lists = super::super::suite::SUITES.iter().map(|suite| suite.list);
        for file in lists.chain([super::super::PROGRAMS]) {
            Skips::read(file).unwrap();
        }
    }
}
