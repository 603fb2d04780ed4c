//! What users are told of processes that packets do not reach through memory: once for each process and cause.

use super::hindrance::Hindrance;

/// Warnings of one device, at most: who has so many has read enough.
const MAX_TOLD: usize = 32;

/// What was told.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    told: Vec<(Option<u32>, Hindrance)>,
    /// Descriptors of files that neighbours sent were lost, and that was told.
    lost_files: bool,
}

impl Complaints {
    /// A meeting with the process `pid` failed for the `tries`th time; `None` for any process that calls this one.
    pub(super) fn hear(&mut self, pid: Option<u32>, why: Hindrance, tries: u32) {
        if !self.is_news(pid, why, tries) {
            return;
        }
        let whose = match pid {
            Some(pid) => format!("process {pid} of this host"),
            None => "processes of this host".into(),
        };
        tracing::warn!(
            "packets to {whose} go by UDP and not through shared memory, at a fraction of the speed: {why}"
        );
    }

    /// A neighbour's file found no descriptor.
    pub(super) fn hear_lost_file(&mut self, pid: u32) {
        if !std::mem::replace(&mut self.lost_files, true) {
            tracing::warn!(
                "memory of process {pid} of this host cannot be mapped, so WRITEs and READs are slower: {}",
                Hindrance::Descriptors
            );
        }
    }

    fn is_news(&mut self, pid: Option<u32>, why: Hindrance, tries: u32) -> bool {
        let is_told = self.told.contains(&(pid, why)) || self.told.contains(&(None, why));
        if tries < why.tries_to_tell() || self.told.len() == MAX_TOLD || is_told {
            return false;
        }
        self.told.push((pid, why));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once_for_each_process_and_so_many_in_all() {
        let mut complaints = Complaints::default();
        let mut is_news = |pid, why, tries| complaints.is_news(Some(pid), why, tries);
        assert!(is_news(1, Hindrance::Descriptors, 1));
        assert!(!is_news(1, Hindrance::Descriptors, 2));
        assert!(is_news(1, Hindrance::Memory, 2) && is_news(2, Hindrance::Descriptors, 1));
        let told = (0..1000).filter(|&pid| is_news(pid, Hindrance::Crowd, 2)).count();
        assert_eq!(told, MAX_TOLD - 3);
        let mut complaints = Complaints::default();
        assert!(complaints.is_news(None, Hindrance::Memory, 1));
        assert!(!complaints.is_news(Some(1), Hindrance::Memory, 1), "it was told of all");
    }

    #[test]
    fn what_may_pass_is_told_when_it_has_not_and_what_is_a_choice_or_passes_never() {
        let mut complaints = Complaints::default();
        for why in [Hindrance::Silent, Hindrance::HungUp, Hindrance::Crowd, Hindrance::Other] {
            let mut is_news = |tries| complaints.is_news(Some(1), why, tries);
            assert!(!is_news(1) && is_news(2), "{why:?}");
        }
        for why in [Hindrance::User, Hindrance::Door, Hindrance::Meetings] {
            assert!((1..9).all(|tries| !complaints.is_news(Some(1), why, tries)), "{why:?}");
        }
    }
}
