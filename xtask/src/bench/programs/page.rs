//! Tables of what unmodified programs reached.

use std::fmt::Write;

use super::super::judged::{cell, number};
use super::series::{Programs, Series};
use super::sweep::{Chart, Curve, Point};
use super::table::ENTRIES;
use super::work::Entry;

/// The same work through libibverbs and through the Rust API. All but the loops of calls are two
/// programs, each with a loop of its own around the calls, so their ratios tell more than the C
/// ABI.
const COMPARED: &[(&str, &str)] = &[
    ("calls of C, lists of 16", "calls of Rust, lists of 16"),
    ("calls of C, one by one", "calls of Rust, one by one"),
    ("instructions of C", "instructions of Rust"),
    ("ib_write_bw 1 MiB, MTU 4096", "Rust API, WRITE 1 MiB, MTU 4096"),
    ("ib_write_bw 8 B, lists of 16", "Rust API, WRITE 8 B, lists of 16"),
    ("ib_send_bw 64 B, lists of 16", "Rust API, SEND 64 B, lists of 16"),
    ("ib_send_lat 8 B", "Rust API, SEND 8 B, latency"),
];

/// The C ABI beside the Rust API.
pub(crate) fn api_table(programs: &Programs) -> String {
    let mut table =
        "| libibverbs | Rust API | unit | libibverbs by Rust API |\n|---|---|---|--:|\n".to_owned();
    for (c, rust) in COMPARED {
        let ratio = programs.ratio(c, rust).map_or("not measured".into(), |r| format!("{r:.2} x"));
        let _ = writeln!(table, "| {c} | {rust} | {} | {ratio} |", programs.unit(c));
    }
    table
}

/// The figures of all rounds of a whole run.
pub(crate) fn table(programs: &Programs) -> String {
    readings_table(programs, ENTRIES)
}

/// The figures of all rounds; `entries` know what each stands beside.
pub(super) fn readings_table(programs: &Programs, entries: &[Entry]) -> String {
    let mut table = "| what | median | lowest | highest | unit | beside |\n".to_owned();
    table += "|---|--:|--:|--:|---|---|\n";
    for series in &programs.series {
        let entry = entries.iter().find(|entry| entry.name == series.name);
        let beside = entry.and_then(|entry| entry.beside);
        let _ = writeln!(table, "{}", row(programs, series, beside));
    }
    table
}

/// The figures behind a chart; nothing where nothing was measured.
pub(crate) fn curves_table(chart: Chart, curves: &[Curve]) -> String {
    let curves: Vec<&Curve> = curves.iter().filter(|curve| curve.chart == chart).collect();
    let mut xs: Vec<u64> = curves.iter().flat_map(|c| c.points.iter().map(|p| p.x)).collect();
    xs.sort_unstable();
    xs.dedup();
    if xs.is_empty() {
        return String::new();
    }
    let (x, y) = chart.axes();
    let mut table = format!("| {y} at {x} |");
    xs.iter().for_each(|x| table += &format!(" {x} |"));
    table += "\n|---|";
    xs.iter().for_each(|_| table += "--:|");
    table.push('\n');
    for Curve { name, points, failure, .. } in curves {
        let failure = failure.as_ref().map(|why| format!(" ({})", cell(why))).unwrap_or_default();
        table += &format!("| {name}{failure} |");
        for x in &xs {
            let point = points.iter().find(|point| point.x == *x);
            table += &format!(" {} |", number(point.and_then(Point::median)));
        }
        table.push('\n');
    }
    table
}

/// Processor seconds per GB of messages of 1 MiB, passive and active side.
pub(crate) fn cost(curves: &[Curve], name: &str) -> Option<[f64; 2]> {
    const SIZE: u64 = 1_048_576;
    let is_it = |curve: &&Curve| curve.chart == Chart::Bandwidth && curve.name == name;
    curves.iter().find(is_it)?.points.iter().find(|point| point.x == SIZE)?.cpu()
}

/// What a GB costs each side in processor time.
pub(crate) fn cpu_table(curves: &[Curve]) -> String {
    let rows: String = curves
        .iter()
        .filter(|curve| curve.chart == Chart::Bandwidth)
        .filter_map(|curve| Some((&curve.name, cost(curves, &curve.name)?)))
        .map(|(name, [passive, active])| {
            format!("| {name} | {} | {} |\n", number(Some(passive)), number(Some(active)))
        })
        .collect();
    let head = "| s per GB, messages of 1 MiB | passive side | active side |\n|---|--:|--:|\n";
    format!("{head}{rows}")
}

fn row(programs: &Programs, series: &Series, reference: Option<&str>) -> String {
    let Series { name, unit, .. } = series;
    if let Some(why) = &series.failure {
        return format!("| {name} | | | | {unit} | not measured: {} |", cell(why));
    }
    let beside = reference.and_then(|reference| {
        Some(format!("{:.2} x {reference}", programs.ratio(name, reference)?))
    });
    let [lowest, highest] = programs.extremes(name).map(number);
    let (median, beside) = (number(programs.median(name)), beside.unwrap_or_default());
    format!("| {name} | {median} | {lowest} | {highest} | {unit} | {beside} |")
}

#[cfg(test)]
mod tests {
    use super::super::series::tests::programs;
    use super::super::sweep::tests::curve;
    use super::super::table::IPERF3;
    use super::*;

    #[test]
    fn a_row_has_its_spread_and_what_it_stands_beside() {
        let name = "ib_read_bw 1 MiB, MTU 4096";
        let table = table(&programs(&[(IPERF3, &[4.0, 2.0, 4.0]), (name, &[6.0, 5.0, 6.4])]));
        let row = format!("| {name} | 6.00 | 5.00 | 6.40 | GB/s | 1.60 x {IPERF3} |");
        assert!(table.contains(&row), "{table}");
    }

    #[test]
    fn what_was_not_measured_says_why() {
        let table = table(&programs(&[(IPERF3, &[])]));
        assert!(table.contains("not measured: not installed"), "{table}");
    }

    #[test]
    fn a_chart_has_its_figures_and_its_cost() {
        let curves = [curve(Chart::Bandwidth, "Vernic", &[(64, 0.5), (1_048_576, 9.0)])];
        let table = curves_table(Chart::Bandwidth, &curves);
        assert!(table.contains("| GB/s at bytes | 64 | 1048576 |"), "{table}");
        assert!(table.contains("| Vernic | 0.50 | 9.00 |"), "{table}");
        assert_eq!(curves_table(Chart::Latency, &curves), "");
        let table = cpu_table(&curves);
        assert!(table.contains("| Vernic | 0.10 | 0.20 |"), "{table}");
    }

    #[test]
    fn what_is_compared_is_measured() {
        let names = COMPARED.iter().flat_map(|(c, rust)| [c, rust]);
        for name in names {
            assert!(ENTRIES.iter().any(|entry| entry.name == *name), "{name}");
        }
    }
}
