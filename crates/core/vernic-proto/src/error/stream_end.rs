//! How a TCP connection ends, as its owner sees it; and how a stream does, as the owner is told.

use core::fmt;

use vernic_wire::iwarp::TermCode;

/// The end of what a connection receives: "TCP connection closed, terminated, or lost. This
/// includes lost by timeout, too many retries, RST received, or FIN received" (RFC 5044, 8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum StreamEnd {
    /// The peer closed its half in order (FIN).
    Closed,
    /// The connection was reset, or sending failed.
    Reset,
    /// TCP gave up: the peer's host does not answer.
    TimedOut,
    /// The peer stood still in the middle of an FPDU, or before a first one that it had promised,
    /// though its host may answer.
    Stalled,
}

impl fmt::Display for StreamEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the peer closed it",
            Self::Reset => "it was reset",
            Self::TimedOut => "the peer's host does not answer: it is down, or cannot be reached",
            Self::Stalled => "the peer stood still in the middle of something",
        })
    }
}

/// How a stream ended, or why it is about to: the first reason, which later ones do not change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Ending {
    /// The peer closed its half in order, between two messages, before this end closed its own.
    PeerClosed,
    /// This end closed in order, and the peer followed or its time to do so is over.
    Closed,
    /// The connection was lost: reset, timed out, or closed in the middle of something.
    Lost(StreamEnd),
    /// The peer ended it, with a Terminate of this code.
    Terminated(TermCode),
    /// This end ended it, with a Terminate of this code where it could still say it (RFC 5040, 7).
    Aborted(TermCode),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerClosed => f.write_str("the peer closed the connection"),
            Self::Closed => f.write_str("this end closed the connection"),
            Self::Lost(end) => write!(f, "the connection was lost: {end}"),
            Self::Terminated(code) => write!(f, "the peer ended it with a Terminate: {code}"),
            Self::Aborted(code) => write!(f, "this end ended it with a Terminate: {code}"),
        }
    }
}
