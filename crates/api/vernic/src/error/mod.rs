//! Errors: which object, which value, the usual cause, what to do.
//!
//! Each step has its own type; [`Error`] holds any of them, for programs that only pass them on.

use std::time::Duration;

pub use vernic_engine::{
    BindError, Busy, ConfigError, CqOverrun, CreateError, McastError, ModifyError, OpenError,
    PathError, PostRecvError, RecvRefusal, ResizeError, SendRefusal,
};

/// Why the protocol refused a send: state, room, operation or length.
pub use vernic_engine::PostError as ProtocolRefusal;

use crate::{EndpointError, WcError, WrId};

pub(crate) mod cm;
pub(crate) mod iwarp;
#[cfg(feature = "tokio")]
mod operation;

#[cfg(feature = "tokio")]
pub use operation::{Operation, OperationError, OperationFailure, Peer};

/// Anything that can go wrong.
///
/// Its `Debug` is its `Display`: a `main` that returns it prints the explanation, not the fields.
#[derive(thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant is the error type of its name")]
pub enum Error {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Create(#[from] CreateError),
    #[error(transparent)]
    Modify(#[from] ModifyError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Iwarp(#[from] iwarp::IwarpError),
    #[error(transparent)]
    Resize(#[from] ResizeError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Multicast(#[from] McastError),
    #[error(transparent)]
    Range(#[from] RangeError),
    #[error(transparent)]
    Post(#[from] PostError),
    #[error(transparent)]
    PostRecv(#[from] PostRecvError),
    #[error(transparent)]
    Wait(#[from] WaitError),
    #[error(transparent)]
    Completion(#[from] WcError),
    #[error(transparent)]
    Cm(#[from] cm::CmError),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[cfg(feature = "tokio")]
    #[error(transparent)]
    Operation(#[from] OperationError),
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A range that is not inside its region or buffer. Nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {start}..{end} are not a range inside {len} bytes (and of less than 4 GiB)")]
pub struct RangeError {
    /// First byte asked for.
    pub start: usize,
    /// One past the last byte asked for.
    pub end: usize,
    /// Bytes that there are.
    pub len: usize,
}

/// Why a list of send work requests was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// A request that the queue pair does not take. The ones before it were posted.
    #[error("work request {} (number {index} of its list): {source}", wr_id.0)]
    Refused {
        /// Its name.
        wr_id: WrId,
        /// Its place in the list; so many were posted.
        index: usize,
        /// Why.
        source: SendRefusal,
    },
    /// A one-sided operation that would leave the peer's region. Nothing of the list was posted.
    #[error("work request {}: {len} bytes at {addr:#x} of the peer, whose region ends after {room}", wr_id.0)]
    RemoteRange {
        /// Its name.
        wr_id: WrId,
        /// First byte, as the peer counts.
        addr: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes from there to the end of the region.
        room: u64,
    },
}

/// Why a connection was not made. The queue pair is destroyed.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {remote}: {source}")]
pub struct ConnectError {
    /// The peer.
    pub remote: crate::Endpoint,
    /// What was refused.
    pub source: ModifyError,
}

/// What was waited for, or what the usual reasons are.
fn awaited(known: &str) -> &str {
    match known {
        "" => "is a receive posted, does the peer send, was the request signaled?",
        known => known,
    }
}

/// Why waiting ended without a completion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// None came in time. After a wait of a second and more, with what the queue pairs of the queue
    /// wait for.
    #[error("no completion within {0:?}: {words}", words = awaited(.1))]
    Timeout(Duration, Box<str>),
    /// Completions were lost because the queue was full; it can only be destroyed now.
    #[error(transparent)]
    Overflow(#[from] CqOverrun),
}
