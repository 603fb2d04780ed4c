//! Subjects and bodies of commits.
//!
//! A subject is `component: what`, short enough for one line of a log. The body says why:
//! symptom, cause, evidence. Commits after [`BASE`] are judged, merges apart.

use crate::shell::run;

/// The last commit that is not judged.
const BASE: &str = "aad9a20";

/// The longest subject, in characters.
const LONGEST_SUBJECT: usize = 60;

/// What is wrong with the commits that this checkout has after [`BASE`]; nothing where there is no
/// history back to it, as in a shallow clone.
pub(crate) fn check() -> Vec<String> {
    let log = run("git log --no-merges -z --format=%h%n%B").arg(format!("{BASE}..HEAD"));
    match log.output() {
        Ok(log) => findings(&log),
        Err(_) => {
            println!("commits are not judged: there is no history back to {BASE}");
            Vec::new()
        }
    }
}

/// `log` has commits with a zero byte between, each as hash, subject and body.
fn findings(log: &str) -> Vec<String> {
    let commits = log.split('\0').filter_map(|commit| commit.trim().split_once('\n'));
    commits
        .filter_map(|(hash, message)| Some(format!("commit {hash}: {}", flaw(message)?)))
        .collect()
}

fn flaw(message: &str) -> Option<String> {
    let (subject, body) = message.trim().split_once('\n').unwrap_or((message.trim(), ""));
    let length = subject.chars().count();
    let is_component = |name: &str| {
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_/, ".contains(c);
        name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(is_part)
    };
    let has_component = subject
        .split_once(": ")
        .is_some_and(|(component, what)| is_component(component) && !what.trim().is_empty());
    if length > LONGEST_SUBJECT {
        Some(format!("a subject of {length} characters, at most {LONGEST_SUBJECT}: {subject}"))
    } else if !has_component {
        Some(format!("the subject is not `component: what`: {subject}"))
    } else if body.trim().is_empty() {
        Some(format!("no body says why: {subject}"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_has_a_component_a_short_subject_and_a_body() {
        for good in [
            "engine: wake the thread for a late timer\n\nIt slept.",
            "io, mem: one name for a page\n\nThere were two.\n",
        ] {
            assert_eq!(flaw(good), None);
        }
        let long = format!("engine: {}\n\nWhy.", "x".repeat(60));
        for (bad, why) in [
            (long.as_str(), "a subject of 68"),
            ("Wake the thread\n\nIt slept.", "the subject is not"),
            ("Wake: it\n\nIt slept.", "the subject is not"),
            ("engine: \n\nIt slept.", "the subject is not"),
            ("engine: wake the thread", "no body"),
        ] {
            assert!(flaw(bad).is_some_and(|flaw| flaw.starts_with(why)), "{bad}");
        }
    }

    #[test]
    fn a_log_is_taken_apart_by_its_zero_bytes() {
        let log = "abc1\nengine: wake\n\nWhy.\n\0abc2\nA riddle\n\0";
        let findings = findings(log);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].starts_with("commit abc2: "));
        assert!(super::findings("").is_empty());
    }
}
