//! Why a call failed: with the values, and the errno that programs for sockets expect.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use libc::c_int;
use vernic_engine::{CreateError, PostRecvError, Qpn, RegisterError};
use vernic_wire::Lid;

use crate::stream::ProtocolError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The socket was made before this process was forked.
    #[error(
        "made by the process that this one was forked from, and unusable here: make sockets anew in \
         this process"
    )]
    Orphan,
    /// It would have to wait, and shall not, or not any longer.
    #[error("nothing to do now")]
    WouldBlock,
    /// A signal came.
    #[error("interrupted by a signal")]
    Interrupted,
    /// The connection is being made.
    #[error("the connection to {0} is being made")]
    InProgress(SocketAddr),
    /// As before, and this is not the first call.
    #[error("the connection to {0} is being made already")]
    Already(SocketAddr),
    /// There is a connection already.
    #[error("the socket is connected already")]
    Connected,
    /// There is no connection.
    #[error("the socket is not connected")]
    NotConnected,
    /// This side has shut down sending, or the peer has closed.
    #[error("the connection is shut down for sending")]
    Shut,
    /// The connection failed.
    #[error("{0}")]
    Failed(Failure),
    /// A call that the socket's state or kind does not allow.
    #[error("{call} needs a socket that {needs}")]
    State {
        /// The call.
        call: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// A call that this kind of socket does not have.
    #[error("{0} is not supported by this kind of socket")]
    Unsupported(&'static str),
    /// A domain, type and protocol that there is no socket for.
    #[error("there are sockets for AF_INET and AF_INET6, SOCK_STREAM and SOCK_DGRAM only")]
    Domain,
    /// An address of the other IP version.
    #[error("{0} is not an address of the socket's family")]
    Family(SocketAddr),
    /// No destination for a datagram.
    #[error("the socket is not connected, and no destination was given")]
    NoDestination,
    /// A datagram that is too long.
    #[error("a datagram of {len} bytes, at most {max}")]
    TooLong {
        /// Given.
        len: usize,
        /// Most.
        max: usize,
    },
    /// A datagram whose sender says to be another.
    #[error(
        "a datagram says to be from {claimed}, and comes from queue pair {src_qpn} at {}",
        sender.map_or("no address".to_owned(), |sender| sender.to_string())
    )]
    Forged {
        /// Whom it names.
        claimed: SocketAddr,
        /// Where the packet came from.
        sender: Option<IpAddr>,
        /// Whose packet it was.
        src_qpn: Qpn,
    },
    /// A datagram whose sender says to be another, on InfiniBand.
    #[error(
        "a datagram says to be from {claimed}, and comes from queue pair {src_qpn} at LID {}, which \
         is not that host's",
        slid.value()
    )]
    Elsewhere {
        /// Whom it names.
        claimed: SocketAddr,
        /// Where the packet came from.
        slid: Lid,
        /// Whose packet it was.
        src_qpn: Qpn,
    },
    /// A datagram of a peer that no path leads to, so that nothing tells whether it is true.
    #[error("a datagram says to be from {from}, and no path to that address is known")]
    NoPath {
        /// Whom it names.
        from: SocketAddr,
    },
    /// As many paths are asked for as one socket may ask for at once.
    #[error("the path to {to} is not asked for: {most} other paths are being asked for")]
    Asking {
        /// The peer.
        to: SocketAddr,
        /// Most.
        most: usize,
    },
    /// A datagram that came when as many waited as there is room for.
    #[error("a datagram of {from} came, and there is no room for it")]
    NoRoom {
        /// Who sent it.
        from: SocketAddr,
    },
    /// An option that there is not.
    #[error("there is no option {option} of level {level}")]
    NoOption {
        /// Level.
        level: c_int,
        /// Option.
        option: c_int,
    },
    /// A value that is out of range, or too short.
    #[error("{what} is out of range")]
    Value {
        /// Which.
        what: &'static str,
    },
    /// Memory that cannot be mapped, or is not mapped.
    #[error("{0}")]
    Mapping(&'static str),
    /// The connection manager refused.
    #[error(transparent)]
    Cm(#[from] vernic_cm::Error),
    /// The device refused.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The device refused receives.
    #[error(transparent)]
    PostRecv(#[from] PostRecvError),
    /// The peer broke the rules of the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The operating system refused.
    #[error("cannot {what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Why a connection failed, to be told once.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{why}")]
pub struct Failure {
    /// Positive.
    pub errno: c_int,
    /// In words, with the peer.
    pub why: Arc<str>,
}

impl Failure {
    /// With a reason in words.
    pub(crate) fn new(errno: c_int, why: impl AsRef<str>) -> Self {
        Self { errno, why: why.as_ref().into() }
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self::new(error.errno(), error.to_string())
    }
}

impl Error {
    pub(crate) fn os(what: &'static str, source: impl Into<io::Error>) -> Self {
        match source.into() {
            source if source.kind() == io::ErrorKind::Interrupted => Self::Interrupted,
            source => Self::Os { what, source },
        }
    }

    /// The error number that calls for sockets give for it.
    pub fn errno(&self) -> c_int {
        match self {
            Self::Orphan => libc::EIO,
            Self::WouldBlock => libc::EAGAIN,
            Self::Interrupted => libc::EINTR,
            Self::InProgress(_) => libc::EINPROGRESS,
            Self::Already(_) => libc::EALREADY,
            Self::Connected => libc::EISCONN,
            Self::NotConnected => libc::ENOTCONN,
            Self::Shut => libc::EPIPE,
            Self::Failed(failure) => failure.errno,
            Self::State { .. } | Self::Value { .. } | Self::Mapping(_) => libc::EINVAL,
            Self::Unsupported(_) => libc::EOPNOTSUPP,
            Self::Domain | Self::Family(_) => libc::EAFNOSUPPORT,
            Self::NoDestination => libc::EDESTADDRREQ,
            Self::TooLong { .. } => libc::EMSGSIZE,
            Self::NoOption { .. } => libc::ENOPROTOOPT,
            // What programs of TCP look for, also where rdma_cm has another number.
            Self::Cm(vernic_cm::Error::InUse { .. }) => libc::EADDRINUSE,
            Self::Cm(error) => error.errno(),
            Self::Create(error) => errno_of_create(error),
            Self::PostRecv(_) => libc::EIO,
            Self::Protocol(_) | Self::Forged { .. } | Self::Elsewhere { .. } => libc::EPROTO,
            Self::NoPath { .. } => libc::EHOSTUNREACH,
            Self::Asking { .. } => libc::EAGAIN,
            Self::NoRoom { .. } => libc::ENOBUFS,
            Self::Os { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

fn errno_of_create(error: &CreateError) -> c_int {
    match error {
        CreateError::Orphan => libc::EIO,
        CreateError::NoQpn { .. } => libc::ENOMEM,
        CreateError::Memory(RegisterError::KeysExhausted { .. }) => libc::ENOMEM,
        CreateError::Os { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::EINVAL,
    }
}
