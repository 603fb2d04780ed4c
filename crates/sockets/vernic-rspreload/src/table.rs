//! Which descriptors are sockets of this library, and what each is.
//!
//! A bit per descriptor says whether it is one, so that all others cost one look at memory. The
//! sockets themselves are behind a lock that is held for a few instructions, and by no thread
//! during a fork.
//!
//! Limits: descriptors below 2^20, the kernel's own default bound; others are ordinary ones.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::address::Address;
use crate::lock::lock;
use crate::rdmacm::close_rsocket;
use crate::token::Token;

/// Descriptors are below this.
const MAX_FDS: usize = 1 << 20;

/// What became of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Neither connected nor listening.
    New,
    /// Listening, on both.
    Listening,
    /// The peer was asked by RDMA, and has not answered.
    Connecting,
    /// A thread is having it ask by TCP instead: see `connect::settle`.
    Settling,
    /// There is no connection, as is told next. It may ask again.
    Refused,
    /// The peer was asked by TCP, after RDMA, and has not answered: an ordinary socket, unless it
    /// is refused.
    Asked,
    /// Over RDMA.
    Rdma,
    /// Over TCP, until its first use: see `forked`. It is the side that accepted, or that
    /// connected.
    Passive,
    Active,
    /// Over TCP for good: no socket of this library any more, but somebody may hold it still.
    Tcp,
}

impl Stage {
    /// Whether a socket is to be looked after: it connects, or may yet.
    pub(crate) fn may_connect(self) -> bool {
        matches!(self, Self::New | Self::Connecting | Self::Settling | Self::Refused)
    }

    const ALL: [Self; 10] = [
        Self::New,
        Self::Listening,
        Self::Connecting,
        Self::Settling,
        Self::Refused,
        Self::Asked,
        Self::Rdma,
        Self::Passive,
        Self::Active,
        Self::Tcp,
    ];
}

/// An epoll set that a socket is in.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) set: c_int,
    pub(crate) events: u32,
    /// Stands for the program's data, and for this socket alone.
    pub(crate) token: Token,
}

/// The epoll sets that a socket is in. Under their lock they are as the kernel has them.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    /// In which the socket over RDMA is.
    pub(crate) members: Vec<Membership>,
    /// The TCP socket has taken its place, for good.
    pub(crate) moved: bool,
    /// The last descriptor of the socket is closed: it gets no other socket over RDMA.
    pub(crate) closed: bool,
}

/// An option that a program has set.
#[derive(Clone, Debug)]
pub(crate) struct SetOption {
    pub(crate) level: c_int,
    pub(crate) option: c_int,
    pub(crate) value: Box<[u8]>,
}

/// Whose it is to have a connection go over to RDMA with its first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// This thread's, until it ends it.
    Ours,
    /// This thread's already.
    Within,
    /// Another thread's.
    Others,
    /// Of a thread of the process that this one was forked from meanwhile.
    Parents,
}

/// This process and thread; never 0.
fn here() -> u64 {
    // SAFETY: no arguments, cannot fail.
    let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
    (process as u64) << 32 | thread as u64
}

/// A socket of this library.
pub(crate) struct Entry {
    pub(crate) domain: c_int,
    pub(crate) datagrams: bool,
    /// Number of the socket over RDMA; -1 without one.
    number: AtomicUsize,
    stage: AtomicU8,
    /// Process and thread that has it go over to RDMA; 0 if none does.
    mover: AtomicU64,
    /// Whether calls do not wait, of one that listens.
    pub(crate) nonblocking: AtomicBool,
    /// Descriptors that are this socket.
    fds: AtomicUsize,
    pub(crate) peer: Mutex<Option<(Address, std::time::Instant)>>,
    /// The peer was asked by TCP, too, which failed at once: what RDMA says is waited for.
    pub(crate) refused_by_tcp: AtomicBool,
    /// What the program has bound it to, its port the one of both sockets.
    pub(crate) bound: Mutex<Option<Address>>,
    pub(crate) sets: Mutex<Sets>,
    /// Options that the socket over RDMA has taken before it was connected or listened, for another
    /// in its place.
    pub(crate) options: Mutex<Vec<SetOption>>,
}

