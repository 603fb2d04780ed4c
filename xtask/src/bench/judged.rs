//! A bar as the tables show it.

/// A bar with what was measured for it, ready to print.
#[derive(Debug, PartialEq)]
pub(crate) struct Judged {
    pub(crate) what: String,
    pub(crate) bar: String,
    pub(crate) measured: String,
    /// `reached`, `short`, or `not measured`.
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
