//! How soon a thread that sleeps is woken, and runs.

use std::io;

/// The slice that a thread asks for, in nanoseconds: the shortest that Linux grants.
const SLICE_NANOS: u64 = 100_000;

/// Asks for short slices for the calling thread, if its scheduling policy is the ordinary one. From
/// Linux 6.12 on, a woken thread with a shorter slice goes ahead of one that computes. Older
/// kernels accept the request and do nothing.
///
/// # Errors
/// Errors of the system.
pub fn ask_for_short_slices() -> io::Result<()> {
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the structure is of integers, all of which may be 0.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most `size` bytes to `attr`, which has that many; thread 0 is
    // the caller.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    if attr.sched_policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attr.sched_runtime = SLICE_NANOS;
    // SAFETY: the kernel reads only as many bytes of `attr` as its field `size` says.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets the calling thread wake when its timeouts end, and not up to 50 us later, which Linux does
/// with ordinary threads in order to wake several at once.
///
/// # Errors
/// Errors of the system.
pub fn ask_for_exact_timeouts() -> io::Result<()> {
    // SAFETY: this option takes a number, and changes nothing but the calling thread's slack.
    let set = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
