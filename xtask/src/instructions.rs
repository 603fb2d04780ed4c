//! What messages cost in instructions of user space, and that it grows only on purpose.
//!
//! `crates/api/vernic/examples/instructions.rs` does the work, both ends in one thread; callgrind
//! counts what is executed in the function that does it. Two runs of different lengths give what
//! one message adds. The kernel's part is not counted, and how often a poll finds nothing yet is a
//! matter of luck: so the least of some attempts of each is taken. Unlike times, these figures are
//! the same on a busy machine.
//!
//! The figures that hold are those in docs/benchmark-instructions.md. More than [`TOLERANCE`] above
//! is an error.

use std::fmt::Write as _;

use crate::pages::Part;
use crate::shell::run;
use crate::{Result, target, tools};

/// The way that messages take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Wire,
    Memory,
}

/// What is measured: the name in the table, the work as the program calls it, and the way.
#[rustfmt::skip] // a table reads best one row a line
const ROWS: &[(&str, &str, Way)] = &[
    ("WRITE 8 B, lists of 16",           "write_8_list", Way::Wire),
    ("WRITE 8 B",                        "write_8",      Way::Wire),
    ("WRITE 64 KiB",                     "write_64k",    Way::Wire),
    ("READ 8 B, lists of 16",            "read_8_list",  Way::Wire),
    ("READ 8 B",                         "read_8",       Way::Wire),
    ("READ 64 KiB",                      "read_64k",     Way::Wire),
    ("FETCH_ADD",                        "fetch_add",    Way::Wire),
    ("SEND 64 B",                        "send_64",      Way::Wire),
    ("SEND 64 KiB",                      "send_64k",     Way::Wire),
    ("SEND 8 B, lists of 16, by memory", "send_8_list",  Way::Memory),
    ("SEND 64 B, by memory",             "send_64",      Way::Memory),
];

/// Messages of the shorter and the longer run.
const MESSAGES: [u64; 2] = [320, 1600];
/// Attempts of which the least counts, or the first that is small enough.
const ATTEMPTS: usize = 9;
/// So many times the figure in the table may be reached.
const TOLERANCE: f64 = 1.05;
/// The same where another compiler made that figure.
const OTHER_COMPILER: f64 = 1.15;
/// Below this many times the figure in the table, the table is out of date.
const GAIN: f64 = 0.95;

const PART: Part = Part {
    page: "docs/benchmark-instructions.md",
    begin: "<!-- instructions: begin (written by `cargo xtask instructions --write`, do not edit) -->",
    end: "<!-- instructions: end -->",
};

/// Compares with the table; fails if a message costs more than it did.
pub(crate) fn check() -> Result {
    let table = Table::parse(&PART.read()?);
    let compiler = compiler()?;
    let tolerance = if table.compiler == compiler { TOLERANCE } else { OTHER_COMPILER };
    if table.compiler != compiler {
        println!(
            "the table is by rustc {}, this is {compiler}: up to {OTHER_COMPILER} x passes",
            table.compiler
        );
    }
    let program = build()?;
    let mut grown = String::new();
    for &(name, work, way) in ROWS {
        let held = table.figure(name).ok_or_else(|| {
            format!("{} has no row `{name}`: cargo xtask instructions --write", PART.page)
        })?;
        let most = held as f64 * tolerance;
        let now = measure(&program, (work, way), most as u64)?;
        let ratio = now as f64 / held as f64;
        println!("{name:<32} {now:>8} instructions, {ratio:.2} x the {held} of the table");
        if now as f64 > most {
            let _ = write!(grown, "\n  {name}: {now} instructions, {ratio:.2} x {held}");
        } else if ratio < GAIN {
            println!("  (better: `cargo xtask instructions --write` keeps it)");
        }
    }
    if grown.is_empty() {
        return Ok(());
    }
    Err(format!(
        "messages cost more than {} says:{grown}\n  callgrind_annotate shows where (TESTING.md); if it must be, \
         `cargo xtask instructions --write` and say why in the commit",
        PART.page
    ))
}

