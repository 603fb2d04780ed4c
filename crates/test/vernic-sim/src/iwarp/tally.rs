//! What runs exercised. A count of 0 over many seeds means that a path was never taken.

use std::fmt;

macro_rules! tallies {
    ($($name:ident = $text:literal,)*) => {
        /// One countable thing.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        #[expect(missing_docs, reason = "each is what its text says")]
        pub enum Tally { $($name,)* }

        impl Tally {
            /// All, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// The text in the last line of output.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

tallies! {
    Steps = "steps", Bytes = "bytes", Fpdus = "fpdus", Crc = "crc", NoCrc = "no_crc",
    Markers = "markers", LargeFpdus = "large_fpdus", ByteByByte = "byte_by_byte", Placed = "placed",
    Handed = "handed_over", PeerToPeer = "peer_to_peer", RevisionOne = "revision_1",
    Send = "send", SendInv = "send_inv", Write = "write", WriteImm = "write_imm", Read = "read",
    ReadInv = "read_inv", CmpSwap = "cmp_swap", FetchAdd = "fetch_add", Fenced = "fenced",
    Unsignaled = "unsignaled", Received = "received", Success = "success", Flushed = "flushed",
    Failed = "failed", Held = "held_for_receive", Closed = "closed_in_order",
    Changed = "bytes_changed", Reset = "resets", CutOff = "halves_cut_off", Silence = "silences",
    ToError = "forced_errors", Refused = "refused_requests", NoReceive = "missing_receives",
    StartupFailed = "startups_failed", Violations = "violations_found", Terminated = "terminates_received",
    Lost = "connections_lost", TimedOut = "timed_out", Misplaced = "safety_only",
}

/// Counts of a seed or of many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals([u64; Tally::ALL.len()]);

impl Default for Totals {
    fn default() -> Self {
        Self([0; Tally::ALL.len()])
    }
}

impl Totals {
    /// Counts one.
    pub fn hit(&mut self, tally: Tally) {
        self.add(tally, 1);
    }
    /// Counts `n`.
    pub fn add(&mut self, tally: Tally, n: u64) {
        self.0[tally as usize] += n;
    }
    /// The count.
    pub fn of(&self, tally: Tally) -> u64 {
        self.0[tally as usize]
    }
    /// Adds another's counts to these.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, tally) in Tally::ALL.iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            write!(f, "{space}{}={}", tally.text(), self.of(*tally))?;
        }
        Ok(())
    }
}
