//! Why an awaited operation of a connection failed.

use std::fmt;
use std::net::SocketAddr;

use vernic_engine::{RecvRefusal, SendRefusal};

use crate::{Endpoint, RemoteAddr, WcError};

/// The peer of a connection, as this end knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// Address and port, of a connection that the connection manager made.
    Addr(SocketAddr),
    /// Queue pair and GID, of a connection whose ends exchanged them by themselves.
    Endpoint(Endpoint),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addr(addr) => addr.fmt(f),
            Self::Endpoint(Endpoint { qpn, gid, .. }) => {
                write!(f, "queue pair {qpn} at {}", gid.to_ip())
            }
        }
    }
}

/// An operation of a [`Connection`](crate::net::Connection). Lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant is the method of its name")]
pub enum Operation {
    Send { len: u64 },
    Recv { room: u64 },
    Write { len: u64, to: RemoteAddr },
    Read { len: u64, from: RemoteAddr },
    FetchAdd { at: RemoteAddr },
    CompareSwap { at: RemoteAddr },
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { len } => write!(f, "SEND of {len} bytes"),
            Self::Recv { room } => write!(f, "receive into {room} bytes"),
            Self::Write { len, to } => write!(f, "WRITE of {len} bytes to {:#x}", to.addr()),
            Self::Read { len, from } => write!(f, "READ of {len} bytes at {:#x}", from.addr()),
            Self::FetchAdd { at } => write!(f, "fetch and add at {:#x}", at.addr()),
            Self::CompareSwap { at } => write!(f, "compare and swap at {:#x}", at.addr()),
        }
    }
}

/// An operation of a [`Connection`](crate::net::Connection) that failed: which, with which peer,
/// and why.
#[derive(Clone, thiserror::Error)]
#[error("{operation} failed, peer {peer}: {cause}")]
pub struct OperationError {
    /// The operation.
    pub operation: Operation,
    /// The peer.
    pub peer: Peer,
    /// Why it failed.
    #[source]
    pub cause: OperationFailure,
}

impl fmt::Debug for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why an operation of a [`Connection`](crate::net::Connection) failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperationFailure {
    /// The queue pair did not take the request: nothing was sent.
    #[error("not posted: {0}")]
    Send(#[from] SendRefusal),
    /// The queue pair did not take the receive.
    #[error("not posted: {0}")]
    Recv(#[from] RecvRefusal),
    /// The bytes would leave the peer's region: nothing was sent.
    #[error("not posted: the peer's region ends after {room} bytes from there")]
    RemoteRange {
        /// Bytes from there to the end of the region.
        room: u64,
    },
    /// The request was posted, and failed. The connection is broken, and all its operations fail
    /// from now on.
    #[error(transparent)]
    Completion(Box<WcError>),
    /// The peer has ended the connection, or its device is gone. It may have carried the operation
    /// out.
    #[error("the peer has disconnected")]
    Disconnected,
    /// This side has ended the connection. The peer may have carried the operation out.
    #[error("this side has disconnected")]
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rkey;

    #[test]
    fn an_error_says_which_operation_which_peer_and_why() {
        let to = RemoteAddr::new(0x7000, Rkey(1));
        let error = OperationError {
            operation: Operation::Write { len: 64, to },
            peer: Peer::Addr(([10, 0, 0, 9], 7174).into()),
            cause: OperationFailure::Disconnected,
        };
        let text =
            "WRITE of 64 bytes to 0x7000 failed, peer 10.0.0.9:7174: the peer has disconnected";
        assert_eq!(error.to_string(), text);
        assert_eq!(format!("{error:?}"), text);
    }

    #[test]
    fn a_peer_without_an_address_is_named_by_its_queue_pair() {
        let endpoint: Endpoint = "qpn=0x000123,psn=1,mtu=1024,gid=::ffff:10.0.0.1".parse().unwrap();
        let text = Peer::Endpoint(endpoint).to_string();
        assert!(text.contains("0x000123") && text.ends_with("10.0.0.1"), "{text}");
    }
}
