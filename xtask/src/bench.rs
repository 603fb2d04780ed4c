//! What `vernic bench --json` prints: checked by every test run, written into BENCHMARKS.md by
//! `cargo xtask bench` together with what unmodified programs reach.

mod bars;
mod drawing;
pub(crate) mod growth;
pub(crate) mod guest;
mod judged;
mod machine;
pub(crate) mod one_host;
mod page;
mod programs;
mod schema;

use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::shell::{Run, run};
use crate::{Result, root};
use page::Commands;
pub(crate) use programs::perftest_low_bandwidth;
use schema::Report;

/// The JSON of the last measurement, relative to the root.
const KEPT: &str = "target/bench.json";

fn bench_command(quick: bool) -> String {
    let quick = if quick { " --quick" } else { "" };
    format!("cargo run --release --quiet -p vernic-cli -- bench{quick} --json")
}

/// What goes through memory alone; without sockets beside it, which the other run has.
fn memory_command(quick: bool) -> String {
    let extent = if quick { "--quick" } else { "--rounds 3" };
    let rest = "-c rc,uc,ud --no-baselines --json";
    format!("cargo run --release --quiet -p vernic-cli -- bench {extent} {rest}")
}

/// By UDP.
fn wire_bench(quick: bool) -> Run {
    run(&bench_command(quick)).env("VERNIC_SAME_HOST", "off")
}

/// Runs the quick benchmark and checks that what it prints is what the schema says.
///
/// The figures themselves are not judged: a machine that runs tests is no place to measure.
pub(crate) fn check_quick() -> Result {
    let json = wire_bench(true).limit_min(10).output()?;
    let report = Report::parse(&json)?;
    println!("{} results, {} baselines", report.results.len(), report.baselines.len());
    for bar in bars::judge(&report) {
        println!("{}: {}", bar.what, bar.measured);
    }
    Ok(())
}

/// Measures (or reads the JSON of an earlier measurement) and rewrites the tables of BENCHMARKS.md.
pub(crate) fn report(from: Option<&Path>, quick: bool) -> Result {
    let json = match from {
        Some(path) => read(path)?,
        None => measure(quick)?,
    };
    let report = Report::parse(&json)?;
    let machine = report.machine.clone().unwrap_or_else(machine::describe);
    let (wire, memory) =
        (format!("VERNIC_SAME_HOST=off {}", bench_command(quick)), memory_command(quick));
    let commands = Commands { wire: &wire, memory: &memory };
    if let Some(programs) = &report.one_host {
        one_host::write(&machine, programs)?;
    }
    let others = page::bars_elsewhere(&page::TABLES.whole()?);
    page::TABLES.write(&page::tables(&report, &machine, &commands, others))?;
    if let Some(programs) = &report.programs {
        programs.draw()?;
    }
    let page = page::TABLES.page;
    println!("{page} is rewritten; `git diff {page}` shows what changed");
    Ok(())
}

/// The text of a file, or of standard input ("-").
fn read(from: &Path) -> Result<String> {
    if from.as_os_str() == "-" {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        return read.map(|_| text).map_err(|e| format!("standard input: {e}"));
    }
    std::fs::read_to_string(from).map_err(|e| format!("{}: {e}", from.display()))
}

/// Runs `vernic bench` and then the programs, and keeps the JSON of both.
fn measure(quick: bool) -> Result<String> {
    let json = wire_bench(quick).limit_min(30).output()?;
    Report::parse(&json)?;
    let memory = run(&memory_command(quick)).limit_min(10).output()?;
    let setup = programs::Setup::prepare(quick)?;
    let machine = machine::describe();
    let programs = programs::measure(&setup);
    // Last, since this process then leaves the machine's network.
    let one_host = programs::one_host::measure(&setup, None);
    let whole = with_more(&json, &memory, &programs, &one_host, &machine)?;
    let keep = |e| format!("{KEPT}: {e}");
    std::fs::write(root().join(KEPT), &whole).map_err(keep)?;
    println!("the readings are kept in {KEPT}; `cargo xtask bench --from {KEPT}` reads them again");
    Ok(whole)
}

/// The JSON of `vernic bench` with the results of that which went through memory, and what was
/// measured beside it.
fn with_more(
    json: &str,
    memory: &str,
    programs: &programs::Programs,
    one_host: &programs::Programs,
    machine: &str,
) -> Result<String> {
    let wrong = |e| format!("not JSON: {e}");
    let mut whole: Value = serde_json::from_str(json).map_err(wrong)?;
    let mut memory: Value = serde_json::from_str(memory).map_err(wrong)?;
    whole["same_host"] = memory["results"].take();
    whole["programs"] = serde_json::to_value(programs).map_err(wrong)?;
    whole["one_host"] = serde_json::to_value(one_host).map_err(wrong)?;
    whole["machine"] = machine.into();
    serde_json::to_string_pretty(&whole).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::schema::tests::SAMPLE;
    use super::*;

    #[test]
    fn what_is_kept_is_read_again() {
        let programs: programs::Programs = serde_json::from_str(
            r#"{"cores": "any", "series": [{"name": "iperf3", "command": "iperf3",
                "unit": "GB/s", "readings": [4.0, 4.5, 5.0], "failure": null}]}"#,
        )
        .unwrap();
        let memory = SAMPLE.replace("\"udp\"", "\"memory\"");
        let kept = with_more(SAMPLE, &memory, &programs, &programs, "a machine").unwrap();
        let report = Report::parse(&kept).unwrap();
        assert_eq!((report.results.len(), report.same_host.len()), (3, 3));
        assert_eq!(report.one_host.as_ref().map(|part| part.series.len()), Some(1));
        assert_eq!(report.machine.as_deref(), Some("a machine"));
        let commands = Commands { wire: "a command", memory: "another" };
        let page = page::tables(&report, "a machine", &commands, Vec::new());
        assert!(page.contains("| WRITE | RC | memory | 8 | 4096 | 1 |"), "{page}");
        assert!(page.contains("| iperf3 | 4.50 | 4.00 | 5.00 | GB/s |"), "{page}");
        let last = kept.rfind("4.5").unwrap();
        assert!(Report::parse(&kept.replacen("4.5", "0.0", 1)).is_err());
        assert!(Report::parse(&(kept[..last].to_owned() + "0.0" + &kept[last + 3..])).is_err());
    }
}
