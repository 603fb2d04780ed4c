//! What the libraries do when the program ends by `exit`, in this order: connections end, and their
//! peers say that they know of it; then each device sends what it owes, and leaves the port that it
//! shares with other processes.
//!
//! Handlers of `atexit` run in the opposite order of their registration, which is up to the
//! program, so there is one for both libraries.

use std::sync::Once;

use vernic_engine::Gate;

use crate::boundary;
use crate::ibverbs::import;
use crate::rdmacm::process;

/// Has it done. Behind the gate, so that no child of `fork` inherits it half done; a child inherits
/// what was registered.
pub(crate) fn arrange(_gate: &Gate) {
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| {
        // SAFETY: a function of this library, which is never unloaded (`-z nodelete`). Where there
        // is no room for it, the program ends as without it.
        unsafe { libc::atexit(say_goodbye) };
    });
}

extern "C" fn say_goodbye() {
    boundary::guard((), process::say_goodbye);
    boundary::guard((), import::say_goodbye);
}
