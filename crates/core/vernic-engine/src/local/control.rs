//! What threads share of a device's local peers: the connections, and the processes to connect to.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use vernic_io::host::{Slot, SlotTable};
use vernic_io::neighbour::{Alarm, Hindrance, NeighbourCounters, Neighbourhood};

use crate::config::Config;
use crate::support::events::{lock, try_lock};

/// Largest number of processes of this host that wait to be connected: one for each slot.
pub(crate) const MAX_WANTED: usize = 1 << Slot::BITS;

/// The state that the threads of a device share of its local peers.
#[derive(Debug)]
pub(crate) struct NearControl {
    /// The local peers; `None` once the device is closed.
    pub(crate) hood: Mutex<Option<Neighbourhood>>,
    /// The last counters of a device that is closed.
    pub(crate) past: Mutex<NeighbourCounters>,
    raw_fd: RawFd,
    alarm: Alarm,
    pub(crate) wanted: Mutex<Vec<(Slot, u32)>>,
    /// Whether there is something in `wanted`.
    pub(crate) rung: AtomicBool,
}

impl NearControl {
    /// Returns `None` if the settings or the system do not allow shared memory: packets then go by
    /// UDP.
    pub(crate) fn new(config: &Config, slots: &Arc<SlotTable>) -> Option<Self> {
        if !config.shares_memory() {
            return None;
        }
        let hood =
            Neighbourhood::new(slots.clone(), config.ring_bytes).inspect_err(tell_unshared).ok()?;
        let (raw_fd, alarm) = (hood.raw_fd(), hood.alarm());
        let (hood, past) = (Mutex::new(Some(hood)), Mutex::default());
        let (wanted, rung) = (Mutex::default(), AtomicBool::new(false));
        Some(Self { hood, past, raw_fd, alarm, wanted, rung })
    }

    /// Returns the descriptor to sleep on.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.raw_fd
    }

    /// Returns the sleep flag of the thread that sleeps.
    pub(crate) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    pub(crate) fn counters(&self) -> NeighbourCounters {
        let hood = lock(&self.hood);
        hood.as_ref().map_or_else(|| *lock(&self.past), Neighbourhood::counters)
    }

    /// Returns the same as [`counters`](Self::counters), without waiting; `None` if a lock is
    /// taken.
    pub(crate) fn try_counters(&self) -> Option<NeighbourCounters> {
        let (hood, past) = (try_lock(&self.hood)?, try_lock(&self.past)?);
        Some(hood.as_ref().map_or(*past, Neighbourhood::counters))
    }

    /// Returns why there is no shared memory with the process that has a slot, if a reason is
    /// known. Must not be called while holding the lane.
    pub(crate) fn hindrance(&self, slot: Slot) -> Option<Hindrance> {
        lock(&self.hood).as_ref()?.hindrance(slot)
    }

    /// Reports that `Engine::serve_neighbours` has something to do.
    pub(crate) fn ring(&self) {
        self.rung.store(true, Ordering::Release);
    }

    /// Whether `Engine::serve_neighbours` has something to do although no descriptor is readable.
    pub(crate) fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }
}

/// Logs that a device shares no memory. The same cause holds for all engines of a device and for
/// all devices, so each cause is a warning only once per process.
#[cold]
fn tell_unshared(error: &io::Error) {
    /// A bit for each [`Hindrance`] that was logged.
    static TOLD: AtomicU32 = AtomicU32::new(0);
    const WORDS: &str = "no memory can be shared: packets to processes of this host go by UDP, at a fraction of the speed";
    let cause = 1 << Hindrance::of(error) as u32;
    match TOLD.fetch_or(cause, Ordering::Relaxed) & cause {
        0 => tracing::warn!(%error, "{WORDS}"),
        _ => tracing::debug!(%error, "{WORDS}"),
    }
}
