//! The generated tables of conformance/README.md: which programs are run, which verbs are
//! supported.
//!
//! Programs come from the list of cases. Verbs come from the C library's own list of exports and
//! from the table of functions of its contexts; those that refuse need a reason in
//! `conformance/refused.txt`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use super::cases::{self, Case};
use super::network::Place;
use super::skips::Skips;
use crate::pages::Part;
use crate::{Result, root};

const PAGE: &str = "conformance/README.md";

const PROGRAMS: Part = Part {
    page: PAGE,
    begin: "<!-- programs: begin (written by `cargo xtask verbs`, do not edit) -->",
    end: "<!-- programs: end -->",
};

const VERBS: Part = Part {
    page: PAGE,
    begin: "<!-- verbs: begin (written by `cargo xtask verbs`, do not edit) -->",
    end: "<!-- verbs: end -->",
};

/// Verbs that are not supported, each with its reason, relative to the root.
const REFUSED: &str = "conformance/refused.txt";

/// Symbols of the C library, and what answers them.
const EXPORTS: &str = "crates/c/vernic-abi/abi/exports.txt";

/// The functions of a context, which verbs.h calls without a symbol.
const CONTEXT: &str = "crates/c/vernic-abi/src/ibverbs/context.rs";

/// Whether the page has the tables as they are.
pub(crate) fn check() -> Result {
    if PROGRAMS.is(&programs())? && VERBS.is(&verbs()?)? {
        return Ok(());
    }
    Err(format!("{PAGE}: the tables are old; run `cargo xtask verbs`"))
}

/// Rewrites the tables.
pub(crate) fn write() -> Result {
    let programs = PROGRAMS.write(&programs())?;
    let verbs = VERBS.write(&verbs()?)?;
    println!("{PAGE} {}", if programs || verbs { "is rewritten" } else { "was right" });
    Ok(())
}

/// A row per program and service: options, and cases per place.
fn programs() -> String {
    let mut rows: BTreeMap<(&str, &str), Vec<Case>> = BTreeMap::new();
    for case in cases::all() {
        rows.entry((case.program, case.service)).or_default().push(case);
    }
    let mut text = String::new();
    for place in Place::ALL {
        // Writing to a String does not fail.
        let _ = writeln!(text, "- *{}*: {}", place.name(), place.meaning());
    }
    text.push_str("\n| program | service | options | cases by place |\n|---|---|---|---|\n");
    for ((program, service), cases) in &rows {
        let mut options: Vec<String> = Vec::new();
        for case in cases {
            let line = options_of(case);
            if !options.contains(&line) {
                options.push(line);
            }
        }
        let places: Vec<String> = Place::ALL
            .iter()
            .map(|place| (place, cases.iter().filter(|case| case.place == *place).count()))
            .filter(|(_, count)| *count > 0)
            .map(|(place, count)| format!("{} {count}", place.name()))
            .collect();
        let (options, places) = (options.join(", "), places.join(", "));
        let _ = writeln!(text, "| `{program}` | {service} | {options} | {places} |");
    }
    text
}

/// What is varied: the options without the service and the number of iterations.
fn options_of(case: &Case) -> String {
    let line = case.line();
    let mut words = line.split(' ').skip(1).peekable();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        let value = words.peek().copied();
        match word {
            "-c" if value == Some(case.service) => drop(words.next()),
            "-n" => drop(words.next()),
            word => kept.push(word),
        }
    }
    if kept.is_empty() { "none".into() } else { format!("`{}`", kept.join(" ")) }
}

