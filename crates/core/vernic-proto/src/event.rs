//! Asynchronous events of a queue pair.

/// An affiliated asynchronous event of a queue pair (IBTA 11.6.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// First packet of a connection arrived while in RTR.
    CommEstablished,
    /// The send queue has drained.
    SqDrained,
    /// Catastrophic local error.
    Fatal,
    /// The peer's request was invalid.
    RequestError,
    /// The peer's access violated protection.
    AccessError,
    /// The last WQE of a QP on an SRQ was consumed.
    LastWqeReached,
    /// The alternate path is the path from now on: the other one failed, or the peer has changed.
    PathMigrated,
    /// The peer has changed to a path that is not the alternate one here.
    PathMigrationFailed,
}
