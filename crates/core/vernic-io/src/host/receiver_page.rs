//! Receiver pages: how much is on its way into a process of this host, so that senders do not
//! overrun its sockets.
//!
//! An [`ReceiverPage`], or receiver page, is a page of memory that a process shares with those that
//! ask for its private port (`slots.rs`). Senders of unreliable services add what they are about to
//! send, and the receiver adds what it has taken. The difference is in flight, and is kept below a
//! part of what a socket of the receiver holds. RC needs no such count: its acknowledgements bound
//! what is in flight.
//!
//! RC uses the rest of the page, which can be read even when the process is stopped or gone. It
//! says which of the process's queue pairs answer requests, and whether the process closed its
//! device in order (`receiver_page/owner.rs`).
//!
//! ```text
//!  word 0       16           32              48           256
//!       +------+------------+---------------+------------+----------------------+
//!       | sent | received   | capacity      | left, slot | a bit per queue pair |
//!       +------+------------+---------------+------------+----------------------+
//!        senders receiver     receiver, once  receiver     receiver
//! ```
//!
//! The first three are bytes. Words of different writers share no cache line.
//!
//! Other processes write the page, so no value of it is trusted. The worst that a process can do is
//! to keep senders waiting, which the engine bounds, or to let them send packets that then get
//! lost. Crashed senders and lost packets leave bytes in the difference. These are forgotten when
//! the receiver finds nothing to receive for a while ([`ReceiverPage::settle`]).
//!
//! Limits: [`MAX_RECEIVER_PAGES`] receiver pages known at a time, 4 KiB each.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vernic_sys::{self as sys, ClosableFd, OwnFd, SharedPage};

use crate::batch::MAX_TRANSPORT_BYTES;
use crate::path::{MAX_RECEIVER_PAGES, ReceiverPageId};

mod owner;

/// Bytes that the kernel takes of a socket's buffer for a datagram beside its payload: its own
/// structures (`SKB_TRUESIZE(0)`, 768 bytes on 64 bits). Datagrams that the kernel handles as one
/// (GSO) have these structures only once, so the estimate is too high for them, never too low.
const OVERHEAD_BYTES: u64 = 768;

/// The share of a socket's buffer that may be in flight, in eighths. A lone packet of 4 KiB takes
/// 8.4 KiB of the buffer, 1.7 times our estimate. The kernel gives a quarter of the buffer back
/// only after the rest was received. What remains is for RC, which is not counted.
const SHARE_EIGHTHS: u64 = 3;

/// The estimate for the largest packet. If nothing is in flight, a sender can always reserve as
/// much.
const MAX_COST: u64 = MAX_TRANSPORT_BYTES as u64 + OVERHEAD_BYTES;

/// The largest capacity: larger values on the page are taken to be this.
const MAX_CAPACITY: u64 = u32::MAX as u64;

const SENT: usize = 0;
const RECEIVED: usize = 16;
const CAPACITY: usize = 32;

/// A receiver page of one process. See the module's documentation.
#[derive(Debug)]
pub struct ReceiverPage {
    page: SharedPage,
    inode: u64,
}

impl ReceiverPage {
    fn map(fd: BorrowedFd<'_>, inode: u64) -> io::Result<Self> {
        Ok(Self { page: SharedPage::map(fd)?, inode })
    }

    fn load(&self, word: usize) -> u64 {
        self.page.word(word).load(Ordering::Relaxed)
    }

    /// Returns the estimate for a packet of `len` bytes, ICRC not counted. Senders and the receiver
    /// add the same estimate.
    #[inline]
    pub const fn cost(len: usize) -> u64 {
        len as u64 + OVERHEAD_BYTES
    }

    /// Returns the largest [`cost`](Self::cost) of a packet.
    pub const fn max_cost() -> u64 {
        MAX_COST
    }

    /// Returns the estimated bytes that may be in flight; `None` if the receiver did not say.
    fn limit(&self) -> Option<u64> {
        match self.load(CAPACITY).min(MAX_CAPACITY) {
            0 => None,
            capacity => Some(capacity * SHARE_EIGHTHS / 8),
        }
    }

