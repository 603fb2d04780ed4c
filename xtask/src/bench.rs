//! What `vernic bench --json` prints: checked by every test run, kept by `cargo xtask bench`
//! together with what unmodified programs reach, and written into BENCHMARKS.md and docs/.
//!
//! | file | owns |
//! |---|---|
//! | `programs`, `guest`, `growth`, `one_host`, `machine` | measuring |
//! | `schema`, `readings`, `kept` | what is kept of it, in charts/readings |
//! | `bars`, `judged`, `reasons` | the bars, whether they are reached, why they are short |
//! | `headline`, `page`, `drawing` | the first table, the pages, the charts |

mod bars;
mod drawing;
mod growth;
mod guest;
mod headline;
mod judged;
mod kept;
mod machine;
mod one_host;
mod page;
mod programs;
mod readings;
mod reasons;
mod schema;

use std::path::Path;

use serde_json::Value;

use crate::Result;
use crate::shell::{Run, run};
pub(crate) use programs::perftest_low_bandwidth;
use schema::Report;

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

/// Measures (or reads the JSON of an earlier measurement), and writes the pages and charts.
pub(crate) fn report(from: Option<&Path>, quick: bool) -> Result {
    match from {
        Some(path) => kept::keep_whole(&readings::from(path)?)?,
        None => measure(quick)?,
    }
    page::write()
}

/// Measures what many queue pairs, peers and regions cost, and writes the pages and charts.
pub(crate) fn report_growth() -> Result {
    growth::take()?;
    page::write()
}

/// Measures Vernic beside the kernel's drivers, in a guest, and writes the pages and charts.
pub(crate) fn report_guest(from: Option<&Path>, quick: bool) -> Result {
    guest::take(from, quick)?;
    page::write()
}

/// Measures traffic within one host, and writes the pages and charts.
pub(crate) fn report_one_host(from: Option<&Path>, quick: bool, rounds: Option<usize>) -> Result {
    one_host::take(from, quick, rounds)?;
    page::write()
}

/// Runs `vernic bench` and then the programs, and keeps the JSON of both.
fn measure(quick: bool) -> Result {
    let json = wire_bench(quick).limit_min(30).output()?;
    Report::parse(&json)?;
    let memory = run(&memory_command(quick)).limit_min(10).output()?;
    let setup = programs::Setup::prepare(quick)?;
    let machine = machine::describe();
    let programs = programs::measure(&setup);
    kept::keep_whole(&with_more(&json, &memory, &programs, &machine)?)?;
    // Last, since this process then leaves the machine's network.
    let programs = programs::one_host::measure(&setup, None);
    one_host::keep(&one_host::Report { machine, programs })
}

/// The JSON of `vernic bench` with the results of that which went through memory, and what was
/// measured beside it.
fn with_more(
    json: &str,
    memory: &str,
    programs: &programs::Programs,
    machine: &str,
) -> Result<String> {
    let wrong = |e| format!("not JSON: {e}");
    let mut whole: Value = serde_json::from_str(json).map_err(wrong)?;
    let mut memory: Value = serde_json::from_str(memory).map_err(wrong)?;
    whole["same_host"] = memory["results"].take();
    whole["programs"] = serde_json::to_value(programs).map_err(wrong)?;
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
        let kept = with_more(SAMPLE, &memory, &programs, "a machine").unwrap();
        let report = Report::parse(&kept).unwrap();
        assert_eq!((report.results.len(), report.same_host.len()), (3, 3));
        assert_eq!(report.same_host[0].path, "memory");
        assert_eq!(report.machine.as_deref(), Some("a machine"));
        assert_eq!(report.programs.unwrap().median("iperf3"), Some(4.5));
        let last = kept.rfind("4.5").unwrap();
        assert!(Report::parse(&kept.replacen("4.5", "0.0", 1)).is_err());
        assert!(Report::parse(&(kept[..last].to_owned() + "0.0" + &kept[last + 3..])).is_err());
    }
}
