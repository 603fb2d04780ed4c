//! Processes of this host that have connections with this one, and what becomes of those when one
//! is gone.
//!
//! A process that is killed says nothing, and there is nobody who would for it: with hardware the
//! kernel ends its connections. But its slots go with it, which every other process of this host
//! can see. So whoever has connections to such a process looks every [`LOOK_NANOS`] whether its
//! slot is there still, and ends the connections if it is not ([`Cm::end_gone`]). What it said
//! before it went lies in our sockets and counts: its connections end only when they have been
//! looked at, [`GRACE_NANOS`] later.
//!
//! Peers on other hosts learn it from their queue pairs' retries. What they then send about the
//! connection is answered by any process of this host that is there (`route.rs`).
//!
//! A peer counts as one of this host only after the process has said that it serves the address:
//! the numbers of slots are other hosts' as well. With `force_wire` nobody is asked for it, and
//! nobody noticed.
//!
//! Limits: a process that takes the same slot before the next look hides that the former one is
//! gone. Costs four system calls per such process and look, and nothing while there are no such
//! connections.
//!
//! [`Cm::end_gone`]: vernic_proto::cm::Cm::end_gone

use std::collections::HashSet;

use vernic_io::Slot;
use vernic_io::host::{Lookup, SlotTable};
use vernic_proto::Time;
use vernic_wire::Gid;

use super::{CmShared, slot_of};
use crate::support::events::lock;

/// Time between two looks: half of what a program's user would call prompt.
const LOOK_NANOS: u64 = 500_000_000;

/// From when a slot was found to be free until its process counts as gone: some looks of a link at
/// all of its sockets.
const GRACE_NANOS: u64 = 2_000_000;

/// A process of this host, or one that may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Neighbour {
    /// Where its connections are.
    at: Gid,
    slot: Slot,
    /// Whether the process has said that it is there.
    is_sure: bool,
    /// Whether its slot was free at the last look.
    is_missed: bool,
}

/// The processes of this host that have connections with this one.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    all: Vec<Neighbour>,
    /// When they are looked at next.
    due: Option<Time>,
}

impl Neighbours {
    /// A connection has its other end `at` an address, with the process that has `slot`, of which
    /// `found` is known.
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

    /// How long after a look the next one is due, if there is any.
    fn pause(&self) -> Option<u64> {
        let is_missed = self.all.iter().any(|known| known.is_missed);
        let pause = if is_missed { GRACE_NANOS } else { LOOK_NANOS };
        (!self.all.is_empty()).then_some(pause)
    }

    /// Looks at all of them; returns those that are gone.
    fn look(&mut self, slots: &SlotTable) -> HashSet<(Gid, Slot)> {
        let mut gone = HashSet::new();
        self.all.retain_mut(|known| {
            if known.is_sure {
                // Who has no descriptor left to ask with looks again.
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
    /// For the holder of the lane: looks for processes of this host that are gone, if it is time
    /// to.
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
        // Nobody has any of these, but what the last one said may still be in our sockets.
        assert_eq!(neighbours.look(&slots), HashSet::new());
        assert_eq!((neighbours.all.len(), neighbours.pause()), (1, Some(GRACE_NANOS)));
        assert_eq!(neighbours.look(&slots), HashSet::from([(at, slot(4))]));
        assert_eq!((neighbours.all.len(), neighbours.pause()), (0, None));
    }
}
