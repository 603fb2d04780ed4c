//! How much is on its way into a process of this host, so that senders do not overrun its sockets.
//!
//! An [`Intake`] is a page of memory that its process shares with those that ask for its private
//! port (`slots.rs`). Senders of unreliable services add what they are about to send, the receiver
//! adds what it has taken; the difference is in flight, and is kept below a part of what a socket
//! of the receiver holds. RC needs none of that: its acknowledgements bound what is in flight. What
//! RC looks at is the rest of the page, which can be read when the process is stopped, or gone,
//! too: which of its queue pairs answer requests, and whether it closed its device in order
//! (`intake/owner.rs`).
//!
//! ```text
//!  word 0       16           32              48           256
//!       +------+------------+---------------+------------+----------------------+
//!       | sent | received   | capacity      | left, slot | a bit per queue pair |
//!       +------+------------+---------------+------------+----------------------+
//!        senders receiver     receiver, once  receiver     receiver
//! ```
//!
//! The first three are bytes. One writer's words share no cache line.
//!
//! Other processes write the page, so no value of it is believed: the worst that one can do is to
//! keep senders waiting, and the engine bounds that, or to let them send what then gets lost. What
//! crashed senders or lost packets leave in the difference is forgotten when the receiver finds
//! nothing to receive for a while ([`Intake::settle`]).
//!
//! Limits: [`MAX_INTAKES`] known at a time, a page each.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::batch::MAX_TRANSPORT_BYTES;
use crate::path::{IntakeId, MAX_INTAKES};
use crate::sys::{self, ClosableFd, OwnFd, SharedPage};

mod owner;

/// What the kernel takes of a socket's buffer for a datagram beside its bytes: its own structures
/// (`SKB_TRUESIZE(0)`, 768 bytes on 64 bits). A run of GSO has them once, so this errs on the safe
/// side.
const OVERHEAD_BYTES: u64 = 768;

/// Share of a socket's buffer that may be in flight, in eighths. A lone packet of 4 KiB takes 8.4
/// KiB of the buffer, 1.7 times our estimate, and the kernel gives a quarter of the buffer back
/// only after the rest was received. What remains is for RC, which is not counted.
const SHARE_EIGHTHS: u64 = 3;

/// The largest packet's estimate: an intake always grants as much, if nothing is in flight.
const MAX_COST: u64 = MAX_TRANSPORT_BYTES as u64 + OVERHEAD_BYTES;

/// Capacities beyond this are taken to be this.
const MAX_CAPACITY: u64 = u32::MAX as u64;

const SENT: usize = 0;
const RECEIVED: usize = 16;
const CAPACITY: usize = 32;

/// See the module's head.
#[derive(Debug)]
pub struct Intake {
    page: SharedPage,
    inode: u64,
}

impl Intake {
    fn map(fd: BorrowedFd<'_>, inode: u64) -> io::Result<Self> {
        Ok(Self { page: SharedPage::map(fd)?, inode })
    }

    fn load(&self, word: usize) -> u64 {
        self.page.word(word).load(Ordering::Relaxed)
    }

    /// The estimate for a packet of `len` bytes, ICRC not counted: what senders add and the
    /// receiver adds are equal.
    #[inline]
    pub const fn cost(len: usize) -> u64 {
        len as u64 + OVERHEAD_BYTES
    }

    /// The largest [`cost`](Self::cost) of a packet.
    pub const fn max_cost() -> u64 {
        MAX_COST
    }

    /// Estimated bytes that may be in flight; `None` if the receiver did not say.
    fn limit(&self) -> Option<u64> {
        match self.load(CAPACITY).min(MAX_CAPACITY) {
            0 => None,
            capacity => Some(capacity * SHARE_EIGHTHS / 8),
        }
    }

    /// Asks to send: returns how many estimated bytes may be, up to `wanted` (at least
    /// [`max_cost`](Self::max_cost)), or `None` if there is too much in flight. What was granted is
    /// in flight from now on; [`give_back`](Self::give_back) what is not used.
    #[inline]
    pub fn reserve(&self, wanted: u64) -> Option<u64> {
        let Some(limit) = self.limit() else {
            self.page.word(SENT).fetch_add(wanted, Ordering::Relaxed);
            return Some(wanted);
        };
        // A quarter each leaves something to other senders.
        let wanted = wanted.min(limit / 4).max(MAX_COST);
        let fits = |sent: u64| {
            let in_flight = sent.wrapping_sub(self.load(RECEIVED)) as i64;
            in_flight <= 0 || (in_flight as u64).saturating_add(wanted) <= limit
        };
        // Looking costs less than adding, and who is turned away looks often.
        if !fits(self.load(SENT)) {
            return None;
        }
        let sent = self.page.word(SENT).fetch_add(wanted, Ordering::Relaxed);
        if fits(sent) {
            return Some(wanted);
        }
        self.give_back(wanted);
        None
    }

    /// Undoes a part of a reservation.
    #[inline]
    pub fn give_back(&self, unused: u64) {
        if unused != 0 {
            self.page.word(SENT).fetch_sub(unused, Ordering::Relaxed);
        }
    }

    /// For a sender that was turned away for so long that the count must be wrong, or the
    /// receiver is not there: nothing is in flight. Returns what [`received`](Self::received) is
    /// from now on, until the receiver takes something.
    pub fn forgive(&self) -> u64 {
        let sent = self.load(SENT);
        self.page.word(RECEIVED).store(sent, Ordering::Relaxed);
        sent
    }

