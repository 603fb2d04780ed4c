//! Sharing a device between contexts of one process, by `cmd_fd`.
//!
//! A context's `cmd_fd` is a file without content of its own, whose identity `dup` keeps: that is how
//! a context is found again. The device lives in the process that opened it, so a descriptor that came
//! from another process is refused.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, Once, Weak};
use std::time::{Duration, Instant};

use crate::boundary::{self, Failure};
use crate::layout::context::ibv_context;
use crate::layout::device::ibv_device;
use crate::log;
use crate::object::{Shared, lock};
use crate::pointer::Handle;

use super::context::ContextObject;

/// How long the end of the program waits for a thread that is at work on a device: a few time slices of
/// the scheduler, if it was interrupted. A bound, because this very thread may have been, by a signal whose
/// handler ends the program.
const PATIENCE: Duration = Duration::from_millis(20);

/// Which file it is: its device and inode.
type Identity = (u64, u64);

/// Which file a descriptor is of.
///
/// # Errors
/// The system's: no such descriptor.
pub(crate) fn identity(fd: RawFd) -> Result<Identity, Failure> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for the answer.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: filled, since the call succeeded.
    let stat = unsafe { stat.assume_init() };
    Ok((stat.st_dev, stat.st_ino))
}

struct Open {
    identity: Identity,
    device: Handle<ibv_device>,
    shared: Weak<Shared>,
}

/// The contexts that were made and whose device is open. Locked by making and importing one only.
static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

/// Makes a context findable.
///
/// # Errors
/// The system's.
pub(crate) fn note(
    fd: &impl AsRawFd,
    device: Handle<ibv_device>,
    shared: &Arc<Shared>,
) -> Result<(), Failure> {
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| {
        // SAFETY: a function of this library, which is never unloaded (`-z nodelete`). Where there is
        // no room for it, the program ends as without it.
        unsafe { libc::atexit(say_goodbye) };
    });
    let identity = identity(fd.as_raw_fd())?;
    let mut open = lock(&OPEN);
    open.retain(|known| known.shared.strong_count() != 0);
    open.push(Open { identity, device, shared: Arc::downgrade(shared) });
    Ok(())
}

/// Sends what the open devices still owe when the program ends: an acknowledgement that waits for
/// company, above all. A device of hardware has sent it before the program saw the completion.
extern "C" fn say_goodbye() {
    boundary::guard((), || {
        // A thread that is ended while it holds the lock does not matter: there is nothing to wait for.
        let Ok(open) = OPEN.try_lock() else { return };
        for shared in open.iter().filter_map(|known| known.shared.upgrade()) {
            if shared.is_orphan() {
                continue;
            }
            // The thread of the device may be at it, and would end in the middle: a turn each until it
            // is through.
            let until = Instant::now() + PATIENCE;
            while !shared.engine.try_progress() && Instant::now() < until {
                std::thread::yield_now();
            }
        }
    });
}

/// `ibv_import_device`. On success the descriptor is the context's, and closed with it, as the manual
/// page says.
pub(crate) extern "C" fn ibv_import_device(cmd_fd: c_int) -> Handle<ibv_context> {
    log::init();
    boundary::pointer("ibv_import_device", || {
        let wanted = identity(cmd_fd)?;
        let found = lock(&OPEN)
            .iter()
            .find(|known| known.identity == wanted)
            .and_then(|known| Some((known.device, known.shared.upgrade()?)));
        let (device, shared) = found.ok_or_else(|| {
            Failure::new(
                libc::ENODEV,
                "the descriptor is of no device that this process has opened",
            )
        })?;
        shared.check()?;
        // SAFETY: open, since it has an identity, and given away by the program (manual page).
        let cmd_fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        Ok(ContextObject::hand_out(device, &shared, cmd_fd))
    })
}
