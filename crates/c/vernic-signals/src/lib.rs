//! Whether a call that was interrupted by a signal is to go on.
//!
//! The kernel restarts a call that waits for a device if the signal's handler has `SA_RESTART`, and
//! ends it with `EINTR` if not. `poll`, on which calls of Vernic's libraries sleep, it never
//! restarts, and does not say which signal it was. So they ask here.
#![allow(unsafe_code)]

use std::ptr;

/// Highest number of a signal (`_NSIG` of Linux).
const LAST_SIGNAL: libc::c_int = 64;

/// Signals of a thread's own faults: they come to no thread that sleeps. (Rust's runtime handles
/// two of them.)
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Whether a call that waits goes on after a signal: every handler that the program has installed
/// has `SA_RESTART`. A program with handlers of both kinds hears of every signal (`EINTR`), as it
/// must of some.
pub fn restarts() -> bool {
    let mut signals = (1..=LAST_SIGNAL).filter(|signal| !FAULTS.contains(signal));
    signals.all(|signal| {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: asks for the action, for which there is a place.
        if unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) } != 0 {
            return true; // of the C library's own
        }
        // SAFETY: filled, since the call succeeded.
        let action = unsafe { action.assume_init() };
        let is_handler = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        !is_handler || action.sa_flags & libc::SA_RESTART != 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn nothing(_: libc::c_int) {}

    fn handle(flags: libc::c_int) {
        // SAFETY: an action of zeros is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as *const () as usize;
        action.sa_flags = flags;
        // SAFETY: a whole action, whose handler lives for ever.
        let result = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()) };
        assert_eq!(result, 0);
    }

    #[test]
    fn a_handler_without_the_flag_is_told_of() {
        handle(libc::SA_RESTART);
        assert!(restarts());
        handle(0);
        assert!(!restarts());
    }
}
