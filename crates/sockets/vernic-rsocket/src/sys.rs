//! System calls over descriptors that are only numbers: `poll`, `epoll`.
//!
//! Programs name descriptors by number, and the kernel says which of them are none; there is
//! nothing to borrow. So these calls are made here, and are safe: the kernel looks at nothing but
//! the numbers and the arrays, whose lengths it is told.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use libc::{c_int, epoll_event, pollfd};

use crate::Error;

/// `poll` until `deadline`, `None` for ever. How many entries have events.
///
/// # Errors
/// [`Error::Interrupted`], [`Error::Os`].
pub(crate) fn poll(fds: &mut [pollfd], deadline: Option<Instant>) -> Result<usize, Error> {
    // SAFETY: so many entries, writable.
    let count = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms(deadline)) };
    usize::try_from(count).map_err(|_| Error::os("poll", io::Error::last_os_error()))
}

/// [`poll`] of a call that moves bytes or makes a connection: goes on after a signal if the
/// program's handlers say so, and it has no time limit, as the system's calls do.
///
/// # Errors
/// As of [`poll`].
pub(crate) fn sleep(fds: &mut [pollfd], deadline: Option<Instant>) -> Result<(), Error> {
    match poll(fds, deadline) {
        Err(Error::Interrupted) if deadline.is_none() && vernic_signals::restarts() => Ok(()),
        other => other.map(drop),
    }
}

/// Milliseconds until `deadline`, rounded up; -1 for ever.
pub(crate) fn ms(deadline: Option<Instant>) -> c_int {
    let Some(deadline) = deadline else { return -1 };
    let left = deadline.saturating_duration_since(Instant::now());
    left.as_micros().div_ceil(1000).min(c_int::MAX as u128) as c_int
}

/// An entry of [`poll`].
pub(crate) fn entry(fd: RawFd, events: i16) -> pollfd {
    pollfd { fd, events, revents: 0 }
}

/// Closes a descriptor whose owner was forgotten on purpose.
pub(crate) fn close(fd: RawFd) {
    // SAFETY: takes no pointers; the caller's owner of it is leaked, so nobody else closes it.
    unsafe { libc::close(fd) };
}

/// An epoll descriptor of the kernel's.
#[derive(Debug)]
pub(crate) struct KernelEpoll(OwnedFd);

impl KernelEpoll {
    pub(crate) fn new() -> Result<Self, Error> {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(Error::os("make an epoll descriptor", io::Error::last_os_error()));
        }
        // SAFETY: just opened, owned by nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// `epoll_ctl`.
    ///
    /// # Errors
    /// [`Error::Os`] with the kernel's error.
    pub(crate) fn ctl(&self, op: c_int, fd: RawFd, events: u32, data: u64) -> Result<(), Error> {
        let mut event = epoll_event { events, u64: data };
        // SAFETY: one event, which is copied.
        match unsafe { libc::epoll_ctl(self.number(), op, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(Error::os("change an epoll descriptor", io::Error::last_os_error())),
        }
    }

    /// `epoll_wait`: how many of `events` are filled. None for a slice without room.
    ///
    /// # Errors
    /// [`Error::Interrupted`], [`Error::Os`].
    pub(crate) fn wait(
        &self,
        events: &mut [epoll_event],
        deadline: Option<Instant>,
    ) -> Result<usize, Error> {
        if events.is_empty() {
            return Ok(0);
        }
        let room = events.len().min(c_int::MAX as usize) as c_int;
        // SAFETY: `room` entries, writable.
        let count =
            unsafe { libc::epoll_wait(self.number(), events.as_mut_ptr(), room, ms(deadline)) };
        usize::try_from(count).map_err(|_| Error::os("wait", io::Error::last_os_error()))
    }
}
