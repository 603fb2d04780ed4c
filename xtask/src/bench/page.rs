//! The generated part of BENCHMARKS.md.

use std::fmt::Write;

use super::bars;
use super::judged::{Judged, number};
use super::programs;
use super::schema::{Measured, Report};
use crate::pages::Part;

/// Where the tables stand.
pub(crate) const TABLES: Part = Part {
    page: "BENCHMARKS.md",
    begin: "<!-- figures: begin (written by `cargo xtask bench`, do not edit) -->",
    end: "<!-- figures: end -->",
};

/// How `vernic bench` was run: by the wire, and through memory.
pub(crate) struct Commands<'a> {
    pub(crate) wire: &'a str,
    pub(crate) memory: &'a str,
}

/// The machine, the commands, and the tables: bars, those that `others` of the page have among
/// them, results, baselines, and unmodified programs.
pub(crate) fn tables(
    report: &Report,
    machine: &str,
    commands: &Commands<'_>,
    others: Vec<Judged>,
) -> String {
    let Commands { wire, memory } = commands;
    let mut judged = report.programs.as_ref().map(programs::judge).unwrap_or_default();
    judged.extend(others);
    judged.extend(bars::judge(report));
    let mut page = format!("Machine: {machine}.\n\nCommands: `{wire}`");
    if !report.same_host.is_empty() {
        let _ = write!(page, ", `{memory}`");
    }
    page += ", and those of the tables.\n\n### Bars\n\n";
    page += &bars_table(&judged);
    page += "\n### Vernic, by the wire\n\n";
    page += &results_table(&report.results);
    if !report.same_host.is_empty() {
        page += "\n### Vernic, same host\n\n";
        page += &results_table(&report.same_host);
    }
    page += "\n### Raw sockets and memory, in the same run as the wire\n\n";
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

fn results_table(results: &[Measured]) -> String {
    let mut table =
        "| operation | service | path | bytes | MTU | QPs | p50 us | p99 us | GB/s | M msg/s |\n"
            .to_owned();
    table += "|---|---|---|--:|--:|--:|--:|--:|--:|--:|\n";
    for r in results {
        let _ = writeln!(
            table,
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
    table
}

/// Bars with what was measured for each.
pub(super) fn bars_table(judged: &[Judged]) -> String {
    let mut table = BARS_HEAD.to_owned();
    for Judged { what, bar, measured, verdict } in judged {
        let _ = writeln!(table, "| {what} | {bar} | {measured} | {verdict} |");
    }
    table
}

const BARS_HEAD: &str = "| what | bar | measured | verdict |\n|---|---|---|---|\n";

/// The bars in the generated parts of a page that other commands write.
pub(super) fn bars_elsewhere(page: &str) -> Vec<Judged> {
    let parts = page.split("<!-- ").skip(1);
    let others = parts.filter(|part| !part.starts_with("figures:") && part.contains(": begin "));
    let heads = [BARS_HEAD, programs::one_host::BARS_HEAD];
    let tables = others.filter_map(|part| heads.iter().find_map(|head| part.split_once(head)));
    tables.flat_map(|(_, table)| table.lines().map_while(judged_row)).collect()
}

fn judged_row(row: &str) -> Option<Judged> {
    let cells: Vec<&str> = row.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
    let (what, bar, measured, verdict) = match cells[..] {
        [what, bar, measured, verdict] => (what, bar, measured.to_owned(), verdict),
        [what, bar, measured, "", verdict] => (what, bar, measured.to_owned(), verdict),
        [what, bar, measured, beside, verdict] => {
            (what, bar, format!("{measured}; {beside}"), verdict)
        }
        _ => return None,
    };
    Some(Judged { what: what.into(), bar: bar.into(), measured, verdict: verdict.into() })
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::SAMPLE;
    use super::*;

    #[test]
    fn fields_that_do_not_apply_stay_empty() {
        let commands = Commands { wire: "a command", memory: "another" };
        let report = Report::parse(SAMPLE).unwrap();
        let page = tables(&report, "a machine", &commands, Vec::new());
        assert!(page.contains("| WRITE | RC | udp | 8 | 4096 | 1 |  |  |  | 1.50 |"), "{page}");
        assert!(!page.contains("another") && !page.contains("same host"), "{page}");
    }

    #[test]
    fn bars_of_other_parts_are_found_and_stand_with_all() {
        let row = "| many queue pairs | at least 0.7 x one | 0.75 x | reached |";
        let page = format!(
            "{}\n{BARS_HEAD}| this | is | its | own |\n{}\n{BARS_HEAD}| by | hand | 1 x | short |\n\
             <!-- growth: begin (written) -->\n\n{BARS_HEAD}{row}\n\n| 1 | 2 | 3 | 4 |\n<!-- growth: end -->\n",
            TABLES.begin, TABLES.end
        );
        let judged = bars_elsewhere(&page);
        let whats: Vec<_> = judged.iter().map(|judged| judged.what.as_str()).collect();
        assert_eq!(whats, ["many queue pairs"]);
        let head = programs::one_host::BARS_HEAD;
        let part = format!(
            "<!-- one host: begin (written) -->\n\n{head}| a | at least 1 x b | 2 us, 1 to 3 | \
             b 4: 0.50 x | short |\n| c | at least 1 us | 2 us, 1 to 3 |  | reached |\n\n| 1 |\n"
        );
        let measured: Vec<_> = bars_elsewhere(&part).into_iter().map(|j| j.measured).collect();
        assert_eq!(measured, ["2 us, 1 to 3; b 4: 0.50 x", "2 us, 1 to 3"]);
        let commands = Commands { wire: "a command", memory: "another" };
        let report = Report::parse(SAMPLE).unwrap();
        assert!(tables(&report, "a machine", &commands, judged).contains(row));
    }
}