    /// Reserves room to send. Returns how many estimated bytes the caller may send, up to `wanted`
    /// (at least [`max_cost`](Self::max_cost)), or `None` if there is too much in flight. Reserved
    /// bytes count as in flight from now on; [`give_back`](Self::give_back) returns what is not
    /// used.
    #[inline]
    pub fn reserve(&self, wanted: u64) -> Option<u64> {
        let Some(limit) = self.limit() else {
            self.page.word(SENT).fetch_add(wanted, Ordering::Relaxed);
            return Some(wanted);
        };
        // A sender gets a quarter at most, which leaves something to others.
        let wanted = wanted.min(limit / 4).max(MAX_COST);
        let fits = |sent: u64| {
            let in_flight = sent.wrapping_sub(self.load(RECEIVED)) as i64;
            in_flight <= 0 || (in_flight as u64).saturating_add(wanted) <= limit
        };
        // Loading costs less than adding, and a sender that is refused polls often.
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

    /// Sets what is in flight to nothing. For a sender that was refused for so long that the count
    /// must be wrong, or the receiver gone. Returns the value of [`received`](Self::received) from
    /// now on, until the receiver takes something.
    pub fn forgive(&self) -> u64 {
        let sent = self.load(SENT);
        self.page.word(RECEIVED).store(sent, Ordering::Relaxed);
        sent
    }

    /// Whether the receiver has taken everything that was sent to it.
    pub fn is_idle(&self) -> bool {
        self.load(SENT) == self.load(RECEIVED)
    }

    /// Returns the estimated bytes that the receiver has taken since the page was made.
    pub fn received(&self) -> u64 {
        self.load(RECEIVED)
    }

    /// For the receiver: sets what its sockets hold, in bytes as `SO_RCVBUF` reports them.
    pub fn set_capacity(&self, bytes: u64) {
        self.page.word(CAPACITY).store(bytes, Ordering::Relaxed);
    }

    /// For the receiver: adds packets of this estimate that it has taken.
    pub fn take(&self, cost: u64) {
        // Only the receiver writes the word, except a sender that calls `forgive`, whose value may
        // be lost.
        let (received, sent) = (self.load(RECEIVED).wrapping_add(cost), self.load(SENT));
        // More than was sent cannot have come: these are duplicates, or the count was forgiven.
        let over = (sent.wrapping_sub(received) as i64) < 0;
        self.page.word(RECEIVED).store(if over { sent } else { received }, Ordering::Relaxed);
    }

    /// For the receiver, when it found nothing: forgets what will never come. `seen` keeps, between
    /// calls, what was sent and since when that value stands; `now` is in nanoseconds.
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

/// How long announced packets may fail to come until they are taken to be lost: two milliseconds.
/// That is far more than lies between a sender's announcement and its system call, unless the
/// sender was scheduled away.
const SETTLE_NANOS: u64 = 2_000_000;

/// The receiver pages that a link knows: its own, and those of other processes.
#[derive(Debug)]
pub(crate) struct ReceiverPages {
    own: Option<(ClosableFd, Arc<ReceiverPage>)>,
    known: Mutex<Known>,
    generation: AtomicU32,
}

#[derive(Debug, Default)]
struct Known {
    list: Vec<Arc<ReceiverPage>>,
    /// The index of the page that is replaced next.
    oldest: usize,
}

impl ReceiverPages {
    pub(crate) fn new() -> Self {
        let make = || {
            let fd = sys::shared_file()?;
            let receiver_page = ReceiverPage::map(fd.as_fd(), sys::inode_of(fd.as_fd())?)?;
            Ok((ClosableFd::new(fd), Arc::new(receiver_page)))
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

    /// Returns this link's own page.
    pub(crate) fn own(&self) -> Option<&Arc<ReceiverPage>> {
        self.own.as_ref().map(|(_, receiver_page)| receiver_page)
    }

    /// Returns the file of this link's own page, to pass to others; `None` once the table is
    /// closed.
    pub(crate) fn own_fd(&self) -> Option<Arc<OwnFd>> {
        self.own.as_ref().and_then(|(fd, _)| fd.get())
    }

    /// Returns a known page by its id.
    pub(crate) fn get(&self, id: ReceiverPageId) -> Option<Arc<ReceiverPage>> {
        self.known().list.get(id.index()).cloned()
    }

    /// Closes the own page's file and forgets the pages of others.
    pub(crate) fn close(&self) {
        if let Some((fd, _)) = &self.own {
            fd.close();
        }
        let known = std::mem::take(&mut *self.known());
        drop(known);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns a number that changes whenever the list does.
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Copies the list; the position of each page is its [`ReceiverPageId::index`].
    pub(crate) fn copy_to(&self, list: &mut Vec<Arc<ReceiverPage>>) {
        list.clone_from(&self.known().list);
    }

    /// Adds a receiver page of this process.
    pub(crate) fn add(&self, receiver_page: &Arc<ReceiverPage>) -> ReceiverPageId {
        self.insert(receiver_page.inode, || Ok(receiver_page.clone()))
            .unwrap_or(ReceiverPageId::at(0))
    }

    /// Adds the receiver page that another process passed; `None` if the file is anything else.
    pub(crate) fn add_file(&self, fd: BorrowedFd<'_>) -> Option<ReceiverPageId> {
        let inode = sys::inode_of(fd).ok()?;
        self.insert(inode, || ReceiverPage::map(fd, inode).map(Arc::new))
            .inspect_err(|error| tracing::debug!(%error, "a peer's shared memory is not used"))
            .ok()
    }

    fn insert(
        &self,
        inode: u64,
        make: impl FnOnce() -> io::Result<Arc<ReceiverPage>>,
    ) -> io::Result<ReceiverPageId> {
        let mut known = self.known();
        let found = known.list.iter().position(|other| other.inode == inode);
        let at = match found {
            Some(at) => at,
            None if known.list.len() < MAX_RECEIVER_PAGES => {
                known.list.push(make()?);
                self.generation.fetch_add(1, Ordering::Release);
                known.list.len() - 1
            }
            None => {
                let at = known.oldest;
                known.list[at] = make()?;
                known.oldest = (at + 1) % MAX_RECEIVER_PAGES;
                self.generation.fetch_add(1, Ordering::Release);
                at
            }
        };
        Ok(ReceiverPageId::at(at))
    }
}

#[cfg(test)]
mod tests;
