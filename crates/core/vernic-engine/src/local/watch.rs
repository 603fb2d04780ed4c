//! The processes of this host that queue pairs are connected to, so that their end is noticed. The
//! code that checks them is in `lane/watch.rs`.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use vernic_io::host::ReceiverPage;
use vernic_io::host::Slot;
use vernic_proto::Time;
use vernic_wire::Qpn;

use crate::support::events::lock;

/// Time between two checks of the list. It is so short that applications learn of a lost process
/// within a second, even on a machine where threads run late.
const LOOK_NANOS: u64 = 250_000_000;

/// The delay from the moment a local peer hangs up until the check. By then most sockets of its
/// process slots are closed.
const SOON_NANOS: u64 = 1_000_000;

/// How long to wait after a process is found gone, before its queue pairs fail: its last packets
/// may still be on their way through sockets of other processes, and are received first.
const GRACE_NANOS: u64 = 50_000_000;

/// A process of this host to which a path leads.
#[derive(Clone, Debug)]
pub(crate) struct HostProcess {
    pid: u32,
    /// The receiver page of the process.
    page: Option<Arc<ReceiverPage>>,
}

impl HostProcess {
    pub(crate) fn new(pid: u32, page: Option<Arc<ReceiverPage>>) -> Self {
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

/// What is known of the process to which a path leads.
#[derive(Clone, Debug)]
pub(crate) enum PeerLocation {
    /// The path leads to this process of this host.
    Here(HostProcess),
    /// A process of this host has the process slot, but has not answered yet whether it has the
    /// address.
    Perhaps,
    /// The path leads to no process of this host.
    NotHere,
}

impl PeerLocation {
    /// Returns the process of this host, if it is known.
    pub(crate) fn process(&self) -> Option<&HostProcess> {
        match self {
            Self::Here(process) => Some(process),
            Self::Perhaps | Self::NotHere => None,
        }
    }
}

/// A process of this host that is checked, or a process slot that may belong to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchedPeer {
    /// The address of the queue pairs of the process.
    ip: IpAddr,
    slot: Slot,
    /// The process id; `None` until the process has answered that it has the address.
    pid: Option<u32>,
    /// Whether the last check found that no process has the slot. The next check then reports the
    /// process as lost, so that packets which it sent before its end are received first.
    is_missing: bool,
}

impl WatchedPeer {
    pub(crate) fn new(ip: IpAddr, slot: Slot, pid: Option<u32>) -> Self {
        Self { ip, slot, pid, is_missing: false }
    }

    /// Returns the address and the slot of the process's queue pairs.
    pub(crate) fn place(&self) -> (IpAddr, Slot) {
        (self.ip, self.slot)
    }

    pub(crate) fn slot(&self) -> Slot {
        self.slot
    }

    /// Returns the process id; `None` until the process has said that it serves the address.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Whether the slot was free at the check before.
    pub(crate) fn is_missing(&self) -> bool {
        self.is_missing
    }
}

/// The list of processes that the queue pairs of an engine are connected to.
#[derive(Debug, Default)]
pub(crate) struct PeerWatch {
    list: Mutex<List>,
    /// Whether a queue pair has lost its connection since the last check, so that some processes of
    /// the list may no longer be of interest.
    is_stale: AtomicBool,
    /// Whether the background thread has to look at the list earlier than planned.
    is_rung: AtomicBool,
}

#[derive(Debug, Default)]
struct List {
    all: Vec<WatchedPeer>,
    due: Option<Time>,
    /// The number of times that a process was added. If it has changed while a thread examined the
    /// queue pairs without the list's lock, the thread's result may be out of date.
    added: u64,
}

impl List {
    fn add(&mut self, new: WatchedPeer, now: Time) {
        let known = self.all.iter_mut().find(|known| known.place() == new.place());
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

impl PeerWatch {
    /// Adds a process. Returns true if the background thread must be woken, because no check was
    /// planned.
    pub(crate) fn add(&self, new: WatchedPeer, now: Time) -> bool {
        let mut list = lock(&self.list);
        let is_first = list.due.is_none();
        list.add(new, now);
        drop(list);
        if is_first {
            self.is_rung.store(true, Ordering::Release);
        }
        is_first
    }

    /// Whether the list is to be checked earlier than was planned.
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

/// A check of the list, by the background thread.
impl PeerWatch {
    /// Whether a check is due. A check that was asked for meanwhile is planned anew.
    pub(crate) fn begin(&self, now: Time) -> bool {
        self.is_rung.store(false, Ordering::Release);
        self.due().is_some_and(|due| due <= now)
    }

    /// Returns when the next check is due.
    pub(crate) fn due(&self) -> Option<Time> {
        lock(&self.list).due
    }

    /// Whether some processes may be watched in vain. The caller removes them.
    pub(crate) fn take_stale(&self) -> bool {
        self.is_stale.swap(false, Ordering::AcqRel)
    }

    /// Returns the number of additions, for [`retain`](Self::retain).
    pub(crate) fn additions(&self) -> u64 {
        lock(&self.list).added
    }

    /// Removes the processes that are not `used`. If one was added since there were `additions`,
    /// the caller may have missed it: none is removed then, and the next check tries again.
    pub(crate) fn retain(&self, additions: u64, used: impl Fn(&WatchedPeer) -> bool) {
        let mut list = lock(&self.list);
        if list.added == additions {
            list.all.retain(used);
        } else {
            self.note_change();
        }
    }

    /// Notes that a process has said that it serves the address.
    pub(crate) fn name(&self, known: WatchedPeer, pid: u32, now: Time) {
        lock(&self.list).add(WatchedPeer { pid: Some(pid), ..known }, now);
    }

    /// Removes a process that turned out not to be of this host.
    pub(crate) fn remove(&self, gone: &WatchedPeer) {
        lock(&self.list).all.retain(|known| known != gone);
    }

    /// Returns the processes to check and the number of additions. The end of the check plans the
    /// next.
    pub(crate) fn take_due(&self) -> (Vec<WatchedPeer>, u64) {
        let mut list = lock(&self.list);
        list.due = None;
        (list.all.clone(), list.added)
    }

    /// Ends a check that began when there were `additions`: removes what is gone, marks what is
    /// missing, and plans the next check. Returns when that is due.
    pub(crate) fn end(
        &self,
        additions: u64,
        gone: &[WatchedPeer],
        missing: &[WatchedPeer],
        now: Time,
    ) -> Option<Time> {
        let mut list = lock(&self.list);
        if list.added == additions {
            list.all.retain(|known| !gone.contains(known));
        }
        for known in &mut list.all {
            known.is_missing = missing.contains(known) || gone.contains(known);
        }
        let pause = if missing.is_empty() { LOOK_NANOS } else { GRACE_NANOS };
        let next = (!list.all.is_empty()).then(|| now + pause);
        list.due = [list.due, next].into_iter().flatten().min();
        list.due
    }
}
