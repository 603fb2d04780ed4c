//! What a run exercised: one counter per feature, operation, status, disposition and fault.
//!
//! Owns the totals that the last line of output shows. A count of 0 means that a path was never
//! taken: the simulator would be blind there.

use std::fmt;

use vernic_proto::DropReason;

macro_rules! counts {
    ($($name:ident = $text:literal,)*) => {
        /// One countable thing.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        #[expect(missing_docs, reason = "each is what its text says")]
        pub enum Count { $($name,)* }

        impl Count {
            /// All, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// The text in the last line of output.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

counts! {
    Packets = "packets", Messages = "messages", Bytes = "bytes", Events = "events",
    ConnRc = "rc", ConnUc = "uc", ConnUd = "ud", ConnXrc = "xrc",
    OpSend = "send", OpSendImm = "send_imm", OpSendInv = "send_inv", OpWrite = "write",
    OpWriteImm = "write_imm", OpRead = "read", OpReadBack = "read_back", OpCmpSwap = "cmp_swap",
    OpFetchAdd = "fetch_add", OpFlush = "flush", OpAtomicWrite = "atomic_write",
    OpLocalInv = "local_inv", OpBindMw = "bind_mw", OpFenced = "fenced", OpUnsignaled = "unsignaled",
    OpWindow = "through_window", Received = "received", ReceivedShared = "received_srq",
    Lost = "lost", Duplicated = "duplicated", Reordered = "reordered", Corrupted = "corrupted",
    MtuCut = "mtu_cut", Partitioned = "partitioned", Garbage = "garbage", Partitions = "partitions",
    Revocations = "revocations", Resets = "resets", ForcedErrors = "forced_errors",
    Drains = "drains", DrainedEvents = "drained_events", Reconnects = "reconnects",
    SqeRecoveries = "sqe_recoveries", PostedInError = "posted_in_error",
    Ghosts = "ghosts", Notified = "notified", PsnWraps = "psn_wraps",
    DispAccepted = "accepted", DispDuplicate = "duplicate", DispRnr = "rnr",
    NakSequence = "nak_sequence", NakFatal = "nak_fatal", Dropped = "dropped",
    WcSuccess = "wc_success", WcFlushed = "wc_flushed", WcLocalLength = "wc_local_length",
    WcLocalProtection = "wc_local_protection", WcRemoteInvalid = "wc_remote_invalid",
    WcRemoteAccess = "wc_remote_access", WcRemoteOperation = "wc_remote_operation",
    WcRetryExceeded = "wc_retry_exceeded", WcRnrExceeded = "wc_rnr_exceeded", WcOther = "wc_other",
    Parts = "parts", PartsXrc = "parts_xrc", PartsUc = "parts_uc", PartsNotReady = "parts_not_ready", PartsRefused = "parts_refused",
    CarriedAcks = "carried_acks", Rendezvous = "rendezvous", Unreachable = "unreachable",
    Withdrawn = "withdrawn", RingPackets = "ring_packets", ToRing = "to_ring",
    RingFull = "ring_full", RingsLost = "rings_lost", RecordsLost = "records_lost",
    PeersGone = "peers_gone", LateCopies = "late_copies", HostileParts = "hostile_parts",
    Kept = "kept", KeptHandled = "kept_handled", KeptMaps = "kept_maps",
    TailProbes = "tail_probes", AckTimeouts = "ack_timeouts", VirtualMs = "virtual_ms",
}

/// Counters of a seed or of many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cover {
    counts: [u64; Count::ALL.len()],
    drops: [u64; DropReason::ALL.len()],
}

impl Default for Cover {
    fn default() -> Self {
        Self { counts: [0; Count::ALL.len()], drops: [0; DropReason::ALL.len()] }
    }
}

impl Cover {
    /// Counts one.
    pub fn hit(&mut self, count: Count) {
        self.counts[count as usize] += 1;
    }
    /// Counts `n`.
    pub fn add(&mut self, count: Count, n: u64) {
        self.counts[count as usize] += n;
    }
    /// The count.
    pub fn of(&self, count: Count) -> u64 {
        self.counts[count as usize]
    }
    /// Counts a drop by the protocol.
    pub fn dropped(&mut self, reason: DropReason) {
        self.hit(Count::Dropped);
        self.drops[reason as usize] += 1;
    }
    /// Drops by the protocol for this reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }
    /// Adds another's counts to these.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        for (mine, theirs) in self.drops.iter_mut().zip(&other.drops) {
            *mine += theirs;
        }
    }
}

impl fmt::Display for Cover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, count) in Count::ALL.iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            write!(f, "{space}{}={}", count.text(), self.of(*count))?;
        }
        for reason in DropReason::ALL {
            if self.drops(*reason) > 0 {
                write!(f, " drop_{}={}", reason.name(), self.drops(*reason))?;
            }
        }
        Ok(())
    }
}
