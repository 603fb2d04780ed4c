//! Why a send request was refused at once.

use vernic_wire::Service;

use crate::state::QpState;

/// Why a send request was refused at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue pair's state takes no send requests.
    #[error("queue pair is in {0:?}: send requests are taken from RTS on")]
    State(QpState),
    /// All slots hold outstanding requests.
    #[error(
        "send queue full: {0} requests outstanding; poll the completion queue, signal more often, or raise max_send_wr"
    )]
    Full(u32),
    /// The service has no such operation.
    #[error("{0:?} has no such operation")]
    Operation(Service),
    /// Longer than a message can be.
    #[error("message of {length} bytes, at most {limit}")]
    Length {
        /// Asked for.
        length: u32,
        /// Limit.
        limit: u32,
    },
    /// A datagram without destination.
    #[error("a UD send needs an address handle")]
    NoDestination,
    /// An XRC target sends nothing of its own.
    #[error("an XRC target has no send queue: the initiator at the other end sends")]
    NoSendQueue,
    /// An XRC request without the peer's shared receive queue.
    #[error("an XRC request needs the number of the peer's shared receive queue")]
    NoSrqn,
    /// READ or atomic on a queue pair whose `max_rd_atomic` is 0.
    #[error("max_rd_atomic is 0: READ and atomics cannot be sent")]
    NoReadDepth,
    /// An operation that iWARP does not have.
    #[error("iWARP has no {0}")]
    NotOnIwarp(&'static str),
    /// An operation of RFC 7306 towards a peer that is not known to have it.
    #[error("the peer is not known to support {0}, which RFC 7306 adds to iWARP")]
    PeerLacks(&'static str),
}
