//! Aligned tables for the terminal, and the one place that prints to standard output.

use crate::failure::{Outcome, output_failure};
use std::fmt::Write as _;
use std::io::Write as _;

/// How the cells of a column are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table under construction: a header line, then rows of the same width.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these columns.
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; missing cells stay empty, cells beyond the last column are not shown.
    pub(crate) fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// The text of the table, two blanks before and between columns, a newline after each line.
    pub(crate) fn render(&self) -> String {
        let width = |index: usize| {
            let cells = self.rows.iter().map(|row| row[index].chars().count());
            cells.chain([self.columns[index].0.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let header: Vec<&str> = self.columns.iter().map(|column| column.0).collect();
        let mut text = String::new();
        self.line(&mut text, &widths, &header);
        for row in &self.rows {
            let cells: Vec<&str> = row.iter().map(String::as_str).collect();
            self.line(&mut text, &widths, &cells);
        }
        text
    }

    fn line(&self, text: &mut String, widths: &[usize], cells: &[&str]) {
        let mut line = String::new();
        for ((cell, width), column) in cells.iter().zip(widths).zip(&self.columns) {
            // Writing to a String does not fail.
            let _ = match column.1 {
                Align::Left => write!(line, "  {cell:<width$}"),
                Align::Right => write!(line, "  {cell:>width$}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

/// Prints `text` as it is.
pub(crate) fn print(text: &str) -> Outcome<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(output_failure)
}

/// Prints `value` as indented JSON and a newline.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Outcome<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| output_failure(e.into()))?;
    print(&format!("{text}\n"))
}

/// A size in the unit a reader expects: `64 B`, `4 KiB`, `1 MiB`.
pub(crate) fn size_text(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (unit, name) in UNITS {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_flush_right_and_lines_have_no_trailing_blanks() {
        let mut table =
            Table::new(&[("op", Align::Left), ("size", Align::Right), ("", Align::Left)]);
        table.row(["SEND", "64 B"]);
        table.row(["WRITE", "1024 KiB", "note"]);
        assert_eq!(
            table.render(),
            "  op         size\n  SEND       64 B\n  WRITE  1024 KiB  note\n"
        );
    }

    #[test]
    fn sizes_use_the_largest_unit_that_divides_them() {
        assert_eq!(size_text(0), "0 B");
        assert_eq!(size_text(64), "64 B");
        assert_eq!(size_text(4096), "4 KiB");
        assert_eq!(size_text(1 << 20), "1 MiB");
        assert_eq!(size_text((1 << 20) + 1), "1048577 B");
        assert_eq!(size_text(2 << 30), "2 GiB");
    }
}
