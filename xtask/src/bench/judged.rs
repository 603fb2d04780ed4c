//! Bars as the tables show them.

use std::fmt::Write;

use super::reasons;

/// A bar with what was measured for it, ready to print.
#[derive(Debug, PartialEq)]
pub(crate) struct Judged {
    pub(crate) what: String,
    pub(crate) bar: String,
    pub(crate) measured: String,
    /// `reached`, `short`, or `not measured`, which may say why.
    pub(crate) verdict: String,
}

/// Three significant digits at least, never an exponent; nothing where it does not apply.
pub(super) fn number(figure: Option<f64>) -> String {
    match figure {
        None => String::new(),
        Some(f) if f >= 100.0 => format!("{f:.0}"),
        Some(f) if f >= 10.0 => format!("{f:.1}"),
        Some(f) if f >= 0.1 => format!("{f:.2}"),
        Some(f) => format!("{f:.4}"),
    }
}

/// Why something was not measured, short enough for a cell of a table.
pub(super) fn cell(why: &str) -> String {
    const WORDS: usize = 20;
    let words: Vec<&str> = why.split_whitespace().collect();
    let text = words[..words.len().min(WORDS)].join(" ");
    let more = if words.len() > WORDS { " ..." } else { "" };
    format!("{}{more}", text.replace('|', "/").replace('<', "&lt;"))
}

/// Bars with what was measured for each, and the reasons of those that are short.
pub(super) fn bars_table(judged: &[Judged]) -> String {
    let mut table = "| what | bar | measured | verdict |\n|---|---|---|---|\n".to_owned();
    let mut notes = Notes::default();
    for Judged { what, bar, measured, verdict } in judged {
        let verdict = notes.mark(what, verdict);
        let _ = writeln!(table, "| {what} | {bar} | {measured} | {verdict} |");
    }
    table + &notes.list()
}

/// How many bars are reached, in words.
pub(super) fn counts(judged: &[Judged]) -> String {
    let count = |verdict: &str| judged.iter().filter(|j| j.verdict.starts_with(verdict)).count();
    let [reached, short, missing] = ["reached", "short", "not measured"].map(count);
    let missing = if missing == 0 { String::new() } else { format!(", {missing} not measured") };
    format!("{} bars: {reached} reached, {short} short{missing}", judged.len())
}

/// The reasons below a table, each once.
#[derive(Default)]
pub(super) struct Notes(Vec<&'static str>);

impl Notes {
    /// The verdict, with the number of its reason if it is short.
    pub(super) fn mark(&mut self, what: &str, verdict: &str) -> String {
        let Some(reason) = reasons::why(what).filter(|_| verdict == "short") else {
            return verdict.to_owned();
        };
        let place = self.0.iter().position(|known| *known == reason).unwrap_or_else(|| {
            self.0.push(reason);
            self.0.len() - 1
        });
        format!("{verdict} ({})", place + 1)
    }

    /// The reasons, numbered.
    pub(super) fn list(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let numbered = self.0.iter().zip(1..).map(|(reason, at)| format!("{at}. {reason}\n"));
        format!("\nWhy short:\n\n{}", numbered.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(what: &str, verdict: &str) -> Judged {
        Judged {
            what: what.into(),
            bar: "at least 1 x b".into(),
            measured: "2 us".into(),
            verdict: verdict.into(),
        }
    }

    #[test]
    fn each_reason_stands_once_and_only_where_a_bar_is_short() {
        let [first, other] = ["ib_write_bw 64 KiB, mapped", "Rust API, WRITE 64 KiB, mapped"];
        let all = [judged(first, "short"), judged(other, "short"), judged("new", "short")];
        let table = bars_table(&all);
        assert_eq!(table.matches("short (1) |").count(), 2, "{table}");
        assert!(table.contains("| new | at least 1 x b | 2 us | short |"), "{table}");
        assert_eq!(table.matches(reasons::why(first).unwrap()).count(), 1, "{table}");
        let table = bars_table(&[judged(first, "reached"), judged(other, "not measured: why")]);
        assert!(!table.contains("Why"), "{table}");
    }

    #[test]
    fn a_long_failure_is_cut_and_ends_no_cell() {
        assert_eq!(cell("no <end> |\nin time"), "no &lt;end> / in time");
        assert_eq!(cell(&"word ".repeat(21)), format!("{}...", "word ".repeat(20)));
    }

    #[test]
    fn bars_are_counted() {
        let all = ["reached", "short", "short"].map(|verdict| judged("a", verdict));
        assert_eq!(counts(&all), "3 bars: 1 reached, 2 short");
        let all = ["reached", "not measured: why"].map(|verdict| judged("a", verdict));
        assert_eq!(counts(&all), "2 bars: 1 reached, 0 short, 1 not measured");
    }
}
