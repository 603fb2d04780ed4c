//! Sleeping until a link can be read, and being woken.
//!
//! Owns the list of descriptors of a sleeping thread and the event descriptor that wakes it.
//! Called by the engine's background thread, which has no `unsafe` of its own.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use vernic_sys::{self as sys, OwnFd};

/// A handle that wakes a thread which sleeps in [`Sleeper::sleep`]; may be cloned and used from any
/// thread. It keeps nothing alive: once the sleeper is gone it has no effect.
#[derive(Clone, Debug)]
pub struct Waker(Weak<OwnFd>);

impl Waker {
    /// Wakes the sleeper, now or when it next goes to sleep. Never blocks.
    pub fn wake(&self) {
        let Some(event) = self.0.upgrade() else { return };
        // The one error possible is a counter at its limit: then a wake-up is pending already.
        let _ = sys::write(event.as_fd(), &1u64.to_ne_bytes());
    }
}

/// Adds one to the count of an event descriptor that another crate owns. Never waits if the
/// descriptor is non-blocking or far from its limit.
pub fn raise(event: BorrowedFd<'_>) {
    // The error is ignored as in `Waker::wake`.
    let _ = sys::write(event, &1u64.to_ne_bytes());
}

/// Opens a descriptor that is readable once it was [raised](raise), until each of its messages, of
/// 8 bytes, was read. It holds some messages. For callers that get no event counter from the
/// system.
///
/// # Errors
/// When the process has no descriptor left.
pub fn bell(is_blocking: bool) -> io::Result<OwnedFd> {
    sys::bell(if is_blocking { 0 } else { libc::SOCK_NONBLOCK })
}

/// A list of descriptors, and a wake-up, on which a thread sleeps in `ppoll`.
#[derive(Debug)]
pub struct Sleeper {
    event: Arc<OwnFd>,
    fds: Vec<sys::PollFd>,
}

/// The reason why [`Sleeper::sleep`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Woken {
    /// A [`Waker`] was used.
    pub by_waker: bool,
    /// At least one descriptor of the list is readable, or broken.
    pub by_fd: bool,
}

impl Sleeper {
    /// Makes a sleeper without descriptors.
    ///
    /// # Errors
    /// When the process has no descriptor left for the event.
    pub fn new() -> io::Result<Self> {
        let event = Arc::new(sys::eventfd()?);
        let fds = vec![sys::PollFd::readable(event.as_raw_fd())];
        Ok(Self { event, fds })
    }

    /// Returns a handle that wakes this sleeper.
    pub fn waker(&self) -> Waker {
        Waker(Arc::downgrade(&self.event))
    }

    /// Replaces the list of descriptors. Call it when
    /// [`Link::poll_generation`](crate::Link::poll_generation) changes.
    pub fn watch(&mut self, fds: impl IntoIterator<Item = RawFd>) {
        self.fds.truncate(1);
        self.fds.extend(fds.into_iter().map(sys::PollFd::readable));
    }

    /// Whether the last sleep found this descriptor of the list readable, or broken.
    pub fn found(&self, fd: RawFd) -> bool {
        self.fds[1..].iter().any(|polled| polled.is_ready() && polled.fd() == fd)
    }

    /// Sleeps until a descriptor is readable, a waker is used, or `timeout` is over (`None`: no
    /// limit). May return early for no reason.
    pub fn sleep(&mut self, timeout: Option<Duration>) -> Woken {
        // An error leaves the flags of the last call, so none of them is reported.
        if sys::poll(&mut self.fds, timeout).unwrap_or(0) == 0 {
            return Woken { by_waker: false, by_fd: false };
        }
        let by_waker = self.fds[0].is_ready();
        if by_waker {
            let _ = sys::read(self.event.as_fd(), &mut [0; 8]);
        }
        Woken { by_waker, by_fd: self.fds[1..].iter().any(|fd| fd.is_ready()) }
    }
}
