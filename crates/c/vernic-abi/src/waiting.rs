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

use libc::{EAGAIN, EINTR};

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
                if sleep_until_readable(fd) != 0 {
                    return -1;
                }
            }
        }
    }
}

/// Sleeps until the descriptor is readable: 0, or -1 and `errno`, that is `EINTR`.
extern "C-unwind" fn sleep_until_readable(fd: RawFd) -> c_int {
    let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: one entry, which lives during the call.
        if unsafe { poll(&raw mut wanted, 1, -1) } >= 0 {
            return 0;
        }
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(EINTR);
        if errno != EINTR || !vernic_signals::restarts() {
            set_errno(errno);
            return -1;
        }
    }
}
