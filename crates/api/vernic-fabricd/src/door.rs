//! The socket that programs connect to.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use vernic_attach::path;
use vernic_sys::{self as sys, OwnFd};

use crate::error::FabricError;

/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 1024;

/// Whether a connection is not accepted because no descriptor or memory is left for it. It stays in
/// the list then, and the socket that listens is ready on and on: leave that alone for a while.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM].iter().any(|of| code == Some(*of))
}

/// A socket that listens, at a path. The path goes with it, and so does the folder beside it where
/// the owners of interfaces of IP over InfiniBand have their sockets.
#[derive(Debug)]
pub(crate) struct Door {
    socket: OwnFd,
    path: PathBuf,
    interfaces: PathBuf,
}

impl Door {
    /// Listens at the socket of the fabric called `name`. A socket that a process left behind which
    /// was killed is replaced.
    pub(crate) fn open(folder: &Path, name: &str) -> Result<Self, FabricError> {
        let path = path::socket_in(folder, name)?;
        path::prepare(folder)?;
        let socket = packet_socket()?;
        let listens =
            |error: io::Error| FabricError::io("listen at the socket of the fabric")(error);
        match sys::bind_path(socket.as_fd(), &path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if let Some(pid) = listener(&path)? {
                    return Err(FabricError::Runs { name: name.to_owned(), pid });
                }
                fs::remove_file(&path).map_err(listens)?;
                sys::bind_path(socket.as_fd(), &path).map_err(listens)?;
            }
            other => other.map_err(listens)?,
        }
        let interfaces = path::interface_folder_in(folder, name)?;
        let door = Self { socket, path, interfaces };
        sys::listen(door.socket.as_fd(), BACKLOG).map_err(listens)?;
        // Interfaces of a process that was killed have ended with it.
        let _ = fs::remove_dir_all(&door.interfaces);
        path::prepare(&door.interfaces)?;
        Ok(door)
    }
    /// Returns the path of the socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
    /// Accepts the next connection, with the process that made it. `None` if the process is one of
    /// another user, root aside.
    pub(crate) fn accept(&self) -> io::Result<Option<(OwnFd, u32)>> {
        let socket = sys::accept(self.socket.as_fd())?;
        let peer = sys::peer_credentials(socket.as_fd())?;
        let is_allowed = peer.uid == 0 || sys::user::is_own(peer.uid);
        Ok(is_allowed.then_some((socket, peer.pid)))
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_dir_all(&self.interfaces);
    }
}

fn packet_socket() -> Result<OwnFd, FabricError> {
    sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).map_err(FabricError::io("open a socket"))
}

/// Returns the process that listens at a path, if one does.
fn listener(path: &Path) -> Result<Option<u32>, FabricError> {
    let socket = packet_socket()?;
    match sys::connect_path(socket.as_fd(), path) {
        Ok(()) => {
            let peer = sys::peer_credentials(socket.as_fd());
            peer.map(|peer| Some(peer.pid)).map_err(FabricError::io("ask who listens"))
        }
        // A list of connections that is full has an owner.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Some(0)),
        Err(_) => Ok(None),
    }
}
