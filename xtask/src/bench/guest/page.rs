//! The tables about the guest, and its chart.

use super::super::drawing::{self, Drawing, Line, Shown};
use super::super::judged::{Judged, Notes, cell, number};
use super::Report;
use super::table::{Ends, WORKS, Work};
use crate::Result;

/// The name of the chart, and the program that it shows over the size of messages.
const CHART: &str = "guest";
const DRAWN: &str = "ib_write_bw";
/// The work of which the title of the chart tells.
const TOLD: &str = "ib_write_bw 1 MiB";

/// Draws the chart.
pub(super) fn draw(report: &Report) -> Result {
    drawing::write(CHART, &drawing(report), &lines(report))
}

/// The chart in a page.
pub(super) fn shown(report: &Report) -> Shown {
    Shown::new(CHART, &drawing(report))
}

fn drawing(report: &Report) -> Drawing {
    let title = finding(report).unwrap_or_else(|| "Bandwidth of WRITEs in the guest".into());
    let says = "WRITEs over the size of messages, inside one emulated machine. Higher is better";
    Drawing { title, says, x: "bytes", y: "GB/s", binary: true }
}

/// What the chart shows, in one line with figures.
fn finding(report: &Report) -> Option<String> {
    let times = |ends| Some(number(Some(ratio(report, TOLD, ends)?)));
    let (near, udp) = (times(Ends::Default)?, times(Ends::Udp)?);
    let iwarp = times(Ends::Iwarp { crc: false })?;
    Some(format!(
        "WRITEs of 1 MiB in a guest: {near} x the kernel's rxe, by UDP {udp} x; iWARP {iwarp} x its siw"
    ))
}

/// A work between these ends, beside the kernel's in the same rounds.
fn ratio(report: &Report, work: &str, ends: Ends) -> Option<f64> {
    let work = WORKS.iter().find(|known| known.name == work)?;
    report.programs.ratio(&work.series(ends), &work.series(ends.reference()?))
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

/// What was measured beside each driver, with the bars and why some are short.
pub(super) fn tables(report: &Report) -> String {
    let of_rxe = |ends: &Ends| matches!(ends, Ends::Rxe | Ends::Udp | Ends::Default);
    let (rxe, siw): (Vec<Ends>, Vec<Ends>) = Ends::ALL.into_iter().partition(of_rxe);
    let tables = [("rdma_rxe", rxe), ("siw", siw)].map(|(driver, ends)| {
        let mut notes = Notes::default();
        let mut table = format!("### Beside `{driver}`\n\n");
        table += "| what | ends | median | lowest | highest | unit | ratio | bar | verdict |\n";
        table += "|---|---|--:|--:|--:|---|--:|---|---|\n";
        for work in &WORKS {
            for ends in ends.iter().filter(|ends| work.is_between(**ends)) {
                table += &row(report, work, *ends, &mut notes);
            }
        }
        table + &notes.list()
    });
    tables.join("\n")
}

/// Every bar.
pub(super) fn judge(report: &Report) -> Vec<Judged> {
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
            what: told(work, ends),
            bar: format!("{bar} {}", other.name()),
            measured: measured.unwrap_or("-".into()),
            verdict: ratio.map_or("not measured", |ratio| bar.verdict(ratio)).into(),
        })
    };
    let all = WORKS.iter().flat_map(|work| Ends::ALL.map(|ends| (work, ends)));
    let between = all.filter(|(work, ends)| work.is_between(*ends));
    between.filter_map(|(work, ends)| judge(work, ends)).collect()
}

/// The name of a bar, which tells it from those outside the guest.
fn told(work: &Work, ends: Ends) -> String {
    format!("in the guest: {}, {}", work.name, ends.name())
}

fn row(report: &Report, work: &Work, ends: Ends, notes: &mut Notes) -> String {
    let (programs, name) = (&report.programs, work.series(ends));
    let [lowest, highest] = programs.extremes(&name).map(number);
    let median = number(programs.median(&name));
    let ratio = ratio(report, work.name, ends);
    let bar = ends.bar(work.figure);
    let verdict = match (bar, ratio, programs.failure(&name)) {
        (_, _, Some(why)) => format!("not measured: {}", cell(why)),
        (Some(bar), Some(ratio), None) => notes.mark(&told(work, ends), bar.verdict(ratio)),
        (Some(_), None, None) => "not measured".into(),
        (None, _, None) => String::new(),
    };
    let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.2} x"));
    let bar = bar.map_or(String::new(), |bar| bar.to_string());
    let (what, ends, unit) = (work.name, ends.name(), work.unit());
    format!(
        "| {what} | {ends} | {median} | {lowest} | {highest} | {unit} | {ratio} | {bar} | {verdict} |\n"
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    #[test]
    fn a_row_has_its_ratio_its_bar_and_its_verdict() {
        let report = report(&[
            ("ib_write_bw 1 MiB, rxe", &[0.2, 0.25, 0.2]),
            ("ib_write_bw 1 MiB, Vernic by UDP", &[0.15, 0.2, 0.15]),
            ("ib_write_bw 1 MiB, Vernic", &[2.0, 2.0, 3.0]),
            ("ib_write_lat 8 B, rxe", &[100.0]),
            ("ib_write_lat 8 B, Vernic", &[60.0]),
            ("ib_write_bw 1 MiB, siw with CRC", &[]),
        ]);
        let page = tables(&report);
        for row in [
            "| ib_write_bw 1 MiB | rxe | 0.20 | 0.20 | 0.25 | GB/s |  |  |  |",
            "| ib_write_bw 1 MiB | Vernic by UDP | 0.15 | 0.15 | 0.20 | GB/s | 0.75 x | at least 1 x | short (1) |",
            "| ib_write_bw 1 MiB | Vernic | 2.00 | 2.00 | 3.00 | GB/s | 10.00 x | at least 2 x | reached |",
            "| ib_write_lat 8 B | Vernic | 60.0 | 60.0 | 60.0 | us | 0.60 x | at most 0.7 x | reached |",
            "| ib_write_bw 1 MiB | siw with CRC |  |  |  | GB/s |  |  | not measured: no end / in time |",
            "| ib_write_bw 1 MiB | Vernic iWARP |  |  |  | GB/s |  | at least 1 x | not measured |",
            "\n1. A sender that finds",
        ] {
            assert!(page.contains(row), "{row}\n{page}");
        }
        let judged = judge(&report);
        let of = |what: &str| judged.iter().find(|judged| judged.what == what).unwrap();
        let near = of("in the guest: ib_write_bw 1 MiB, Vernic");
        assert_eq!(near.measured, "2.00 GB/s, rxe 0.20: 10.00 x");
        assert_eq!(of("in the guest: ib_write_bw 1 MiB, Vernic iWARP").verdict, "not measured");
    }

    #[test]
    fn the_chart_has_a_line_for_each_ends_that_were_measured() {
        let report = report(&[
            ("ib_write_bw 4 KiB, rxe", &[0.1]),
            ("ib_write_bw 1 MiB, rxe", &[0.2]),
            ("ib_send_bw 1 MiB, siw", &[0.2]),
        ]);
        assert_eq!(lines(&report), [("rxe", vec![(4096.0, 0.1), (1_048_576.0, 0.2)])]);
        assert!(drawing(&report).draw(&lines(&report)).unwrap().unwrap().contains("1 Mi"));
    }
}
