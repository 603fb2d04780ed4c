//! What went wrong, in words for the person at the terminal.
//!
//! Every command ends in a [`Failure`] or in success. A failure says what was tried, what came
//! back and, where the usual cause is known, what to do about it.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// An error of the command, with an optional line of advice.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    hint: Option<String>,
    kind: Kind,
}

/// What a failure means for the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It could not be done.
    Failed,
    /// It was asked for in a way that cannot be meant.
    Usage,
    /// The reader of standard output has gone: no error to speak of.
    BrokenPipe,
}

/// The result of everything in this crate that can fail.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// An error that says `what`.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None, kind: Kind::Failed }
    }

    /// An error in the command line, which says `what` and what is allowed.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self { kind: Kind::Usage, ..Self::new(what) }
    }

    /// The same error, as one in the command line.
    #[must_use]
    pub(crate) fn into_usage(self) -> Self {
        Self { kind: Kind::Usage, ..self }
    }

    /// The same error with a line of advice.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The message without the advice: what travels to the other process.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// Tells it on standard error, and gives the exit status. Silent when standard output was
    /// closed by its reader (`vernic info | head`).
    pub(crate) fn report(&self) -> ExitCode {
        match self.kind {
            Kind::BrokenPipe => return ExitCode::SUCCESS,
            Kind::Failed | Kind::Usage => complain(format_args!("vernic: {self}")),
        }
        ExitCode::from(if self.kind == Kind::Usage { 2 } else { 1 })
    }
}

/// A line on standard error. One that is closed has nobody to be told, and is no reason to panic,
/// as `eprintln` would.
pub(crate) fn complain(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Turns an error of any kind into a [`Failure`] that says what was being done.
pub(crate) trait Doing<T> {
    /// Names the attempt: "cannot `attempt`: cause".
    fn doing(self, attempt: impl FnOnce() -> String) -> Outcome<T>;
}

impl<T, E: fmt::Display> Doing<T> for Result<T, E> {
    fn doing(self, attempt: impl FnOnce() -> String) -> Outcome<T> {
        self.map_err(|cause| Failure::new(format!("cannot {}: {cause}", attempt())))
    }
}

/// Wraps an error of writing to standard output.
pub(crate) fn output_failure(cause: io::Error) -> Failure {
    let failure = Failure::new(format!("cannot write the output: {cause}"));
    match cause.kind() {
        io::ErrorKind::BrokenPipe => Failure { kind: Kind::BrokenPipe, ..failure },
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_attempt_the_cause_and_the_advice() {
        let failure = Err::<(), _>("port taken").doing(|| "listen on port 18515".into());
        let failure = failure.unwrap_err().hint("choose another with -p");
        assert_eq!(
            failure.to_string(),
            "cannot listen on port 18515: port taken\n  hint: choose another with -p"
        );
        assert_eq!(failure.what(), "cannot listen on port 18515: port taken");
    }

    #[test]
    fn a_closed_output_pipe_is_told_apart() {
        let kind = |cause: io::ErrorKind| output_failure(cause.into()).kind;
        assert_eq!(kind(io::ErrorKind::BrokenPipe), Kind::BrokenPipe);
        assert_eq!(kind(io::ErrorKind::StorageFull), Kind::Failed);
    }
}
