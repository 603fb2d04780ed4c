//! Meeting and losing neighbours: what the engine does off the data path.
//!
//! Whoever finds that a peer is a process of this host leaves it in a list
//! ([`Engine::want_neighbour`]) and wakes the background thread, which alone serves the connections
//! of the neighbours ([`Engine::serve_neighbours`]) and brings what happened to the lane. Nobody
//! waits for a meeting.
//!
//! Lock order: the neighbourhood, then the lane.

use std::sync::atomic::Ordering;

use vernic_io::Nanos;
use vernic_io::host::Slot;
use vernic_io::neighbour::{Event, NeighbourId, Neighbourhood};
use vernic_proto::Time;
use vernic_wire::{Qpn, Service};

use crate::lane::core::{Lane, make_ready};
use crate::lane::watch::fail_orphan;
use crate::local::control::{MAX_WANTED, NearControl};
use crate::local::rings::{Near, Peer};
use crate::local::way::{QpWay, Way};
use crate::progress::engine::Engine;
use crate::qp::state::QpSide;
use crate::support::events::{lock, try_lock};

impl Engine {
    /// There is a queue pair, perhaps in a new slot: other processes may want to meet this one.
    pub(crate) fn follow_slots(&self) {
        if let Some(near) = &self.near
            && let Some(hood) = &mut *lock(&near.hood)
        {
            hood.follow_slots(Nanos(self.now().nanos()));
        }
    }

    /// The process `pid` of this host has `slot`, says the slot's own socket: it is to be met,
    /// unless it was.
    pub(crate) fn want_neighbour(&self, slot: Slot, pid: u32) {
        let Some(near) = &self.near else { return };
        let mut wanted = lock(&near.wanted);
        if wanted.contains(&(slot, pid)) || wanted.len() == MAX_WANTED {
            return;
        }
        wanted.push((slot, pid));
        near.ring();
        drop(wanted);
        self.waker.wake();
    }

    /// Whether the process `pid`, which has `slot`, is a neighbour. Not to be called with the lane.
    pub(crate) fn is_neighbour(&self, slot: Slot, pid: u32) -> bool {
        let Some(near) = &self.near else { return false };
        let hood = lock(&near.hood);
        let known = hood.as_ref().and_then(|hood| hood.find(slot));
        known.is_some_and(|neighbour| neighbour.pid() == pid)
    }

    /// Handles what neighbours said, meets those that are wanted, and expels those that broke the
    /// rules. Returns when it must be called at the latest. For the background thread.
    ///
    /// Takes the lane only if something has happened: threads that poll have to wait for it
    /// meanwhile.
    pub(crate) fn serve_neighbours(&self) -> Option<Time> {
        let near = self.near.as_ref()?;
        let mut hood = lock(&near.hood);
        // Whoever leaves something in the lane rings before it lets go of it.
        let rung = near.rung.swap(false, Ordering::AcqRel);
        let hood = hood.as_mut()?;
        let now = Nanos(self.now().nanos());
        let mut events = Vec::new();
        hood.serve(now, &mut events);
        let (mut wanted, mut broken) = (Vec::new(), Vec::new());
        if rung {
            wanted = std::mem::take(&mut *lock(&near.wanted));
            self.with_lane(|lane| {
                wanted.append(&mut lane.near.found);
                broken = lane.near.take_broken();
            });
        }
        wanted.iter().for_each(|&(slot, pid)| hood.meet(slot, pid, now, &mut events));
        broken.iter().for_each(|&id| hood.expel(id, &mut events));
        if !events.is_empty() || !wanted.is_empty() {
            self.with_lane(|lane| {
                wanted.iter().for_each(|&(slot, pid)| lane.near.set_owner(slot, pid));
                let now = self.now();
                events.drain(..).for_each(|event| lane.handle_neighbour(self, event, now));
            });
        }
        hood.deadline(now).map(|at| Time(at.0))
    }

    /// The device is closed: says good-bye to the neighbours.
    pub(crate) fn close_neighbours(&self) {
        if let Some(near) = &self.near {
            let hood = lock(&near.hood).take();
            self.leave(near, hood);
        }
    }

