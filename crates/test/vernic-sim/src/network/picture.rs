//! The picture of a run: slowdowns by size, the longest line, goodput and fairness over time.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;

/// Pixels.
const SIZE: (u32, u32) = (960, 760);
/// Colours that people who see few tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 3] = [RGBColor(0, 114, 178), RGBColor(230, 159, 0), RGBColor(213, 94, 0)];

/// A panel of the picture.
type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What is drawn. Times are in milliseconds.
pub(super) struct Lines<'a> {
    pub(super) title: &'a str,
    /// The port with the longest line, in words.
    pub(super) busiest: &'a str,
    /// Names of ranges of sizes, and slowdowns: median, 95th and 99th percentile.
    pub(super) bins: Vec<(&'a str, [f64; 3])>,
    /// Depth of the longest line in KB.
    pub(super) depth: Vec<(f64, f64)>,
    /// Gb/s.
    pub(super) goodput: Vec<(f64, f64)>,
    pub(super) fairness: Vec<(f64, f64)>,
}

impl Lines<'_> {
    /// Draws four panels.
    pub(super) fn draw(&self) -> Result<String, Box<dyn Error>> {
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            root.fill(&WHITE)?;
            let root = root.titled(self.title, ("sans-serif", 15))?;
            let panels = root.split_evenly((2, 2));
            self.draw_slowdowns(&panels[0])?;
            let depth = format!("Line from {}, KB", self.busiest);
            draw_line(&panels[1], &depth, &self.depth, None)?;
            draw_line(&panels[2], "Goodput, Gb/s", &self.goodput, None)?;
            draw_line(&panels[3], "Fairness (Jain)", &self.fairness, Some(1.0))?;
            root.present()?;
        }
        Ok(svg)
    }

    /// Bars of three percentiles for each range of sizes, on a logarithmic axis.
    fn draw_slowdowns(&self, panel: &Panel<'_>) -> Result<(), Box<dyn Error>> {
        let most = self.bins.iter().flat_map(|(_, slowdowns)| slowdowns).fold(1.0, |a, b| b.max(a));
        let count = self.bins.len();
        let mut chart = ChartBuilder::on(panel)
            .caption("Slowdown: median, p95, p99", ("sans-serif", 15))
            .margin(10)
            .x_label_area_size(28)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..count.max(1) as f64, (0.9..most * 1.3).log_scale())?;
        let name = |x: &f64| match self.bins.get(*x as usize) {
            Some((name, _)) if x.fract() > 0.4 && x.fract() < 0.6 => (*name).to_owned(),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .x_labels(2 * count + 1)
            .x_label_formatter(&name)
            .y_label_formatter(&|y| format!("{y:.0}"))
            .draw()?;
        for (at, (_, slowdowns)) in self.bins.iter().enumerate() {
            chart.draw_series(slowdowns.iter().zip(COLOURS).enumerate().map(
                |(step, (slowdown, colour))| {
                    let left = at as f64 + 0.14 + step as f64 * 0.24;
                    Rectangle::new([(left, 0.9), (left + 0.24, *slowdown)], colour.filled())
                },
            ))?;
        }
        Ok(())
    }
}

/// One line over time, from 0 to `most` or to its highest point.
fn draw_line(
    panel: &Panel<'_>,
    title: &str,
    points: &[(f64, f64)],
    most: Option<f64>,
) -> Result<(), Box<dyn Error>> {
    let highest = points.iter().map(|(_, y)| *y).fold(0.0, f64::max);
    let most = most.unwrap_or(if highest > 0.0 { highest * 1.1 } else { 1.0 });
    let end = points.last().map_or(1.0, |(x, _)| *x);
    let mut chart = ChartBuilder::on(panel)
        .caption(title, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end, 0.0..most)?;
    chart.configure_mesh().x_desc("ms").light_line_style(WHITE).draw()?;
    chart.draw_series(LineSeries::new(points.iter().copied(), COLOURS[0]))?;
    Ok(())
}
