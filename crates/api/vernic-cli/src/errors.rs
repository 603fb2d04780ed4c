//! `vernic errors`: the page of errors, docs/errors.md, in the terminal.
//!
//! Owns finding a topic in the page, which is part of the command, and writing it in plain words.
//! Lines of the log point here ([`vernic::TOPICS`]).

use crate::failure::{Failure, Outcome};
use crate::table::print;

/// The page.
const PAGE: &str = include_str!("../../../../docs/errors.md");

/// Columns of the text.
const WIDTH: usize = 100;

/// `vernic errors`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A status, errno, call or event, as RETRY_EXC_ERR, 12, EINVAL, ibv_reg_mr, REJECTED [default:
    /// list the sections]
    name: Option<String>,
}

/// `vernic errors`.
pub(crate) fn run(arguments: &Arguments) -> Outcome<()> {
    let Some(name) = &arguments.name else { return print(&list()) };
    match find(name) {
        text if text.is_empty() => Err(Failure::new(format!("the page of errors has no {name:?}"))
            .hint("`vernic errors` lists its sections; `VERNIC_LOG=warn` has the reason in words")),
        text => print(&text),
    }
}

/// A part of the page below a heading.
struct Section {
    heading: &'static str,
    lines: Vec<&'static str>,
}

fn sections() -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in PAGE.lines() {
        match (line.strip_prefix("## "), sections.last_mut()) {
            (Some(heading), _) => sections.push(Section { heading, lines: Vec::new() }),
            (None, Some(section)) => section.lines.push(line),
            (None, None) => {}
        }
    }
    sections
}

/// A name as headings are compared: in capitals, without what C puts before it.
fn normal(name: &str) -> String {
    let name = name.trim().to_uppercase().replace([' ', '-'], "_");
    let prefixes = ["IBV_WC_", "IBV_EVENT_", "RDMA_CM_EVENT_"];
    prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(&name).to_owned()
}

impl Section {
    /// Whether it is the section of a name: its heading or the beginning of it, or a name or number
    /// before the colon of its first sentence.
    fn is_of(&self, name: &str) -> bool {
        let heading = normal(self.heading);
        let goes_on = heading.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'));
        let intro = self.intro();
        let names = intro.split([':', '.']).next().unwrap_or_default();
        let mut words = names.split(|c: char| !c.is_alphanumeric() && c != '_');
        let is_status = heading.ends_with("_ERR");
        heading == name || goes_on || is_status && words.any(|word| normal(word) == name)
    }

    /// Returns its first paragraph.
    fn intro(&self) -> String {
        let is_text = |line: &&&str| !line.is_empty() && !line.starts_with('|');
        let lines = self.lines.iter().skip_while(|line| line.is_empty() || line.starts_with("<a"));
        lines.take_while(is_text).copied().collect::<Vec<_>>().join(" ")
    }

    fn text(&self) -> String {
        format!("{}\n{}", self.heading, body(&self.lines, |_| true))
    }

    /// The rows of its tables that have a name in them; empty if there are none.
    fn rows(&self, name: &str) -> String {
        let has_it = |cells: &[&str]| {
            let words = cells.iter().flat_map(|cell| cell.split(is_between));
            words.map(normal).any(|word| word == name)
        };
        let of_table = |line: &&&str| line.starts_with('|');
        let lines: Vec<_> = self.lines.iter().filter(of_table).copied().collect();
        body(&lines, has_it)
    }
}

/// Whether a character stands between two names.
fn is_between(c: char) -> bool {
    !c.is_alphanumeric() && c != '_'
}

/// The sections of a name, else the rows of tables that name it.
fn find(name: &str) -> String {
    let (name, sections) = (normal(name), sections());
    if name.is_empty() {
        return String::new();
    }
    let whole = sections.iter().filter(|section| section.is_of(&name)).map(Section::text);
    let whole = whole.collect::<Vec<_>>().join("\n");
    if !whole.is_empty() {
        return whole;
    }
    let rows = sections.iter().map(|section| (section.heading, section.rows(&name)));
    let rows = rows.filter(|(_, rows)| !rows.is_empty());
    rows.map(|(heading, rows)| format!("{heading}\n{rows}")).collect::<Vec<_>>().join("\n")
}

fn list() -> String {
    let mut text = "Sections, by `vernic errors NAME`:\n".to_owned();
    for section in sections() {
        let first = plain(&section.intro());
        let first = first.split_inclusive(['.', ':']).next().unwrap_or_default();
        text +=
            &wrapped(&format!("  {:<18} ", section.heading), first.trim_end_matches(['.', ':']));
    }
    text += "\nNAME may be an errno, a call or an event, too: EINVAL, ibv_reg_mr, REJECTED\n";
    text
}

