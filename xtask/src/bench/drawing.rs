//! Lines over a range, drawn as SVG: the charts of the pages of benchmarks.

use std::fs;
use std::ops::Range;

use plotters::coord::combinators::BindKeyPoints;
use plotters::prelude::*;

use crate::{Result, root};

/// Where they lie, relative to the root.
const FOLDER: &str = "charts";

/// Pixels: of all, and what is left beside the plot for the title and for the names of lines.
const SIZE: (i32, i32) = (960, 480);
const TITLE_HEIGHT: i32 = 58;
const NAMES_WIDTH: i32 = 196;
/// Between two names.
const NAME_HEIGHT: i32 = 24;

const FONT: &str = "sans-serif";
const GREY: RGBColor = RGBColor(90, 90, 90);
const GRID: RGBColor = RGBColor(222, 222, 222);

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
    /// What the lines show, with figures.
    pub(super) title: String,
    /// What is drawn, and whether higher or lower is better.
    pub(super) says: &'static str,
    pub(super) x: &'static str,
    pub(super) y: &'static str,
    /// Numbers along x in units of 1024.
    pub(super) binary: bool,
}

/// A drawing in a page.
pub(super) struct Shown {
    file: String,
    title: String,
}

impl Shown {
    pub(super) fn new(name: &str, drawing: &Drawing) -> Self {
        Self { file: file(name), title: drawing.title.clone() }
    }

    /// The picture, in a page from which the root is `from`.
    pub(super) fn markdown(&self, from: &str) -> String {
        format!("![{}]({from}{})", self.title, self.file)
    }
}

/// The file of a drawing, relative to the root.
fn file(name: &str) -> String {
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
        let mut marks: Vec<f64> = points().map(|p| p.0).collect();
        marks.sort_by(f64::total_cmp);
        marks.dedup();
        let mut svg = String::new();
        self.paint(&mut svg, lines, (xs, marks), ys)
            .map_err(|e| format!("cannot draw {}: {e}", self.title))?;
        Ok(Some(svg))
    }

    fn paint(
        &self,
        svg: &mut String,
        lines: &[Line<'_>],
        (xs, marks): (Range<f64>, Vec<f64>),
        ys: Range<f64>,
    ) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let size = (SIZE.0.unsigned_abs(), SIZE.1.unsigned_abs());
        let root = SVGBackend::with_string(svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let title = (FONT, 18).into_font().style(FontStyle::Bold).color(&BLACK);
        root.draw(&Text::new(self.title.clone(), (14, 12), title))?;
        root.draw(&Text::new(self.says, (14, 36), (FONT, 14).into_font().color(&GREY)))?;
        let (ticks, small) = (steps(&ys), (FONT, 13).into_font().color(&BLACK));
        let mut context = ChartBuilder::on(&root)
            .margin(10)
            .margin_top(TITLE_HEIGHT)
            .margin_right(NAMES_WIDTH)
            .x_label_area_size(46)
            .y_label_area_size(64)
            .build_cartesian_2d(
                xs.log_scale().with_key_points(marks),
                ys.log_scale().with_key_points(ticks),
            )?;
        let number = if self.binary { size_text } else { plain };
        context
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .bold_line_style(GRID)
            .light_line_style(WHITE)
            .label_style(small)
            .axis_desc_style((FONT, 14))
            .x_label_formatter(&|x| number(*x))
            .y_label_formatter(&|y| plain(*y))
            .draw()?;
        for ((name, points), colour) in lines.iter().zip(COLOURS.iter().cycle()) {
            let style = colour.stroke_width(width(name));
            context.draw_series(
                LineSeries::new(points.iter().copied(), style.filled()).point_size(3),
            )?;
        }
        for (at, (name, colour)) in (0..).zip(names(lines)) {
            let (left, y) = (SIZE.0 - NAMES_WIDTH + 14, TITLE_HEIGHT + 14 + at * NAME_HEIGHT);
            let sample = [(left, y), (left + 20, y)];
            root.draw(&PathElement::new(sample, colour.stroke_width(width(name))))?;
            let text = (FONT, 13).into_font().color(&BLACK);
            root.draw(&Text::new(name.to_owned(), (left + 27, y - 6), text))?;
        }
        root.present()?;
        Ok(())
    }
}

/// The width of a line: Vernic's stand out among others'.
fn width(name: &str) -> u32 {
    if name.starts_with("Vernic") { 4 } else { 2 }
}

/// The names of lines with their colours, in the order in which the lines end, from the top.
fn names<'a>(lines: &[Line<'a>]) -> Vec<(&'a str, RGBColor)> {
    let mut ends: Vec<_> = lines
        .iter()
        .zip(COLOURS.iter().cycle())
        .filter_map(|((name, points), colour)| Some((points.last()?.1, *name, *colour)))
        .collect();
    ends.sort_by(|a, b| b.0.total_cmp(&a.0));
    ends.into_iter().map(|(_, name, colour)| (name, colour)).collect()
}

/// From the least to the largest, with some room.
fn span(values: impl Iterator<Item = f64>) -> Option<Range<f64>> {
    let (least, most) =
        values.fold((f64::INFINITY, 0.0_f64), |(least, most), v| (least.min(v), most.max(v)));
    let room = (most / least).powf(0.06).max(1.05);
    (most > 0.0).then_some(least / room..most * room)
}

/// Round numbers within a range: of each power of 10 as many multiples as make three marks.
fn steps(range: &Range<f64>) -> Vec<f64> {
    const MULTIPLES: [&[f64]; 3] =
        [&[1.0], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]];
    let powers = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let of_each = |multiples: &[f64]| -> Vec<f64> {
        let all = powers.clone().map(|power| 10_f64.powi(power));
        let all = all.flat_map(|power| multiples.iter().map(move |m| m * power));
        all.filter(|step| range.contains(step)).collect()
    };
    let all = MULTIPLES.map(of_each);
    let enough = all.iter().find(|steps| steps.len() >= 3);
    enough.or(all.last()).cloned().unwrap_or_default()
}

/// A number of bytes as people write it.
fn size_text(x: f64) -> String {
    match x {
        x if x >= 1_048_576.0 => format!("{} Mi", (x / 1_048_576.0).round()),
        x if x >= 1024.0 => format!("{} Ki", (x / 1024.0).round()),
        x => format!("{}", x.round()),
    }
}

/// A round number without the noise of binary fractions.
fn plain(x: f64) -> String {
    let digits = (1.0 - x.log10().floor()).clamp(0.0, 9.0) as usize;
    let text = format!("{x:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_numbers_and_more_than_one() {
        let text = |range| steps(&range).into_iter().map(plain).collect::<Vec<_>>();
        assert_eq!(text(0.25..0.45), ["0.3", "0.4"]);
        assert_eq!(text(0.15..1.2), ["0.2", "0.5", "1"]);
        assert_eq!(text(0.1..2000.0), ["0.1", "1", "10", "100", "1000"]);
        assert_eq!(plain(0.300_000_000_000_000_04), "0.3");
    }

    #[test]
    fn names_stand_in_the_order_in_which_their_lines_end() {
        let lines = [("low", vec![(1.0, 9.0), (2.0, 1.0)]), ("high", vec![(1.0, 3.0)])];
        let names: Vec<_> = names(&lines).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["high", "low"]);
    }
}
