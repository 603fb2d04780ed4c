//! Warnings to users about processes that packets do not reach through memory: one for each process
//! and cause.

use std::fmt;

use super::hindrance::Hindrance;

/// Warnings of one device, at most: more would not help a reader.
const MAX_TOLD: usize = 32;

/// The process that a warning is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The process of this number; 0 stands for any of another PID namespace, as it does for the
    /// kernel.
    Process(u32),
    /// An unknown process: the one that has the slot was not reached.
    Unknown,
    /// Any process that calls this one.
    All,
}

impl fmt::Display for Whose {
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
pub(super) struct Complaints {
    told: Vec<(Whose, Hindrance)>,
    /// Whether a warning was logged that files of local peers were lost for want of a descriptor.
    lost_files: bool,
}

impl Complaints {
    /// Logs, if that is due and new, that a connect failed for the `tries`th time.
    pub(super) fn hear(&mut self, whose: Whose, why: Hindrance, tries: u32) {
        if self.is_news(whose, why, tries) {
            tracing::warn!(
                "packets to {whose} go by UDP and not through shared memory, at a fraction of the speed: {why}"
            );
        }
    }

    /// Logs, once, that there was no descriptor for a file that a local peer sent.
    pub(super) fn hear_lost_file(&mut self, pid: u32) {
        if !std::mem::replace(&mut self.lost_files, true) {
            tracing::warn!(
                "memory of {} cannot be mapped, so WRITEs and READs are slower: {}",
                Whose::Process(pid),
                Hindrance::Descriptors
            );
        }
    }

    fn is_news(&mut self, whose: Whose, why: Hindrance, tries: u32) -> bool {
        let is_due = tries >= why.tries_to_tell() && self.told.len() < MAX_TOLD;
        let is_news = is_due && !self.is_told(whose, why) && !self.is_told(Whose::All, why);
        if is_news {
            self.told.push((whose, why));
        }
        is_news
    }

    pub(super) fn is_told(&self, whose: Whose, why: Hindrance) -> bool {
        self.told.contains(&(whose, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once_for_each_process_and_so_many_in_all() {
        let mut complaints = Complaints::default();
        let mut is_news = |pid, why, tries| complaints.is_news(Whose::Process(pid), why, tries);
        assert!(is_news(1, Hindrance::Descriptors, 1));
        assert!(!is_news(1, Hindrance::Descriptors, 2));
        assert!(is_news(1, Hindrance::Memory, 2) && is_news(2, Hindrance::Descriptors, 1));
        let told = (0..1000).filter(|&pid| is_news(pid, Hindrance::Crowd, 2)).count();
        assert_eq!(told, MAX_TOLD - 3);
        let mut complaints = Complaints::default();
        assert!(complaints.is_news(Whose::All, Hindrance::Memory, 1));
        assert!(!complaints.is_news(Whose::Process(1), Hindrance::Memory, 1), "it was told of all");
    }

    #[test]
    fn a_process_without_a_number_is_not_given_one() {
        let named = [Whose::Process(7), Whose::Process(0), Whose::Unknown].map(|w| w.to_string());
        assert_eq!(named[0], "process 7 of this host");
        assert_eq!(named[1], "a process of another PID namespace of this host");
        assert!(named[1..].iter().all(|words| !words.contains(char::is_numeric)), "{named:?}");
    }

    #[test]
    fn what_may_pass_is_told_when_it_has_not_and_what_is_a_choice_or_passes_never() {
        let mut complaints = Complaints::default();
        for why in [Hindrance::Silent, Hindrance::HungUp, Hindrance::Crowd, Hindrance::Other] {
            let mut is_news = |tries| complaints.is_news(Whose::Process(1), why, tries);
            assert!(!is_news(1) && is_news(2), "{why:?}");
        }
        for why in [Hindrance::User, Hindrance::Door, Hindrance::Meetings] {
            assert!(
                (1..9).all(|tries| !complaints.is_news(Whose::Process(1), why, tries)),
                "{why:?}"
            );
        }
    }
}
