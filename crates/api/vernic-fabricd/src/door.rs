//! The socket that programs connect to, and the folder beside it where the owners of interfaces of
//! IP over InfiniBand have theirs.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use vernic_attach::{AttachError, path};

use crate::error::FabricError;

/// Whether a connection is not accepted because no descriptor or memory is left for it. It stays in
/// the list then, and the socket that listens is ready on and on: leave that alone for a while.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM].iter().any(|of| code == Some(*of))
}

/// The socket and the folder. Both go with it.
#[derive(Debug)]
pub(crate) struct Door {
    door: vernic_attach::Door,
    interfaces: PathBuf,
}

impl Door {
    /// Listens at the socket of the fabric called `name`.
    pub(crate) fn open(folder: &Path, name: &str) -> Result<Self, FabricError> {
        let opened = vernic_attach::Door::open(path::socket_in(folder, name)?);
        let door = opened.map_err(|error| match error {
            AttachError::Taken { pid, .. } => FabricError::Runs { name: name.to_owned(), pid },
            other => other.into(),
        })?;
        let interfaces = path::interface_folder_in(folder, name)?;
        // Interfaces end with the fabric, and so do those of one that was killed.
        let _ = fs::remove_dir_all(&interfaces);
        path::prepare(&interfaces)?;
        Ok(Self { door, interfaces })
    }
}

impl std::ops::Deref for Door {
    type Target = vernic_attach::Door;

    fn deref(&self) -> &vernic_attach::Door {
        &self.door
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.door.as_fd()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = fs::remove_dir_all(&self.interfaces);
    }
}
