//! The local bytes of a send request, and why a request is refused.

use vernic_mem::{InlineData, Sge};
use vernic_proto::PostError;

use crate::error::ORPHAN;

/// The local bytes of a send request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Bytes in registered memory, read when packets are built. For a READ or an atomic, the memory
    /// that the result is stored in. Empty is allowed.
    Sges(&'a [Sge]),
    /// Bytes that are copied now: the memory may be used again at once. All pieces together are at
    /// most the `max_inline` of the queue pair.
    Inline(&'a [&'a [u8]]),
    /// Bytes like those of [`Payload::Inline`], in one piece.
    InlineBytes(&'a [u8]),
    /// Bytes like those of [`Payload::Inline`], in memory that other threads may change meanwhile.
    InlineList(InlineData<'a>),
    /// No bytes, but a length in the peer's memory: for FLUSH.
    Range(u32),
}

/// The reasons for which a send is refused. It was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendRefusal {
    /// The device was opened before this process was forked.
    #[error("{}", ORPHAN)]
    Orphan,
    /// The queue pair's state, the room in its queue, the operation or the length do not allow it.
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
    /// The local memory of an atomic does not hold the 8 bytes.
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
