//! The processes of this host that queue pairs are connected to, so that their end is noticed. The
//! code that checks them is in `lane/watch.rs`.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use vernic_io::host::Intake;
use vernic_io::host::Slot;
use vernic_proto::Time;

use crate::support::events::lock;

/// Time between two checks of the list. It is so short that applications learn of a lost process
/// within a second, even on a machine where threads run late.
pub(crate) const LOOK_NANOS: u64 = 250_000_000;

/// The delay from the moment a local peer hangs up until the check. By then most sockets of its
/// process slots are closed.
const SOON_NANOS: u64 = 1_000_000;

/// How long to wait after a process is found gone, before its queue pairs fail: its last packets
/// may still be on their way through sockets of other processes, and are received first.
pub(crate) const GRACE_NANOS: u64 = 50_000_000;

/// A process of this host to which a path leads.
#[derive(Clone, Debug)]
pub(crate) struct HostProcess {
    /// The process id; 0 if the process is of a PID namespace that cannot be seen.
    pub(crate) pid: u32,
    /// The receiver page of the process.
    pub(crate) page: Option<Arc<Intake>>,
}

/// What is known of the process to which a path leads.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// The path leads to this process of this host.
    Here(HostProcess),
    /// A process of this host has the process slot, but has not answered yet whether it has the
    /// address.
    Perhaps,
    /// The path leads to no process of this host.
    NotHere,
}

/// A process of this host that is checked, or a process slot that may belong to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    /// The address of the queue pairs of the process.
    pub(crate) ip: IpAddr,
    pub(crate) slot: Slot,
    /// The process id; `None` until the process has answered that it has the address.
    pub(crate) pid: Option<u32>,
    /// Whether the last check found that no process has the slot. The next check then reports the
    /// process as lost, so that packets which it sent before its end are received first.
    pub(crate) is_missing: bool,
}

/// The list of processes that the queue pairs of an engine are connected to.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(crate) list: Mutex<List>,
    /// Whether a queue pair has lost its connection since the last check, so that some processes of
    /// the list may no longer be of interest.
    pub(crate) is_stale: AtomicBool,
    /// Whether the background thread has to look at the list earlier than planned.
    pub(crate) is_rung: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct List {
    pub(crate) all: Vec<Watched>,
    pub(crate) due: Option<Time>,
    /// The number of times that a process was added. If it has changed while a thread examined the
    /// queue pairs without the list's lock, the thread's result may be out of date.
    pub(crate) added: u64,
}

impl List {
    pub(crate) fn add(&mut self, new: Watched, now: Time) {
        let known = self.all.iter_mut().find(|known| (known.ip, known.slot) == (new.ip, new.slot));
        match known {
            // Another process has taken the slot, or the process has answered that it has the
            // address.
            Some(known) if new.pid.is_some() => *known = new,
            Some(_) => {}
            None => self.all.push(new),
        }
        self.due.get_or_insert(now + LOOK_NANOS);
        self.added += 1;
    }
}

impl Watch {
    /// Whether the background thread has to look at the list earlier than planned.
    pub(crate) fn is_rung(&self) -> bool {
        self.is_rung.load(Ordering::Acquire)
    }

    /// Notes that a queue pair is no longer connected to its peer.
    pub(crate) fn note_change(&self) {
        self.is_stale.store(true, Ordering::Release);
    }

    /// Plans an early check because a local peer with these slots has hung up, so its process may
    /// have ended. The background thread begins the check when its present work is done.
    pub(crate) fn hasten(&self, slots: &[Slot], now: Time) {
        let mut list = lock(&self.list);
        if list.all.iter().any(|known| slots.contains(&known.slot)) {
            list.due = list.due.map(|due| due.min(now + SOON_NANOS));
            self.is_rung.store(true, Ordering::Release);
        }
    }
}
