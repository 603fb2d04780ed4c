//! A process of this host that shares memory with this one.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use vernic_sys::{self as sys, ClosableFd, OwnFd};

use self::access::ProcessAccess;
use crate::hello::{MAX_PAYLOAD_BYTES, PeerMessage};
use crate::ring::RingMemory;
use crate::rules::AccessRules;

mod access;

/// Local peers at a time. Later processes are not connected to, and packets to them go by UDP. Each
/// local peer takes two rings, which get smaller as local peers get more: 36 MiB at most in all
/// where the settings say 256 KiB. Each end provides half of that memory.
pub const MAX_LOCAL_PEERS: usize = 256;

/// The id of a local peer of one device of this process. No id is used again for another peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalPeerId {
    index: u16,
    generation: u32,
}

impl LocalPeerId {
    pub(crate) const fn new(index: u16, generation: u32) -> Self {
        Self { index, generation }
    }

    /// Returns the peer's index in a table of [`MAX_LOCAL_PEERS`]; another peer gets the index
    /// after this one is gone.
    #[inline]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

impl fmt::Display for LocalPeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// A local peer: a process that shares memory with this one.
#[derive(Debug)]
pub struct PeerProcess {
    id: LocalPeerId,
    pid: u32,
    connection: Arc<ClosableFd>,
    /// The ring that the local peer writes to, and the ring that we write to.
    incoming: Arc<RingMemory>,
    outgoing: Arc<RingMemory>,
    gone: AtomicBool,
    /// The peer's access to our memory, and ours to the peer's.
    access: ProcessAccess,
}

impl PeerProcess {
    pub(crate) fn new(
        id: LocalPeerId,
        pid: u32,
        connection: Arc<ClosableFd>,
        (incoming, outgoing): (Arc<RingMemory>, Arc<RingMemory>),
        rules: &AccessRules,
    ) -> Self {
        let (gone, access) = (AtomicBool::new(false), ProcessAccess::new(pid, rules));
        Self { id, pid, connection, incoming, outgoing, gone, access }
    }

    /// Returns the socket to the local peer, unless the peer is gone.
    pub(crate) fn connection(&self) -> Option<Arc<OwnFd>> {
        self.connection.get()
    }

    /// Returns the id of the local peer.
    #[inline]
    pub fn id(&self) -> LocalPeerId {
        self.id
    }

    /// Returns the process id of the local peer as the kernel names it here; 0 if the process is of
    /// a PID namespace that cannot be seen.
    #[inline]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the word in which this process says where in the local peer's memory it copies, 0
    /// for nowhere. This process writes the word and the local peer reads it; it may hold any
    /// value.
    #[inline]
    pub fn inside(&self) -> &AtomicU64 {
        self.outgoing.inside()
    }

    /// Returns the local peer's word: where in our memory it says that it copies.
    #[inline]
    pub fn inside_us(&self) -> &AtomicU64 {
        self.incoming.inside()
    }

    /// Whether the local peer is known to be gone. [`has_hung_up`](Self::has_hung_up) asks the
    /// kernel.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether the process at the other end has ended, replaced itself by exec, or closed the
    /// device: one system call.
    pub fn has_hung_up(&self) -> bool {
        let Some(fd) = self.connection.get() else { return true };
        let mut fds = [sys::PollFd::hang_up(fd.as_raw_fd())];
        self.is_gone() || !matches!(sys::poll(&mut fds, Some(Duration::ZERO)), Ok(0))
    }

    /// Sends a message of up to [`MAX_PAYLOAD_BYTES`] bytes to the local peer's engine, with a file
    /// or without. The engine gets an [`Event::Message`](crate::Event::Message). Never blocks.
    /// Messages of one local peer arrive in order. A message with a file is lost, and counted at
    /// the receiver, where the receiver has no descriptor left for the file.
    ///
    /// # Errors
    /// `NotConnected` once the local peer is gone, `InvalidInput` for too many bytes, `WouldBlock`
    /// if the peer has not read earlier messages (some ten fit), and other errors of the system.
    pub fn send(&self, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        if bytes.len() > MAX_PAYLOAD_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.send_message(&PeerMessage::Payload(bytes.to_vec()), file.as_slice())
    }

    pub(crate) fn send_message(
        &self,
        message: &PeerMessage,
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let fd = self.connection.get().filter(|_| !self.is_gone());
        let fd = fd.ok_or(io::ErrorKind::NotConnected)?;
        sys::send_packet(fd.as_fd(), &message.emit(), files)
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
        self.connection.close();
    }
}