    /// As [`close_neighbours`](Self::close_neighbours), where the process ends; false if somebody
    /// is at it, perhaps who was interrupted on this very thread.
    pub(crate) fn try_close_neighbours(&self) -> bool {
        let Some(near) = &self.near else { return true };
        let Some(hood) = try_lock(&near.hood).map(|mut hood| hood.take()) else { return false };
        self.leave(near, hood);
        true
    }

    fn leave(&self, near: &NearControl, hood: Option<Neighbourhood>) {
        if let Some(mut hood) = hood {
            hood.close(&mut Vec::new());
            *lock(&near.past) = hood.counters();
        }
        let gone = self.with_lane(|lane| {
            lane.guests.close(&self.memory);
            lane.table.iter().for_each(|qp| lock(&qp.core).side.tickets.connect(None));
            std::mem::replace(&mut lane.near, Near::new())
        });
        drop(gone);
    }
}

impl Lane {
    fn handle_neighbour(&mut self, engine: &Engine, event: Event, now: Time) {
        match event {
            Event::Met { neighbour, reader } => {
                let (pid, id) = (neighbour.pid(), neighbour.id());
                tracing::debug!(pid, neighbour = %id, "shares memory with a process of this host");
                // Of one whose process has no number here nobody can say which process it is:
                // packets it may send, as anybody of this user, but not touch memory.
                if engine.config.direct && pid != 0 {
                    self.guests.add(&engine.counters.direct, neighbour.clone());
                }
                self.near.meet(neighbour, reader);
            }
            Event::Ready { from, writer } => {
                if let Some(peer) = self.near.peer_mut(from) {
                    peer.writer = Some(writer);
                }
            }
            Event::Slots { from, slots } => self.near.set_slots(from, slots),
            Event::Message { from, bytes, file } => self.handle_told(engine, from, &bytes, file),
            Event::Gone { from, in_order } => self.lose_neighbour(engine, from, in_order, now),
        }
    }

    /// A neighbour is gone. What it had sent is received first.
    fn lose_neighbour(&mut self, engine: &Engine, id: NeighbourId, in_order: bool, now: Time) {
        // Bounded: nobody writes any more, and a process that does all the same is cut off at a
        // ring's worth.
        self.receive_rest(engine, id, now);
        self.guests.remove(&engine.memory, id);
        let Some(peer) = self.near.part(id) else { return };
        let pid = peer.neighbour.pid();
        let mut failed = 0;
        let Self { table, srqs, ready, timers, budgets, .. } = self;
        for qp in table.iter().filter(|qp| qp.service != Service::Ud) {
            let mut core = lock(&qp.core);
            if !leads_to(&core.side, core.machine.attr().dest_qpn, id, &peer) {
                continue;
            }
            let way = &mut core.side.way;
            let used = way.requests == Way::Ring(id) || way.answers == Some(id);
            *way = QpWay { requests: Way::Barred, process: way.process, ..QpWay::default() };
            core.side.tickets.connect(None);
            if used && !in_order {
                failed += 1;
                fail_orphan(engine, qp, &mut core, (srqs, timers, budgets), now);
            }
            if core.machine.wants_transmit() {
                make_ready(ready, qp);
            }
            timers.arm(qp.qpn, &mut core);
        }
        if !in_order {
            // One that is cut off may be alive, and reached by the wire. If it is not, the others
            // fail, too.
            engine.watch.hasten(&peer.slots, now);
        }
        if in_order {
            tracing::debug!(pid, neighbour = %id, "a process of this host closed its device");
        } else if failed == 0 {
            tracing::debug!(pid, neighbour = %id, "a process of this host is gone, or cut off: no queue pair has used it");
        } else {
            tracing::warn!(pid, neighbour = %id, failed, "a process of this host is gone, or cut off: its peers' queue pairs fail");
        }
    }
}

/// Whether a connected queue pair is connected to a neighbour, and not to another process that has
/// taken a slot of it since.
fn leads_to(side: &QpSide, dest: Qpn, id: NeighbourId, peer: &Peer) -> bool {
    side.way.requests == Way::Ring(id)
        || side.way.answers == Some(id)
        || side.way.process == Some(peer.neighbour.pid()) && peer.slots.contains(&Slot::of(dest))
}

#[cfg(test)]
mod tests;
