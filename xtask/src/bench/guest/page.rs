//! The part of BENCHMARKS.md about the guest, and its chart.

use std::fmt::Write;

use plotters::prelude::SeriesLabelPosition;

use super::super::drawing::{self, Drawing, Line};
use super::super::judged::{Judged, number};
use super::super::page::bars_table;
use super::Report;
use super::table::{Ends, WORKS, Work};
use crate::Result;
use crate::pages::Part;

/// Where the tables stand.
pub(super) const PART: Part = Part {
    page: "BENCHMARKS.md",
    begin: "<!-- guest: begin (written by `cargo xtask bench --guest`, do not edit) -->",
    end: "<!-- guest: end -->",
};

/// The name of the chart, and the program that it shows over the size of messages.
const CHART: &str = "guest";
const DRAWN: &str = "ib_write_bw";

const DRAWING: Drawing = Drawing {
    title: "Bandwidth of WRITEs inside the guest over the size of messages",
    x: "bytes",
    y: "GB/s",
    binary: true,
    legend: SeriesLabelPosition::LowerRight,
};

/// Draws the chart.
pub(super) fn draw(report: &Report) -> Result {
    drawing::write(CHART, &DRAWING, &lines(report))
}

fn lines(report: &Report) -> Vec<Line<'static>> {
    let line = |ends: Ends| {
        let works = WORKS.iter().filter(|work| work.program == DRAWN);
        let point =
            |work: &Work| Some((work.bytes as f64, report.programs.median(&work.series(ends))?));
        (ends.name(), works.filter_map(point).collect())
    };
    let all = Ends::ALL.map(line).into_iter();
    all.filter(|(_, points): &Line<'_>| !points.is_empty()).collect()
}

/// The whole part.
pub(super) fn part(report: &Report) -> String {
    let Report { machine, guest, programs } = report;
    let rounds = programs.series.iter().map(|series| series.readings.len()).max().unwrap_or(0);
    let mut page = format!(
        "Guest: {guest}; the ends ran {}. Emulated by: {machine}.\n\nMedians of {rounds} rounds, each of which ran \
         everything once; ratios are medians of the rounds' ratios.\n\n",
        programs.cores
    );
    page += &bars_table(&judge(report));
    let of_rxe = |ends: &Ends| matches!(ends, Ends::Rxe | Ends::Udp | Ends::Default);
    let (rxe, siw): (Vec<Ends>, Vec<Ends>) = Ends::ALL.into_iter().partition(of_rxe);
    for (driver, ends) in [("rdma_rxe", rxe), ("siw", siw)] {
        let _ = write!(page, "\n### Beside `{driver}`\n\n");
        page += "| what | ends | median | lowest | highest | unit | beside the kernel's | bar | verdict |\n";
        page += "|---|---|--:|--:|--:|---|--:|---|---|\n";
        for work in &WORKS {
            for ends in ends.iter().filter(|ends| work.is_between(**ends)) {
                page += &row(report, work, *ends);
            }
        }
    }
    let file = drawing::file(CHART);
    let _ = write!(
        page,
        "\n![{}]({file})\n\n| ends | command of the client |\n|---|---|\n",
        DRAWING.title
    );
    for ends in Ends::ALL {
        let first = WORKS.iter().find(|work| work.is_between(ends)).map(|work| work.series(ends));
        let series = programs.series.iter().find(|series| Some(&series.name) == first.as_ref());
        if let Some(series) = series {
            let _ = writeln!(page, "| {} | `{}` |", ends.name(), series.command);
        }
    }
    page
}

/// Every bar, as it stands among those of the whole page.
fn judge(report: &Report) -> Vec<Judged> {
    let judge = |work: &Work, ends: Ends| {
        let (bar, other) = (ends.bar(work.figure)?, ends.reference()?);
        let (name, reference) = (work.series(ends), work.series(other));
        let ratio = report.programs.ratio(&name, &reference);
        let (unit, median) = (work.unit(), |name: &str| number(report.programs.median(name)));
        let measured = ratio.map(|ratio| {
            let (ours, theirs) = (median(&name), median(&reference));
            format!("{ours} {unit}, {} {theirs}: {ratio:.2} x", other.name())
        });
        Some(Judged {
            what: format!("in the guest: {}, {}", work.name, ends.name()),
            bar: format!("{bar} {}", other.name()),
            measured: measured.unwrap_or("-".into()),
            verdict: ratio.map_or("not measured", |ratio| bar.verdict(ratio)).into(),
        })
    };
    let all = WORKS.iter().flat_map(|work| Ends::ALL.map(|ends| (work, ends)));
    let between = all.filter(|(work, ends)| work.is_between(*ends));
    between.filter_map(|(work, ends)| judge(work, ends)).collect()
}