/// Paragraphs and tables in plain words. Of tables, the rows that are wanted.
fn body(lines: &[&str], is_wanted: impl Fn(&[&str]) -> bool) -> String {
    let (mut text, mut paragraph, mut header) = (String::new(), String::new(), None);
    // The empty line ends the last paragraph.
    for line in lines.iter().copied().chain([""]) {
        let Some(row) = line.strip_prefix('|') else {
            header = None;
            if !line.is_empty() {
                paragraph += line;
                paragraph.push(' ');
            } else if !paragraph.is_empty() {
                text += &wrapped("  ", &plain(&paragraph));
                paragraph.clear();
            }
            continue;
        };
        let cells: Vec<&str> = row.trim_end_matches('|').split('|').map(str::trim).collect();
        match &header {
            None => header = Some(cells),
            Some(_) if cells.iter().all(|cell| cell.starts_with("---")) => {}
            Some(names) if is_wanted(&cells) => {
                text += &wrapped("  - ", &plain(cells[0]));
                let named = names.iter().zip(&cells).skip(1).filter(|(_, cell)| !cell.is_empty());
                for (name, cell) in named {
                    text += &wrapped(&format!("      {name}: "), &plain(cell));
                }
            }
            Some(_) => {}
        }
    }
    text
}

/// A text without the marks of links and anchors.
fn plain(text: &str) -> String {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, opened)) = rest.split_once(['[', '<']) {
        let is_link = rest.as_bytes()[before.len()] == b'[';
        let end = if is_link { ")" } else { ">" };
        let inside = opened.split_once(end).filter(|(inside, _)| match is_link {
            true => inside.contains("]("),
            false => inside.starts_with("a ") || *inside == "/a",
        });
        plain += before;
        rest = match inside {
            Some((inside, after)) => {
                if let (true, Some((words, target))) = (is_link, inside.split_once("](")) {
                    plain += &format!("{words} (docs/{target})");
                }
                after
            }
            None => {
                plain.push_str(&rest[before.len()..=before.len()]);
                opened
            }
        };
    }
    plain + rest
}

/// Words in lines of at most [`WIDTH`] columns; the first line begins with `first`, the others with
/// as many blanks.
fn wrapped(first: &str, words: &str) -> String {
    let indent = first.chars().count().min(19);
    let (mut out, mut line) = (String::new(), first.to_owned());
    for word in words.split_whitespace() {
        let columns = line.chars().count();
        if columns + word.chars().count() > WIDTH && columns > indent {
            out += line.trim_end();
            out.push('\n');
            line = " ".repeat(indent);
        }
        line += word;
        line.push(' ');
    }
    out += line.trim_end();
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topic_that_the_log_points_to_is_found_and_fits() {
        for topic in vernic::TOPICS {
            let text = find(topic);
            assert!(text.lines().count() >= 2, "{topic}: {text}");
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
            assert!(!text.contains("](") && !text.contains("<a "), "{text}");
        }
    }

    #[test]
    fn a_status_is_found_by_each_of_its_names() {
        let section = find("RNR_RETRY_EXC_ERR");
        assert!(section.starts_with("RNR_RETRY_EXC_ERR\n  `RnrRetryExceeded`, 13"), "{section}");
        assert!(section.contains("  - the peer posts receives too late"), "{section}");
        assert!(section.contains("      what to do: post before connecting;"), "{section}");
        for name in ["rnr-retry-exc", "IBV_WC_RNR_RETRY_EXC_ERR", "RnrRetryExceeded", "13"] {
            assert_eq!(find(name), section, "{name}");
        }
        assert!(find("REM").lines().filter(|line| line.starts_with("REM_")).count() == 4);
        assert!(find("19").starts_with("GENERAL_ERR\n"));
    }

    #[test]
    fn rows_are_found_by_errno_call_and_event() {
        let of_errno = find("EHOSTUNREACH");
        assert!(of_errno.contains("- `ibv_modify_qp`, `ibv_create_ah`\n"), "{of_errno}");
        assert!(!of_errno.contains("ENOMEM"), "{of_errno}");
        assert!(find("ibv_reg_mr").contains("errno: `EFAULT`"));
        assert!(find("rejected").contains("nobody listens on that port there"));
        assert_eq!([find("nothing of the kind"), find("")], ["", ""]);
        for section in sections() {
            assert!(list().contains(section.heading));
            assert!(!find(section.heading).is_empty());
        }
    }

    #[test]
    fn links_are_named_and_anchors_left_out() {
        let text = plain("<a id=\"x\"></a>a < b, see [how](x.md#y) [it] is");
        assert_eq!(text, "a < b, see how (docs/x.md#y) [it] is");
    }
}
