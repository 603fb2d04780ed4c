//! Event descriptors and the queue of asynchronous events.
//!
//! Owns [`EventQueue`], a queue with a file descriptor that is readable exactly while the queue
//! holds something, so that programs can `poll` it. The queue serves the asynchronous events of a
//! device (IBTA 11.6.3) and, in `channel.rs`, completion events. The lane's holder pushes entries,
//! and the application reads them. A push writes to an eventfd: one system call per event, none per
//! packet or completion. If the system forbids eventfds (in a sandbox), a socket takes the
//! eventfd's place: it has a message while the queue holds something ([`Count::Bell`]).
//!
//! Events need no acknowledgement here, because they name objects by number or hold a reference to
//! them. Events of the C API contain pointers. So `vernic-abi` counts the events that were taken
//! and acknowledged, and destroying an object waits for the acknowledgements.
//!
//! Limits: at most [`MAX_EVENTS`] asynchronous events wait; further ones are dropped and counted.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use vernic_proto::QpEvent;
use vernic_wire::{PortNum, Qpn};

/// The most events that wait in one queue. An application that never reads loses events, not
/// memory.
pub const MAX_EVENTS: usize = 65_536;

/// Locks a mutex, even if another thread panicked while it held the lock. This is safe, because the
/// state behind every lock of the engine is valid between any two statements. And it is needed,
/// because a device must outlive the panic of one thread.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks as [`lock`] does, but never waits. `None` while the lock is taken, perhaps by code of the
/// calling thread that a signal interrupted.
pub(crate) fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A number that identifies a completion queue within its device for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub u64);

/// A number that identifies a shared receive queue within its device for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub u64);

/// The object that an asynchronous event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// A queue pair.
    Qp(Qpn),
    /// A completion queue.
    Cq(CqId),
    /// A shared receive queue.
    Srq(SrqId),
    /// A port.
    Port(PortNum),
    /// The device.
    Device,
}

/// Kind of an asynchronous event. Values are those of `ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// A completion queue overflowed.
    CqError = 0,
    /// A queue pair failed locally.
    QpFatal = 1,
    /// The peer's request was invalid.
    QpRequestError = 2,
    /// The peer's access violated protection.
    QpAccessError = 3,
    /// The first packet of a connection came while the queue pair was in RTR.
    CommEstablished = 4,
    /// The send queue has drained.
    SqDrained = 5,
    /// A queue pair has taken its alternate path: the other one failed, or the peer has changed.
    PathMigrated = 6,
    /// The peer of a queue pair has changed to a path that is not the alternate one here.
    PathMigrationFailed = 7,
    /// The device is unusable: its sockets are gone.
    DeviceFatal = 8,
    /// The port became active: its netdev came up, or a subnet manager activated it.
    PortActive = 9,
    /// The port is not active any more.
    PortError = 10,
    /// The port has another LID (or LMC).
    LidChange = 11,
    /// The P_Key table changed.
    PkeyChange = 12,
    /// The subnet has another manager.
    SmChange = 13,
    /// A shared receive queue failed.
    SrqError = 14,
    /// A shared receive queue has fewer receives than its limit.
    SrqLimitReached = 15,
    /// A queue pair in error has taken its last receive from a shared queue.
    LastWqeReached = 16,
    /// The subnet manager asks clients to register again what they registered with it.
    ClientReregister = 17,
    /// The GID table changed.
    GidChange = 18,
}

impl From<QpEvent> for EventKind {
    fn from(event: QpEvent) -> Self {
        match event {
            QpEvent::CommEstablished => Self::CommEstablished,
            QpEvent::SqDrained => Self::SqDrained,
            QpEvent::Fatal => Self::QpFatal,
            QpEvent::RequestError => Self::QpRequestError,
            QpEvent::AccessError => Self::QpAccessError,
            QpEvent::LastWqeReached => Self::LastWqeReached,
            QpEvent::PathMigrated => Self::PathMigrated,
            QpEvent::PathMigrationFailed => Self::PathMigrationFailed,
        }
    }
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// The kind of the event.
    pub kind: EventKind,
    /// The object that the event is about.
    pub element: Element,
}

