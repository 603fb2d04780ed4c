//! The local bytes of a send request, and why a request is refused.

use vernic_mem::{InlineData, Sge};
use vernic_proto::PostError;

use crate::error::ORPHAN;

/// The local bytes of a send request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In registered memory, read when packets are built; where a READ or atomic puts its result.
    /// Empty is allowed.
    Sges(&'a [Sge]),
    /// Copied now: the memory may be used again at once. All pieces together are at most the
    /// `max_inline` of the queue pair.
    Inline(&'a [&'a [u8]]),
    /// As [`Payload::Inline`], of one piece.
    InlineBytes(&'a [u8]),
    /// As [`Payload::Inline`], of memory that others may change meanwhile.
    InlineList(InlineData<'a>),
    /// None, and this many bytes of the peer's memory are meant: for FLUSH.
    Range(u32),
}

/// Why a send was refused. It was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendRefusal {
    /// The device was opened before this process was forked.
    #[error("{}", ORPHAN)]
    Orphan,
    /// State, room, operation or length.
    #[error(transparent)]
    Protocol(#[from] PostError),
    /// More scatter/gather entries than the queue pair was created for.
    #[error("{given} scatter/gather entries, the queue pair was created for {max}")]
    TooManySges {
        /// Given.
        given: usize,
        /// Most.
        max: u32,
    },
    /// More inline data than the queue pair was created for, or inline data for an operation that
    /// stores a result.
    #[error("{given} bytes inline, this request takes at most {max}")]
    Inline {
        /// Given.
        given: usize,
        /// Most.
        max: u32,
    },
    /// Longer than a message can be.
    #[error("message of {length} bytes, at most {limit}")]
    Length {
        /// Given.
        length: u64,
        /// Most.
        limit: u32,
    },
    /// An atomic whose local memory does not hold the 8 bytes.
    #[error("{given} bytes of local memory for an 8-byte atomic")]
    AtomicLength {
        /// Given.
        given: u64,
    },
    /// The address handle belongs to another protection domain (IBTA 11.4.1.1).
    #[error("the address handle belongs to another protection domain")]
    WrongPd,
    /// The object was destroyed.
    #[error("the queue pair was destroyed")]
    Destroyed,
}
