//! The local memory of a send request, and the reasons for which a send request is refused.

use vernic_mem::{InlineData, Sge};
use vernic_proto::PostError;

use crate::error::ORPHAN;

/// The local memory of a send request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory. The bytes to send are read when packets are built. For a READ or an
    /// atomic, the result is stored here. May be empty.
    Sges(&'a [Sge]),
    /// Bytes to send that are copied while posting, so their memory may be reused at once. All
    /// pieces together may have at most the queue pair's `max_inline` bytes.
    Inline(&'a [&'a [u8]]),
    /// Bytes to send that are copied while posting, like [`Payload::Inline`], in one piece.
    InlineBytes(&'a [u8]),
    /// Bytes to send that are copied while posting, like [`Payload::Inline`], from memory that
    /// other threads may change meanwhile.
    InlineList(InlineData<'a>),
    /// No local bytes, but the length of a range in the peer's memory, for FLUSH.
    Range(u32),
}

/// The reasons for which a send request is refused. A refused request was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendRefusal {
    /// The device was opened by the parent of this process, before a `fork`.
    #[error("{}", ORPHAN)]
    Orphan,
    /// The protocol does not allow the request: because of the queue pair's state, a full send
    /// queue, the operation or the length.
    #[error(transparent)]
    Protocol(#[from] PostError),
    /// The request has more scatter/gather entries than the queue pair was created for.
    #[error("{given} scatter/gather entries, the queue pair was created for {max}")]
    TooManySges {
        /// Entries of the request.
        given: usize,
        /// Entries that the queue pair was created for.
        max: u32,
    },
    /// The request has more inline data than the queue pair was created for, or has inline data
    /// although its operation stores a result.
    #[error("{given} bytes inline, this request takes at most {max}")]
    Inline {
        /// Bytes of inline data in the request.
        given: usize,
        /// Bytes of inline data that this request may have.
        max: u32,
    },
    /// The message is longer than a message can be.
    #[error("message of {length} bytes, at most {limit}")]
    Length {
        /// Length of the message in bytes.
        length: u64,
        /// Largest length of a message in bytes.
        limit: u32,
    },
    /// The local memory of an atomic has fewer than 8 bytes.
    #[error("{given} bytes of local memory for an 8-byte atomic")]
    AtomicLength {
        /// Length of the local memory in bytes.
        given: u64,
    },
    /// The address handle belongs to another protection domain than the queue pair (IBTA 11.4.1.1).
    #[error("the address handle belongs to another protection domain")]
    WrongPd,
    /// The queue pair was destroyed.
    #[error("the queue pair was destroyed")]
    Destroyed,
}
