//! What a user permits of access to memory between processes of one host, why an access is refused,
//! and what goes wrong when access is taken back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether one-sided requests are carried out in the memory of processes of this host, and what
/// this process permits for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DirectAccess {
    /// Requests travel in packets.
    Off,
    /// Requests are carried out directly where the kernel permits it.
    #[default]
    On,
    /// As `On`. Where Yama (`ptrace_scope` 1) would refuse, this process names one local peer by
    /// `PR_SET_PTRACER`, which gives that process all that `ptrace` gives.
    Ptrace,
}

impl DirectAccess {
    /// Whether requests are carried out directly at all.
    pub fn is_on(self) -> bool {
        self != Self::Off
    }
}

/// The rules for access of local peers to the memory of this process.
#[derive(Clone, Debug, Default)]
pub struct AccessRules {
    /// What the user permits.
    pub setting: DirectAccess,
    /// Counts what goes wrong when access is taken back.
    pub counts: Arc<RevocationCounts>,
}

/// The reason why a one-sided request took packets although its peer is a process of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The peer has not granted access, or not yet.
    NoGrant,
    /// The grant does not cover the range or the operation.
    Range,
    /// The peer has revoked the grant, by clearing a revocation word.
    Closed,
    /// The kernel does not permit this process to access the memory of the peer's process.
    NotPermitted,
    /// The peer's process or its memory is gone.
    Unreachable,
    /// The request's local buffers cannot be accessed.
    Local,
}

/// The live counters of what goes wrong when access is revoked. Any thread adds to them.
#[derive(Debug, Default)]
pub struct RevocationCounts {
    cut_off: AtomicU64,
    untold: AtomicU64,
}

impl RevocationCounts {
    /// Counts a process that did not leave our memory in time.
    pub(crate) fn note_cut_off(&self) {
        self.cut_off.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a revocation that could not be reported to a process.
    pub(crate) fn note_untold(&self) {
        self.untold.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of processes that did not leave our memory in time.
    pub fn cut_off(&self) -> u64 {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// Returns the number of revocations that could not be reported to a process.
    pub fn untold(&self) -> u64 {
        self.untold.load(Ordering::Relaxed)
    }
}
