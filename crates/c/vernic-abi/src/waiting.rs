//! Calls that wait for an event, and threads that are cancelled or interrupted meanwhile.
//!
//! Programs cancel threads that wait (`pthread_cancel`), and glibc then unwinds the thread's stack,
//! at the next system call that is a point of cancellation. No frame of this library may be in its
//! way: Rust ends the process where it would have to stop a foreign unwinding, and locks would stay
//! locked. So calls run [`uncancelled`], and a call that waits is cut into attempts: each looks and
//! returns, and in between the thread sleeps in [`sleep_until_readable`], with nothing on the stack
//! that is to be dropped. Whether a waiting call is restarted after a signal depends on the
//! signal's handler (`SA_RESTART`), as for a system call that waits on a device.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use libc::{EAGAIN, EINTR, ETIMEDOUT};

use crate::failure::{Failure, set_errno};

/// `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    /// The system's, which the cancellation of a thread unwinds through.
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
}

/// Runs what does not unwind; a cancellation of this thread waits until it is over.
pub(crate) fn uncancelled<T>(call: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: changes a flag of this thread, whose old value has a place.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
    let result = call();
    // SAFETY: as above; the old value goes nowhere.
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    result
}

/// How an attempt of a call that waits ended.
pub(crate) enum Attempt {
    /// The call is over and returns this.
    Done(c_int),
    /// There is nothing yet: again when this descriptor is readable.
    Wait(RawFd),
}

impl Attempt {
    /// There will be nothing: the thread sleeps until the process ends (`poll` passes over this
    /// descriptor).
    pub(crate) const FOR_EVER: Self = Self::Wait(-1);

    /// There is nothing yet.
    ///
    /// # Errors
    /// `EAGAIN` if the program made the descriptor non-blocking.
    pub(crate) fn wait(fd: RawFd) -> Result<Self, Failure> {
        // SAFETY: takes no pointers.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        match flags {
            -1 => Err(std::io::Error::last_os_error().into()),
            _ if flags & libc::O_NONBLOCK != 0 => Err(Failure::new(EAGAIN, "no event waits")),
            _ => Ok(Self::Wait(fd)),
        }
    }
}

/// Attempts until one is the last, and sleeps in between. `attempt` owns nothing that is to be
/// dropped: a cancellation of the thread leaves it where it is.
pub(crate) fn attempts(attempt: impl Fn() -> Attempt + Copy) -> c_int {
    // Each turn follows an event, which another thread may have taken. Nothing bounds the wait but
    // the program.
    loop {
        match attempt() {
            Attempt::Done(code) => return code,
            Attempt::Wait(fd) => {
                if sleep_until_readable(fd, None) != Slept::Ready {
                    return -1;
                }
            }
        }
    }
}

/// Attempts as [`attempts`] does, within so many milliseconds; a negative number is for ever. A
/// failure is a negative errno, `-ETIMEDOUT` when the time is over.
pub(crate) fn attempts_within(timeout_ms: c_int, attempt: impl Fn() -> Attempt + Copy) -> c_int {
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        match attempt() {
            Attempt::Done(code) => return code,
            Attempt::Wait(fd) => match sleep_until_readable(fd, end) {
                Slept::Ready => {}
                Slept::TimedOut => {
                    set_errno(ETIMEDOUT);
                    return -ETIMEDOUT;
                }
                Slept::Interrupted => return -EINTR,
            },
        }
    }
}

/// How a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slept {
    /// The descriptor is readable.
    Ready,
    /// The time is over.
    TimedOut,
    /// A signal came; `errno` is set.
    Interrupted,
}

/// Sleeps until the descriptor is readable, or the time is over, or a signal ends the call.
fn sleep_until_readable(fd: RawFd, end: Option<Instant>) -> Slept {
    let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left_ms = left.map_or(-1, |left| {
            // Rounded up: a wait of less than a millisecond is none.
            c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
        });
        // SAFETY: one entry, which lives during the call.
        match unsafe { poll(&raw mut wanted, 1, left_ms) } {
            0 => return Slept::TimedOut,
            1.. => return Slept::Ready,
            _ => {}
        }
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(EINTR);
        if errno != EINTR || !vernic_signals::restarts() {
            set_errno(errno);
            return Slept::Interrupted;
        }
    }
}