impl Entry {
    pub(crate) fn new(domain: c_int, datagrams: bool, number: c_int, stage: Stage) -> Arc<Self> {
        Arc::new(Self {
            domain,
            datagrams,
            number: AtomicUsize::new(number as usize),
            stage: AtomicU8::new(stage as u8),
            mover: AtomicU64::new(0),
            nonblocking: AtomicBool::new(false),
            fds: AtomicUsize::new(0),
            peer: Mutex::default(),
            refused_by_tcp: AtomicBool::new(false),
            bound: Mutex::default(),
            sets: Mutex::default(),
            options: Mutex::default(),
        })
    }

    pub(crate) fn number(&self) -> c_int {
        self.number.load(Ordering::Acquire) as c_int
    }

    pub(crate) fn set_number(&self, number: c_int) {
        self.number.store(number as usize, Ordering::Release);
    }

    /// The number, for the one who closes that, no other gets it; from now on the socket has `new`.
    pub(crate) fn swap_number(&self, new: c_int) -> c_int {
        self.number.swap(new as usize, Ordering::AcqRel) as c_int
    }

    /// The same of one that is closed: it gets no other.
    pub(crate) fn take_number(&self) -> c_int {
        lock(&self.sets).closed = true;
        self.swap_number(-1)
    }

    pub(crate) fn stage(&self) -> Stage {
        let stage = self.stage.load(Ordering::Acquire);
        Stage::ALL.get(usize::from(stage)).copied().unwrap_or(Stage::Tcp)
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    /// From one stage to another; false if it is not in the first: another thread was faster.
    pub(crate) fn change_stage(&self, from: Stage, to: Stage) -> bool {
        let (from, to) = (from as u8, to as u8);
        self.stage.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Makes it this thread's to have it go over to RDMA, unless it is another one's.
    pub(crate) fn begin_move(&self) -> Move {
        let here = here();
        match self.mover.compare_exchange(0, here, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Move::Ours,
            Err(mover) if mover == here => Move::Within,
            Err(mover) if mover >> 32 == here >> 32 => Move::Others,
            Err(_) => Move::Parents,
        }
    }

    /// Done, whatever came of it.
    pub(crate) fn end_move(&self) {
        self.mover.store(0, Ordering::Release);
    }

    /// The number, if bytes go over RDMA.
    pub(crate) fn rdma(&self) -> Option<c_int> {
        match self.stage() {
            Stage::New
            | Stage::Listening
            | Stage::Connecting
            | Stage::Settling
            | Stage::Refused
            | Stage::Rdma => Some(self.number()),
            Stage::Asked | Stage::Passive | Stage::Active | Stage::Tcp => None,
        }
    }

    /// Takes note of an option that the socket over RDMA has taken, in place of an earlier value.
    pub(crate) fn note_option(&self, level: c_int, option: c_int, value: &[u8]) {
        let mut options = lock(&self.options);
        // As many as there are options: each has one entry.
        options.retain(|noted| (noted.level, noted.option) != (level, option));
        options.push(SetOption { level, option, value: value.into() });
    }
}

impl Drop for Entry {
    /// Not before: a thread that was about to wait for it would wait for another of the same
    /// number.
    fn drop(&mut self) {
        close_rsocket(self.take_number());
    }
}

/// One bit per descriptor that is a socket of this library.
static MARKED: [AtomicU64; MAX_FDS / 64] = [const { AtomicU64::new(0) }; MAX_FDS / 64];

/// The sockets, by descriptor, behind a lock of its own kind: the function that runs in a child of
/// `fork` can release it.
struct Table {
    taken: AtomicBool,
    entries: UnsafeCell<Vec<Option<Arc<Entry>>>>,
}

// SAFETY: `entries` is touched under `taken` alone.
unsafe impl Sync for Table {}

static TABLE: Table = Table { taken: AtomicBool::new(false), entries: UnsafeCell::new(Vec::new()) };

impl Table {
    fn acquire(&self) {
        while self
            .taken
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            // Held for a few instructions.
            std::thread::yield_now();
        }
    }

    fn release(&self) {
        self.taken.store(false, Ordering::Release);
    }

    fn with<T>(&self, look: impl FnOnce(&mut Vec<Option<Arc<Entry>>>) -> T) -> T {
        install();
        self.acquire();
        // SAFETY: this thread has the lock, and `look` calls nothing that takes it.
        let result = look(unsafe { &mut *self.entries.get() });
        self.release();
        result
    }
}

/// Has the lock held during a fork, by the thread that forks.
fn install() {
    extern "C" fn before() {
        TABLE.acquire();
    }
    extern "C" fn after() {
        TABLE.release();
    }
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if !INSTALLED.swap(true, Ordering::AcqRel) {
        // SAFETY: functions that live as long as this library, which is never unloaded. Without
        // memory for them forks may find the lock taken by a thread that is gone.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    }
}

fn place(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((MARKED.get(fd / 64)?, 1 << (fd % 64)))
}

/// The socket that a descriptor is, if it is one of this library's.
#[inline]
pub(crate) fn find(fd: c_int) -> Option<Arc<Entry>> {
    let (word, bit) = place(fd)?;
    if word.load(Ordering::Acquire) & bit == 0 || crate::real::is_inside() {
        return None;
    }
    TABLE.with(|entries| entries.get(fd as usize)?.clone())
}

/// Makes a descriptor a socket of this library; false if it is too high for that.
pub(crate) fn insert(fd: c_int, entry: Arc<Entry>) -> bool {
    let Some((word, bit)) = place(fd) else { return false };
    entry.fds.fetch_add(1, Ordering::AcqRel);
    let before = TABLE.with(|entries| {
        let at = fd as usize;
        if entries.len() <= at {
            entries.resize(at + 1, None);
        }
        entries[at].replace(entry)
    });
    word.fetch_or(bit, Ordering::AcqRel);
    drop(before);
    true
}

/// A descriptor is no socket of this library any more. The socket, if this was the last descriptor
/// of it.
pub(crate) fn remove(fd: c_int) -> Option<Arc<Entry>> {
    let (word, bit) = place(fd)?;
    if word.fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
        return None;
    }
    let entry = TABLE.with(|entries| entries.get_mut(fd as usize)?.take())?;
    (entry.fds.fetch_sub(1, Ordering::AcqRel) == 1).then_some(entry)
}

/// Every descriptor of a socket is another's from now on, or none of this library's: those that it
/// has now, which a program may close and get again meanwhile.
pub(crate) fn replace(entry: &Arc<Entry>, other: Option<&Arc<Entry>>) {
    // Dropped without the lock: that may end the socket.
    let _replaced: Vec<Arc<Entry>> = TABLE.with(|entries| {
        let mut replaced = Vec::new();
        for (fd, at) in entries.iter_mut().enumerate() {
            if !at.as_ref().is_some_and(|it| Arc::ptr_eq(it, entry)) {
                continue;
            }
            replaced.extend(std::mem::replace(at, other.cloned()));
            entry.fds.fetch_sub(1, Ordering::AcqRel);
            match (other, place(fd as c_int)) {
                (Some(other), _) => _ = other.fds.fetch_add(1, Ordering::AcqRel),
                (None, Some((word, bit))) => _ = word.fetch_and(!bit, Ordering::AcqRel),
                (None, None) => {}
            }
        }
        replaced
    });
}

/// The descriptors of a socket.
pub(crate) fn fds_of(entry: &Arc<Entry>) -> Vec<c_int> {
    let is_it = |other: &&Arc<Entry>| Arc::ptr_eq(other, entry);
    TABLE.with(|entries| {
        let found = entries.iter().enumerate();
        found
            .filter(|(_, e)| e.as_ref().as_ref().is_some_and(is_it))
            .map(|(fd, _)| fd as c_int)
            .collect()
    })
}
