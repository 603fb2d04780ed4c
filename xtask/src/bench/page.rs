//! The generated part of BENCHMARKS.md.

use std::fmt::Write;

use super::bars::{self, Judged};
use super::programs;
use super::schema::Report;
use crate::pages::Part;

/// Where the tables stand.
pub(crate) const TABLES: Part = Part {
    page: "BENCHMARKS.md",
    begin: "<!-- figures: begin (written by `cargo xtask bench`, do not edit) -->",
    end: "<!-- figures: end -->",
};

/// The machine, the command, and the tables: bars, results, baselines, and unmodified programs.
pub(crate) fn tables(report: &Report, machine: &str, command: &str) -> String {
    let mut page = format!("Machine: {machine}.\n\nCommand: `{command}`\n\n### Bars\n\n");
    page += &bars_table(&bars::judge(report));
    page += "\n### Vernic\n\n";
    page +=
        "| operation | service | path | bytes | MTU | QPs | p50 us | p99 us | GB/s | M msg/s |\n";
    page += "|---|---|---|--:|--:|--:|--:|--:|--:|--:|\n";
    for r in &report.results {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            r.op,
            r.service,
            r.path,
            r.size_bytes,
            r.mtu_bytes.map_or(String::new(), |mtu| mtu.to_string()),
            r.qps.map_or(String::new(), |qps| qps.to_string()),
            number(r.latency_us_p50),
            number(r.latency_us_p99),
            number(r.gbytes_per_s),
            number(r.mmsg_per_s),
        );
    }
    page += "\n### Raw sockets and memory, in the same run\n\n";
    page += "| name | bytes | p50 us | GB/s |\n|---|--:|--:|--:|\n";
    for b in &report.baselines {
        let (latency, throughput) = (number(b.latency_us_p50), number(b.gbytes_per_s));
        let _ = writeln!(page, "| {} | {} | {latency} | {throughput} |", b.name, b.size_bytes);
    }
    if let Some(part) = &report.programs {
        page += "\n";
        page += &programs::tables(part);
    }
    page
}

/// Bars with what was measured for each.
pub(super) fn bars_table(judged: &[Judged]) -> String {
    let mut table = "| what | bar | measured | verdict |\n|---|---|---|---|\n".to_owned();
    for Judged { what, bar, measured, verdict } in judged {
        let _ = writeln!(table, "| {what} | {bar} | {measured} | {verdict} |");
    }
    table
}

/// Three significant digits at least, never an exponent; nothing where it does not apply.
pub(super) fn number(figure: Option<f64>) -> String {
    match figure {
        None => String::new(),
        Some(f) if f >= 100.0 => format!("{f:.0}"),
        Some(f) if f >= 10.0 => format!("{f:.1}"),
        Some(f) if f >= 0.1 => format!("{f:.2}"),
        Some(f) => format!("{f:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::SAMPLE;
    use super::*;

    #[test]
    fn fields_that_do_not_apply_stay_empty() {
        let page = tables(&Report::parse(SAMPLE).unwrap(), "a machine", "a command");
        assert!(page.contains("| WRITE | RC | udp | 8 | 4096 | 1 |  |  |  | 1.50 |"), "{page}");
    }
}
