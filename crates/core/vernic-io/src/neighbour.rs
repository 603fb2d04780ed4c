//! Neighbours: other processes of this host, network namespace and user, and this one itself, to
//! which packets go through memory instead of UDP.
//!
//! What this module owns: how two engines meet, the memory and the connection that they share from
//! then on, and the end of it. Who calls it: the engine. It knows packets as bytes with addresses,
//! and nothing of queue pairs.
//!
//! ```text
//!      caller                                          called
//!   socket(SOCK_SEQPACKET), connect  ---------->  \0vernic/<slot>/neighbour
//!   hello   {engine, slots} + ring, page  ----->  is it of our user? files as they must be?
//!   is it?  files?   <---------- welcome {engine, slots} + ring, page
//!   ready  ------------------------------------>  may write from now on
//!            ... slots, bell, what is told, bye; hang-up: it is gone ...
//! ```
//!
//! - Each passes the ring that the other is to write to (`neighbour/ring.rs`) and a page that only
//!   itself can write (`neighbour/page.rs`).
//! - One connection per pair of engines: if both call at once, the call of the one with the lower
//!   random number stays.
//! - The kernel names the process at the other end (`SO_PEERCRED`): one of another user is refused.
//!   A process that ends, is killed or replaces itself by exec hangs up; one that closes in order
//!   says so before.
//! - An engine is its own neighbour, too, over a connection within the process: nothing is special.
//!
//! # Hostile neighbours
//!
//! A process of our user may do anything with what it shares with us. Sizes of files are sealed
//! before they are mapped; what is read is a private copy; what breaks a rule ends the neighbour
//! ([`Neighbourhood::expel`]); who does not answer for [`PATIENCE`] is given up; of those that
//! called and have not said hello [`MAX_STRANGERS`] are kept; the bell cannot block. A neighbour
//! can say of any slot that it is its own: the engine believes it only if the slot's own socket
//! named the same process.
//!
//! | file | what |
//! |---|---|
//! | `neighbour/meeting.rs`, `neighbour/neighbourhood.rs`, `neighbour/open.rs` | who is met, and all connections |
//! | `neighbour/hindrance.rs` | who could not be met, why, and when that is tried again |
//! | `neighbour/complaint.rs` | what users are told of it |
//! | `neighbour/hello.rs` | bytes of what is said |
//! | `neighbour/ring.rs`, `neighbour/page.rs` | memory that is shared |
//! | `neighbour/cursor.rs` | the protocol of the ring's positions and of sleeping, model-checked |
//!
//! Limits: [`MAX_NEIGHBOURS`] at a time; two rings, a page and a descriptor each.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::host::Slot;
use crate::sys::{self, ClosableFd};

mod complaint;
mod cursor;
mod hello;
mod hindrance;
mod meeting;
mod neighbourhood;
mod open;
mod page;
mod ring;

pub use hello::MAX_TOLD_BYTES;
pub use hindrance::Hindrance;
pub use neighbourhood::Neighbourhood;
pub use ring::{
    MAX_RING_BYTES, MIN_RING_BYTES, PacketBuffer, RingBroken, RingReader, RingWriter, record_bytes,
    rx_packet,
};

use hello::Said;
use page::OwnPage;
use ring::RingMemory;

/// Neighbours at a time; who comes later is not met, and packets go by UDP. Each takes two rings,
/// which get smaller as neighbours get more: 36 MiB at most in all where the settings say 256 KiB,
/// half of it for each end.
pub const MAX_NEIGHBOURS: usize = 256;

/// Connections at a time on which nobody has said hello yet; after that the oldest is closed.
pub const MAX_STRANGERS: usize = 64;

/// How long an answer is waited for: far longer than a process takes that runs.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// A neighbour, of one device of this process. Never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NeighbourId {
    place: u16,
    generation: u32,
}

impl NeighbourId {
    /// Its place in a table of [`MAX_NEIGHBOURS`], which is another's after it is gone.
    pub const fn place(self) -> usize {
        self.place as usize
    }
}

impl fmt::Display for NeighbourId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.place, self.generation)
    }
}

/// A process that shares memory with this one.
#[derive(Debug)]
pub struct Neighbour {
    id: NeighbourId,
    pid: u32,
    connection: Arc<ClosableFd>,
    /// The ring that it writes to, and the one that we write to.
    incoming: Arc<RingMemory>,
    outgoing: Arc<RingMemory>,
    gone: AtomicBool,
}

