//! The lives in ARCHITECTURE.md are what the code does: the order in which it enters functions.
//!
//! `crates/api/vernic/examples/lives.rs` goes through each life once. gdb records when the program
//! first enters each function that a table names (`tools/lives/trace.py`). Read from the first row
//! to the last, the column "where" must be that record. A function that is not entered, or earlier
//! than the table has it, is an error; so is a name that is no function.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use crate::plan::Done;
use crate::shell::run;
use crate::{Result, root, target, tools};

const PAGE: &str = "ARCHITECTURE.md";
/// Where the program begins to be watched.
const BEGINS: &str = "life_begins";

/// A life: the section of the page, the argument of the program, settings.
type Life = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const LIVES: &[Life] = &[
    ("Life of an RC WRITE by the wire", "wire", &[("VERNIC_FORCE_WIRE", "1"), ALONE]),
    ("Life of an RC WRITE within one host", "memory", &[ALONE]),
    ("Life of a connection", "connection", &[]),
];

/// The background thread leaves the work to the thread that posts and polls, however slow the
/// debugger makes it, so that there is one order.
const ALONE: (&str, &str) = ("VERNIC_TAKEOVER_US", "10000000");

/// Attempts of which one must be as the page tells it: on a busy machine a timer of the protocol
/// may come due in between.
const ATTEMPTS: usize = 5;

/// Compares each life with its record.
pub(crate) fn check() -> Result<Done> {
    tools::install(&[
        ("gdb", &["gdb", "--version"], "gdb"),
        ("nm", &["nm", "--version"], "binutils"),
    ])?;
    run("cargo build --profile trace -p vernic --example lives").limit_min(20).go()?;
    let program = target().join("trace/examples/lives").display().to_string();
    let functions = Functions::of(&program)?;
    let page = std::fs::read_to_string(root().join(PAGE)).map_err(|e| format!("{PAGE}: {e}"))?;
    let mut wrong = String::new();
    for (section, life, settings) in LIVES {
        let told = told(&page, section)?;
        let symbols = functions.symbols(&told)?;
        let mut found = None;
        for _ in 0..ATTEMPTS {
            let Some(entered) = record(&program, life, settings, &symbols)? else {
                return Ok(Done::Skipped("a debugger may not trace programs here".into()));
            };
            found = difference(&told, &entered);
            if found.is_none() {
                break;
            }
        }
        match found {
            None => println!("{section}: {} functions, in the order of the page", told.len()),
            Some(difference) => _ = write!(wrong, "\n  {section}: {difference}"),
        }
    }
    if wrong.is_empty() { Ok(Done::Passed) } else { Err(format!("{PAGE} is not true:{wrong}")) }
}

/// The functions that a section's table names in its column "where", each once.
fn told(page: &str, section: &str) -> Result<Vec<String>> {
    let title = format!("\n## {section}\n");
    let (_, rest) = page.split_once(&title).ok_or_else(|| format!("{PAGE} has no `{section}`"))?;
    let text = rest.split_once("\n## ").map_or(rest, |(text, _)| text);
    let mut names: Vec<String> = Vec::new();
    for row in text.lines().filter(|line| line.starts_with("| ")) {
        let cell = row.split('|').nth(2).unwrap_or_default();
        for name in cell.split('`').skip(1).step_by(2) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
    }
    Ok(names)
}

/// Functions that background threads enter, while the thread that posts and polls goes on: these
/// have their order, and all others have theirs.
const IN_BACKGROUND: [&str; 3] =
    ["LaneState::decide_grant", "Memory::grant", "LaneState::accept_offer"];

