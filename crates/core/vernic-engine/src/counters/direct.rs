//! Counters of direct access: requests that were carried out in the peer's memory, without packets,
//! and the grants for them.

use std::sync::Arc;

use vernic_local::{Refusal, RevocationCounts};
use vernic_proto::DirectOp;

use super::Count;

/// The counters of direct access while the device is open. [`DirectCounters`] has their meanings.
#[derive(Debug, Default)]
pub(crate) struct DirectCounts {
    writes: Count,
    reads: Count,
    atomics: Count,
    bytes: Count,
    refusals: [Count; 6],
    granted: Count,
    denied: Count,
    kept_out: Count,
    bad_messages: Count,
    revocations: Arc<RevocationCounts>,
}

/// The totals of direct access: requests that were carried out in the memory of processes of this
/// host, without packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectCounters {
    /// WRITEs of this process that were carried out in the peer's memory.
    pub writes: u64,
    /// READs of this process that were carried out in the peer's memory.
    pub reads: u64,
    /// Atomics of this process that were carried out in the peer's memory.
    pub atomics: u64,
    /// Bytes that these WRITEs, READs and atomics moved.
    pub bytes: u64,
    /// One-sided requests that took packets because the peer had not granted access yet, as with
    /// the first request that uses a key, or has denied it.
    pub refused_no_ticket: u64,
    /// One-sided requests that took packets because they exceed the granted range, or need other
    /// rights.
    pub refused_range: u64,
    /// One-sided requests that took packets because the peer has revoked the grant: the key or the
    /// queue pair has changed.
    pub refused_closed: u64,
    /// Keys whose requests take packets because the kernel does not permit access to the peer's
    /// process. The cause is the kernel's rules for debuggers, a filter of system calls, or a PID
    /// namespace that cannot be seen.
    pub refused_not_permitted: u64,
    /// Keys whose requests take packets because the peer's process or memory is gone, or its file
    /// cannot be mapped.
    pub refused_unreachable: u64,
    /// One-sided requests that took packets because their local buffers cannot be accessed.
    pub refused_local: u64,
    /// Grants of this process's memory that were given to peers.
    pub granted: u64,
    /// Grants of this process's memory that peers requested and were denied.
    pub denied: u64,
    /// Processes that Yama keeps from memory of this process that they have not mapped, because
    /// `direct` is not `ptrace`, or because another process has the permission. One-sided requests
    /// to that memory, and large SENDs, take packets.
    pub kept_out: u64,
    /// Messages about grants from peers that could not be parsed, or that answer no grant request.
    pub bad_messages: u64,
    /// Processes that were cut off from this process's memory, because their access continued for
    /// more than a second after its revocation.
    pub cut_off: u64,
    /// Times that a peer's process could not be notified that a grant of memory that it has mapped
    /// was revoked. The process keeps the mapping until the next notification, or until it uses the
    /// key again.
    pub ends_untold: u64,
}

vernic_io::sum_fields! { DirectCounters: writes, reads, atomics, bytes, refused_no_ticket, refused_range, refused_closed, refused_not_permitted, refused_unreachable, refused_local, granted, denied, kept_out, bad_messages, cut_off, ends_untold }

impl DirectCounters {
    /// Returns each counter with its name.
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
            ("direct_kept_out", self.kept_out),
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

    /// Counts `bytes` that requests of one kind have moved, and how many `requests` ended with
    /// them.
    pub(crate) fn count(&self, op: &DirectOp, bytes: u64, requests: u64) {
        self.bytes.add(bytes);
        if requests > 0 {
            match op {
                DirectOp::Write => self.writes.add(requests),
                DirectOp::Read => self.reads.add(requests),
                DirectOp::Atomic(_) => self.atomics.add(requests),
            }
        }
    }

    /// Counts a grant that was given to a peer, or denied.
    pub(crate) fn note_answer(&self, is_granted: bool) {
        if is_granted { &self.granted } else { &self.denied }.add(1);
    }

    /// Counts a process that Yama keeps from our memory. Returns whether it is the first.
    pub(crate) fn note_kept_out(&self) -> bool {
        self.kept_out.add(1);
        self.kept_out.value() == 1
    }

    /// Counts a message that was not understood, or that answers no request.
    pub(crate) fn note_bad_message(&self) {
        self.bad_messages.add(1);
    }

    /// Returns the counters of what goes wrong when access is revoked.
    pub(crate) fn revocations(&self) -> &Arc<RevocationCounts> {
        &self.revocations
    }

    pub(crate) fn snapshot(&self) -> DirectCounters {
        let refused = |why: Refusal| self.refusals[why as usize].value();
        DirectCounters {
            writes: self.writes.value(),
            reads: self.reads.value(),
            atomics: self.atomics.value(),
            bytes: self.bytes.value(),
            refused_no_ticket: refused(Refusal::NoGrant),
            refused_range: refused(Refusal::Range),
            refused_closed: refused(Refusal::Closed),
            refused_not_permitted: refused(Refusal::NotPermitted),
            refused_unreachable: refused(Refusal::Unreachable),
            refused_local: refused(Refusal::Local),
            granted: self.granted.value(),
            denied: self.denied.value(),
            kept_out: self.kept_out.value(),
            bad_messages: self.bad_messages.value(),
            cut_off: self.revocations.cut_off(),
            ends_untold: self.revocations.untold(),
        }
    }
}
