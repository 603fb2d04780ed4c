//! Why a node's own packet is not taken.

use std::fmt;

/// Why a node's own packet is not taken. The caller keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// As many packets as may wait do.
    Full,
    /// The bytes are no packet: LRH to ICRC with a right length.
    Malformed,
    /// There is no such port.
    NoPort,
    /// The packet is discarded, and counted: the link does not carry it in this state, it is too
    /// long for the other end, or its service level has no lane.
    Discarded,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "as many packets as may wait to be sent do",
            Self::Malformed => "the bytes are no packet: LRH to ICRC with a right length",
            Self::NoPort => "there is no such port",
            Self::Discarded => "the link does not carry the packet now, or not at all",
        })
    }
}

impl std::error::Error for SubmitError {}
