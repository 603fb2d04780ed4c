//! The charts of what `sweep` measured.

use super::super::drawing::{self, Drawing, Line, Shown};
use super::super::judged::number;
use super::sweep::{Chart, Curve};
use crate::Result;

const ROCE: &str = "Vernic, RoCEv2";
const SAME_HOST: &str = "Vernic, same host";
const TCP: &str = "TCP (qperf)";
const UCX: &str = "UCX, posix and cma";
const UCX_TCP: &str = "UCX, TCP";

fn name(chart: Chart) -> &'static str {
    match chart {
        Chart::Latency => "latency",
        Chart::Bandwidth => "bandwidth",
        Chart::Rate => "rate",
    }
}

/// A chart in a page.
pub(crate) fn shown(chart: Chart, curves: &[Curve]) -> Shown {
    Shown::new(name(chart), &drawn(chart, curves))
}

/// Draws every chart that has a line.
pub(super) fn write(curves: &[Curve]) -> Result {
    Chart::ALL.into_iter().try_for_each(|chart| {
        drawing::write(name(chart), &drawn(chart, curves), &lines(chart, curves))
    })
}

fn drawn(chart: Chart, curves: &[Curve]) -> Drawing {
    let (x, y) = chart.axes();
    let title = finding(chart, curves).unwrap_or_else(|| chart.title().into());
    Drawing { title, says: chart.says(), x, y, binary: true }
}

/// What a chart shows, in one line with figures.
fn finding(chart: Chart, curves: &[Curve]) -> Option<String> {
    let at = |name: &str, x: u64| {
        let curve = curves.iter().find(|curve| curve.chart == chart && curve.name == name)?;
        curve.points.iter().find(|point| point.x == x)?.median()
    };
    // The least of the small messages: a single point may have met a slow minute.
    let least = |name: &str| {
        let curve = curves.iter().find(|curve| curve.chart == chart && curve.name == name)?;
        let small = curve.points.iter().filter(|point| point.x <= 64);
        small.filter_map(|point| point.median()).reduce(f64::min)
    };
    Some(match chart {
        Chart::Latency => {
            let us = |name| Some(number(Some(least(name)?)));
            let (near, ucx, tcp) = (us(SAME_HOST)?, us(UCX)?, us(TCP)?);
            let (wire, ucx_tcp) = (us(ROCE)?, us(UCX_TCP)?);
            format!(
                "Up to 64 bytes within a host: Vernic {near} us, UCX {ucx}, TCP {tcp}; by UDP {wire}, UCX over TCP {ucx_tcp}"
            )
        }
        Chart::Bandwidth => {
            let times = |a, b| Some(number(Some(at(a, 1 << 20)? / at(b, 1 << 20)?)));
            let (tcp, ucx) = (times(SAME_HOST, TCP)?, times(SAME_HOST, UCX)?);
            let wire = times(ROCE, TCP)?;
            format!(
                "SENDs of 1 MiB: {tcp} x TCP's bandwidth within a host, {ucx} x UCX's; {wire} x TCP's by UDP"
            )
        }
        Chart::Rate => {
            let rate = |name, x| Some(number(Some(at(name, x)?)));
            let (one, many, near) = (rate(ROCE, 1)?, rate(ROCE, 64)?, rate(SAME_HOST, 1)?);
            format!(
                "8-byte WRITEs by UDP: {one} M/s with one queue pair, {many} with 64; within a host {near}"
            )
        }
    })
}

fn lines(chart: Chart, curves: &[Curve]) -> Vec<Line<'_>> {
    let of_chart = curves.iter().filter(|curve| curve.chart == chart);
    of_chart
        .map(|curve| {
            let point = |p: &super::sweep::Point| Some((p.x as f64, p.median()?));
            (curve.name.as_str(), curve.points.iter().filter_map(point).collect())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::sweep::tests::curve;
    use super::*;

    #[test]
    fn a_title_has_the_figures_of_the_lines() {
        let mib = 1 << 20;
        let curves = [
            curve(Chart::Bandwidth, SAME_HOST, &[(64, 0.1), (mib, 8.0)]),
            curve(Chart::Bandwidth, UCX, &[(mib, 10.0)]),
            curve(Chart::Bandwidth, TCP, &[(mib, 2.0)]),
            curve(Chart::Bandwidth, ROCE, &[(mib, 1.0)]),
            curve(Chart::Rate, ROCE, &[(1, 1.5), (64, 3.0)]),
            curve(Chart::Rate, SAME_HOST, &[(1, 0.5)]),
        ];
        let title = drawn(Chart::Bandwidth, &curves).title;
        let said = "SENDs of 1 MiB: 4.00 x TCP's bandwidth within a host, 0.80 x UCX's; 0.50 x TCP's by UDP";
        assert_eq!(title, said);
        let title = drawn(Chart::Rate, &curves).title;
        assert_eq!(
            title,
            "8-byte WRITEs by UDP: 1.50 M/s with one queue pair, 3.00 with 64; within a host 0.50"
        );
        let title = drawn(Chart::Latency, &curves).title;
        assert_eq!(title, Chart::Latency.title());
    }

    #[test]
    fn a_chart_has_its_title_its_axes_and_every_name() {
        let curves = [
            curve(Chart::Latency, "Vernic", &[(8, 1.5), (4096, 2.5)]),
            curve(Chart::Latency, "TCP", &[(8, 4.5), (4096, 6.0)]),
            curve(Chart::Rate, "elsewhere", &[(1, 1.0)]),
        ];
        let draw = |chart| drawn(chart, &curves).draw(&lines(chart, &curves));
        let svg = draw(Chart::Latency).unwrap().unwrap();
        for text in [Chart::Latency.title(), "bytes", "us", "Vernic", "TCP", "4 Ki"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("elsewhere"));
        assert_eq!(draw(Chart::Bandwidth), Ok(None));
    }
}
