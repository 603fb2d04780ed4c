//! Processes of this host that have connections with this one, and the end of those connections
//! when such a process is gone.
//!
//! With hardware, the kernel ends the connections of a process that is killed. Here a killed
//! process sends nothing, and nothing sends in its place. But its slots go with it, which every
//! other process of this host can see. So a process with connections to another one checks every
//! [`LOOK_NANOS`] whether that slot is still taken. If not, it ends the connections
//! ([`Cm::end_gone`]). Messages that the process sent before its end lie in our sockets and still
//! count. So its connections end only [`GRACE_NANOS`] later, when the sockets have been read.
//!
//! Peers on other hosts learn of the end from their queue pairs' retries. Any process of this host
//! answers what they then send about the connection (`route.rs`).
//!
//! A peer counts as a process of this host only after it has said that it serves the address, since
//! other hosts use the same slot numbers. With `force_wire` no process is asked, so no end is
//! noticed.
//!
//! Limits: if another process takes the same slot before the next check, the end of the former is
//! not noticed. A check costs four system calls per such process, and nothing while there are no
//! such connections.
//!
//! [`Cm::end_gone`]: vernic_proto::cm::Cm::end_gone

use std::collections::HashSet;

use vernic_io::Slot;
use vernic_io::host::{Lookup, SlotTable};
use vernic_proto::Time;
use vernic_wire::Gid;

use super::{CmShared, slot_of};
use crate::support::events::lock;

/// Nanoseconds between two checks: half of what a user would call prompt.
const LOOK_NANOS: u64 = 500_000_000;

/// Nanoseconds from when a slot was found free until its process counts as gone. In this time a
/// link polls all of its sockets several times.
const GRACE_NANOS: u64 = 2_000_000;

/// A process of this host, or a peer that may be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Neighbour {
    /// The address of its connections.
    at: Gid,
    slot: Slot,
    /// Whether the process has said that it serves the address.
    is_sure: bool,
    /// Whether its slot was free at the last check.
    is_missed: bool,
}

/// The processes of this host that have connections with this one.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    all: Vec<Neighbour>,
    /// The time of the next check.
    due: Option<Time>,
}

impl Neighbours {
    /// Records that a connection has its other end at the address `at`, in the process with `slot`.
    /// `found` is what a lookup of that process returned.
    pub(super) fn meet(&mut self, at: Gid, slot: Slot, found: Lookup, now: Time) {
        let is_sure = match found {
            Lookup::Here(process) if process.pid != std::process::id() => true,
            Lookup::Here(_) | Lookup::NotHere => return,
            Lookup::Asked | Lookup::Pending => false,
        };
        match self.all.iter_mut().find(|known| known.at == at && known.slot == slot) {
            Some(known) => known.is_sure |= is_sure,
            None => self.all.push(Neighbour { at, slot, is_sure, is_missed: false }),
        }
        self.due.get_or_insert(now + LOOK_NANOS);
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Returns the nanoseconds until the next check; `None` if there is no such process.
    fn pause(&self) -> Option<u64> {
        let is_missed = self.all.iter().any(|known| known.is_missed);
        let pause = if is_missed { GRACE_NANOS } else { LOOK_NANOS };
        (!self.all.is_empty()).then_some(pause)
    }

    /// Checks all processes, and returns those that are gone.
    fn look(&mut self, slots: &SlotTable) -> HashSet<(Gid, Slot)> {
        let mut gone = HashSet::new();
        self.all.retain_mut(|known| {
            if known.is_sure {
                // If there is no descriptor left to check with, the next check tries again.
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
    /// Ends the connections of processes of this host that are gone, if a check is due. For the
    /// holder of the lane.
    pub(crate) fn look_at_neighbours(&self, now: Time) {
        let mut neighbours = lock(&self.neighbours);
        if neighbours.due.is_none_or(|due| due > now) {
            return;
        }
        let gone = neighbours.look(self.device.slots());
        let mut state = lock(&self.state);
        let Some(machine) = &mut state.machine else { return };
        if !gone.is_empty() {
            machine.end_gone(now, |path, id| gone.contains(&(path.remote, slot_of(id))));
        }
        let met: HashSet<_> =
            machine.peers().map(|(path, id)| (path.remote, slot_of(id))).collect();
        neighbours.all.retain(|known| met.contains(&(known.at, known.slot)));
        neighbours.due = neighbours.pause().map(|pause| now + pause);
        state.tell();
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
        let here = |pid| Lookup::Here(PeerProcess { pid, private_port: 1, intake: None });
        let at = Gid::from_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let slot = |number: u32| slot_of(vernic_wire::cm::CommId(number << 22));
        let mut neighbours = Neighbours::default();
        neighbours.meet(at, slot(1), here(std::process::id()), Time(0));
        neighbours.meet(at, slot(2), Lookup::NotHere, Time(0));
        assert_eq!(neighbours.due(), None, "this process, and another host");
        neighbours.meet(at, slot(3), Lookup::Pending, Time(0));
        assert_eq!(neighbours.due(), Some(Time(LOOK_NANOS)));
        neighbours.meet(at, slot(4), Lookup::Asked, Time(1));
        neighbours.meet(at, slot(4), here(1), Time(2));
        assert_eq!(neighbours.due(), Some(Time(LOOK_NANOS)));
        // All of these slots are free, but messages of the last process may still be in our
        // sockets.
        assert_eq!(neighbours.look(&slots), HashSet::new());
        assert_eq!((neighbours.all.len(), neighbours.pause()), (1, Some(GRACE_NANOS)));
        assert_eq!(neighbours.look(&slots), HashSet::from([(at, slot(4))]));
        assert_eq!((neighbours.all.len(), neighbours.pause()), (0, None));
    }
}
