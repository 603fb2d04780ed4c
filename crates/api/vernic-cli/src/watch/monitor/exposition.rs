//! The text formats of metrics: OpenMetrics 1.0 and the text format 0.0.4 of Prometheus.
//!
//! Owns how families, labels and values are written, and knows no metric. A family has one name in
//! the code, without `_total` or `_info`, and both formats are written from it.

use std::fmt::{Display, Write as _};

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The older format, which each version of Prometheus reads.
    Prometheus,
}

impl Format {
    /// The value of the header `Content-Type`.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// What the values of a family mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Totals, which only grow until they begin again.
    Counter,
    /// Values of now.
    Gauge,
    /// Labels that say something; the value is 1.
    Info,
}

impl Kind {
    /// The suffix of the samples' names.
    fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Gauge => "",
            Self::Info => "_info",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Info => "info",
        }
    }
}

/// The units that families may have, each the last word of its family's name.
const UNITS: &[&str] = &["bytes", "packets", "seconds"];

/// A text of metrics that is being written, family by family.
#[derive(Debug)]
pub(super) struct Exposition {
    format: Format,
    text: String,
    /// The name of the samples of the current family.
    sample: String,
}

impl Exposition {
    /// An empty text.
    pub(super) fn new(format: Format) -> Self {
        Self { format, text: String::new(), sample: String::new() }
    }

    /// Begins a family. Its samples follow, by [`sample`](Self::sample).
    pub(super) fn family(&mut self, kind: Kind, name: &str, help: &str) {
        self.sample = format!("{name}{}", kind.suffix());
        let (name, kind) = match self.format {
            Format::OpenMetrics => (name, kind.name()),
            // Here a family has the name of its samples, and no family is of type info.
            Format::Prometheus if kind == Kind::Info => (&*self.sample, "gauge"),
            Format::Prometheus => (&*self.sample, kind.name()),
        };
        // Writing to a String does not fail.
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
        let unit = UNITS.iter().find(|unit| name.rsplit('_').next() == Some(**unit));
        if let (Format::OpenMetrics, Some(unit)) = (self.format, unit) {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
        let _ = write!(self.text, "# HELP {name} ");
        escape(help, &mut self.text);
        self.text.push('\n');
    }

    /// Adds a sample of the current family. No two of them may have the same labels.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(&self.sample);
        for (at, (name, value)) in labels.iter().enumerate() {
            self.text.push(if at == 0 { '{' } else { ',' });
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(value, &mut self.text);
            self.text.push('"');
        }
        self.text.push_str(if labels.is_empty() { "" } else { "}" });
        // Writing to a String does not fail.
        let _ = writeln!(self.text, " {value}");
    }

    /// The whole text.
    pub(super) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// Appends a label's value or a help text, escaped.
fn escape(value: &str, text: &mut String) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: Format) -> String {
        let mut exposition = Exposition::new(format);
        exposition.family(Kind::Counter, "a_bytes", "Bytes of a.");
        exposition.sample(&[("x", "1"), ("y", "\"\n\\<script>")], 7);
        exposition.family(Kind::Info, "b", "What b is.");
        exposition.sample(&[("x", "é")], 1);
        exposition.family(Kind::Gauge, "c", "C now.");
        exposition.sample(&[], 0.25);
        exposition.finish()
    }

    #[test]
    fn openmetrics_names_families_without_suffix_and_has_units_and_an_end() {
        assert_eq!(
            written(Format::OpenMetrics),
            "# TYPE a_bytes counter\n# UNIT a_bytes bytes\n# HELP a_bytes Bytes of a.\n\
             a_bytes_total{x=\"1\",y=\"\\\"\\n\\\\<script>\"} 7\n\
             # TYPE b info\n# HELP b What b is.\nb_info{x=\"é\"} 1\n\
             # TYPE c gauge\n# HELP c C now.\nc 0.25\n# EOF\n"
        );
    }

    #[test]
    fn the_format_of_prometheus_names_families_as_their_samples() {
        assert_eq!(
            written(Format::Prometheus),
            "# TYPE a_bytes_total counter\n# HELP a_bytes_total Bytes of a.\n\
             a_bytes_total{x=\"1\",y=\"\\\"\\n\\\\<script>\"} 7\n\
             # TYPE b_info gauge\n# HELP b_info What b is.\nb_info{x=\"é\"} 1\n\
             # TYPE c gauge\n# HELP c C now.\nc 0.25\n"
        );
    }
}
