//! The charts of BENCHMARKS.md, drawn as SVG.

use std::fs;
use std::ops::Range;

use plotters::prelude::*;

use super::sweep::{Chart, Curve};
use crate::{Result, root};

/// Where they lie, relative to the root.
const FOLDER: &str = "charts";

/// Pixels.
const SIZE: (u32, u32) = (860, 480);

/// Colours that people who see few tell apart (Okabe and Ito), Vernic's first.
const COLOURS: [RGBColor; 8] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 0, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(120, 120, 120),
];

/// The file of a chart, relative to the root.
pub(super) fn file(chart: Chart) -> String {
    let name = match chart {
        Chart::Latency => "latency",
        Chart::Bandwidth => "bandwidth",
        Chart::Rate => "rate",
    };
    format!("{FOLDER}/{name}.svg")
}

/// Draws every chart that has a line.
pub(super) fn write(curves: &[Curve]) -> Result {
    for chart in Chart::ALL {
        let path = file(chart);
        if let Some(svg) = draw(chart, curves)? {
            let target = root().join(&path);
            let write =
                fs::create_dir_all(root().join(FOLDER)).and_then(|()| fs::write(target, svg));
            write.map_err(|e| format!("{path}: {e}"))?;
            println!("{path} is drawn");
        }
    }
    Ok(())
}

/// One chart with all its lines, both axes logarithmic; nothing if there is no point.
fn draw(chart: Chart, curves: &[Curve]) -> Result<Option<String>> {
    let lines: Vec<(&str, Vec<(f64, f64)>)> = curves
        .iter()
        .filter(|curve| curve.chart == chart)
        .map(|curve| {
            let point = |p: &super::sweep::Point| Some((p.x as f64, p.median()?));
            (curve.name.as_str(), curve.points.iter().filter_map(point).collect())
        })
        .collect();
    let points = || lines.iter().flat_map(|(_, points)| points);
    let (Some(xs), Some(ys)) = (span(points().map(|p| p.0)), span(points().map(|p| p.1))) else {
        return Ok(None);
    };
    let mut svg = String::new();
    paint(&mut svg, chart, &lines, xs, ys).map_err(|e| format!("cannot draw {chart:?}: {e}"))?;
    Ok(Some(svg))
}

/// From the least to the largest, with some room.
fn span(values: impl Iterator<Item = f64>) -> Option<Range<f64>> {
    let (least, most) =
        values.fold((f64::INFINITY, 0.0_f64), |(least, most), v| (least.min(v), most.max(v)));
    (most > 0.0).then_some(least / 1.4..most * 1.4)
}

fn paint(
    svg: &mut String,
    chart: Chart,
    lines: &[(&str, Vec<(f64, f64)>)],
    xs: Range<f64>,
    ys: Range<f64>,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let (x, y) = chart.axes();
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut context = ChartBuilder::on(&root)
        .caption(chart.title(), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(58)
        .build_cartesian_2d(xs.log_scale().base(2.0), ys.log_scale())?;
    context
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .light_line_style(WHITE)
        .x_label_formatter(&|x| size(*x))
        .y_label_formatter(&|y| format!("{y}"))
        .draw()?;
    for ((name, points), colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let style = colour.stroke_width(2);
        context
            .draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    let corner = match chart {
        Chart::Latency | Chart::Rate => SeriesLabelPosition::UpperLeft,
        Chart::Bandwidth => SeriesLabelPosition::LowerRight,
    };
    context
        .configure_series_labels()
        .position(corner)
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}

/// A number of bytes (or queue pairs) as people write it.
fn size(x: f64) -> String {
    match x {
        x if x >= 1_048_576.0 => format!("{} Mi", (x / 1_048_576.0).round()),
        x if x >= 1024.0 => format!("{} Ki", (x / 1024.0).round()),
        x => format!("{}", x.round()),
    }
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
        let svg = draw(Chart::Latency, &curves).unwrap().unwrap();
        for text in [Chart::Latency.title(), "bytes", "us", "Vernic", "TCP", "4 Ki"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("elsewhere"));
        assert_eq!(draw(Chart::Bandwidth, &curves), Ok(None));
    }
}
