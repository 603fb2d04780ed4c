//! Outputs of commands on pages: what may differ from run to run, and lines that fit a page.
//!
//! The rule, which TESTING.md states too: blanks and ends of lines count as one blank. Numbers in
//! hexadecimal, ports behind an IPv4 address, numbers before a unit of time (`ns`, `us`, `ms`,
//! `s`), and numbers behind `PSN` or `process` may be any. All else must be the same.

/// The widest line of an output on a page, in characters.
const WIDTH: usize = 100;

/// Units before which numbers may differ.
const UNITS: &[&str] = &["ns", "us", "ms", "s"];
/// Words behind which numbers may differ.
const NAMES: &[&str] = &["PSN", "process"];

/// Whether two outputs are the same, apart from what may differ.
pub(super) fn is_same(page: &str, run: &str) -> bool {
    normal(page) == normal(run)
}

/// The words of an output, with `#` for numbers that may differ.
fn normal(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_one_of = |at: Option<usize>, names: &[&str]| {
        let word = at.and_then(|at| words.get(at));
        word.is_some_and(|word| names.contains(&word.trim_matches(|c: char| !c.is_alphanumeric())))
    };
    let normal = words.iter().enumerate().map(|(at, word)| {
        let may_differ = is_one_of(at.checked_sub(1), NAMES) || is_one_of(Some(at + 1), UNITS);
        if may_differ { without_number(word) } else { without_port(&without_hexadecimal(word)) }
    });
    normal.collect()
}

/// A word with `#` for its digits and what is between them.
fn without_number(word: &str) -> String {
    let is_digit = |c: char| c.is_ascii_digit();
    match (word.find(is_digit), word.rfind(is_digit)) {
        (Some(first), Some(last)) => format!("{}#{}", &word[..first], &word[last + 1..]),
        _ => word.to_owned(),
    }
}

/// A word with `0x#` for each number in hexadecimal.
fn without_hexadecimal(word: &str) -> String {
    let mut parts = word.split("0x");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_hexdigit());
        let number = if rest.len() < part.len() { "0x#" } else { "0x" };
        text + number + rest
    })
}

/// A word with `#` for the port behind an IPv4 address.
fn without_port(word: &str) -> String {
    let Some((before, behind)) = word.split_once(':') else { return word.to_owned() };
    let rest = behind.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_address = before.ends_with(|c: char| c.is_ascii_digit())
        && before.bytes().filter(|byte| *byte == b'.').count() == 3;
    match is_address && rest.len() < behind.len() {
        true => format!("{before}:#{rest}"),
        false => word.to_owned(),
    }
}

/// An output with long lines wrapped; what continues a line is indented.
pub(super) fn for_page(output: &str) -> String {
    let mut page = String::new();
    for line in output.trim_end().lines() {
        let mut width = 0;
        for (at, word) in line.split(' ').enumerate() {
            let next = word.chars().count();
            if at > 0 && width + 1 + next > WIDTH {
                page += "\n  ";
                width = 2;
            } else if at > 0 {
                page += " ";
                width += 1;
            }
            page += word;
            width += next;
        }
        page.truncate(page.trim_end_matches(' ').len());
        page += "\n";
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_differ_from_run_to_run_may_differ_and_no_others() {
        let page = "QP 0x4dc000 at 127.0.0.1, PSN 6980709: 8 transmissions in 538 ms; process 42 is\n  there";
        let run = "QP 0x11 at 127.0.0.1, PSN 3: 8 transmissions in 9 ms; process 7 is there";
        assert!(is_same(page, run));
        assert!(!is_same(page, &run.replace("8 trans", "7 trans")));
        assert!(!is_same(page, &run.replace("127.0.0.1", "127.0.0.2")));
        assert!(!is_same(page, &run.replace("0x11", "11")));
        assert!(is_same("(0.5 s, R_Key 0x12)", "(12.25 s, R_Key 0xabc)"));
        assert!(is_same("-> 10.0.0.1:41090, peer", "-> 10.0.0.1:7, peer"));
        assert!(!is_same("row 1:2", "row 1:3") && !is_same("10.0.0.1: 2", "10.0.0.1: 3"));
        assert!(!is_same("a b", "a"));
    }

    #[test]
    fn long_lines_are_wrapped_at_blanks_and_say_the_same() {
        let long = format!("target: {}end  \n\nnext", "word ".repeat(40));
        let page = for_page(&long);
        assert!(page.lines().all(|line| line.chars().count() <= WIDTH), "{page}");
        assert!(page.contains("\n  word") && page.ends_with("end\n\nnext\n"), "{page}");
        assert!(is_same(&page, &long));
        assert_eq!(for_page("  indented\n"), "  indented\n");
    }
}
