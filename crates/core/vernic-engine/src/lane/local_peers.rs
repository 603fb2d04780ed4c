//! Handles what happens to local peers: they connect, send messages, and go.

use vernic_io::host::Slot;
use vernic_local::LocalPeer;
use vernic_local::{Event, LocalPeerId};
use vernic_proto::Time;
use vernic_wire::{Qpn, Service};

use crate::device::opened::Device;
use crate::lane::core::LaneState;
use crate::lane::watch::{fail_peerless_qp, take_receipt};
use crate::qp::state::QpSide;
use crate::sched::Event as QpEvent;
use crate::support::events::lock;

impl LaneState {
    pub(crate) fn handle_local_peer(&mut self, engine: &Device, event: Event, now: Time) {
        match event {
            Event::Connected { process, reader } => {
                let pid = process.pid();
                tracing::debug!(pid, "shares memory with a process of this host: a local peer");
                self.local_peers.connect(process, reader);
            }
            Event::Ready { from, writer } => {
                self.local_peers.set_writer(from, writer);
            }
            Event::Slots { from, slots } => self.local_peers.set_slots(from, slots),
            Event::Message { from, bytes, file } => {
                self.handle_grant_message(engine, from, &bytes, file);
            }
            Event::Gone { from, in_order } => self.lose_local_peer(engine, from, in_order, now),
        }
    }

    /// Disconnects a local peer that is gone, after receiving what it had sent.
    fn lose_local_peer(&mut self, engine: &Device, id: LocalPeerId, in_order: bool, now: Time) {
        // Bounded: the peer no longer writes. A process that writes all the same is cut off after
        // one ring's worth.
        self.receive_rest(engine, id, now);
        let Some(peer) = self.local_peers.disconnect(id, engine.memory()) else { return };
        let pid = peer.pid();
        let mut failed = 0;
        let Self { table, srqs, sched, .. } = self;
        for qp in table.iter().filter(|qp| qp.service() != Service::Ud) {
            let mut core = lock(&qp.core);
            if !leads_to(&core.side, core.machine.attr().dest_qpn, id, &peer) {
                continue;
            }
            take_receipt(engine, qp, &mut core, &peer, now);
            let used = core.side.peer.lose(id);
            if in_order {
                core.side.peer.note_left(now);
            }
            if used && !in_order {
                failed += usize::from(fail_peerless_qp(engine, qp, &mut core, srqs, now));
            }
            sched.after(engine, qp, &mut core, QpEvent::Changed, now);
        }
        if !in_order {
            // A peer that was cut off may be alive, and reachable by the wire. If it is not, the
            // queue pairs that have not failed yet fail, too.
            engine.watch().hasten(peer.slots(), now);
        }
        if in_order {
            tracing::debug!(pid, "a local peer closed its device");
        } else if failed == 0 {
            tracing::debug!(pid, "a local peer is gone, or cut off: no queue pair fails");
        } else {
            tracing::warn!(
                pid,
                failed,
                "a local peer is gone, or cut off: queue pairs connected to it fail"
            );
        }
    }
}

/// Whether a connected queue pair is connected to the local peer `id`, and not to another process
/// that has since taken one of its slots.
fn leads_to(side: &QpSide, dest: Qpn, id: LocalPeerId, peer: &LocalPeer) -> bool {
    side.peer.route().uses(id)
        || side.peer.pid() == Some(peer.pid()) && peer.slots().contains(&Slot::of(dest))
}

#[cfg(test)]
mod tests;
