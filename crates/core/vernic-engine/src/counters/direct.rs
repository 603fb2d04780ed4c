//! Counters of requests that were carried out without packets, and of the grants for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vernic_proto::DirectOp;

use super::Count;

/// Why a request took packets though there is a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No consent, or not yet.
    NoTicket,
    /// The ticket does not cover the range or the operation.
    Range,
    /// The memory's owner has closed a gate.
    Closed,
    /// The kernel does not permit it.
    NotPermitted,
    /// The process is gone, or its memory.
    Unreachable,
    /// The local memory refuses.
    Local,
}

/// What is counted of requests without packets, and of consent to them.
#[derive(Debug, Default)]
pub(crate) struct DirectCounts {
    pub(crate) writes: Count,
    reads: Count,
    atomics: Count,
    pub(crate) bytes: Count,
    refusals: [Count; 6],
    pub(crate) granted: Count,
    pub(crate) denied: Count,
    pub(crate) bad_messages: Count,
    /// Added to by any thread, as the next.
    pub(crate) cut_off: Arc<AtomicU64>,
    pub(crate) ends_untold: Arc<AtomicU64>,
}

/// Totals of requests carried out without packets, in the memory of processes of this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectCounters {
    /// WRITEs carried out here, in the peer's memory.
    pub writes: u64,
    /// READs.
    pub reads: u64,
    /// Atomics.
    pub atomics: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// One-sided requests that took packets for lack of the peer's consent: each key's first.
    pub refused_no_ticket: u64,
    /// ... because they leave what the peer has consented to, or need other rights.
    pub refused_range: u64,
    /// ... because the peer has withdrawn its consent: the key or the queue pair has changed.
    pub refused_closed: u64,
    /// Keys whose requests take packets because the kernel does not permit access to the peer's
    /// process: by its rules for debuggers, by a filter of system calls, or because the process is
    /// of a PID namespace that cannot be seen.
    pub refused_not_permitted: u64,
    /// ... because the peer's process or memory is not there, or its file cannot be mapped.
    pub refused_unreachable: u64,
    /// ... because local memory refuses.
    pub refused_local: u64,
    /// Consents given to peers.
    pub granted: u64,
    /// Consents refused to peers.
    pub denied: u64,
    /// Messages about consent that were not understood or answer nothing.
    pub bad_messages: u64,
    /// Processes that stayed inside memory that was withdrawn from them for more than a second.
    pub cut_off: u64,
    /// Times that a process could not be told that memory it has mapped was withdrawn: it keeps the
    /// mapping until it is told of the next, or until it uses the key again.
    pub ends_untold: u64,
}

vernic_io::sum_fields! { DirectCounters: writes, reads, atomics, bytes, refused_no_ticket, refused_range, refused_closed, refused_not_permitted, refused_unreachable, refused_local, granted, denied, bad_messages, cut_off, ends_untold }

impl DirectCounters {
    /// Each with its name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        [
            ("direct_writes", self.writes),
            ("direct_reads", self.reads),
            ("direct_atomics", self.atomics),
            ("direct_bytes", self.bytes),
            ("direct_refusals_no_ticket", self.refused_no_ticket),
            ("direct_refusals_range", self.refused_range),
            ("direct_refusals_closed", self.refused_closed),
            ("direct_refusals_not_permitted", self.refused_not_permitted),
            ("direct_refusals_unreachable", self.refused_unreachable),
            ("direct_refusals_local", self.refused_local),
            ("direct_granted", self.granted),
            ("direct_denied", self.denied),
            ("direct_bad_messages", self.bad_messages),
            ("direct_cut_off", self.cut_off),
            ("direct_ends_untold", self.ends_untold),
        ]
        .into_iter()
    }
}

impl DirectCounts {
    pub(crate) fn note_refusal(&self, why: Refusal) {
        self.refusals[why as usize].add(1);
    }

    /// Counts `bytes` of a request that were moved; with `ends` its last.
    pub(crate) fn count(&self, op: &DirectOp, bytes: u32, ends: bool) {
        self.bytes.add(u64::from(bytes));
        if ends {
            match op {
                DirectOp::Write => self.writes.add(1),
                DirectOp::Read => self.reads.add(1),
                DirectOp::Atomic(_) => self.atomics.add(1),
            }
        }
    }

    pub(crate) fn snapshot(&self) -> DirectCounters {
        let refused = |why: Refusal| self.refusals[why as usize].value();
        DirectCounters {
            writes: self.writes.value(),
            reads: self.reads.value(),
            atomics: self.atomics.value(),
            bytes: self.bytes.value(),
            refused_no_ticket: refused(Refusal::NoTicket),
            refused_range: refused(Refusal::Range),
            refused_closed: refused(Refusal::Closed),
            refused_not_permitted: refused(Refusal::NotPermitted),
            refused_unreachable: refused(Refusal::Unreachable),
            refused_local: refused(Refusal::Local),
            granted: self.granted.value(),
            denied: self.denied.value(),
            bad_messages: self.bad_messages.value(),
            cut_off: self.cut_off.load(Ordering::Relaxed),
            ends_untold: self.ends_untold.load(Ordering::Relaxed),
        }
    }
}