/// The verbs: those supported, and a row with the reason for each that is not.
fn verbs() -> Result<String> {
    let functions = functions(&text_of(EXPORTS)?, &text_of(CONTEXT)?)?;
    let reasons = Skips::read(REFUSED)?;
    let names: Vec<String> = functions.keys().cloned().collect();
    let is_supported = |name: &&String| functions[*name];
    let supported: Vec<String> = names.iter().filter(is_supported).cloned().collect();
    // A pattern may reach over functions that work, if it is needed for others.
    let refused: Vec<String> = names.iter().filter(|name| !functions[*name]).cloned().collect();
    let mut findings = reasons.rotten(&refused, &[]);
    let mut text = format!("{} functions are supported:\n\n", supported.len());
    for library in ["ibv_", "rdma_", "umad_", "r"] {
        let of_library = |name: &&String| library_of(name) == library;
        let of_library: Vec<String> =
            supported.iter().filter(of_library).map(|name| format!("`{name}`")).collect();
        if !of_library.is_empty() {
            let _ = writeln!(text, "{}.\n", of_library.join(", "));
        }
    }
    text.push_str("These refuse, with `EOPNOTSUPP`:\n\n| function | why |\n|---|---|\n");
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for name in names.iter().filter(|name| !functions[*name]) {
        let Some(entry) = reasons.find(name) else {
            findings.push(format!("{REFUSED} has no reason why `{name}` refuses"));
            continue;
        };
        match groups.iter_mut().find(|(reason, _)| *reason == entry.reason) {
            Some((_, names)) => names.push(format!("`{name}`")),
            None => groups.push((entry.reason.clone(), vec![format!("`{name}`")])),
        }
    }
    for (reason, names) in groups {
        let _ = writeln!(text, "| {} | {reason} |", names.join(", "));
    }
    if findings.is_empty() { Ok(text) } else { Err(findings.join("\n")) }
}

fn text_of(file: &str) -> Result<String> {
    fs::read_to_string(root().join(file)).map_err(|e| format!("{file}: {e}"))
}

/// The beginning of names by which a function's library is told: the rest are rsockets.
fn library_of(name: &str) -> &'static str {
    let prefixes = ["ibv_", "rdma_", "umad_"];
    prefixes.into_iter().find(|prefix| name.starts_with(prefix)).unwrap_or("r")
}

/// Every public function and whether it does what it is for.
fn functions(exports: &str, context: &str) -> Result<BTreeMap<String, bool>> {
    let mut functions = BTreeMap::new();
    for line in exports.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [symbol, version, answer] = columns[..] else { continue };
        // Private names are for rdma-core's own drivers; a leading underscore is a macro's
        // function.
        if !version.contains("PRIVATE") {
            let name = symbol.trim_start_matches('_').to_owned();
            functions.insert(name, !answer.starts_with(REFUSING));
        }
    }
    for (field, supported) in context.lines().filter_map(field) {
        let name =
            format!("ibv_{}", RENAMED.iter().find(|(f, _)| *f == field).map_or(field, |r| r.1));
        // A name that is a symbol as well is one function for its users.
        let known = functions.entry(name).or_insert(false);
        *known |= supported;
    }
    if functions.len() < 100 {
        return Err(format!("{EXPORTS} and {CONTEXT} name {} functions only", functions.len()));
    }
    Ok(functions)
}

/// Room of the C library whose functions refuse.
const REFUSING: &str = "refusal::";

/// Members of a context whose function in verbs.h has another name.
const RENAMED: [(&str, &str); 1] = [("query_rt_values", "query_rt_values_ex")];

/// A member of a context that is a function: its name, and whether there is one.
fn field(line: &str) -> Option<(&str, bool)> {
    let (name, value) = line.trim().strip_suffix(',')?.split_once(": ")?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let hidden = ["unused", "abi_", "since"].iter().any(|prefix| name.starts_with(prefix));
    match value {
        "None" if is_name && !hidden => Some((name, false)),
        value if is_name && value.starts_with("Some(") => Some((name, true)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_context_are_functions_or_missing() {
        assert_eq!(field("        open_xrcd: None,"), Some(("open_xrcd", false)));
        assert_eq!(field("   poll_cq: Some(cq::poll_cq),"), Some(("poll_cq", true)));
        for other in ["unused_2: [None; 5],", "abi_placeholder_1: None,", "private: 0,", "None,"] {
            assert_eq!(field(other), None, "{other}");
        }
    }

    #[test]
    fn a_row_shows_what_is_varied() {
        let cases = cases::all();
        let case = cases.iter().find(|case| case.options == "-c UD -m 512 -n 500").unwrap();
        assert_eq!(options_of(case), "`-m 512`");
        let case = cases.iter().find(|case| case.options == "-c UD -n 500").unwrap();
        assert_eq!(options_of(case), "none");
    }
}
