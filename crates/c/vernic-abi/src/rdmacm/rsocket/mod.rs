//! rsockets: `rdma/rsocket.h`, over `vernic-rsocket`.
//!
//! A socket of C is a number; the table of the process says which socket it is. A call that would
//! have to wait, or is on its way, fails as a matter of course: no line in the log, nothing
//! allocated.
//!
//! | file | what |
//! |---|---|
//! | `mod` | the process's sockets, and how calls end |
//! | `calls` | from a socket to a connection and to its end; names |
//! | `transfer` | bytes |
//! | `ready` | `rpoll`, `rselect`, `repoll_*` |
//! | `option` | options and flags |
//! | `iomap` | buffers that peers write directly |

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use libc::{EBADF, EIO, EOPNOTSUPP};
use vernic_engine::ProcessOrigin;
use vernic_rsocket::{Error, Numbered, Runtime, Settings, Socket, Table};

use super::process::process;
use crate::boundary::{Failure, set_errno};
use crate::waiting::uncancelled;

pub(crate) mod calls;
pub(crate) mod iomap;
pub(crate) mod option;
pub(crate) mod ready;
pub(crate) mod transfer;

/// How long the end of a process waits until what its sockets have sent has arrived. The kernel
/// goes on for minutes after a process; here there is nobody after it.
const PATIENCE_AT_EXIT: Duration = Duration::from_secs(2);

/// The sockets of a process.
pub(super) struct Sockets {
    origin: ProcessOrigin,
    runtime: Runtime,
    table: Table,
    /// Those of the process that this one was forked from.
    before: Option<&'static Sockets>,
}

/// What was made last: never freed. A process may be forked at any time, so there is no lock.
static MADE: AtomicPtr<Sockets> = AtomicPtr::new(ptr::null_mut());

/// What was made last, in this process or one before it.
fn made() -> Option<&'static Sockets> {
    // SAFETY: null, or leaked by `sockets`.
    unsafe { MADE.load(Ordering::Acquire).as_ref() }
}

/// The sockets of this process: made by the first call, and by the first in a child of `fork`.
fn sockets() -> Result<&'static Sockets, Failure> {
    let before = made();
    if let Some(made) = before.filter(|made| made.origin.is_here()) {
        return Ok(made);
    }
    let runtime = Runtime::new(&process()?.manager, Settings::load())?;
    let table = Table::default();
    let new = Sockets { origin: ProcessOrigin::here(), runtime, table, before };
    let new = Box::into_raw(Box::new(new));
    let expected = before.map_or(ptr::null_mut(), |before| ptr::from_ref(before).cast_mut());
    match MADE.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: a function that lives as long as the library, which is never unloaded.
            // Without memory for it, what was sent last may be lost.
            unsafe { libc::atexit(at_exit) };
        }
        // Another thread was faster. Nobody has seen ours.
        // SAFETY: from `into_raw` above.
        Err(_) => drop(unsafe { Box::from_raw(new) }),
    }
    let none = || Failure::new(EIO, "forked while the first socket was made");
    made().filter(|made| made.origin.is_here()).ok_or_else(none)
}

extern "C" fn at_exit() {
    if let Some(made) = made().filter(|made| made.origin.is_here()) {
        // Nothing is there to tell of a bug.
        let _ = catch_unwind(AssertUnwindSafe(|| made.runtime.finish(PATIENCE_AT_EXIT)));
    }
}

/// How a call ends that does not succeed.
enum End {
    /// As the socket says.
    Socket(Error),
    /// For another reason.
    Other(Failure),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Socket(error)
    }
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Other(failure)
    }
}

/// What a number stands for in this process.
fn numbered(number: c_int) -> Result<Numbered, End> {
    let none = || End::Other(Failure::new(EBADF, format!("{number} is no socket over RDMA")));
    let made = made().ok_or_else(none)?;
    if made.origin.is_here() {
        return made.table.find(number).ok_or_else(none);
    }
    // The child has made none. Its parent's are refused, and say why.
    Err(End::Socket(Error::Orphan))
}

/// The socket of a number.
fn socket(number: c_int) -> Result<Socket, End> {
    match numbered(number)? {
        Numbered::Socket(socket) => Ok(socket),
        Numbered::Epoll(_) => {
            Err(End::Other(Failure::new(EBADF, format!("{number} is a set of sockets"))))
        }
    }
}

/// Runs a call: `None`, and `errno` set, if it fails.
fn call<T>(name: &str, call: impl FnOnce() -> Result<T, End>) -> Option<T> {
    let bug = || Err(Failure::new(EIO, "a bug of this library, please report it").into());
    let ended = uncancelled(|| catch_unwind(AssertUnwindSafe(call))).unwrap_or_else(|_| bug());
    let (errno, why) = match ended {
        Ok(value) => return Some(value),
        Err(End::Socket(
            error @ (Error::WouldBlock
            | Error::Interrupted
            | Error::InProgress(_)
            | Error::Already(_)
            | Error::Shut),
        )) => {
            set_errno(error.errno());
            return None;
        }
        Err(End::Socket(error)) => (error.errno(), error.to_string()),
        Err(End::Other(failure)) if failure.is_fatal() => {
            failure.log(name);
            set_errno(failure.errno);
            return None;
        }
        Err(End::Other(failure)) => (failure.errno, failure.why().to_owned()),
    };
    let level_of_programs = errno == EBADF || errno == EOPNOTSUPP;
    let error = std::io::Error::from_raw_os_error(errno);
    match level_of_programs {
        true => tracing::debug!("{name}: {why} ({error})"),
        false => tracing::info!("{name}: {why} ({error})"),
    }
    set_errno(errno);
    None
}

/// For calls that return a number, or -1.
fn number<T: Into<i64>>(name: &str, inner: impl FnOnce() -> Result<T, End>) -> c_int {
    call(name, inner).map_or(-1, |value| value.into() as c_int)
}

/// For calls that return a count of bytes, or -1.
fn count(name: &str, inner: impl FnOnce() -> Result<usize, End>) -> isize {
    call(name, inner).map_or(-1, |count| count as isize)
}
