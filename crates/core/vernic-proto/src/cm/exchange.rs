//! What is kept of an exchange about an alternate path (`lap.rs`).

use vernic_wire::cm::Lap;
use vernic_wire::mad::MAD_LEN;

use super::params::CmPath;
use crate::time::Time;

/// How far an exchange is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Active: the LAP is under way.
    Sent,
    /// Passive: the LAP is here, and the owner has not answered it.
    Asked,
    /// Passive: and we asked for time.
    AskedForTime,
    /// Passive: answered, and remembered for duplicates.
    Answered,
}

/// An exchange about an alternate path.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) progress: Progress,
    pub(super) alternate: CmPath,
    pub(super) transaction_id: u64,
    /// The LAP that came; of ours the default one.
    pub(super) lap: Lap,
    /// What we sent last: the LAP, or what the LAP gets: MRA, APR.
    pub(super) last: Option<[u8; MAD_LEN]>,
    /// Nanoseconds between two repeats of our LAP, or of the peer's.
    pub(super) wait: u64,
    pub(super) max_retries: u8,
    /// How often our LAP was repeated for want of an answer.
    pub(super) retries: u8,
    /// How often `last` was sent again.
    pub(super) repeats: u8,
    /// How often the peer asked for time.
    pub(super) mras: u8,
    /// Nanoseconds by which that has put off the next repeat, in all.
    pub(super) extended: u64,
    pub(super) deadline: Time,
}

impl Exchange {
    pub(super) fn new(
        progress: Progress,
        alternate: CmPath,
        transaction_id: u64,
        lap: Lap,
    ) -> Self {
        Self {
            progress,
            alternate,
            transaction_id,
            lap,
            last: None,
            wait: 0,
            max_retries: 0,
            retries: 0,
            repeats: 0,
            mras: 0,
            extended: 0,
            deadline: Time(0),
        }
    }
}
