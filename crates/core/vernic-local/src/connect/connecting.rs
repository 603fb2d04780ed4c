//! Connecting two engines: what is made, passed and checked before they are local peers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use vernic_io::Nanos;
use vernic_io::host::Slot;
use vernic_sys::user;
use vernic_sys::{self as sys, ClosableFd, OwnFd, SharedMemory};

use crate::hello::{HELLO_FILES, Hello, PeerMessage};
use crate::page::{OwnPage, PeerPage};
use crate::ring::{Bell, RingMemory, RingReader, RingWriter};

/// A ring that was made here, for a local peer to write to.
#[derive(Debug)]
pub(super) struct IncomingRing {
    file: OwnFd,
    pub(super) memory: Arc<RingMemory>,
}

impl IncomingRing {
    pub(super) fn new(ring_bytes: u32) -> io::Result<Self> {
        let len = RingMemory::file_bytes(ring_bytes);
        let file = sys::memory_file(len)?;
        let memory = SharedMemory::map(file.as_fd(), len)?;
        Ok(Self { file, memory: Arc::new(RingMemory::new(memory, ring_bytes)) })
    }

    /// Sends a hello or welcome, with the files that go with it.
    pub(super) fn send(
        &self,
        to: BorrowedFd<'_>,
        message: &PeerMessage,
        page: &OwnPage,
    ) -> io::Result<()> {
        let page = page.file().ok_or(io::ErrorKind::NotConnected)?;
        let files: [_; HELLO_FILES] = [self.file.as_fd(), page.as_fd()];
        sys::send_packet(to, &message.emit(), &files)
    }
}

/// A call that this process made: the slot, and the ring that the slot's process is to write to.
#[derive(Debug)]
pub(super) struct OutgoingCall {
    pub(super) slot: Slot,
    pub(super) incoming: IncomingRing,
}

/// A pending peer: a connection whose process is no local peer yet.
#[derive(Debug)]
pub(super) struct PendingPeer {
    pub(super) key: u64,
    pub(super) connection: OwnFd,
    pub(super) pid: u32,
    pub(super) since: Nanos,
    /// The call, if this process made it.
    pub(super) call: Option<OutgoingCall>,
}

impl PendingPeer {
    /// Returns the process id of the process at the other end of `connection`.
    ///
    /// # Errors
    /// `PermissionDenied` for a process of another user.
    pub(super) fn check(connection: BorrowedFd<'_>) -> io::Result<u32> {
        let peer = sys::peer_credentials(connection)?;
        if user::is_own(peer.uid) {
            Ok(peer.pid)
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
}

/// The ring and page that came with a hello or welcome.
#[derive(Debug)]
pub(super) struct ReceivedFiles {
    ring: Arc<RingMemory>,
    page: PeerPage,
}

impl ReceivedFiles {
    /// Maps the files of a hello.
    ///
    /// # Errors
    /// `InvalidData` if the files are not what they must be; other errors of the system.
    pub(super) fn map(hello: &Hello, files: &[OwnFd]) -> io::Result<Self> {
        let [ring, page] = files else { return Err(io::ErrorKind::InvalidData.into()) };
        if !RingMemory::is_capacity(hello.ring_bytes) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let memory = SharedMemory::map(ring.as_fd(), RingMemory::file_bytes(hello.ring_bytes))?;
        let ring = Arc::new(RingMemory::new(memory, hello.ring_bytes));
        Ok(Self { ring, page: PeerPage::map(page.as_fd())? })
    }

    /// Returns the ring to write to, and our two ends: a reader of `incoming`, and a writer.
    pub(super) fn into_ends(
        self,
        incoming: Arc<RingMemory>,
        connection: &Arc<ClosableFd>,
    ) -> (Arc<RingMemory>, RingReader, RingWriter) {
        let bell = Arc::new(Bell { page: self.page, connection: connection.clone() });
        let reader = RingReader::new(incoming, bell.clone());
        (self.ring.clone(), reader, RingWriter::new(self.ring, bell))
    }

    /// Returns what an engine would pass to itself.
    pub(super) fn own(incoming: &IncomingRing, page: &OwnPage) -> io::Result<Self> {
        let page = page.file().ok_or(io::ErrorKind::NotConnected)?;
        Ok(Self { ring: incoming.memory.clone(), page: PeerPage::map(page.as_fd())? })
    }
}
