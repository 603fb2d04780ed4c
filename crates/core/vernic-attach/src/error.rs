//! Why a program is not attached to a fabric.

use std::io;
use std::path::PathBuf;

use crate::hello::Refusal;

/// The reason why a fabric could not be reached, or did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The name is none that a fabric can have.
    #[error(
        "a fabric cannot be called {0:?}: a name has 1 to 64 letters, digits, '.', '-' and '_', and \
         begins with a letter or a digit"
    )]
    Name(String),
    /// The path of the socket is longer than the system allows.
    #[error(
        "the path {0:?} is too long for a socket (107 bytes); set VERNIC_FABRIC_DIR to a shorter \
         folder, for the fabric and for its programs"
    )]
    PathTooLong(PathBuf),
    /// The folder of the sockets cannot be used.
    #[error("the folder {path:?} cannot hold sockets of fabrics: {reason}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No fabric has this name.
    #[error(
        "no fabric is called {name:?}: there is no socket {path:?}; fabrics that run: {running}. \
         Usually the fabric was not started (`vernic fabric up`), or by another user, or with \
         another VERNIC_FABRIC_DIR"
    )]
    NoFabric {
        /// The name.
        name: String,
        /// Where its socket would be.
        path: PathBuf,
        /// The names of others, or "none".
        running: String,
    },
    /// A process of this name has ended without removing its socket.
    #[error(
        "the fabric {name:?} does not run: nobody listens at {path:?}, which a process left that was \
         killed; start it anew with `vernic fabric up`"
    )]
    NotRunning {
        /// The name.
        name: String,
        /// Where its socket is.
        path: PathBuf,
    },
    /// Another process listens at the path of a socket.
    #[error("process {pid} listens at {path:?} already")]
    Taken {
        /// The path.
        path: PathBuf,
        /// The process.
        pid: u32,
    },
    /// No process has an interface of IP over InfiniBand, or it has ended.
    #[error(
        "nobody has the interface of IP over InfiniBand whose socket would be {path:?}; start it \
         with `vernic fabric ipoib`"
    )]
    NoInterface {
        /// Where its socket would be.
        path: PathBuf,
    },
    /// The fabric process says no.
    #[error("{0}")]
    Refused(Refusal),
    /// The fabric process does not answer.
    #[error(
        "the fabric process does not answer within {seconds} s; usually it is stopped (SIGSTOP, a \
         debugger), or the machine is far too busy"
    )]
    Silent {
        /// How long was waited.
        seconds: u64,
    },
    /// The fabric process has ended, or has closed the connection.
    #[error("the fabric process has ended, or has closed this connection")]
    Ended,
    /// A message of the fabric process makes no sense in this version.
    #[error(
        "the fabric process sent {what} that this version does not understand; usually the two are \
         of different versions of Vernic"
    )]
    Malformed {
        /// What it sent.
        what: &'static str,
    },
    /// A datagram is too long for a fabric.
    #[error(
        "a datagram of {bytes} bytes: one has at most {}, as many as some 250,000 records of subnet \
         administration",
        crate::user_mad::MAX_MAD
    )]
    TooLong {
        /// The bytes of the datagram.
        bytes: usize,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was to be done.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl AttachError {
    /// Makes an error of a system call; `doing` says what for.
    pub(crate) fn io(doing: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => Self::Ended,
            _ => Self::Io { doing, source },
        }
    }
    /// Returns the nearest number of the C library (`errno`).
    pub fn errno(&self) -> i32 {
        match self {
            Self::Name(_) => libc::EINVAL,
            Self::PathTooLong(_) => libc::ENAMETOOLONG,
            Self::Folder { .. } => libc::EACCES,
            Self::NoFabric { .. } | Self::NotRunning { .. } => libc::ENODEV,
            Self::Taken { .. } => libc::EADDRINUSE,
            Self::NoInterface { .. } => libc::ENETDOWN,
            Self::Refused(refusal) => refusal.kind.errno(),
            Self::Silent { .. } => libc::ETIMEDOUT,
            Self::Ended => libc::ENODEV,
            Self::Malformed { .. } => libc::EPROTO,
            Self::TooLong { .. } => libc::EMSGSIZE,
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}
