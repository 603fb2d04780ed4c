//! Threads that the library itself starts.

use std::io;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow};

/// Starts a thread that blocks all signals, so that the application's signal handlers do not run on
/// it.
///
/// # Errors
/// The system's error when the process may have no more threads.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // The thread inherits the signal mask.
    let old = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok();
    let thread = Builder::new().name(name.to_owned()).spawn(run);
    if let Some(old) = old {
        let _ = old.thread_set_mask();
    }
    thread
}
