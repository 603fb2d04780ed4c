//! Which clauses of iWARP's RFCs are implemented where: `crates/core/vernic-proto/IWARP.md`.
//!
//! The source cites clauses as "RFC 5041, 7.1, 7.2; RFC 5044, 8". Here is the list of clauses
//! (`table.rs`), with what there is to say of those that nothing cites. A clause that is neither
//! cited nor explained is an error, and so is a citation of a clause that does not exist.

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use crate::pages::Part;
use crate::{Result, root};
use table::CLAUSES;

const PAGE: Part = Part {
    page: "crates/core/vernic-proto/IWARP.md",
    begin: "<!-- clauses: begin (written by `cargo xtask clauses`, do not edit) -->",
    end: "<!-- clauses: end -->",
};

/// A clause that somebody may have to implement.
struct Clause {
    rfc: u16,
    number: &'static str,
    title: &'static str,
    /// What is not implemented and why, or why nothing is to be; empty if all of it is.
    note: &'static str,
}

/// Where each clause is cited: files relative to the root.
type Citations = BTreeMap<(u16, String), BTreeSet<String>>;

/// Whether the page is what the source says.
pub(crate) fn check() -> Result {
    if PAGE.is(&render(&citations()?)?)? {
        return Ok(());
    }
    Err(format!("{}: it is not what the source cites; run `cargo xtask clauses`", PAGE.page))
}

/// Rewrites the page.
pub(crate) fn write() -> Result {
    let changed = PAGE.write(&render(&citations()?)?)?;
    println!("{} {}", PAGE.page, if changed { "is rewritten" } else { "was right" });
    Ok(())
}

fn citations() -> Result<Citations> {
    let mut found = Citations::new();
    visit(&root().join("crates"), &mut found)?;
    Ok(found)
}

fn visit(folder: &Path, found: &mut Citations) -> Result {
    let why = |e| format!("{}: {e}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(why)? {
        let path = entry.map_err(why)?.path();
        let is_test = path.components().any(|part| part.as_os_str() == "tests");
        if path.is_dir() {
            visit(&path, found)?;
        } else if path.extension().is_some_and(|ext| ext == "rs") && !is_test {
            let text = std::fs::read_to_string(&path).map_err(why)?;
            let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
            for clause in cited(&text) {
                found.entry(clause).or_default().insert(name.clone());
            }
        }
    }
    Ok(())
}

/// The clauses that a source cites.
fn cited(text: &str) -> Vec<(u16, String)> {
    let unmarked = |line: &str| line.trim().trim_start_matches(['/', '!', '#']).trim().to_owned();
    let joined = text.lines().map(unmarked).collect::<Vec<_>>().join(" ");
    let mut found = Vec::new();
    for after in joined.split("RFC ").skip(1) {
        let Some((mut rfc, mut rest)) =
            number(after).and_then(|(name, rest)| Some((self::rfc(name)?, rest)))
        else {
            continue;
        };
        while let Some(next) = rest.strip_prefix(", ").or_else(|| rest.strip_prefix(" and ")) {
            let Some((clause, behind)) = number(next) else { break };
            match self::rfc(clause) {
                Some(other) => rfc = other,
                None => found.push((rfc, clause.to_owned())),
            }
            rest = behind;
            // A paragraph's number, or a range of them.
            while let Some(paragraph) = rest.strip_prefix(" (") {
                rest = paragraph.split_once(')').map_or("", |(_, behind)| behind);
            }
        }
    }
    found
}

/// The number, as 7.1.2, at the start of a text, and what is behind it.
fn number(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].trim_end_matches('.');
    number.starts_with(|c: char| c.is_ascii_digit()).then_some((number, &text[number.len()..]))
}

/// The number of an RFC of iWARP.
fn rfc(number: &str) -> Option<u16> {
    let rfc = number.parse().ok()?;
    CLAUSES.iter().any(|clause| clause.rfc == rfc).then_some(rfc)
}

/// What is cited is known, and what is known is cited or explained.
fn judge(citations: &Citations) -> Result {
    let chapters = |clause: &str| clause.split('.').next().map(str::to_owned);
    for ((rfc, number), files) in citations {
        let of_rfc = || CLAUSES.iter().filter(|clause| clause.rfc == *rfc);
        // Chapters that are only introductions are not listed.
        let is_listed = of_rfc().any(|clause| chapters(clause.number) == chapters(number));
        if is_listed && !of_rfc().any(|clause| clause.number == number) {
            let file = files.first().map_or("", String::as_str);
            return Err(format!("{file}: RFC {rfc} has no clause {number}"));
        }
    }
    let silent =
        CLAUSES.iter().find(|clause| clause.note.is_empty() && of(clause, citations).is_empty());
    silent.map_or(Ok(()), |Clause { rfc, number, title, .. }| {
        Err(format!("RFC {rfc}, {number} ({title}) is neither cited in the source nor explained"))
    })
}

/// The files that cite a clause or a part of it.
fn of<'a>(clause: &Clause, citations: &'a Citations) -> BTreeSet<&'a str> {
    let parts = format!("{}.", clause.number);
    let cites = |(rfc, number): &(u16, String)| {
        *rfc == clause.rfc && (number == clause.number || number.starts_with(&parts))
    };
    citations
        .iter()
        .filter(|(key, _)| cites(key))
        .flat_map(|(_, files)| files)
        .map(String::as_str)
        .collect()
}

fn render(citations: &Citations) -> Result<String> {
    judge(citations)?;
    let mut text = String::new();
    let mut last = 0;
    for clause in CLAUSES {
        if clause.rfc != last {
            last = clause.rfc;
            // Writing to a String does not fail.
            let _ = write!(
                text,
                "\n### RFC {last}\n\n| clause | title | where, and what is to be said |\n|---|---|---|\n"
            );
        }
        let files = of(clause, citations);
        let links = files.iter().map(|file| {
            let (_, crate_file) = file.split_once("vernic-").unwrap_or(("", file));
            format!("[{}](../../../{file})", crate_file.replace("/src/", "/"))
        });
        let cell = links.collect::<Vec<_>>().join(", ");
        let cell = match (cell.is_empty(), clause.note) {
            (true, note) => note.to_owned(),
            (false, "") => cell,
            (false, note) => format!("{cell}. {note}"),
        };
        let _ = writeln!(text, "| {} | {} | {cell} |", clause.number, clause.title);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_are_found_over_lines_and_in_lists() {
        let text = "//! How (RFC 5040, 5.4, 6.2, 7; RFC 5041, 6.2;\n//! RFC\n//! 5044, 8).\n\
                    /// \"x\" (RFC 5041, 7.1 (1), 7.2). RFC 793, 3. RFC 5044, 6581, 5 and 9.1,
                    /// figure 3";
        let found: Vec<_> = cited(text).into_iter().map(|(rfc, c)| format!("{rfc} {c}")).collect();
        let expected = [
            "5040 5.4", "5040 6.2", "5040 7", "5041 6.2", "5044 8", "5041 7.1", "5041 7.2",
            "6581 5", "6581 9.1",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_clause_that_does_not_exist_and_one_that_nobody_mentions_are_errors() {
        let all = citations().unwrap();
        judge(&all).unwrap();
        let mut wrong = all.clone();
        wrong.insert((5040, "5.99".into()), BTreeSet::from(["x.rs".to_owned()]));
        assert_eq!(judge(&wrong).unwrap_err(), "x.rs: RFC 5040 has no clause 5.99");
        let error = judge(&Citations::new()).unwrap_err();
        assert!(error.contains("neither cited"), "{error}");
    }
}
