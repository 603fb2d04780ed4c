//! How the engine connects to local peers and disconnects from them, off the data path. A local
//! peer is a process of this host and user that this process shares rings with.
//!
//! A thread that finds that the peer of a queue pair is a process of this host adds that process to
//! a list (`Device::want_local_peer`) and wakes the background thread. Only the background thread
//! serves the connections of local peers ([`Engine::serve_local_peers`]) and passes their events to
//! the lane. No thread waits for a connection.
//!
//! Lock order: the local peers (`peers`), then the lane.

use std::sync::atomic::Ordering;

use vernic_io::Nanos;
use vernic_local::Connections;
use vernic_proto::Time;

use crate::local::control::LocalControl;
use crate::progress::engine::Engine;
use crate::support::events::{lock, try_lock};

impl Engine {
    /// Makes this process reachable for local peers by all its process slots. Called after a queue
    /// pair was created, perhaps in a new slot.
    pub(crate) fn follow_slots(&self) {
        if let Some(local) = &self.local()
            && let Some(peers) = &mut *lock(&local.connections)
        {
            peers.follow_slots(Nanos(self.now().nanos()));
        }
    }

    /// Handles the messages of local peers, connects to the processes in the list of those wanted,
    /// and disconnects local peers that broke the rules. Returns the latest time for the next call.
    /// Only the background thread calls it.
    ///
    /// It takes the lane only if something has happened, because threads that poll cannot have the
    /// lane meanwhile.
    pub(crate) fn serve_local_peers(&self) -> Option<Time> {
        let local = self.local()?;
        let mut peers = lock(&local.connections);
        // A thread that leaves work for this method in the lane sets `rung` before it releases the
        // lane.
        let rung = local.rung.swap(false, Ordering::AcqRel);
        let peers = peers.as_mut()?;
        let now = Nanos(self.now().nanos());
        let mut events = Vec::new();
        peers.serve(now, &mut events);
        let (mut wanted, mut broken) = (Vec::new(), Vec::new());
        if rung {
            wanted = std::mem::take(&mut *lock(&local.wanted));
            let (found, expelled) = self.with_lane(|lane| lane.take_near_work());
            wanted.extend(found);
            broken = expelled;
        }
        wanted.iter().for_each(|&(slot, pid)| peers.connect(slot, pid, now, &mut events));
        broken.iter().for_each(|&id| peers.expel(id, &mut events));
        if !events.is_empty() || !wanted.is_empty() {
            self.with_lane(|lane| {
                wanted.iter().for_each(|&(slot, pid)| lane.set_owner(slot, pid));
                let now = self.now();
                events.drain(..).for_each(|event| lane.handle_local_peer(self, event, now));
            });
        }
        peers.deadline(now).map(|at| Time(at.0))
    }

    /// Disconnects from all local peers, with the notice that this process leaves in order, because
    /// the device is closed.
    pub(crate) fn close_local_peers(&self) {
        if let Some(local) = &self.local() {
            let peers = lock(&local.connections).take();
            self.leave(local, peers);
        }
    }

    /// Does what [`close_local_peers`](Self::close_local_peers) does, but never waits for a lock on
    /// the local peers; called when the process ends. Returns false if the lock is taken: by
    /// another thread, or by this thread itself, which was interrupted while it served them.
    pub(crate) fn try_close_local_peers(&self) -> bool {
        let Some(local) = &self.local() else { return true };
        let Some(peers) = try_lock(&local.connections).map(|mut peers| peers.take()) else {
            return false;
        };
        self.leave(local, peers);
        true
    }

    fn leave(&self, local: &LocalControl, peers: Option<Connections>) {
        if let Some(mut peers) = peers {
            peers.close(&mut Vec::new());
            *lock(&local.past) = peers.counters();
        }
        let gone = self.with_lane(|lane| lane.leave_neighbours(self.memory()));
        drop(gone);
    }
}
