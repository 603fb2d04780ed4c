//! Local peers: other processes of this host, network namespace and user, and this process itself,
//! to which packets go through memory instead of UDP.
//!
//! This module owns how two engines connect, the memory and the socket connection that they share
//! from then on, and the end of the connection. The engine calls it. The module knows packets as
//! bytes with addresses, and nothing of queue pairs.
//!
//! ```text
//!      caller                                          called
//!   socket(SOCK_SEQPACKET), connect  ---------->  \0vernic/<slot>/neighbour
//!   hello   {engine, slots} + ring, page  ----->  checks the caller's user and the files
//!   checks both too  <---------- welcome {engine, slots} + ring, page
//!   ready  ------------------------------------>  may write from now on
//!            ... slots, bell, messages, bye; a hang-up: the peer is gone ...
//! ```
//!
//! - Each side passes the ring that the other is to write to (`local/ring.rs`), and a page that
//!   only its owner can write (`local/page.rs`).
//! - There is one connection per pair of engines. If both call at once, the call of the engine with
//!   the lower random number stays.
//! - The kernel names the process at the other end (`SO_PEERCRED`); a process of another user is
//!   refused. If a process ends, is killed or replaces itself by exec, its connection hangs up; a
//!   process that closes in order says so before.
//! - An engine is its own local peer, too, over a connection within the process: it needs no
//!   special case.
//!
//! # Hostile local peers
//!
//! A process of our user may do anything with the memory that it shares with us, so:
//! - Sizes of files are sealed before they are mapped, and what is read is a private copy.
//! - A local peer that breaks a rule is disconnected ([`LocalPeers::expel`]), and one that does
//!   not answer for [`PATIENCE`] is given up.
//! - At most [`MAX_PENDING_PEERS`] connections that have not said hello yet are kept.
//! - Ringing the bell cannot block.
//! - A local peer can claim any slot: the engine believes it only if the slot's own socket named
//!   the same process.
//!
//! | file | what |
//! |---|---|
//! | `local/connecting.rs` | what is made, passed and checked in a connect |
//! | `local/peers.rs` | all local peers of a device |
//! | `local/connected_peer.rs` | one connected local peer |
//! | `local/connect_failure.rs` | failed connects, why they failed, and when they are tried again |
//! | `local/connect_warning.rs` | warnings to users about failed connects |
//! | `local/hello.rs` | the messages as bytes |
//! | `local/ring.rs`, `local/page.rs` | shared memory |
//! | `local/cursor.rs` | the protocol of the ring's positions and of sleeping, model-checked |
//!
//! Limits: [`MAX_LOCAL_PEERS`] at a time; two rings, a page and a descriptor each.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use vernic_sys::{self as sys, ClosableFd};

use crate::host::Slot;

mod connect_failure;
mod connect_warning;
mod connected_peer;
mod connecting;
mod cursor;
mod hello;
mod page;
mod peers;
mod ring;

pub use connect_failure::ConnectFailure;
pub use hello::MAX_PAYLOAD_BYTES;
pub use peers::LocalPeers;
pub use ring::{
    MAX_RING_BYTES, MIN_RING_BYTES, MessageHead, PacketBuffer, Record, RingBroken, RingReader,
    RingWriter, message_bytes, record_bytes, rx_packet,
};

#[cfg(fuzzing)]
pub(crate) use ring::scribbles::run as scribble_and_read;

use hello::PeerMessage;
use page::OwnPage;
use ring::RingMemory;

/// Local peers at a time. Later processes are not connected to, and packets to them go by UDP. Each
/// local peer takes two rings, which get smaller as local peers get more: 36 MiB at most in all
/// where the settings say 256 KiB. Each end provides half of that memory.
pub const MAX_LOCAL_PEERS: usize = 256;

/// Connections at a time that have not said hello yet. Beyond that the oldest is closed.
pub const MAX_PENDING_PEERS: usize = 64;

/// How long a process waits for an answer: far longer than a running process takes.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// The id of a local peer of one device of this process. No id is used again for another peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalPeerId {
    index: u16,
    generation: u32,
}