    /// Whether the receiver has taken all that was sent to it.
    pub fn is_idle(&self) -> bool {
        self.load(SENT) == self.load(RECEIVED)
    }

    /// Estimated bytes that the receiver took, ever.
    pub fn received(&self) -> u64 {
        self.load(RECEIVED)
    }

    /// For the receiver: what its sockets hold, in bytes as `SO_RCVBUF` tells them.
    pub fn set_capacity(&self, bytes: u64) {
        self.page.word(CAPACITY).store(bytes, Ordering::Relaxed);
    }

    /// For the receiver: it has taken packets of this estimate.
    pub fn take(&self, cost: u64) {
        // The receiver alone writes, but for a sender that gives up; that one's value may be lost.
        let (received, sent) = (self.load(RECEIVED).wrapping_add(cost), self.load(SENT));
        // More than was sent cannot have come: duplicates, or a count that was forgiven.
        let over = (sent.wrapping_sub(received) as i64) < 0;
        self.page.word(RECEIVED).store(if over { sent } else { received }, Ordering::Relaxed);
    }

    /// For the receiver, when it found nothing: forgets what never comes. `seen` is its memory:
    /// what was sent, and since when it is that much; `now` in nanoseconds.
    #[inline]
    pub fn settle(&self, seen: &mut (u64, u64), now: u64) {
        let sent = self.load(SENT);
        if sent != self.load(RECEIVED) {
            self.settle_late(sent, seen, now);
        }
    }

    #[cold]
    fn settle_late(&self, sent: u64, seen: &mut (u64, u64), now: u64) {
        if seen.0 != sent {
            *seen = (sent, now);
        } else if now.saturating_sub(seen.1) >= SETTLE_NANOS {
            self.page.word(RECEIVED).store(sent, Ordering::Relaxed);
        }
    }
}

/// How long nothing may come of what was announced until it is taken to be lost: two milliseconds,
/// far more than lies between a sender's announcement and its system call, unless it was scheduled
/// away.
const SETTLE_NANOS: u64 = 2_000_000;

/// The intakes that a link knows: its own, and those of others.
#[derive(Debug)]
pub(crate) struct IntakeTable {
    own: Option<(ClosableFd, Arc<Intake>)>,
    known: Mutex<Known>,
    generation: AtomicU32,
}

#[derive(Debug, Default)]
struct Known {
    list: Vec<Arc<Intake>>,
    /// Who gives way next.
    oldest: usize,
}

impl IntakeTable {
    pub(crate) fn new() -> Self {
        let make = || {
            let fd = sys::shared_file()?;
            let intake = Intake::map(fd.as_fd(), sys::inode_of(fd.as_fd())?)?;
            Ok((ClosableFd::new(fd), Arc::new(intake)))
        };
        let own = make()
            .inspect_err(|error: &io::Error| {
                tracing::debug!(%error, "no shared memory: UC and UD from this host are not paced");
            })
            .ok();
        Self { own, known: Mutex::default(), generation: AtomicU32::new(0) }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This link's own.
    pub(crate) fn own(&self) -> Option<&Arc<Intake>> {
        self.own.as_ref().map(|(_, intake)| intake)
    }

    /// The file of this link's own, to be passed to others; `None` once the table is closed.
    pub(crate) fn own_fd(&self) -> Option<Arc<OwnFd>> {
        self.own.as_ref().and_then(|(fd, _)| fd.get())
    }

    /// One that is known, by its number.
    pub(crate) fn get(&self, id: IntakeId) -> Option<Arc<Intake>> {
        self.known().list.get(id.index()).cloned()
    }

    /// Closes the file and forgets the others'.
    pub(crate) fn close(&self) {
        if let Some((fd, _)) = &self.own {
            fd.close();
        }
        let known = std::mem::take(&mut *self.known());
        drop(known);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Changes whenever the list does.
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Copies the list; the place of each is its [`IntakeId::index`].
    pub(crate) fn copy_to(&self, list: &mut Vec<Arc<Intake>>) {
        list.clone_from(&self.known().list);
    }

    /// Adds an intake of this process.
    pub(crate) fn add(&self, intake: &Arc<Intake>) -> IntakeId {
        self.insert(intake.inode, || Ok(intake.clone())).unwrap_or(IntakeId::at(0))
    }

    /// Adds the intake that another process passed; `None` if the file is anything else.
    pub(crate) fn add_file(&self, fd: BorrowedFd<'_>) -> Option<IntakeId> {
        let inode = sys::inode_of(fd).ok()?;
        self.insert(inode, || Intake::map(fd, inode).map(Arc::new))
            .inspect_err(|error| tracing::debug!(%error, "a peer's shared memory is not used"))
            .ok()
    }

    fn insert(
        &self,
        inode: u64,
        make: impl FnOnce() -> io::Result<Arc<Intake>>,
    ) -> io::Result<IntakeId> {
        let mut known = self.known();
        let found = known.list.iter().position(|other| other.inode == inode);
        let at = match found {
            Some(at) => at,
            None if known.list.len() < MAX_INTAKES => {
                known.list.push(make()?);
                self.generation.fetch_add(1, Ordering::Release);
                known.list.len() - 1
            }
            None => {
                let at = known.oldest;
                known.list[at] = make()?;
                known.oldest = (at + 1) % MAX_INTAKES;
                self.generation.fetch_add(1, Ordering::Release);
                at
            }
        };
        Ok(IntakeId::at(at))
    }
}

#[cfg(test)]
mod tests;
