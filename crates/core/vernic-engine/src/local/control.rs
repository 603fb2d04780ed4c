//! What threads share of a device's neighbours: the connections, and which processes to meet.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use vernic_io::host::{Slot, SlotTable};
use vernic_io::neighbour::{Alarm, Hindrance, NeighbourCounters, Neighbourhood};

use crate::config::Config;
use crate::support::events::{lock, try_lock};

/// Processes of this host that wait to be met: no more than there are slots.
pub(crate) const MAX_WANTED: usize = 1 << Slot::BITS;

/// What the threads of a device share of its neighbours.
#[derive(Debug)]
pub(crate) struct NearControl {
    /// `None` once the device is closed.
    pub(crate) hood: Mutex<Option<Neighbourhood>>,
    /// The counters of a device that is closed.
    pub(crate) past: Mutex<NeighbourCounters>,
    raw_fd: RawFd,
    alarm: Alarm,
    pub(crate) wanted: Mutex<Vec<(Slot, u32)>>,
    /// There is something in `wanted`.
    pub(crate) rung: AtomicBool,
}

impl NearControl {
    /// `None` if the settings or the system do not allow it: packets go by UDP.
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

    /// To be slept on.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.raw_fd
    }

    /// For the thread that sleeps.
    pub(crate) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    pub(crate) fn counters(&self) -> NeighbourCounters {
        let hood = lock(&self.hood);
        hood.as_ref().map_or_else(|| *lock(&self.past), Neighbourhood::counters)
    }

    /// As [`counters`](Self::counters), without waiting.
    pub(crate) fn try_counters(&self) -> Option<NeighbourCounters> {
        let (hood, past) = (try_lock(&self.hood)?, try_lock(&self.past)?);
        Some(hood.as_ref().map_or(*past, Neighbourhood::counters))
    }

    /// Why the process that has a slot is no neighbour, if something is known to be in the way. Not
    /// to be called with the lane.
    pub(crate) fn hindrance(&self, slot: Slot) -> Option<Hindrance> {
        lock(&self.hood).as_ref()?.hindrance(slot)
    }

    /// Gives [`Engine::serve_neighbours`] something to do.
    pub(crate) fn ring(&self) {
        self.rung.store(true, Ordering::Release);
    }

    /// Whether [`Engine::serve_neighbours`] has something to do though no descriptor is readable.
    pub(crate) fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }
}

/// Says that a device shares no memory. What one lacks the others lack, too, and so does each of a
/// device's engines, so each cause is a warning once per process.
#[cold]
fn tell_unshared(error: &io::Error) {
    /// A bit for each [`Hindrance`].
    static TOLD: AtomicU32 = AtomicU32::new(0);
    const WORDS: &str = "no memory can be shared: packets to processes of this host go by UDP, at a fraction of the speed";
    let cause = 1 << Hindrance::of(error) as u32;
    match TOLD.fetch_or(cause, Ordering::Relaxed) & cause {
        0 => tracing::warn!(%error, "{WORDS}"),
        _ => tracing::debug!(%error, "{WORDS}"),
    }
}
