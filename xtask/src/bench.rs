//! What `vernic bench --json` prints: checked by every test run, written into BENCHMARKS.md by
//! `cargo xtask bench`.

mod bars;
mod machine;
mod page;
mod schema;

use std::io::Read;
use std::path::Path;

use crate::Result;
use crate::shell::run;
use schema::Report;

fn bench_command(quick: bool) -> String {
    let quick = if quick { " --quick" } else { "" };
    format!("cargo run --release --quiet -p vernic-cli -- bench{quick} --json")
}

/// Runs the quick benchmark and checks that what it prints is what the schema says.
///
/// The figures themselves are not judged: a machine that runs tests is no place to measure.
pub(crate) fn check_quick() -> Result {
    let json = run(&bench_command(true)).limit_min(10).output()?;
    let report = Report::parse(&json)?;
    println!("{} results, {} baselines", report.results.len(), report.baselines.len());
    for bar in bars::judge(&report) {
        println!("{}: {}", bar.what, bar.measured);
    }
    Ok(())
}

/// Measures (or reads the JSON of an earlier measurement) and rewrites the tables of BENCHMARKS.md.
pub(crate) fn report(from: Option<&Path>, quick: bool) -> Result {
    let command = bench_command(quick);
    let json = match from {
        Some(path) if path.as_os_str() == "-" => {
            let mut json = String::new();
            std::io::stdin()
                .read_to_string(&mut json)
                .map_err(|e| format!("standard input: {e}"))?;
            json
        }
        Some(path) => {
            std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?
        }
        None => run(&command).limit_min(30).output()?,
    };
    let tables = page::tables(&Report::parse(&json)?, &machine::describe(), &command);
    page::TABLES.write(&tables)?;
    let page = page::TABLES.page;
    println!("{page} is rewritten; `git diff {page}` shows what changed");
    Ok(())
}