fn row(report: &Report, work: &Work, ends: Ends) -> String {
    let (programs, name) = (&report.programs, work.series(ends));
    let series = programs.series.iter().find(|series| series.name == name);
    let failure = series.and_then(|series| series.failure.as_deref());
    let readings = programs.readings(&name);
    let extreme = |pick: fn(f64, f64) -> f64| number(readings.iter().copied().reduce(pick));
    let (median, lowest, highest) =
        (number(programs.median(&name)), extreme(f64::min), extreme(f64::max));
    let ratio = ends.reference().and_then(|other| programs.ratio(&name, &work.series(other)));
    let bar = ends.bar(work.figure);
    let verdict = match (bar, ratio, failure) {
        (_, _, Some(why)) => format!("not measured: {}", why.replace('|', "/").replace('\n', " ")),
        (Some(bar), Some(ratio), None) => bar.verdict(ratio).into(),
        (Some(_), None, None) => "not measured".into(),
        (None, _, None) => String::new(),
    };
    let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.2} x"));
    let bar = bar.map_or(String::new(), |bar| bar.to_string());
    let unit = work.unit();
    let (what, ends) = (work.name, ends.name());
    format!(
        "| {what} | {ends} | {median} | {lowest} | {highest} | {unit} | {ratio} | {bar} | {verdict} |\n"
    )
}

#[cfg(test)]
mod tests {
    use super::super::super::page::bars_elsewhere;
    use super::super::tests::report;
    use super::*;

    #[test]
    fn a_row_has_its_ratio_its_bar_and_its_verdict() {
        let page = part(&report(&[
            ("ib_write_bw 1 MiB, rxe", &[0.2, 0.25, 0.2]),
            ("ib_write_bw 1 MiB, Vernic by UDP", &[0.3, 0.4, 0.3]),
            ("ib_write_bw 1 MiB, Vernic", &[2.0, 2.0, 3.0]),
            ("ib_write_lat 8 B, rxe", &[100.0]),
            ("ib_write_lat 8 B, Vernic", &[60.0]),
            ("ib_write_bw 1 MiB, siw with CRC", &[]),
        ]));
        for row in [
            "| ib_write_bw 1 MiB | rxe | 0.20 | 0.20 | 0.25 | GB/s |  |  |  |",
            "| ib_write_bw 1 MiB | Vernic by UDP | 0.30 | 0.30 | 0.40 | GB/s | 1.50 x | at least 2 x | short |",
            "| ib_write_bw 1 MiB | Vernic | 2.00 | 2.00 | 3.00 | GB/s | 10.00 x | at least 2 x | reached |",
            "| ib_write_lat 8 B | Vernic | 60.0 | 60.0 | 60.0 | us | 0.60 x | at most 0.7 x | reached |",
            "| ib_write_bw 1 MiB | siw with CRC |  |  |  | GB/s |  |  | not measured: no end / in time |",
            "| ib_write_bw 1 MiB | Vernic iWARP |  |  |  | GB/s |  | at least 1 x | not measured |",
            "charts/guest.svg",
            "| in the guest: ib_write_bw 1 MiB, Vernic | at least 2 x rxe | 2.00 GB/s, rxe 0.20: 10.00 x | reached |",
            "| in the guest: ib_write_bw 1 MiB, Vernic iWARP | at least 1 x siw | - | not measured |",
        ] {
            assert!(page.contains(row), "{row}\n{page}");
        }
        assert!(page.contains("Medians of 3 rounds"), "{page}");
        let of_all = bars_elsewhere(&format!("{}\n\n{page}", PART.begin));
        assert!(
            of_all.iter().any(|judged| judged.what == "in the guest: ib_write_lat 8 B, Vernic")
        );
    }

    #[test]
    fn the_chart_has_a_line_for_each_ends_that_were_measured() {
        let report = report(&[
            ("ib_write_bw 4 KiB, rxe", &[0.1]),
            ("ib_write_bw 1 MiB, rxe", &[0.2]),
            ("ib_send_bw 1 MiB, siw", &[0.2]),
        ]);
        assert_eq!(lines(&report), [("rxe", vec![(4096.0, 0.1), (1_048_576.0, 0.2)])]);
        assert!(DRAWING.draw(&lines(&report)).unwrap().unwrap().contains("1 Mi"));
    }
}
