//! The state of a device's local peers that several threads share: the connections to them, and the
//! processes of this host that are still to be connected.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use vernic_io::host::{Slot, SlotTable};
use vernic_local::{
    AccessRules, ConnectFailure, Connections, LocalPeerCounters, Receipts, SleepFlag,
};

use crate::config::Config;
use crate::counters::DirectCounts;
use crate::support::events::{lock, try_lock};

/// Largest number of processes of this host that wait to be connected as local peers: one for each
/// process slot.
pub(crate) const MAX_WANTED: usize = 1 << Slot::BITS;

/// The state of a device's local peers that the threads of the device share.
#[derive(Debug)]
pub(crate) struct LocalControl {
    /// The connections to local peers; `None` once the device is closed.
    pub(crate) connections: Mutex<Option<Connections>>,
    /// The counters of all local connections, kept when the device was closed.
    pub(crate) past: Mutex<LocalPeerCounters>,
    raw_fd: RawFd,
    sleep_flag: SleepFlag,
    receipts: Receipts,
    pub(crate) wanted: Mutex<Vec<(Slot, u32)>>,
    /// Whether `Engine::serve_local_peers` has something to do: `wanted` has an entry, or the lane
    /// has work for it.
    pub(crate) rung: AtomicBool,
}

impl LocalControl {
    /// Sets up the listening side of a device's local connections. Returns `None` if the settings
    /// or the system do not allow shared memory: packets then go by UDP.
    pub(crate) fn new(
        config: &Config,
        slots: &Arc<SlotTable>,
        counts: &DirectCounts,
    ) -> Option<Self> {
        if !config.shares_memory() {
            return None;
        }
        let rules = AccessRules { setting: config.direct, counts: counts.revocations().clone() };
        let connections = Connections::new(slots.clone(), config.ring_bytes, rules)
            .inspect_err(log_unshared)
            .ok()?;
        let (raw_fd, sleep_flag) = (connections.raw_fd(), connections.sleep_flag());
        let receipts = connections.receipts();
        let (connections, past) = (Mutex::new(Some(connections)), Mutex::default());
        let (wanted, rung) = (Mutex::default(), AtomicBool::new(false));
        Some(Self { connections, past, raw_fd, sleep_flag, receipts, wanted, rung })
    }

    /// Returns the descriptor that becomes readable when a local peer sends a message or a new peer
    /// connects; the background thread sleeps on it.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.raw_fd
    }

    /// Returns the sleep flag that tells local peers whether the background thread sleeps and has
    /// to be woken.
    pub(crate) fn sleep_flag(&self) -> &SleepFlag {
        &self.sleep_flag
    }

    /// Returns the receipts of the device's queue pairs, which local peers read when this process
    /// has ended.
    #[inline]
    pub(crate) fn receipts(&self) -> &Receipts {
        &self.receipts
    }

    pub(crate) fn counters(&self) -> LocalPeerCounters {
        let connections = lock(&self.connections);
        connections.as_ref().map_or_else(|| *lock(&self.past), Connections::counters)
    }

    /// Returns the same as [`counters`](Self::counters) without waiting; `None` if another thread
    /// has one of the two locks.
    pub(crate) fn try_counters(&self) -> Option<LocalPeerCounters> {
        let (connections, past) = (try_lock(&self.connections)?, try_lock(&self.past)?);
        Some(connections.as_ref().map_or(*past, Connections::counters))
    }

    /// Returns the reason why no memory is shared with the process that has this slot; `None` if no
    /// reason is known. Must not be called while holding the lane, because this waits for a lock.
    pub(crate) fn connect_failure(&self, slot: Slot) -> Option<ConnectFailure> {
        lock(&self.connections).as_ref()?.connect_failure(slot)
    }

    /// Notes that `Engine::serve_local_peers` has something to do.
    pub(crate) fn ring(&self) {
        self.rung.store(true, Ordering::Release);
    }

    /// Whether `Engine::serve_local_peers` has something to do although no descriptor is readable.
    pub(crate) fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }
}

/// Logs that a device shares no memory. Every engine and device of this process runs into the same
/// cause, so each cause is logged as a warning once per process, and as debug output from then on.
#[cold]
fn log_unshared(error: &io::Error) {
    /// Bit `n` is set if the [`ConnectFailure`] of number `n` was logged.
    static TOLD: AtomicU32 = AtomicU32::new(0);
    const WORDS: &str = "no memory can be shared: packets to processes of this host go by UDP, at a fraction of the speed";
    let cause = 1 << ConnectFailure::of(error) as u32;
    match TOLD.fetch_or(cause, Ordering::Relaxed) & cause {
        0 => tracing::warn!(%error, "{WORDS}"),
        _ => tracing::debug!(%error, "{WORDS}"),
    }
}
