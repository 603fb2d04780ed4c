//! Who sleeps until a socket changes, and how it is woken.
//!
//! A thread that waits for a socket sleeps on the descriptor of its completion channel, and on one
//! of its own ([`Sleeper`]): another thread may have taken the event, or the change may be none of
//! completions. It enters itself into the socket's [`Wakers`] first, then looks at the socket once
//! more, then sleeps; whoever changes the socket wakes what is entered. So no change is missed.
//!
//! Limits: one sleeper per thread and one entry of it per socket, while it waits; one entry per set
//! of sockets that a socket is in.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};
use vernic_io::Origin;

use crate::Error;

/// Locks, also after another thread panicked: what is behind each lock is valid between statements.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something that wants to know when a socket changes.
pub(crate) trait Wake: Send + Sync {
    /// The socket that was entered with `token` has changed. Called under locks of the socket: may
    /// only take note and write to a descriptor.
    fn wake(&self, token: usize);
}

/// A descriptor to sleep on.
#[derive(Debug)]
pub(crate) struct Sleeper {
    fd: OwnedFd,
    awake: AtomicBool,
    origin: Origin,
}

thread_local! {
    static OWN: RefCell<Option<Arc<Sleeper>>> = const { RefCell::new(None) };
}

impl Sleeper {
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let fd = match EventFd::from_value_and_flags(0, flags) {
            Ok(fd) => fd.into(),
            // A sandbox may forbid these.
            Err(errno) => vernic_io::bell(false)
                .map_err(|_| Error::os("make an eventfd to sleep on", errno))?,
        };
        Ok(Arc::new(Self { fd, awake: AtomicBool::new(false), origin: Origin::here() }))
    }

    /// That of this thread.
    pub(crate) fn own() -> Result<Arc<Self>, Error> {
        // A thread that ends has none any more.
        let known = OWN.try_with(|own| own.borrow().clone()).ok().flatten();
        // A child of `fork` shares the descriptor with its parent, and must not use it.
        if let Some(known) = known.filter(|known| known.origin.is_here()) {
            return Ok(known);
        }
        let new = Self::new()?;
        let _ = OWN.try_with(|own| own.replace(Some(new.clone())));
        Ok(new)
    }

    /// To be called before a look at what it waits for.
    pub(crate) fn reset(&self) {
        if self.awake.swap(false, Ordering::SeqCst) {
            // Not blocking, and emptied by one read.
            let _ = nix::unistd::read(&self.fd, &mut [0; 8]);
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn rouse(&self) {
        if !self.awake.swap(true, Ordering::SeqCst) {
            // Not blocking; the counter is 0 or 1.
            vernic_io::raise(self.fd.as_fd());
        }
    }
}

impl Wake for Sleeper {
    fn wake(&self, _token: usize) {
        self.rouse();
    }
}

/// Who is to be woken when a socket changes.
#[derive(Default)]
pub(crate) struct Wakers {
    list: Mutex<Vec<(Arc<dyn Wake>, usize)>>,
    /// Length of the list, to find it empty without its lock.
    count: AtomicUsize,
    /// Counts what happened, but room to write.
    news: AtomicU64,
    /// Counts how often there was room to write again.
    room: AtomicU64,
}

impl Wakers {
    pub(crate) fn enter(&self, who: Arc<dyn Wake>, token: usize) {
        let mut list = lock(&self.list);
        list.push((who, token));
        // The one who enters looks at the socket after this, and the one who changes it looks at
        // this after the change: one of them sees the other.
        self.count.store(list.len(), Ordering::SeqCst);
    }

    pub(crate) fn leave(&self, who: &Arc<dyn Wake>, token: usize) {
        let mut list = lock(&self.list);
        let is_it = |(entry, of): &(Arc<dyn Wake>, usize)| Arc::ptr_eq(entry, who) && *of == token;
        if let Some(at) = list.iter().position(is_it) {
            drop(list.swap_remove(at));
        }
        self.count.store(list.len(), Ordering::SeqCst);
    }

    /// A number that is another one when something has happened; room to write, for `writers` only.
    pub(crate) fn news(&self, writers: bool) -> u64 {
        let room = if writers { self.room.load(Ordering::Acquire) } else { 0 };
        // Neither ever falls.
        self.news.load(Ordering::Acquire) + room
    }

    /// Something has happened: wakes all.
    pub(crate) fn wake(&self) {
        self.news.fetch_add(1, Ordering::AcqRel);
        self.rouse();
    }

    /// There is room to write again: wakes all.
    pub(crate) fn wake_writers(&self) {
        self.room.fetch_add(1, Ordering::AcqRel);
        self.rouse();
    }

    fn rouse(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) != 0 {
            lock(&self.list).iter().for_each(|(who, token)| who.wake(*token));
        }
    }
}

impl std::fmt::Debug for Wakers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Wakers({})", self.count.load(Ordering::Relaxed))
    }
}

/// An entry in [`Wakers`] that ends with the value.
pub(crate) struct Entered<'a> {
    wakers: &'a Wakers,
    who: Arc<dyn Wake>,
    token: usize,
}

impl<'a> Entered<'a> {
    pub(crate) fn new(wakers: &'a Wakers, who: Arc<dyn Wake>, token: usize) -> Self {
        wakers.enter(who.clone(), token);
        Self { wakers, who, token }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.wakers.leave(&self.who, self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    fn sleeps(sleeper: &Sleeper) -> bool {
        let mut fds = [PollFd::new(sleeper.fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 0
    }

    #[test]
    fn who_is_entered_is_woken_once_until_it_looks() {
        let (wakers, sleeper) = (Wakers::default(), Sleeper::new().unwrap());
        wakers.wake();
        assert!(sleeps(&sleeper));
        let entered = Entered::new(&wakers, sleeper.clone(), 0);
        wakers.wake();
        wakers.wake();
        assert!(!sleeps(&sleeper));
        sleeper.reset();
        assert!(sleeps(&sleeper));
        drop(entered);
        wakers.wake();
        assert!(sleeps(&sleeper));
    }

    #[test]
    fn a_thread_has_one_sleeper() {
        let own = Sleeper::own().unwrap();
        assert!(Arc::ptr_eq(&own, &Sleeper::own().unwrap()));
        let other = std::thread::spawn(|| Sleeper::own().unwrap()).join().unwrap();
        assert!(!Arc::ptr_eq(&own, &other));
    }
}