impl AsyncEvent {
    /// Makes the event that a shared receive queue has fewer receives than its limit.
    pub(crate) fn srq_limit(id: SrqId) -> Self {
        Self { kind: EventKind::SrqLimitReached, element: Element::Srq(id) }
    }
}

/// The descriptor of a queue, which is readable while the queue holds something.
#[derive(Debug)]
enum Count {
    /// An eventfd that counts the entries.
    Counter(EventFd),
    /// A socket that has one message while the queue has entries or is closed. It is written and
    /// read only under the queue's lock.
    Bell(OwnedFd),
}

impl AsFd for Count {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Counter(fd) => fd.as_fd(),
            Self::Bell(fd) => fd.as_fd(),
        }
    }
}

impl Count {
    fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE;
        match EventFd::from_value_and_flags(0, flags) {
            Ok(fd) => Ok(Self::Counter(fd)),
            Err(error) => Ok(Self::Bell(vernic_io::bell(true).map_err(|_| error)?)),
        }
    }
}

/// A queue with a descriptor that is readable exactly while the queue holds something.
#[derive(Debug)]
pub struct EventQueue<T> {
    count: Count,
    queue: Mutex<VecDeque<T>>,
    limit: usize,
    dropped: AtomicU64,
    closed: AtomicBool,
}

