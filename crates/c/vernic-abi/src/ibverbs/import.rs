//! Sharing a device between contexts of one process, by `cmd_fd`.
//!
//! A context's `cmd_fd` is a file without content of its own, whose identity `dup` keeps: that is
//! how a context is found again. The device lives in the process that opened it, so a descriptor
//! that came from another process is refused.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::time::{Duration, Instant};

use vernic_engine::Gate;

use crate::boundary::{self, Failure};
use crate::exit::{self, Ending};
use crate::ibverbs::shared::Shared;
use crate::layout::context::ibv_context;
use crate::layout::device::ibv_device;
use crate::log;
use crate::object::lock;
use crate::pointer::Handle;

use super::context::ContextObject;

/// How long the end of the program waits for a thread that is at work on a device: a few time
/// slices of the scheduler, if it was interrupted. A bound, because this very thread may have been,
/// by a signal whose handler ends the program.
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

/// The contexts that were made and whose device is open. Locked by making and importing one, and by
/// the end of the program; behind the gate only, so that no child inherits the lock held.
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
    let identity = identity(fd.as_raw_fd())?;
    let gate = Gate::enter();
    exit::arrange(&gate, Ending::Devices, flush_devices);
    let mut open = lock(&OPEN);
    open.retain(|known| known.shared.strong_count() != 0);
    open.push(Open { identity, device, shared: Arc::downgrade(shared) });
    Ok(())
}

/// Sends what the open devices still owe when the program ends: an acknowledgement that waits for
/// others, above all. A device of hardware has sent it before the program saw the completion. What
/// a capture keeps is written to its file.
fn flush_devices() {
    // Dropped behind nothing: a device that ends here closes sockets, which passes the gate.
    for shared in open_devices() {
        if shared.is_orphan() {
            continue;
        }
        // The thread of the device may be at it, and would end in the middle: a turn each until it
        // is through.
        let until = Instant::now() + PATIENCE;
        let is_done = patiently(until, || shared.engine.last_progress().then_some(()));
        // Closing it would have told them.
        if tracing::enabled!(tracing::Level::DEBUG) {
            let device = &shared.engine.info().name;
            match is_done.and_then(|()| patiently(until, || shared.engine.try_counters())) {
                Some(counters) => {
                    tracing::debug!(device, %counters, "device open at the program's end");
                }
                None => tracing::debug!(
                    device,
                    "device open at the program's end, which interrupted a call on it: its counters cannot be read"
                ),
            }
        }
    }
}

/// Tries until it succeeds, or the time is over: the end may have interrupted who stands in the
/// way.
fn patiently<T>(until: Instant, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        let found = attempt();
        if found.is_some() || Instant::now() >= until {
            return found;
        }
        std::thread::yield_now();
    }
}

/// The open devices; none if the gate, or their list, stays shut.
fn open_devices() -> Vec<Arc<Shared>> {
    let found = patiently(Instant::now() + PATIENCE, || {
        let _gate = Gate::try_enter()?;
        let open = match OPEN.try_lock() {
            Ok(open) => open,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(open.iter().filter_map(|known| known.shared.upgrade()).collect())
    });
    found.unwrap_or_default()
}

/// The device of a context, if it is open.
fn find(wanted: Identity) -> Option<(Handle<ibv_device>, Arc<Shared>)> {
    let _gate = Gate::enter();
    let open = lock(&OPEN);
    let known = open.iter().find(|known| known.identity == wanted)?;
    Some((known.device, known.shared.upgrade()?))
}

/// `ibv_import_device`. On success the descriptor is the context's, and closed with it, as the
/// manual page says.
pub(crate) extern "C" fn ibv_import_device(cmd_fd: c_int) -> Handle<ibv_context> {
    log::init();
    boundary::pointer("ibv_import_device", || {
        let wanted = identity(cmd_fd)?;
        let (device, shared) = find(wanted).ok_or_else(|| {
            Failure::new(
                libc::ENODEV,
                "the descriptor is of no device that this process has opened",
            )
        })?;
        shared.check()?;
        // SAFETY: open, since it has an identity, and given away by the program (manual page).
        let cmd_fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        Ok(ContextObject::import(device, &shared, cmd_fd))
    })
}
