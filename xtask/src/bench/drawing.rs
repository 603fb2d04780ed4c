//! Lines over a range, drawn as SVG: the charts of BENCHMARKS.md.

use std::fs;
use std::ops::Range;

use plotters::prelude::*;

use crate::{Result, root};

/// Where they lie, relative to the root.
const FOLDER: &str = "charts";

/// Pixels.
const SIZE: (u32, u32) = (860, 480);

/// Colours that people who see few tell apart (Okabe and Ito), Vernic's first.
const COLOURS: [RGBColor; 9] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 0, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(120, 120, 120),
    RGBColor(120, 80, 50),
];

/// A name, and its points.
pub(super) type Line<'a> = (&'a str, Vec<(f64, f64)>);

/// What a drawing says beside its lines. Both axes are logarithmic.
pub(super) struct Drawing {
    pub(super) title: &'static str,
    pub(super) x: &'static str,
    pub(super) y: &'static str,
    /// Marks along x at powers of 2, in units of 1024, or at powers of 10.
    pub(super) binary: bool,
    pub(super) legend: SeriesLabelPosition,
}

/// The file of a drawing, relative to the root.
pub(super) fn file(name: &str) -> String {
    format!("{FOLDER}/{name}.svg")
}

/// Writes it, if there is a line.
pub(super) fn write(name: &str, drawing: &Drawing, lines: &[Line<'_>]) -> Result {
    let Some(svg) = drawing.draw(lines)? else { return Ok(()) };
    let path = file(name);
    let target = root().join(&path);
    let write = fs::create_dir_all(root().join(FOLDER)).and_then(|()| fs::write(target, svg));
    write.map_err(|e| format!("{path}: {e}"))?;
    println!("{path} is drawn");
    Ok(())
}

impl Drawing {
    /// The drawing with all its lines; nothing if there is no point.
    pub(super) fn draw(&self, lines: &[Line<'_>]) -> Result<Option<String>> {
        let points = || lines.iter().flat_map(|(_, points)| points);
        let (Some(xs), Some(ys)) = (span(points().map(|p| p.0)), span(points().map(|p| p.1)))
        else {
            return Ok(None);
        };
        let mut svg = String::new();
        self.paint(&mut svg, lines, xs, ys)
            .map_err(|e| format!("cannot draw {}: {e}", self.title))?;
        Ok(Some(svg))
    }

    fn paint(
        &self,
        svg: &mut String,
        lines: &[Line<'_>],
        xs: Range<f64>,
        ys: Range<f64>,
    ) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let base = if self.binary { 2.0 } else { 10.0 };
        let mut context = ChartBuilder::on(&root)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(58)
            .build_cartesian_2d(xs.log_scale().base(base), ys.log_scale())?;
        let number = if self.binary { size } else { plain };
        context
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .light_line_style(WHITE)
            .x_label_formatter(&|x| number(*x))
            .y_label_formatter(&|y| format!("{y}"))
            .draw()?;
        for ((name, points), colour) in lines.iter().zip(COLOURS.iter().cycle()) {
            let style = colour.stroke_width(2);
            context
                .draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?
                .label(*name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        context
            .configure_series_labels()
            .position(self.legend.clone())
            .background_style(WHITE)
            .border_style(BLACK.mix(0.3))
            .draw()?;
        root.present()?;
        Ok(())
    }
}

/// From the least to the largest, with some room.
fn span(values: impl Iterator<Item = f64>) -> Option<Range<f64>> {
    let (least, most) =
        values.fold((f64::INFINITY, 0.0_f64), |(least, most), v| (least.min(v), most.max(v)));
    (most > 0.0).then_some(least / 1.4..most * 1.4)
}

/// A number of bytes (or queue pairs) as people write it.
fn size(x: f64) -> String {
    match x {
        x if x >= 1_048_576.0 => format!("{} Mi", (x / 1_048_576.0).round()),
        x if x >= 1024.0 => format!("{} Ki", (x / 1024.0).round()),
        x => format!("{}", x.round()),
    }
}

fn plain(x: f64) -> String {
    format!("{}", x.round())
}
