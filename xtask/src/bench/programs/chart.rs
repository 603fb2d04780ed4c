//! The charts of what `sweep` measured.

use plotters::prelude::SeriesLabelPosition;

use super::super::drawing::{self, Drawing, Line};
use super::sweep::{Chart, Curve};
use crate::Result;

fn name(chart: Chart) -> &'static str {
    match chart {
        Chart::Latency => "latency",
        Chart::Bandwidth => "bandwidth",
        Chart::Rate => "rate",
    }
}

/// The file of a chart, relative to the root.
pub(super) fn file(chart: Chart) -> String {
    drawing::file(name(chart))
}

/// Draws every chart that has a line.
pub(super) fn write(curves: &[Curve]) -> Result {
    Chart::ALL
        .into_iter()
        .try_for_each(|chart| drawing::write(name(chart), &drawn(chart), &lines(chart, curves)))
}

fn drawn(chart: Chart) -> Drawing {
    let (x, y) = chart.axes();
    let legend = match chart {
        Chart::Latency | Chart::Rate => SeriesLabelPosition::UpperLeft,
        Chart::Bandwidth => SeriesLabelPosition::LowerRight,
    };
    Drawing { title: chart.title(), x, y, binary: true, legend }
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
    fn a_chart_has_its_title_its_axes_and_every_name() {
        let curves = [
            curve(Chart::Latency, "Vernic", &[(8, 1.5), (4096, 2.5)]),
            curve(Chart::Latency, "TCP", &[(8, 4.5), (4096, 6.0)]),
            curve(Chart::Rate, "elsewhere", &[(1, 1.0)]),
        ];
        let draw = |chart| drawn(chart).draw(&lines(chart, &curves));
        let svg = draw(Chart::Latency).unwrap().unwrap();
        for text in [Chart::Latency.title(), "bytes", "us", "Vernic", "TCP", "4 Ki"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("elsewhere"));
        assert_eq!(draw(Chart::Bandwidth), Ok(None));
    }
}
