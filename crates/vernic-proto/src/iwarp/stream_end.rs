//! How a TCP connection ends, as its owner sees it.

use core::fmt;

/// The end of what a connection receives: "TCP connection closed, terminated, or lost. This includes
/// lost by timeout, too many retries, RST received, or FIN received" (RFC 5044, 8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum StreamEnd {
    /// The peer closed its half in order (FIN).
    Closed,
    /// The connection was reset, or sending failed.
    Reset,
    /// TCP gave up, or the peer stood still in the middle of an FPDU.
    TimedOut,
}

impl fmt::Display for StreamEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the peer closed it",
            Self::Reset => "it was reset",
            Self::TimedOut => "the peer did not answer",
        })
    }
}
