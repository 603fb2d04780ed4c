//! The list of processes of this host that queue pairs are connected to.
//!
//! The code that checks these processes is in `lane/watch.rs`.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use vernic_io::host::Intake;
use vernic_io::host::Slot;
use vernic_proto::Time;
use vernic_wire::Qpn;

use crate::support::events::lock;

/// Time between two checks. Users hear of a lost process within a second, also on a machine where
/// threads are late.
pub(crate) const LOOK_NANOS: u64 = 250_000_000;

/// The delay of a check after a local peer has hung up. Most sockets of its slots are closed by
/// then.
const SOON_NANOS: u64 = 1_000_000;

/// How long packets of a process that is gone may be on their way through other processes' sockets.
/// What the process sent before its end is received first.
pub(crate) const GRACE_NANOS: u64 = 50_000_000;

/// A process of this host that a path leads to.
#[derive(Clone, Debug)]
pub(crate) struct HostProcess {
    pid: u32,
    /// The receiver page of the process.
    page: Option<Arc<Intake>>,
}

impl HostProcess {
    pub(crate) fn new(pid: u32, page: Option<Arc<Intake>>) -> Self {
        Self { pid, page }
    }

    /// Returns the process id; 0 if the process is of a PID namespace that cannot be seen.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the process has left in order.
    pub(crate) fn has_left(&self) -> bool {
        self.page.as_ref().is_some_and(|page| page.has_left())
    }

    /// Whether the process, and its queue pair `qpn`, are there as far as is known.
    pub(crate) fn has(&self, qpn: Qpn) -> bool {
        let Some(page) = &self.page else { return true };
        // The page says nothing of queue pairs beyond the process's first slot.
        !page.has_left() && page.answers(qpn).unwrap_or(true)
    }
}

/// The process that a path leads to, as far as is known.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// This process of this host.
    Here(HostProcess),
    /// A process of this host has the slot, and has not said whether it serves the address.
    Perhaps,
    /// No process of this host.
    NotHere,
}

impl Found {
    /// Returns the process of this host, if it is known.
    pub(crate) fn process(&self) -> Option<&HostProcess> {
        match self {
            Self::Here(process) => Some(process),
            Self::Perhaps | Self::NotHere => None,
        }
    }
}

/// A process of this host, or one that may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    /// The address of the process's queue pairs.
    pub(crate) ip: IpAddr,
    pub(crate) slot: Slot,
    /// The process id; `None` until the process has said that it serves the address.
    pub(crate) pid: Option<u32>,
    /// Whether the slot is free. Then packets that the process sent are waited for.
    pub(crate) is_missing: bool,
}

/// The processes that queue pairs of an engine are connected to.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(crate) list: Mutex<List>,
    /// Whether a queue pair has left its peer, so that some processes may be watched in vain.
    pub(crate) is_stale: AtomicBool,
    /// Whether the list is to be checked earlier than was planned.
    pub(crate) is_rung: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct List {
    pub(crate) all: Vec<Watched>,
    pub(crate) due: Option<Time>,
    /// The number of additions. If it has changed since queue pairs were examined, the result may
    /// be old.
    pub(crate) added: u64,
}

impl List {
    pub(crate) fn add(&mut self, new: Watched, now: Time) {
        let known = self.all.iter_mut().find(|known| (known.ip, known.slot) == (new.ip, new.slot));
        match known {
            // Another process has taken the slot, or the process has said at last which one it is.
            Some(known) if new.pid.is_some() => *known = new,
            Some(_) => {}
            None => self.all.push(new),
        }
        self.due.get_or_insert(now + LOOK_NANOS);
        self.added += 1;
    }
}

impl Watch {
    /// Whether the list is to be checked earlier than was planned.
    pub(crate) fn is_rung(&self) -> bool {
        self.is_rung.load(Ordering::Acquire)
    }

    /// Notes that a queue pair has left its peer, or was left by it.
    pub(crate) fn note_change(&self) {
        self.is_stale.store(true, Ordering::Release);
    }

    /// Plans an early check because a local peer that had these slots has hung up, and may be gone
    /// altogether. The background thread checks next when its present work is done.
    pub(crate) fn hasten(&self, slots: &[Slot], now: Time) {
        let mut list = lock(&self.list);
        if list.all.iter().any(|known| slots.contains(&known.slot)) {
            list.due = list.due.map(|due| due.min(now + SOON_NANOS));
            self.is_rung.store(true, Ordering::Release);
        }
    }
}