/// Where the table and the record part, if they do.
fn difference(told: &[String], entered: &[String]) -> Option<String> {
    if let Some(name) = told.iter().find(|name| !entered.contains(name)) {
        return Some(format!("`{name}` is not entered"));
    }
    let parted = [true, false].into_iter().find_map(|in_background| {
        let is_of = |name: &&String| IN_BACKGROUND.contains(&name.as_str()) == in_background;
        let [told, entered] = [told, entered].map(|names| names.iter().filter(is_of));
        told.zip(entered).find(|(told, entered)| told != entered)
    });
    parted.map(|(told, found)| {
        let order = entered.join("\n    ");
        format!(
            "where the page has `{told}`, `{found}` is entered; the whole order is\n    {order}"
        )
    })
}

/// Runs a life under gdb and returns the names of `symbols` in the order in which they are first
/// entered; `None` where the system forbids tracing.
fn record(
    program: &str,
    life: &str,
    settings: &[(&str, &str)],
    symbols: &str,
) -> Result<Option<Vec<String>>> {
    let list = PathBuf::from(format!("{program}.{life}"));
    std::fs::write(&list, symbols).map_err(|e| format!("{}: {e}", list.display()))?;
    let gdb = run("gdb -q -batch -nx -x tools/lives/trace.py --args").arg(program).arg(life);
    let gdb = settings.iter().fold(gdb, |gdb, (name, value)| gdb.env(name, value));
    let output = gdb.env("LIVES_SYMBOLS", &list.display().to_string()).limit_min(5).output()?;
    if output.lines().any(|line| line == "forbidden") {
        return Ok(None);
    }
    if !output.lines().any(|line| line == "exit 0") {
        return Err(format!("`lives {life}` did not end well under gdb:\n{output}"));
    }
    let mut names: Vec<String> = Vec::new();
    for name in output.lines().filter_map(|line| line.strip_prefix("entered ")) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    Ok(Some(names))
}

/// The functions of a program, by the last two words of their paths: type or module, and function.
struct Functions(HashMap<(String, String), Vec<Function>>);

struct Function {
    /// The crate that defines it, if its path says so.
    home: String,
    symbol: String,
}

impl Functions {
    fn of(program: &str) -> Result<Self> {
        // Both lists are in the order of the file.
        let list =
            |how: &str| run(&format!("nm --defined-only --no-sort {how}")).arg(program).output();
        let (symbols, paths) = (list("")?, list("--demangle")?);
        let mut functions = HashMap::<_, Vec<Function>>::new();
        for (symbol, path) in symbols.lines().zip(paths.lines()) {
            let [symbol, path] = [symbol, path].map(|line| line.splitn(3, ' ').nth(2));
            let (Some(symbol), Some(path)) = (symbol, path) else { continue };
            for (home, owner, name) in owners(path) {
                let function = Function { home, symbol: symbol.to_owned() };
                functions.entry((owner, name)).or_default().push(function);
            }
        }
        Ok(Self(functions))
    }

    /// The lines for the tracer: each name with each symbol that has it.
    fn symbols(&self, names: &[String]) -> Result<String> {
        let mut lines = String::new();
        for name in names.iter().map(String::as_str).chain(["lives::life_begins"]) {
            let words: Vec<&str> = name.split("::").collect();
            let [home @ .., owner, function] = words.as_slice() else {
                return Err(format!("{PAGE}: `{name}` does not say of what"));
            };
            let key = ((*owner).to_owned(), (*function).to_owned());
            let found = self.0.get(&key).map_or(&[][..], Vec::as_slice);
            let is_named = |f: &&Function| home.first().is_none_or(|home| f.home == *home);
            let shown = if *function == BEGINS { BEGINS } else { name };
            let before = lines.len();
            for Function { symbol, .. } in found.iter().filter(is_named) {
                let _ = writeln!(lines, "{shown} {symbol}");
            }
            if lines.len() == before {
                return Err(format!("{PAGE}: there is no function `{name}`"));
            }
        }
        Ok(lines)
    }
}

