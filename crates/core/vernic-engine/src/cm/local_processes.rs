//! Processes of this host that have connections with this process, and how those connections end
//! when such a process is gone.
//!
//! With hardware, the kernel ends the connections of a process that is killed. Here a killed
//! process sends nothing, and nothing else sends in its place. But the process loses its process
//! slots, which every process of this host can see. So this process checks every [`LOOK_NANOS`]
//! whether the slot of the other process is still taken. If it is not, the connections are ended
//! ([`Cm::end_gone`]). Messages that the other process sent before its end may still be in our
//! sockets, and have to be handled first. So the connections end [`GRACE_NANOS`] later, when the
//! sockets have been read.
//!
//! Peers on other hosts notice that a process is gone when the retries of their queue pairs are
//! used up. Any other process of this host answers the messages that they then send about the
//! connection (`route.rs`).
//!
//! A peer is taken for a process of this host only after that process has answered that it has the
//! address, because other hosts use the same slot numbers. With `force_wire` no process is asked,
//! so the end of a process is not noticed.
//!
//! Limits: if a new process takes the slot before the next check, the end of the old one is not
//! noticed. A check costs four system calls for each process, and nothing if there are no
//! connections within the host.
//!
//! [`Cm::end_gone`]: vernic_proto::cm::Cm::end_gone

use std::collections::HashSet;

use vernic_io::Slot;
use vernic_io::host::{Lookup, SlotTable};
use vernic_proto::Time;
use vernic_proto::cm::CmPath;
use vernic_wire::Gid;

use super::{CmShared, slot_of};
use crate::support::events::lock;

/// Time in nanoseconds between two checks. Users expect to hear within a second that a peer is
/// gone; this is half of it.
const LOOK_NANOS: u64 = 500_000_000;

/// Time in nanoseconds between the check that finds a slot free and the end of its process's
/// connections. In this time a link polls each of its sockets several times.
const GRACE_NANOS: u64 = 2_000_000;

/// A process of this host, or of another host, that has connections with this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LocalProcess {
    /// The address of the process in these connections.
    at: Gid,
    slot: Slot,
    /// Whether the process has answered that it has the address, so that it is one of this host.
    is_sure: bool,
    /// Whether the process's slot was free at the last check.
    is_missed: bool,
}

/// The processes that have connections with this process and are, or may be, of this host.
#[derive(Debug, Default)]
pub(super) struct LocalProcesses {
    all: Vec<LocalProcess>,
    /// The time of the next check; `None` if there is nothing to check.
    due: Option<Time>,
}

impl LocalProcesses {
    /// Notes that a connection has its other end at the address `at`, in the process with `slot`.
    /// `found` is the result of a lookup of that process.
    pub(super) fn note(&mut self, at: Gid, slot: Slot, found: Lookup, now: Time) {
        let is_sure = match found {
            Lookup::Here(process) if process.pid != std::process::id() => true,
            Lookup::Here(_) | Lookup::NotHere => return,
            Lookup::Asked | Lookup::Pending => false,
        };
        match self.all.iter_mut().find(|known| known.at == at && known.slot == slot) {
            Some(known) => known.is_sure |= is_sure,
            None => self.all.push(LocalProcess { at, slot, is_sure, is_missed: false }),
        }
        self.due.get_or_insert(now + LOOK_NANOS);
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Returns the time in nanoseconds until the next check; `None` if there is nothing to check.
    fn pause(&self) -> Option<u64> {
        let is_missed = self.all.iter().any(|known| known.is_missed);
        let pause = if is_missed { GRACE_NANOS } else { LOOK_NANOS };
        (!self.all.is_empty()).then_some(pause)
    }

    /// Checks all processes. Removes those that are gone, and returns them.
    fn check(&mut self, slots: &SlotTable) -> HashSet<(Gid, Slot)> {
        let mut gone = HashSet::new();
        self.all.retain_mut(|known| {
            if known.is_sure {
                // If there is no descriptor left for the check, the next check tries again.
                let is_there = slots.is_taken(known.slot).unwrap_or(true);
                let was_missed = std::mem::replace(&mut known.is_missed, !is_there);
                let is_gone = was_missed && !is_there;
                if is_gone {
                    gone.insert((known.at, known.slot));
                }
                return !is_gone;
            }
            let found = slots.lookup(known.at.to_ip(), known.slot.qpn(0));
            known.is_sure = matches!(found, Lookup::Here(_));
            found != Lookup::NotHere
        });
        gone
    }
}

impl CmShared {
    /// If it is time for a check, ends the connections with processes that are gone. For the thread
    /// that has the lane.
    pub(crate) fn check_local_processes(&self, now: Time) {
        let mut local_processes = lock(&self.local_processes);
        if local_processes.due.is_none_or(|due| due > now) {
            return;
        }
        let gone = local_processes.check(self.device.slots());
        let mut state = lock(&self.state);
        let Some(machine) = &mut state.machine else { return };
        if !gone.is_empty() {
            let is_gone = |path: CmPath, id| gone.contains(&(path.remote, slot_of(id)));
            let connections = machine.end_gone(now, is_gone);
            if connections != 0 {
                tracing::debug!(
                    connections,
                    "a process of this host is gone: connections with it end"
                );
            }
        }
        let met: HashSet<_> =
            machine.peers().map(|(path, id)| (path.remote, slot_of(id))).collect();
        local_processes.all.retain(|known| met.contains(&(known.at, known.slot)));
        local_processes.due = local_processes.pause().map(|pause| now + pause);
        state.report_events();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use vernic_io::host::PeerProcess;

    use super::*;

    #[test]
    fn only_who_said_that_it_is_there_can_be_gone_and_not_before_its_words_were_heard() {
        let slots = SlotTable::with_scope(&format!("vn{}", std::process::id())).unwrap();
        let here = |pid| Lookup::Here(PeerProcess { pid, private_port: 1, receiver_page: None });
        let at = Gid::from_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let slot = |number: u32| slot_of(vernic_wire::cm::CommId(number << 22));
        let mut local_processes = LocalProcesses::default();
        local_processes.note(at, slot(1), here(std::process::id()), Time(0));
        local_processes.note(at, slot(2), Lookup::NotHere, Time(0));
        assert_eq!(local_processes.due(), None, "this process, and another host");
        local_processes.note(at, slot(3), Lookup::Pending, Time(0));
        assert_eq!(local_processes.due(), Some(Time(LOOK_NANOS)));
        local_processes.note(at, slot(4), Lookup::Asked, Time(1));
        local_processes.note(at, slot(4), here(1), Time(2));
        assert_eq!(local_processes.due(), Some(Time(LOOK_NANOS)));
        // The slots of all these processes are free, but messages of the last one may still be in
        // our sockets.
        assert_eq!(local_processes.check(&slots), HashSet::new());
        assert_eq!((local_processes.all.len(), local_processes.pause()), (1, Some(GRACE_NANOS)));
        assert_eq!(local_processes.check(&slots), HashSet::from([(at, slot(4))]));
        assert_eq!((local_processes.all.len(), local_processes.pause()), (0, None));
    }
}
