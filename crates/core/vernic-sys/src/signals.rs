//! Signals that ask a process to end, as a descriptor to wait for.

use std::io;
use std::mem::MaybeUninit;

use super::{OwnFd, check};

/// Opens a descriptor that is readable when a signal asked this process to end: SIGINT, SIGTERM or
/// SIGHUP. From now on these signals do nothing else to this thread, and to threads and programs
/// that it starts. To be called before other threads are started.
pub fn termination() -> io::Result<OwnFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` fills the set, and the signals exist.
    let set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    };
    // SAFETY: reads the set, which lives through the call, and asks for no old mask.
    let error =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: reads the set, which lives through the call.
    OwnFd::open(|| check(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) }))
}
