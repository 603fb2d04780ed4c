//! Which hardware address an IP address has, and since when that is known (RFC 826; RFC 4861,
//! section 7.3; RFC 4391, section 9.4, advises to ask again now and then).
//!
//! ```text
//!   asking --answer--> known --time, if used--> probing --answer--> known
//!     | 3 questions      | time, if not used      | 3 questions to its address
//!     v                  v                        v
//!   gone               gone                     gone
//! ```

use vernic_wire::ipoib::HardwareAddress;

/// How often an address is asked for (RFC 4861: MAX_MULTICAST_SOLICIT, MAX_UNICAST_SOLICIT).
pub(crate) const MAX_QUESTIONS: u8 = 3;
/// Nanoseconds between two questions (RFC 4861: RETRANS_TIMER).
pub(crate) const QUESTION_INTERVAL: u64 = 1_000_000_000;
/// Nanoseconds for which an answer holds (RFC 4861: REACHABLE_TIME).
pub(crate) const HOLDS: u64 = 30_000_000_000;

/// What is known of a neighbor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NeighborState {
    /// Nothing; so many questions were sent to all.
    Asking {
        /// Questions sent.
        questions: u8,
    },
    /// An address.
    Known(HardwareAddress),
    /// An address that may no longer be right; so many questions were sent to it.
    Probing {
        /// The address.
        address: HardwareAddress,
        /// Questions sent.
        questions: u8,
    },
}

/// A neighbor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbor {
    pub(crate) state: NeighborState,
    /// A packet was sent to it since it was last confirmed.
    pub(crate) is_used: bool,
    /// The owner waits for the answer.
    pub(crate) is_asked_for: bool,
}

impl Neighbor {
    pub(crate) const fn new(state: NeighborState) -> Self {
        Self { state, is_used: false, is_asked_for: false }
    }
    pub(crate) const fn address(&self) -> Option<HardwareAddress> {
        match self.state {
            NeighborState::Asking { .. } => None,
            NeighborState::Known(address) | NeighborState::Probing { address, .. } => Some(address),
        }
    }
}
