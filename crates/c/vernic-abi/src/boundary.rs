//! What every call from C passes: no unwinding into C, and the conventions of return values.
//!
//! A function of the control path is a closure that returns `Result<_, Failure>`, run by one of
//! [`errno`], [`pointer`], [`minus_one`], [`negative`], [`outcome`] and [`nothing`], which stand
//! for the conventions of the verbs: a positive errno, NULL with `errno`, -1 with `errno`. A
//! failure leaves a line in the log. The data path uses [`guard`] alone.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::EIO;

pub(crate) use crate::failure::{Failure, of_recv, of_send, set_errno};
use crate::pointer::{CObject, Handle};
use crate::waiting::uncancelled;

/// Runs `call`; a panic, which would be a bug of ours, becomes `bug` instead of unwinding into C.
#[inline]
pub(crate) fn guard<T>(bug: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(bug)
}

fn run<T>(name: &str, call: impl FnOnce() -> Result<T, Failure>) -> Result<T, c_int> {
    let bug = || Err(Failure::new(EIO, "a bug of this library, please report it"));
    let result = uncancelled(|| catch_unwind(AssertUnwindSafe(call))).unwrap_or_else(|_| bug());
    result.map_err(|failure| {
        failure.log(name);
        failure.errno
    })
}

/// For calls with a convention of their own: sets `errno` on failure.
pub(crate) fn outcome<T>(name: &str, call: impl FnOnce() -> Result<T, Failure>) -> Option<T> {
    run(name, call).map_err(set_errno).ok()
}

/// As [`outcome`], for calls that fail as a matter of course: nothing is logged.
pub(crate) fn quiet<T>(call: impl FnOnce() -> Result<T, Failure>) -> Option<T> {
    let bug = || Err(Failure::new(EIO, "a bug of this library"));
    let result = uncancelled(|| catch_unwind(AssertUnwindSafe(call))).unwrap_or_else(|_| bug());
    result.map_err(|failure| set_errno(failure.errno)).ok()
}

/// For calls that return 0 or a positive errno. `errno` is set as well: programs print it
/// (`perror`).
pub(crate) fn errno(name: &str, call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    match run(name, call) {
        Ok(()) => 0,
        Err(errno) => refused(errno),
    }
}

/// Sets `errno` to what a call returns.
pub(crate) fn refused(errno: c_int) -> c_int {
    set_errno(errno);
    errno
}

/// For calls that return an object, or NULL and set `errno`.
pub(crate) fn pointer<C: CObject>(
    name: &str,
    call: impl FnOnce() -> Result<Handle<C>, Failure>,
) -> Handle<C> {
    run(name, call).unwrap_or_else(|errno| {
        set_errno(errno);
        Handle::NULL
    })
}

/// For calls that return a number, or -1 and set `errno`.
pub(crate) fn minus_one(name: &str, call: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    run(name, call).unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// For calls that return a number, or a negative errno.
pub(crate) fn negative(name: &str, call: impl FnOnce() -> Result<isize, Failure>) -> isize {
    run(name, call).unwrap_or_else(|errno| -(errno as isize))
}

/// As [`negative`], for calls that fail as a matter of course: nothing is logged.
pub(crate) fn quietly_negative(call: impl FnOnce() -> Result<isize, Failure>) -> isize {
    quiet(call).unwrap_or_else(|| {
        -std::io::Error::last_os_error().raw_os_error().map_or(EIO as isize, |errno| errno as isize)
    })
}

/// For calls that return nothing, or something that has a value for every case.
pub(crate) fn nothing<T: Default>(name: &str, call: impl FnOnce() -> Result<T, Failure>) -> T {
    run(name, call).unwrap_or_default()
}
