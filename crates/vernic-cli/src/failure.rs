//! What went wrong, in words for the person at the terminal.
//!
//! Every command ends in a [`Failure`] or in success. A failure says what was tried, what came
//! back and, where the usual cause is known, what to do about it.

use std::fmt;
use std::io;

/// An error of the command, with an optional line of advice.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    hint: Option<String>,
    broken_pipe: bool,
}

/// The result of everything in this crate that can fail.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// An error that says `what`.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None, broken_pipe: false }
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

    /// True when standard output was closed by its reader (`vernic info | head`): no error to speak of.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.broken_pipe
    }
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
    let broken_pipe = cause.kind() == io::ErrorKind::BrokenPipe;
    Failure { what: format!("cannot write the output: {cause}"), hint: None, broken_pipe }
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
        assert!(output_failure(io::ErrorKind::BrokenPipe.into()).is_broken_pipe());
        assert!(!output_failure(io::ErrorKind::StorageFull.into()).is_broken_pipe());
    }
}
