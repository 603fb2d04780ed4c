//! Warnings to users about processes that packets do not reach through memory: one for each process
//! and cause.

use std::fmt;

use super::failure::ConnectFailure;

/// Warnings of one device, at most: more would not help a reader.
const MAX_LOGGED: usize = 32;

/// The process that a warning is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WarningSubject {
    /// The process of this number; 0 stands for any of another PID namespace, as it does for the
    /// kernel.
    Process(u32),
    /// An unknown process: the one that has the slot was not reached.
    Unknown,
    /// Any process that calls this one.
    All,
}

impl fmt::Display for WarningSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(0) => f.write_str("a process of another PID namespace of this host"),
            Self::Process(pid) => write!(f, "process {pid} of this host"),
            Self::Unknown => f.write_str("a process of this host"),
            Self::All => f.write_str("processes of this host"),
        }
    }
}

/// The warnings that were logged.
#[derive(Debug, Default)]
pub(super) struct ConnectWarnings {
    logged: Vec<(WarningSubject, ConnectFailure)>,
    /// Whether a warning was logged that files of local peers were lost for want of a descriptor.
    lost_files: bool,
}

impl ConnectWarnings {
    /// Logs, if that is due and new, that a connect failed for the `tries`th time.
    pub(super) fn note(&mut self, subject: WarningSubject, why: ConnectFailure, tries: u32) {
        if self.is_news(subject, why, tries) {
            tracing::warn!(
                "packets to {subject} go by UDP and not through shared memory, at a fraction of the speed: {why}"
            );
        }
    }

    /// Logs, once, that there was no descriptor for a file that a local peer sent.
    pub(super) fn note_lost_file(&mut self, pid: u32) {
        if !std::mem::replace(&mut self.lost_files, true) {
            tracing::warn!(
                "memory of {} cannot be mapped, so WRITEs and READs are slower: {}",
                WarningSubject::Process(pid),
                ConnectFailure::Descriptors
            );
        }
    }

    fn is_news(&mut self, subject: WarningSubject, why: ConnectFailure, tries: u32) -> bool {
        let is_due = tries >= why.tries_to_warn() && self.logged.len() < MAX_LOGGED;
        let is_news =
            is_due && !self.is_logged(subject, why) && !self.is_logged(WarningSubject::All, why);
        if is_news {
            self.logged.push((subject, why));
        }
        is_news
    }

    pub(super) fn is_logged(&self, subject: WarningSubject, why: ConnectFailure) -> bool {
        self.logged.contains(&(subject, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once_for_each_process_and_so_many_in_all() {
        let mut warnings = ConnectWarnings::default();
        let mut is_news =
            |pid, why, tries| warnings.is_news(WarningSubject::Process(pid), why, tries);
        assert!(is_news(1, ConnectFailure::Descriptors, 1));
        assert!(!is_news(1, ConnectFailure::Descriptors, 2));
        assert!(
            is_news(1, ConnectFailure::Memory, 2) && is_news(2, ConnectFailure::Descriptors, 1)
        );
        let logged = (0..1000).filter(|&pid| is_news(pid, ConnectFailure::TooManyPeers, 2)).count();
        assert_eq!(logged, MAX_LOGGED - 3);
        let mut warnings = ConnectWarnings::default();
        assert!(warnings.is_news(WarningSubject::All, ConnectFailure::Memory, 1));
        assert!(
            !warnings.is_news(WarningSubject::Process(1), ConnectFailure::Memory, 1),
            "it was told of all"
        );
    }

    #[test]
    fn a_process_without_a_number_is_not_given_one() {
        let named =
            [WarningSubject::Process(7), WarningSubject::Process(0), WarningSubject::Unknown]
                .map(|w| w.to_string());
        assert_eq!(named[0], "process 7 of this host");
        assert_eq!(named[1], "a process of another PID namespace of this host");
        assert!(named[1..].iter().all(|words| !words.contains(char::is_numeric)), "{named:?}");
    }

    #[test]
    fn what_may_pass_is_told_when_it_has_not_and_what_is_a_choice_or_passes_never() {
        let mut warnings = ConnectWarnings::default();
        for why in [
            ConnectFailure::Silent,
            ConnectFailure::HungUp,
            ConnectFailure::TooManyPeers,
            ConnectFailure::Other,
        ] {
            let mut is_news = |tries| warnings.is_news(WarningSubject::Process(1), why, tries);
            assert!(!is_news(1) && is_news(2), "{why:?}");
        }
        for why in
            [ConnectFailure::User, ConnectFailure::NoListener, ConnectFailure::TooManyConnects]
        {
            assert!(
                (1..9).all(|tries| !warnings.is_news(WarningSubject::Process(1), why, tries)),
                "{why:?}"
            );
        }
    }
}