impl<T> EventQueue<T> {
    /// Makes an empty queue of at most [`MAX_EVENTS`] entries. Like the descriptors of verbs, its
    /// descriptor blocks on read unless the application makes it non-blocking.
    ///
    /// # Errors
    /// The system's error when the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Self::with_limit(MAX_EVENTS)
    }

    /// Makes a queue as [`new`](Self::new) does, but of at most `limit` entries. The limit is
    /// `usize::MAX` for a queue whose entries something else bounds.
    ///
    /// # Errors
    /// The same as of [`new`](Self::new).
    pub fn with_limit(limit: usize) -> io::Result<Self> {
        let count = Count::new()?;
        let (dropped, closed) = (AtomicU64::new(0), AtomicBool::new(false));
        Ok(Self { count, queue: Mutex::new(VecDeque::new()), limit, dropped, closed })
    }

    /// Returns the descriptor, for `poll`. The caller must not read from it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.count.as_fd()
    }

    /// Adds an entry and makes the descriptor readable. Returns false if the entry is lost because
    /// the queue is full.
    pub fn push(&self, entry: T) -> bool {
        let mut queue = lock(&self.queue);
        if queue.len() >= self.limit {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        queue.push_back(entry);
        match &self.count {
            Count::Counter(fd) => {
                drop(queue);
                // Cannot block: the counter is the number of entries, far below its limit of 2^64.
                vernic_io::raise(fd.as_fd());
            }
            Count::Bell(fd) if queue.len() == 1 && !self.closed.load(Ordering::Acquire) => {
                // Cannot block: there was no message.
                vernic_io::raise(fd.as_fd());
            }
            Count::Bell(_) => {}
        }
        true
    }

    /// Returns how many entries were lost because the application did not read.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits for an entry, if the descriptor is blocking. `take` gets the entry under the queue's
    /// lock.
    ///
    /// # Errors
    /// `WouldBlock` on a non-blocking descriptor, `Interrupted` by a signal; EIO once the queue is
    /// [closed](Self::close) and empty.
    pub fn wait<R>(&self, mut take: impl FnMut(T) -> R) -> io::Result<R> {
        // Each round of the loop sleeps until the descriptor is readable. Then another thread may
        // take the entry first, or the entry may be removed together with its object.
        loop {
            if let Some(taken) = self.try_next(&mut take) {
                return Ok(taken);
            }
            if self.closed.load(Ordering::Acquire) {
                return Err(Errno::EIO.into());
            }
            if self.is_nonblocking()? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.poll_fd(PollTimeout::NONE)?;
        }
    }

    /// Takes an entry if there is one; never waits. `take` gets the entry under the queue's lock.
    pub fn try_next<R>(&self, take: impl FnOnce(T) -> R) -> Option<R> {
        let mut queue = lock(&self.queue);
        if queue.is_empty() && self.closed.load(Ordering::Acquire) {
            // Closing the queue adds one to the count. This one stays, so that all waiting threads
            // wake up.
            return None;
        }
        // Each round of the loop takes one off the descriptor's count. The count may exceed the
        // number of entries: an entry may be purged before its push has counted it.
        while self.take_count(queue.len()) {
            if let Some(entry) = queue.pop_front() {
                return Some(take(entry));
            }
        }
        None
    }

    /// Closes the queue, to which no entry will be added any more. The descriptor stays readable
    /// from now on, and threads that wait on the empty queue get an error.
    pub fn close(&self) {
        let queue = lock(&self.queue);
        let is_told = matches!(self.count, Count::Bell(_)) && !queue.is_empty();
        if !self.closed.swap(true, Ordering::AcqRel) && !is_told {
            vernic_io::raise(self.count.as_fd());
        }
    }

    /// Removes the entries for which `keep` is false, because their object is destroyed.
    pub fn purge(&self, mut keep: impl FnMut(&T) -> bool) {
        drop(self.extract(|entry| !keep(entry)));
    }

    /// Removes the entries for which `leaves` is true, and returns them in their order.
    pub fn extract(&self, mut leaves: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut queue = lock(&self.queue);
        let mut gone = Vec::new();
        for _ in 0..queue.len() {
            // The loop has as many rounds as there are entries. Each round takes the first entry
            // and may put it last again.
            match queue.pop_front() {
                Some(entry) if leaves(&entry) => gone.push(entry),
                Some(entry) => queue.push_back(entry),
                None => break,
            }
        }
        let before = queue.len() + gone.len();
        (0..gone.len()).for_each(|taken| _ = self.take_count(before - taken));
        gone
    }

    /// Returns the number of entries for which `is` is true.
    pub fn count(&self, is: impl Fn(&T) -> bool) -> usize {
        lock(&self.queue).iter().filter(|entry| is(entry)).count()
    }

    /// Takes one off the descriptor's count, because an entry is removed; returns false if the
    /// count is 0. `entries` is the number of entries before the removal. Called only under the
    /// queue's lock, so a readable descriptor stays readable until the read, and a blocking one
    /// does not block.
    fn take_count(&self, entries: usize) -> bool {
        match &self.count {
            Count::Counter(fd) => {
                matches!(self.poll_fd(PollTimeout::ZERO), Ok(true)) && fd.read().is_ok()
            }
            Count::Bell(fd) => {
                let is_last = entries == 1 && !self.closed.load(Ordering::Acquire);
                if is_last && matches!(self.poll_fd(PollTimeout::ZERO), Ok(true)) {
                    let _ = nix::unistd::read(fd, &mut [0; 8]);
                }
                entries != 0
            }
        }
    }

    /// Leaks the entries instead of dropping them. Called in a child of `fork` for a queue that its
    /// parent made: a thread of the parent, which the child does not have, may have been changing
    /// the entries.
    pub fn abandon(&mut self) {
        let queue = self.queue.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::take(queue));
    }

    /// Waits until the descriptor is readable, for `timeout` at most, and returns whether it is.
    fn poll_fd(&self, timeout: PollTimeout) -> io::Result<bool> {
        let mut fds = [PollFd::new(self.count.as_fd(), PollFlags::POLLIN)];
        Ok(poll(&mut fds, timeout)? > 0)
    }

    /// Whether the application has made the descriptor non-blocking.
    fn is_nonblocking(&self) -> io::Result<bool> {
        let flags = OFlag::from_bits_retain(fcntl(&self.count, FcntlArg::F_GETFL)?);
        Ok(flags.contains(OFlag::O_NONBLOCK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same<T>(entry: T) -> T {
        entry
    }

    #[test]
    fn entries_come_out_in_order_and_the_descriptor_tells_when_there_is_one() {
        let queue = EventQueue::new().unwrap();
        assert_eq!(queue.try_next(same), None);
        queue.push(1);
        queue.push(2);
        assert_eq!(queue.wait(same).unwrap(), 1);
        assert_eq!(queue.try_next(same), Some(2));
        assert_eq!(queue.try_next(same), None);
    }

    #[test]
    fn entries_beyond_the_limit_are_lost_and_counted() {
        let queue = EventQueue::new().unwrap();
        let kept = (0..MAX_EVENTS + 3).filter(|n| queue.push(*n)).count();
        assert_eq!((kept, queue.dropped()), (MAX_EVENTS, 3));
        assert_eq!(queue.try_next(same), Some(0));
    }

    #[test]
    fn a_queue_with_a_bell_is_readable_exactly_while_it_holds_something() {
        let count = Count::Bell(vernic_io::bell(true).unwrap());
        let queue = EventQueue { count, ..EventQueue::new().unwrap() };
        let is_readable = || queue.poll_fd(PollTimeout::ZERO).unwrap();
        assert_eq!((queue.try_next(same), is_readable()), (None, false));
        for round in 0..3 {
            (0..1000).for_each(|n| _ = queue.push(n));
            assert_eq!(queue.extract(|n| n % 3 != 0).len(), 666);
            for n in (0..1000).filter(|n| n % 3 == 0) {
                assert!(is_readable(), "{n} in round {round}");
                assert_eq!(queue.try_next(same), Some(n));
            }
            assert_eq!((queue.try_next(same), is_readable()), (None, false));
            queue.push(1);
            queue.purge(|_| false);
            assert!(!is_readable());
        }
        queue.push(7);
        queue.close();
        queue.close();
        assert_eq!(queue.wait(same).unwrap(), 7);
        assert!(is_readable());
        assert_eq!(queue.wait(same).unwrap_err().raw_os_error(), Some(Errno::EIO as i32));
    }

    #[test]
    fn purged_entries_are_never_seen() {
        let queue = EventQueue::new().unwrap();
        for n in 0..4 {
            queue.push(n);
        }
        queue.purge(|n| n % 2 == 1);
        assert_eq!(
            (queue.try_next(same), queue.try_next(same), queue.try_next(same)),
            (Some(1), Some(3), None)
        );
    }

    #[test]
    fn extracted_entries_come_in_order_and_leave_the_others_in_theirs() {
        let queue = EventQueue::with_limit(usize::MAX).unwrap();
        (0..6).for_each(|n| _ = queue.push(n));
        assert_eq!(queue.extract(|n| n % 3 == 0), [0, 3]);
        let rest: Vec<i32> = std::iter::from_fn(|| queue.try_next(same)).collect();
        assert_eq!(rest, [1, 2, 4, 5]);
        assert!(!queue.poll_fd(PollTimeout::ZERO).unwrap());
    }

    #[test]
    fn after_a_purge_the_descriptor_is_readable_only_for_what_remains() {
        let queue = EventQueue::new().unwrap();
        (0..3).for_each(|n| _ = queue.push(n));
        queue.purge(|_| false);
        assert!(!queue.poll_fd(PollTimeout::ZERO).unwrap());
        // This is the rest of a push whose entry was purged before the push counted it.
        vernic_io::raise(queue.fd());
        assert_eq!(queue.try_next(same), None);
        assert!(!queue.poll_fd(PollTimeout::ZERO).unwrap());
    }

    #[test]
    fn closing_wakes_everybody_who_waits_once_the_entries_are_taken() {
        let queue = EventQueue::new().unwrap();
        let taken = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Ok(n) = queue.wait(same) {
                        taken.fetch_add(n, Ordering::Relaxed);
                    }
                });
            }
            (1..=100).for_each(|n| _ = queue.push(n));
            queue.close();
            queue.close();
        });
        assert_eq!(taken.into_inner(), 5050);
        assert_eq!(queue.wait(same).unwrap_err().raw_os_error(), Some(Errno::EIO as i32));
        assert!(queue.poll_fd(PollTimeout::ZERO).unwrap());
    }

    #[test]
    fn looking_never_waits_whoever_else_takes_the_entries() {
        let queue = EventQueue::new().unwrap();
        let taken = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while taken.load(Ordering::Relaxed) < 1000 {
                        taken.fetch_add(
                            u64::from(queue.try_next(same).is_some()),
                            Ordering::Relaxed,
                        );
                    }
                });
            }
            (0..1000).for_each(|n| _ = queue.push(n));
        });
        assert_eq!(taken.into_inner(), 1000);
    }

    #[test]
    fn waiting_on_a_descriptor_that_was_made_nonblocking_does_not_wait() {
        let queue = EventQueue::<u8>::new().unwrap();
        fcntl(&queue.count, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        assert_eq!(queue.wait(same).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        queue.push(7);
        assert_eq!(queue.wait(same).unwrap(), 7);
    }
}