/// The names that a demangled path goes by: crate, type or module or trait, function. A method of a
/// trait goes by its type and by the trait. Closures go by none.
fn owners(path: &str) -> Vec<(String, String, String)> {
    // Some versions of nm leave the hash of the compiler at the end.
    let is_hash = |word: &str| word.len() == 16 && word.bytes().all(|c| c.is_ascii_hexdigit());
    let path = path.rsplit_once("::h").filter(|(_, hash)| is_hash(hash)).map_or(path, |(p, _)| p);
    if path.contains("{{") || !path.contains("::") {
        return Vec::new();
    }
    let (owner, name) = path.rsplit_once("::").unwrap_or_default();
    let home = |path: &str| {
        let start = path.find(|c: char| c.is_alphanumeric()).unwrap_or(0);
        let path = &path[start..];
        path.split("::").next().unwrap_or_default().to_owned()
    };
    // "<Type as Trait>", "module::<impl Trait for Type>", "module::<impl Type>", "path::Type<S>".
    let whole = owner.strip_prefix('<').and_then(|o| o.strip_suffix('>'));
    let inner = owner.split_once("<impl ").and_then(|(_, o)| o.strip_suffix('>'));
    let types: Vec<&str> = match (whole, inner) {
        (Some(pair), _) => pair.split(" as ").collect(),
        (None, Some(pair)) => pair.split(" for ").collect(),
        (None, None) => vec![owner],
    };
    let last = |path: &str| {
        let plain = path.split('<').next().unwrap_or_default();
        plain.trim_end_matches("::").rsplit("::").next().unwrap_or_default().to_owned()
    };
    types.into_iter().map(|of| (home(of), last(of), name.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(path: &str) -> Vec<String> {
        owners(path).into_iter().map(|(home, owner, name)| [home, owner, name].join(" ")).collect()
    }

    #[test]
    fn a_function_goes_by_its_type_its_trait_or_its_module() {
        assert_eq!(named("a::b::handle::h0123456789abcdef"), ["a b handle"]);
        assert_eq!(named("a::qp::Qp<S,a::qp::Rts>::post::h0123456789abcdef"), ["a Qp post"]);
        assert_eq!(named("a::x::<impl a::qp::Qp<S>>::post::h0123456789abcdef"), ["a Qp post"]);
        assert_eq!(
            named("<a::Udp as b::Link>::send::h0123456789abcdef"),
            ["a Udp send", "b Link send"]
        );
        assert!(named("a::b::{{closure}}::h0123456789abcdef").is_empty());
    }

    #[test]
    fn the_page_is_read_row_by_row_and_a_name_counts_once() {
        let page = "\n## L\n\n| step | where | what |\n|---|---|---|\n| 1 | `A::b`, `C::d` | `E::f` |\n\
                    | 2 | `A::b`, `G::h` | |\n\n## M\n| 1 | `X::y` | |\n";
        assert_eq!(told(page, "L").unwrap(), ["A::b", "C::d", "G::h"]);
        assert!(told(page, "N").is_err());
    }

    #[test]
    fn a_function_out_of_order_or_never_entered_is_found() {
        let names = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(difference(&names("a b"), &names("a b")), None);
        assert!(difference(&names("a b"), &names("b a")).unwrap().contains("has `a`, `b`"));
        assert!(difference(&names("a b"), &names("b")).unwrap().contains("`a` is not entered"));
    }

    #[test]
    fn background_threads_have_an_order_of_their_own() {
        let [first, last] = [IN_BACKGROUND[0], IN_BACKGROUND[2]];
        let names = |all: [&str; 4]| all.map(str::to_owned);
        let told = names([first, "a", last, "b"]);
        for entered in [[first, last, "a", "b"], ["a", "b", first, last], [first, "a", last, "b"]] {
            assert_eq!(difference(&told, &names(entered)), None);
        }
        assert!(difference(&told, &names([last, "a", first, "b"])).is_some());
        assert!(difference(&told, &names([first, "b", last, "a"])).is_some());
    }
}
