//! Sequence diagrams for a terminal: two columns, A and B, and what goes between them.

use crate::story::{Arrow, Flow, Tone};
use crate::text::{end, title};
use crate::units::duration;

/// Columns between the two ends.
const WIDTH: usize = 66;
/// Columns of the times.
const TIME_WIDTH: usize = 10;

/// The sequence diagram of a flow. Like packets are one arrow; of a long flow there are the
/// beginning, the end, and what is around that which went wrong.
pub fn diagram(flow: &Flow) -> String {
    let mut out = format!("[{}] {}\n", flow.number, title(flow));
    let gap = " ".repeat(WIDTH - 2);
    let (a, b) = (end(&flow.a), end(&flow.b));
    let room = WIDTH.saturating_sub(a.chars().count()).max(b.chars().count() + 1);
    out += &format!("{:>TIME_WIDTH$}  A{gap}B\n", "");
    out += &format!("{:>TIME_WIDTH$}  {a}{b:>room$}\n", "");
    for arrow in &flow.arrows {
        out += &format!("{:>TIME_WIDTH$}  |{}|\n", duration(arrow.time_ns), line(arrow));
    }
    out
}

/// The line between the ends: the words in the middle, the arrow around them.
fn line(arrow: &Arrow) -> String {
    let room = WIDTH - 2;
    let label: String = arrow.label.chars().take(room - 8).collect();
    let shaft = match arrow.tone {
        Tone::Left => {
            let words = format!(". . . {label} . . .");
            return format!("{words:^room$}");
        }
        Tone::Trouble => "=",
        Tone::Plain | Tone::Connection | Tone::Lost => "-",
    };
    let left = room - label.chars().count() - 2;
    let (before, after) = (shaft.repeat(left / 2), shaft.repeat(left - left / 2));
    match (arrow.is_from_a, arrow.tone) {
        (true, Tone::Lost) => {
            format!("{before} {label} {}X{}", shaft.repeat(2), " ".repeat(after.len() - 3))
        }
        (false, Tone::Lost) => {
            format!("{}X{} {label} {after}", " ".repeat(before.len() - 3), shaft.repeat(2))
        }
        (true, _) => format!("{before} {label} {}>", &after[1..]),
        (false, _) => format!("<{} {label} {after}", &before[1..]),
    }
}