impl Neighbour {
    /// Which it is.
    pub fn id(&self) -> NeighbourId {
        self.id
    }

    /// Its process id, as the kernel names it here; 0 if it is of a PID namespace that cannot be
    /// seen.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The word in which this process says where in the neighbour's memory it is, 0 for nowhere.
    /// Written by this process, looked at by the neighbour; any value may be in it.
    #[inline]
    pub fn inside(&self) -> &AtomicU64 {
        self.outgoing.inside()
    }

    /// The neighbour's: where in our memory it says that it is.
    #[inline]
    pub fn inside_us(&self) -> &AtomicU64 {
        self.incoming.inside()
    }

    /// Whether it is known to be gone. To be told by the kernel whether it is, look at
    /// [`has_hung_up`](Self::has_hung_up).
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

    /// Sends a message of up to [`MAX_TOLD_BYTES`] bytes to the neighbour's engine, with a file or
    /// without; it gets it as [`Event::Message`]. Never blocks. Messages of one neighbour arrive in
    /// order; one with a file is lost, and counted there, where the neighbour has no descriptor
    /// left for it.
    ///
    /// # Errors
    /// `NotConnected` once it is gone, `InvalidInput` for too many bytes, `WouldBlock` if it has
    /// not read what it was told before (some ten messages), and what the system says.
    pub fn tell(&self, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        if bytes.len() > MAX_TOLD_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.say(&Said::Told(bytes.to_vec()), file.as_slice())
    }

    fn say(&self, said: &Said, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let fd = self.connection.get().filter(|_| !self.is_gone());
        let fd = fd.ok_or(io::ErrorKind::NotConnected)?;
        sys::send_packet(fd.as_fd(), &said.emit(), files)
    }

    fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
        self.connection.close();
    }
}

/// What has happened among the neighbours.
#[derive(Debug)]
pub enum Event {
    /// A process was met: what it sends comes out of the ring. Comes first of all that is about it.
    Met {
        /// The process.
        neighbour: Arc<Neighbour>,
        /// What it sends.
        reader: RingReader,
    },
    /// It reads what is sent to it from now on. Comes once per neighbour.
    Ready {
        /// Who.
        from: NeighbourId,
        /// To it.
        writer: RingWriter,
    },
    /// The slots that it says it has now.
    Slots {
        /// Who.
        from: NeighbourId,
        /// All of them.
        slots: Vec<Slot>,
    },
    /// A message of [`Neighbour::tell`].
    Message {
        /// Who.
        from: NeighbourId,
        /// What it told.
        bytes: Vec<u8>,
        /// The file that came along.
        file: Option<OwnedFd>,
    },
    /// It is gone, and so is the memory that is shared with it once its ends of rings are dropped.
    /// Comes last of all that is about it.
    Gone {
        /// Who.
        from: NeighbourId,
        /// It closed its device in order; else it was ended, or is dead to us.
        in_order: bool,
    },
}

/// Says of this process that it sleeps, so that neighbours wake it: see `cursor.rs`.
#[derive(Clone, Debug)]
pub struct Alarm(Arc<OwnPage>);

impl Alarm {
    /// The calling thread is about to sleep on [`Neighbourhood::raw_fd`]. To be followed by a look
    /// at each ring ([`RingReader::has_news`]).
    pub fn announce(&self) {
        self.0.announce();
    }

    /// It does not, or no longer.
    pub fn awake(&self) {
        self.0.awake();
    }
}

/// What was counted of the neighbours since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeighbourCounters {
    /// Neighbours met.
    pub met: u64,
    /// Neighbours gone again.
    pub gone: u64,
    /// Callers that were refused or given up: of another user or version, with files that are not
    /// what they must be, silent, or too many.
    pub refused: u64,
    /// Times that something could not be done since this process had no descriptor, or the system
    /// no memory, left for it: a meeting, which is tried again, or a file that a neighbour sent.
    pub short: u64,
    /// Neighbours that broke the rules and were expelled; among those that are gone.
    pub expelled: u64,
    /// Times that a neighbour had to wait for a millisecond with what else it said.
    pub muted: u64,
}

crate::sum_fields! { NeighbourCounters: met, gone, refused, short, expelled, muted }

#[cfg(test)]
mod tests;
