//! What the libraries do when the program ends by `exit`, in this order: connections end, and their
//! peers say that they know of it; then each device sends what it owes, and leaves the port that it
//! shares with other processes.
//!
//! Handlers of `atexit` run in the opposite order of their registration, which is up to the
//! program, so there is one for both libraries.

use std::sync::{Once, OnceLock};

use vernic_engine::Gate;

use crate::boundary;

/// What ends with the program.
#[derive(Clone, Copy)]
pub(crate) enum Ending {
    Connections,
    Devices,
}

/// The functions that end the connections and the devices, in this order.
static ENDINGS: [OnceLock<fn()>; 2] = [const { OnceLock::new() }; 2];

/// Has `end` called when the program ends. Behind the gate, so that no child of `fork` inherits a
/// registration that is half done; a child inherits what was registered.
pub(crate) fn arrange(_gate: &Gate, what: Ending, end: fn()) {
    static AT_EXIT: Once = Once::new();
    ENDINGS[what as usize].get_or_init(|| end);
    AT_EXIT.call_once(|| {
        // SAFETY: a function of this library, which is never unloaded (`-z nodelete`). Where there
        // is no room for it, the program ends as without it.
        unsafe { libc::atexit(run_endings) };
    });
}

extern "C" fn run_endings() {
    for end in ENDINGS.iter().filter_map(OnceLock::get) {
        boundary::guard((), end);
    }
}