/// Measures all, and rewrites the table.
pub(crate) fn write() -> Result {
    let program = build()?;
    let mut table = Table { compiler: compiler()?, rows: Vec::new() };
    for &(name, work, way) in ROWS {
        // Nothing is small enough to end the attempts early.
        let figure = measure(&program, (work, way), 0)?;
        println!("{name:<32} {figure:>8} instructions");
        table.rows.push((name.to_owned(), figure));
    }
    PART.write(&table.render()).map(drop)
}

fn compiler() -> Result<String> {
    let version = run("rustc --version").output()?;
    Ok(version.split_whitespace().nth(1).unwrap_or_default().to_owned())
}

/// The program, built; and callgrind, installed.
fn build() -> Result<String> {
    tools::install(tools::VALGRIND)?;
    // Of the whole workspace, whose features other steps have built.
    run("cargo build --release --workspace --example instructions").limit_min(20).go()?;
    Ok(target().join("release/examples/instructions").display().to_string())
}

/// Instructions that one more message takes, by the least of each run's attempts. They end once it
/// is not above `enough`.
fn measure(program: &str, work: (&str, Way), enough: u64) -> Result<u64> {
    let [short, long] = MESSAGES;
    let (mut few, mut many) = (u64::MAX, u64::MAX);
    let mut each = u64::MAX;
    for _ in 0..ATTEMPTS {
        few = few.min(count(program, work, short)?);
        many = many.min(count(program, work, long)?);
        each = many.saturating_sub(few) / (long - short);
        if each <= enough {
            break;
        }
    }
    Ok(each)
}

/// Instructions of a whole run.
fn count(program: &str, (work, way): (&str, Way), messages: u64) -> Result<u64> {
    const COUNT: &str = "valgrind --tool=callgrind --callgrind-out-file=/dev/null --log-fd=1 \
                         --toggle-collect=instructions::measured";
    let output = run(COUNT)
        .arg(program)
        .arg(work)
        .arg(messages.to_string())
        .env("VERNIC_FORCE_WIRE", if way == Way::Wire { "1" } else { "0" })
        // The background thread is not counted, so it must not do the work, however slow this is.
        .env("VERNIC_TAKEOVER_US", "10000000")
        .limit_min(2)
        .output()?;
    let collected = output.lines().find_map(|line| line.split_once("Collected :"));
    let count = collected.and_then(|(_, count)| count.trim().parse().ok());
    count.ok_or_else(|| format!("callgrind did not say what it counted:\n{output}"))
}

/// The table between the marks.
#[derive(Debug, PartialEq, Eq)]
struct Table {
    compiler: String,
    rows: Vec<(String, u64)>,
}

impl Table {
    fn figure(&self, name: &str) -> Option<u64> {
        self.rows.iter().find(|(row, _)| row == name).map(|(_, figure)| *figure)
    }

    fn render(&self) -> String {
        let mut text = format!(
            "rustc {}, loopback over UDP unless said otherwise.\n\n| message | instructions, both ends |\n|---|--:|\n",
            self.compiler
        );
        for (name, figure) in &self.rows {
            let _ = writeln!(text, "| {name} | {figure} |");
        }
        text
    }

    fn parse(text: &str) -> Self {
        let compiler = text.trim().strip_prefix("rustc ").and_then(|rest| rest.split(',').next());
        let row = |line: &str| {
            let mut cells = line.trim_matches(['|', ' ']).split('|').map(str::trim);
            Some((cells.next()?.to_owned(), cells.next()?.parse().ok()?))
        };
        Self {
            compiler: compiler.unwrap_or_default().to_owned(),
            rows: text.lines().filter_map(row).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_was_written_reads_the_same() {
        let rows = vec![("WRITE 8 B".to_owned(), 3843), ("READ 8 B".to_owned(), 12)];
        let table = Table { compiler: "1.95.0".into(), rows };
        assert_eq!(Table::parse(&table.render()), table);
    }

    #[test]
    fn the_page_has_every_row() {
        let table = Table::parse(&PART.read().unwrap());
        for (name, ..) in ROWS {
            assert!(table.figure(name).is_some(), "{name}");
        }
    }
}