impl LocalPeerId {
    /// Returns the peer's index in a table of [`MAX_LOCAL_PEERS`]; another peer gets the index
    /// after this one is gone.
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
pub struct LocalPeer {
    id: LocalPeerId,
    pid: u32,
    connection: Arc<ClosableFd>,
    /// The ring that the local peer writes to, and the ring that we write to.
    incoming: Arc<RingMemory>,
    outgoing: Arc<RingMemory>,
    gone: AtomicBool,
}

impl LocalPeer {
    /// Returns the id of the local peer.
    pub fn id(&self) -> LocalPeerId {
        self.id
    }

    /// Returns the process id of the local peer as the kernel names it here; 0 if the process is of
    /// a PID namespace that cannot be seen.
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
    /// or without. The engine gets the message as [`Event::Message`]. Never blocks. Messages of one
    /// local peer arrive in order. A message with a file is lost, and counted at the receiver,
    /// where the receiver has no descriptor left for the file.
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

    fn send_message(&self, message: &PeerMessage, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let fd = self.connection.get().filter(|_| !self.is_gone());
        let fd = fd.ok_or(io::ErrorKind::NotConnected)?;
        sys::send_packet(fd.as_fd(), &message.emit(), files)
    }

    fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
        self.connection.close();
    }
}

/// An event of the local peers.
#[derive(Debug)]
pub enum Event {
    /// A process was connected to: the packets that it sends come out of the ring. The first event
    /// of a local peer.
    Connected {
        /// The local peer.
        local_peer: Arc<LocalPeer>,
        /// The ring that the local peer writes to.
        reader: RingReader,
    },
    /// From now on the local peer reads what is sent to it. Comes once per local peer.
    Ready {
        /// The local peer.
        from: LocalPeerId,
        /// The ring to the local peer.
        writer: RingWriter,
    },
    /// The slots that the local peer says it has now.
    Slots {
        /// The local peer.
        from: LocalPeerId,
        /// All of them.
        slots: Vec<Slot>,
    },
    /// A message that [`LocalPeer::send`] sent.
    Message {
        /// The local peer that sent the message.
        from: LocalPeerId,
        /// The bytes of the message.
        bytes: Vec<u8>,
        /// The file that came with the message.
        file: Option<OwnedFd>,
    },
    /// The local peer is gone. The memory shared with it goes once its ends of rings are dropped.
    /// The last event of a local peer.
    Gone {
        /// The local peer.
        from: LocalPeerId,
        /// Whether the local peer closed its device in order; else it was killed, or was
        /// disconnected.
        in_order: bool,
    },
}

/// A flag that says that a thread of this process sleeps, so that local peers wake it: see
/// `cursor.rs`.
#[derive(Clone, Debug)]
pub struct SleepFlag(Arc<OwnPage>);

impl SleepFlag {
    /// Says that the calling thread is about to sleep on [`LocalPeers::raw_fd`]. The caller must
    /// then poll each ring ([`RingReader::has_news`]) before it sleeps.
    pub fn announce(&self) {
        self.0.announce();
    }

    /// Says that the thread does not sleep, or no longer.
    pub fn awake(&self) {
        self.0.awake();
    }
}

/// Counters of the local peers since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalPeerCounters {
    /// Local peers that were connected to.
    pub met: u64,
    /// Local peers that are gone again.
    pub gone: u64,
    /// Callers that were refused or given up: of another user or version, with wrong files, silent,
    /// or too many.
    pub refused: u64,
    /// Times that this process had no descriptor left, or the system no memory. What failed was a
    /// connect, which is tried again, or receiving a file that a local peer sent.
    pub short: u64,
    /// Local peers that broke the rules and were disconnected; also counted in `gone`.
    pub expelled: u64,
    /// Times that a local peer's further messages had to wait for a millisecond.
    pub muted: u64,
}

crate::sum_fields! { LocalPeerCounters: met, gone, refused, short, expelled, muted }

#[cfg(test)]
mod tests;
