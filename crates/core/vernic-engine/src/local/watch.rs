//! Which processes of this host queue pairs are connected to.
//!
//! The list; who looks at it is in `lane/watch.rs`.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use vernic_io::host::Intake;
use vernic_io::host::Slot;
use vernic_proto::Time;

use crate::support::events::lock;

/// Time between two looks. Users are told within a second, on a machine where threads are late,
/// too.
pub(crate) const LOOK_NANOS: u64 = 250_000_000;

/// How soon it is looked at when a neighbour has hung up: most of its slots' sockets are closed by
/// then.
const SOON_NANOS: u64 = 1_000_000;

/// How long packets of a process that is gone may be on their way through other processes' sockets:
/// what it sent before its end is received first.
pub(crate) const GRACE_NANOS: u64 = 50_000_000;

/// A process of this host that a path leads to.
#[derive(Clone, Debug)]
pub(crate) struct HostProcess {
    /// 0 if it is of a PID namespace that cannot be seen.
    pub(crate) pid: u32,
    /// What it says of itself.
    pub(crate) page: Option<Arc<Intake>>,
}

/// Whom a path leads to, as far as was found out.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// This process of this host.
    Here(HostProcess),
    /// A process of this host has the slot, and has not said whether it serves the address.
    Perhaps,
    /// None of this host.
    NotHere,
}

/// A process of this host, or one that may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    /// Where its queue pairs are.
    pub(crate) ip: IpAddr,
    pub(crate) slot: Slot,
    /// `None` until it has said that it serves the address.
    pub(crate) pid: Option<u32>,
    /// Whether its slot is free: what it sent is waited for.
    pub(crate) is_missing: bool,
}

/// The processes that queue pairs of an engine are connected to.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(crate) list: Mutex<List>,
    /// A queue pair has left its peer: some may be watched in vain.
    pub(crate) is_stale: AtomicBool,
    /// The list is to be looked at earlier than was planned.
    pub(crate) is_rung: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct List {
    pub(crate) all: Vec<Watched>,
    pub(crate) due: Option<Time>,
    /// How often something was added: what is found out of queue pairs may be old if that has
    /// changed since.
    pub(crate) added: u64,
}

impl List {
    pub(crate) fn add(&mut self, new: Watched, now: Time) {
        let known = self.all.iter_mut().find(|known| (known.ip, known.slot) == (new.ip, new.slot));
        match known {
            // Another process has taken the slot, or it has said at last who it is.
            Some(known) if new.pid.is_some() => *known = new,
            Some(_) => {}
            None => self.all.push(new),
        }
        self.due.get_or_insert(now + LOOK_NANOS);
        self.added += 1;
    }
}

impl Watch {
    /// Whether it is to be looked at earlier than was planned.
    pub(crate) fn is_rung(&self) -> bool {
        self.is_rung.load(Ordering::Acquire)
    }

    /// A queue pair has left its peer, or was left.
    pub(crate) fn note_change(&self) {
        self.is_stale.store(true, Ordering::Release);
    }

    /// A neighbour has hung up that had these slots, and may be gone altogether. For the background
    /// thread, which looks next when it has done what it is at.
    pub(crate) fn hasten(&self, slots: &[Slot], now: Time) {
        let mut list = lock(&self.list);
        if list.all.iter().any(|known| slots.contains(&known.slot)) {
            list.due = list.due.map(|due| due.min(now + SOON_NANOS));
            self.is_rung.store(true, Ordering::Release);
        }
    }
}
