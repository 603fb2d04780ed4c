//! A socket that programs connect to, at a path.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use vernic_sys::{self as sys, OwnFd};

use crate::connection::Connection;
use crate::error::AttachError;
use crate::path;

/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 1024;

/// A socket that listens, at a path. The path goes with it.
#[derive(Debug)]
pub struct Door {
    socket: OwnFd,
    path: PathBuf,
    /// The user that the folder belongs to.
    owner: u32,
}

impl Door {
    /// Listens at a path, and makes its folder if there is none. A socket that a process left
    /// behind which was killed is replaced.
    ///
    /// # Errors
    /// [`AttachError::Taken`] if a process listens there; errors of the folder and of the system.
    pub fn open(path: PathBuf) -> Result<Self, AttachError> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        path::prepare(folder)?;
        let listens = AttachError::io("listening at a socket");
        let owner = fs::metadata(folder).map_err(&listens)?.uid();
        let socket = packet_socket()?;
        match sys::bind_path(socket.as_fd(), &path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if let Some(pid) = listener(&path)? {
                    return Err(AttachError::Taken { path, pid });
                }
                fs::remove_file(&path).map_err(&listens)?;
                sys::bind_path(socket.as_fd(), &path).map_err(&listens)?;
            }
            other => other.map_err(&listens)?,
        }
        let door = Self { socket, path, owner };
        if owner != sys::effective_uid() {
            // Root listens in the folder of a user, whose programs connect.
            fs::set_permissions(&door.path, Permissions::from_mode(0o666)).map_err(&listens)?;
        }
        sys::listen(door.socket.as_fd(), BACKLOG).map_err(&listens)?;
        Ok(door)
    }
    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Accepts the next connection, with the process that made it. `None` if the process is one of
    /// another user; root and the owner of the folder aside.
    ///
    /// # Errors
    /// Errors of the system; `WouldBlock` if there is none.
    pub fn accept(&self) -> io::Result<Option<(Connection, u32)>> {
        let socket = sys::accept(self.socket.as_fd())?;
        let peer = sys::peer_credentials(socket.as_fd())?;
        let is_owner = peer.uid == self.owner && sys::effective_uid() == 0;
        let is_allowed = peer.uid == 0 || sys::user::is_own(peer.uid) || is_owner;
        Ok(is_allowed.then_some((Connection::new(socket), peer.pid)))
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
    }
}

fn packet_socket() -> Result<OwnFd, AttachError> {
    sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).map_err(AttachError::io("opening a socket"))
}

/// Returns the process that listens at a path, if one does.
fn listener(path: &Path) -> Result<Option<u32>, AttachError> {
    let socket = packet_socket()?;
    match sys::connect_path(socket.as_fd(), path) {
        Ok(()) => {
            let peer = sys::peer_credentials(socket.as_fd());
            peer.map(|peer| Some(peer.pid)).map_err(AttachError::io("asking for the listener"))
        }
        // A list of connections that is full has an owner.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Some(0)),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_listener_and_a_dead_one_is_replaced() {
        let folder = std::env::temp_dir().join(format!("vernic-door-{}", std::process::id()));
        let path = folder.join("socket");
        let door = Door::open(path.clone()).unwrap();
        let taken = Door::open(path.clone()).unwrap_err();
        let pid = std::process::id();
        assert!(matches!(taken, AttachError::Taken { pid: by, .. } if by == pid), "{taken}");
        let (_connection, by) = door.accept().unwrap().unwrap();
        assert_eq!(by, pid);
        assert_eq!(door.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(door);
        assert!(!path.exists());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        drop(Door::open(path).unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }
}
