//! The part of BENCHMARKS.md about unmodified programs.

use std::fmt::Write;

use super::super::judged::number;
use super::chart;
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

/// The tables: all figures, the C ABI beside the Rust API, the charts'.
pub(crate) fn tables(programs: &Programs) -> String {
    let rounds = programs.series.iter().map(|series| series.readings.len()).max().unwrap_or(0);
    let mut page = format!(
        "### Unmodified programs\n\nMedians of {rounds} rounds, each of which ran everything once; ratios are \
         medians of the rounds' ratios. The ends: {}.\n\n",
        programs.cores
    );
    page += &readings_table(programs, ENTRIES);
    page += "\n### The C ABI beside the Rust API\n\n";
    page += "| libibverbs | Rust API | unit | libibverbs by Rust API |\n|---|---|---|--:|\n";
    for (c, rust) in COMPARED {
        let ratio = programs.ratio(c, rust).map_or("not measured".into(), |r| format!("{r:.2} x"));
        let _ = writeln!(page, "| {c} | {rust} | {} | {ratio} |", programs.unit(c));
    }
    for chart in Chart::ALL {
        page += &chart_section(chart, &programs.curves);
    }
    page += &cpu_table(&programs.curves);
    page
}

/// The figures of all rounds; `entries` know what each stands beside.
pub(super) fn readings_table(programs: &Programs, entries: &[Entry]) -> String {
    let mut table = "| what | median | lowest | highest | unit | beside | command |\n".to_owned();
    table += "|---|--:|--:|--:|---|---|---|\n";
    for series in &programs.series {
        let entry = entries.iter().find(|entry| entry.name == series.name);
        let beside = entry.and_then(|entry| entry.beside);
        let _ = writeln!(table, "{}", row(programs, series, beside));
    }
    table
}

/// A chart, and the figures behind it; nothing where nothing was measured.
fn chart_section(chart: Chart, curves: &[Curve]) -> String {
    let curves: Vec<&Curve> = curves.iter().filter(|curve| curve.chart == chart).collect();
    let mut xs: Vec<u64> = curves.iter().flat_map(|c| c.points.iter().map(|p| p.x)).collect();
    xs.sort_unstable();
    xs.dedup();
    if xs.is_empty() {
        return String::new();
    }
    let (title, (x, y), file) = (chart.title(), chart.axes(), chart::file(chart));
    let mut page = format!("\n### {title}\n\n![{title}]({file})\n\n| {y} at {x} |");
    xs.iter().for_each(|x| page += &format!(" {x} |"));
    page += " first command |\n|---|";
    xs.iter().for_each(|_| page += "--:|");
    page += "---|\n";
    for Curve { name, command, points, failure, .. } in curves {
        page += &format!("| {name} |");
        for x in &xs {
            let point = points.iter().find(|point| point.x == *x);
            page += &format!(" {} |", number(point.and_then(Point::median)));
        }
        let failure = failure.as_ref().map(|why| format!(" ({})", cell(why))).unwrap_or_default();
        page += &format!(" `{command}`{failure} |\n");
    }
    page
}

/// What a GB of the largest messages that all were measured with costs.
fn cpu_table(curves: &[Curve]) -> String {
    const SIZE: u64 = 1_048_576;
    let costs = curves.iter().filter(|curve| curve.chart == Chart::Bandwidth).filter_map(|curve| {
        let point = curve.points.iter().find(|point| point.x == SIZE)?;
        Some((&curve.name, point.cpu()?))
    });
    let rows: String = costs
        .map(|(name, [passive, active])| {
            format!("| {name} | {} | {} |\n", number(Some(passive)), number(Some(active)))
        })
        .collect();
    if rows.is_empty() {
        return rows;
    }
    let head = "| 1 MiB messages | passive side | active side |\n|---|--:|--:|\n";
    format!(
        "\n### Processor seconds per GB, start and end of the programs included\n\n{head}{rows}"
    )
}

/// Text that does not end a table's cell.
pub(super) fn cell(text: &str) -> String {
    text.replace('|', "/").replace('\n', " ")
}

fn row(programs: &Programs, series: &Series, reference: Option<&str>) -> String {
    let Series { name, unit, command, .. } = series;
    let command = if command.is_empty() { String::new() } else { format!("`{command}`") };
    if let Some(why) = &series.failure {
        let why = cell(why);
        return format!("| {name} | | | | {unit} | not measured: {why} | {command} |");
    }
    let beside = reference.and_then(|reference| {
        Some(format!("{:.2} x {reference}", programs.ratio(name, reference)?))
    });
    let [lowest, highest] = programs.extremes(name).map(number);
    let (median, beside) = (number(programs.median(name)), beside.unwrap_or_default());
    format!("| {name} | {median} | {lowest} | {highest} | {unit} | {beside} | {command} |")
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
        let page = tables(&programs(&[(IPERF3, &[4.0, 2.0, 4.0]), (name, &[6.0, 5.0, 6.4])]));
        let row = format!("| {name} | 6.00 | 5.00 | 6.40 | GB/s | 1.60 x {IPERF3} | `a command` |");
        assert!(page.contains(&row), "{page}");
        assert!(page.contains("Medians of 3 rounds"), "{page}");
    }

    #[test]
    fn what_was_not_measured_says_why() {
        let page = tables(&programs(&[(IPERF3, &[])]));
        assert!(page.contains("not measured: not installed"), "{page}");
    }

    #[test]
    fn a_chart_stands_with_its_figures_and_its_cost() {
        let mut programs = programs(&[]);
        programs.curves = vec![curve(Chart::Bandwidth, "Vernic", &[(64, 0.5), (1_048_576, 9.0)])];
        let page = tables(&programs);
        assert!(page.contains("(charts/bandwidth.svg)"), "{page}");
        assert!(page.contains("| GB/s at bytes | 64 | 1048576 | first command |"), "{page}");
        assert!(page.contains("| Vernic | 0.50 | 9.00 | `a command` |"), "{page}");
        assert!(page.contains("| Vernic | 0.10 | 0.20 |"), "{page}");
    }

    #[test]
    fn what_is_compared_is_measured() {
        let names = COMPARED.iter().flat_map(|(c, rust)| [c, rust]);
        for name in names {
            assert!(ENTRIES.iter().any(|entry| entry.name == *name), "{name}");
        }
    }
}
