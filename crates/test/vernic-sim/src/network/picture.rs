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

/// Names of the bars, in the order of the colours.
const BARS: [&str; 3] = ["median", "95th percentile", "99th percentile"];
/// Side of a square of the legend, in pixels.
const SQUARE: i32 = 9;

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
    /// Jain's index; `None` where fewer than two flows lasted.
    pub(super) fairness: Vec<(f64, Option<f64>)>,
}

/// A panel with a line over time.
struct Frame<'a> {
    title: &'a str,
    unit: &'a str,
    /// The last time of the run.
    end: f64,
    /// The highest value; `None` has the line's own at the top.
    most: Option<f64>,
    /// Why there may be nothing to draw.
    nothing: &'a str,
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
            let title = format!("Queue from {} (lower is better)", self.busiest);
            let (nothing, end) =
                ("the run was too short", self.depth.last().map_or(1.0, |(x, _)| *x));
            let depth = Frame { title: &title, unit: "KB", end, most: None, nothing };
            draw_line(&panels[1], &depth, whole(&self.depth))?;
            let goodput = Frame { title: "Goodput (higher is better)", unit: "Gb/s", ..depth };
            draw_line(&panels[2], &goodput, whole(&self.goodput))?;
            let fairness = Frame {
                title: "Fairness between flows (higher is better)",
                unit: "Jain's index, 1 if all get the same",
                end,
                most: Some(1.02),
                nothing: "no two flows lasted",
            };
            draw_line(&panels[3], &fairness, parts(&self.fairness))?;
            root.present()?;
        }
        Ok(svg)
    }

    /// Bars of three percentiles for each range of sizes, on a logarithmic axis.
    fn draw_slowdowns(&self, panel: &Panel<'_>) -> Result<(), Box<dyn Error>> {
        let most = self.bins.iter().flat_map(|(_, slowdowns)| slowdowns).fold(1.0, |a, b| b.max(a));
        let count = self.bins.len();
        // The legend is above the bars.
        let mut chart = ChartBuilder::on(panel)
            .caption("Slowdown of flows that ended (lower is better)", ("sans-serif", 15))
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..count.max(1) as f64, (0.9..most * 4.0).log_scale())?;
        let name = |x: &f64| match self.bins.get(*x as usize) {
            Some((name, _)) if x.fract() > 0.4 && x.fract() < 0.6 => (*name).to_owned(),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .x_desc("size of the flow")
            .y_desc("times as long as alone")
            .x_labels(2 * count + 1)
            .x_label_formatter(&name)
            .y_label_formatter(&|y| format!("{y:.0}"))
            .draw()?;
        if count == 0 {
            return note(panel, "no flow ended");
        }
        for (step, (bar, colour)) in BARS.iter().zip(COLOURS).enumerate() {
            let bars = self.bins.iter().enumerate().map(|(at, (_, slowdowns))| {
                let left = at as f64 + 0.14 + step as f64 * 0.24;
                Rectangle::new([(left, 0.9), (left + 0.24, slowdowns[step])], colour.filled())
            });
            chart.draw_series(bars)?.label(*bar).legend(move |(x, y)| {
                let corners = [(x, y - SQUARE / 2), (x + SQUARE, y + SQUARE / 2)];
                Rectangle::new(corners, colour.filled())
            });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .legend_area_size(SQUARE + 6)
            .background_style(WHITE)
            .border_style(BLACK)
            .draw()?;
        Ok(())
    }
}

/// Writes into the middle of a panel why nothing is drawn there.
fn note(panel: &Panel<'_>, why: &str) -> Result<(), Box<dyn Error>> {
    let (width, height) = panel.dim_in_pixel();
    let middle = (width as i32 / 2 - 40, height as i32 / 2);
    panel.draw(&Text::new(why.to_owned(), middle, ("sans-serif", 13)))?;
    Ok(())
}

/// A line that is known at all times.
fn whole(points: &[(f64, f64)]) -> Vec<Vec<(f64, f64)>> {
    if points.is_empty() { Vec::new() } else { vec![points.to_vec()] }
}

/// The parts of a line, between the times at which nothing is known.
fn parts(points: &[(f64, Option<f64>)]) -> Vec<Vec<(f64, f64)>> {
    let known = points.split(|(_, y)| y.is_none()).filter(|part| !part.is_empty());
    known.map(|part| part.iter().filter_map(|(x, y)| Some((*x, (*y)?))).collect()).collect()
}

/// One line over time. Between its parts is nothing, and a part of one point is a dot.
fn draw_line(
    panel: &Panel<'_>,
    frame: &Frame<'_>,
    parts: Vec<Vec<(f64, f64)>>,
) -> Result<(), Box<dyn Error>> {
    let highest = parts.iter().flatten().map(|(_, y)| *y).fold(0.0, f64::max);
    let most = frame.most.unwrap_or(if highest > 0.0 { highest * 1.1 } else { 1.0 });
    let mut chart = ChartBuilder::on(panel)
        .caption(frame.title, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..frame.end, 0.0..most)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("simulated time, ms").y_desc(frame.unit).light_line_style(WHITE).draw()?;
    if parts.is_empty() {
        return note(panel, frame.nothing);
    }
    for part in parts {
        match part[..] {
            [point] => drop(chart.draw_series([Circle::new(point, 2, COLOURS[0].filled())])?),
            _ => drop(chart.draw_series(LineSeries::new(part, COLOURS[0]))?),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Lines<'static> {
        let line: Vec<_> = (1..=5).map(|at| (f64::from(at), 1.0)).collect();
        Lines {
            title: "a run",
            busiest: "switch 1 to host 2",
            bins: vec![("all", [1.0, 2.0, 3.0])],
            depth: line.clone(),
            goodput: line.clone(),
            fairness: line.iter().map(|(x, y)| (*x, Some(*y))).collect(),
        }
    }

    fn lines_and_dots(lines: &Lines<'_>) -> [usize; 2] {
        let (svg, colour) = (lines.draw().unwrap(), "#0072B2");
        ["<polyline", "<circle"].map(|element| {
            svg.lines().filter(|line| line.starts_with(element) && line.contains(colour)).count()
        })
    }

    #[test]
    fn a_picture_says_what_its_bars_axes_and_directions_are() {
        let svg = lines().draw().unwrap();
        for words in [
            "median",
            "95th percentile",
            "99th percentile",
            "lower is better",
            "higher is better",
            "simulated time, ms",
            "KB",
            "Gb/s",
            "s index, 1 if all get the same",
            "size of the flow",
            "times as long as alone",
        ] {
            assert!(svg.contains(words), "{words}: {svg}");
        }
        let nothing = Lines {
            bins: Vec::new(),
            depth: Vec::new(),
            goodput: Vec::new(),
            fairness: vec![(1.0, None)],
            ..lines()
        };
        let svg = nothing.draw().unwrap();
        for words in ["no flow ended", "the run was too short", "no two flows lasted"] {
            assert!(svg.contains(words), "{words}: {svg}");
        }
    }

    #[test]
    fn no_line_is_drawn_over_a_gap() {
        assert_eq!(lines_and_dots(&lines()), [3, 0]);
        let mut gap = lines();
        gap.fairness[2].1 = None;
        assert_eq!(lines_and_dots(&gap), [4, 0]);
        gap.fairness[3].1 = None;
        assert_eq!(lines_and_dots(&gap), [3, 1], "a single value is a dot");
    }
}
