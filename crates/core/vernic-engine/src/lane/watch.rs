//! Queue pairs whose peer is a process of this host: which process that is, and failing them when
//! it is gone.

use std::sync::Arc;

use vernic_io::host::Slot;
use vernic_local::LocalPeer;
use vernic_proto::{PartAck, Time};
use vernic_wire::{Aeth, CreditCode, Service, Syndrome};

use crate::device::opened::Device;
use crate::lane::core::LaneState;
use crate::lane::protocol::Lane;
use crate::local::watch::{HostProcess, WatchedPeer};
use crate::qp::state::{QpCore, QpInner};
use crate::qp::xrc::SrqTable;
use crate::sched::Event;
use crate::support::events::lock;

pub(crate) fn slot_of_peer(core: &QpCore) -> Slot {
    Slot::of(core.machine.attr().dest_qpn)
}

impl Lane {
    /// Notes in queue pairs which process serves the address of their peer.
    pub(crate) fn name_process(&mut self, known: WatchedPeer, process: &HostProcess) {
        for qp in self.table.iter().filter(|qp| qp.service() != Service::Ud) {
            let mut core = lock(&qp.core);
            let at = core.side.peer.path().map(|path| (path.remote().to_ip(), slot_of_peer(&core)));
            if at == Some(known.place()) && core.side.peer.pid().is_none() {
                core.side.peer.name_process(process);
            }
        }
    }

    /// Fails the queue pairs whose peer had a slot and is gone, after receiving what it had sent.
    /// Queue pairs whose peer has left in order do not fail.
    pub(crate) fn fail_qps_of(&mut self, engine: &Device, slot: Slot, pid: Option<u32>, now: Time) {
        // Bounded: a socket's buffer holds less.
        for _ in 0..MOST_BATCHES {
            if self.receive(engine, now) == 0 {
                break;
            }
        }
        let (mut failed, mut left) = (0, 0);
        let LaneState { table, srqs, sched, .. } = &mut self.state;
        for qp in table.iter().filter(|qp| qp.service() != Service::Ud) {
            let mut core = lock(&qp.core);
            if core.side.peer.pid() != pid || slot_of_peer(&core) != slot {
                continue;
            }
            if core.side.peer.has_left() {
                core.side.peer.note_left(now);
                left += 1;
                continue;
            }
            failed += usize::from(fail_peerless_qp(engine, qp, &mut core, srqs, now));
            sched.after(engine, qp, &mut core, Event::Changed, now);
        }
        let slot = slot.value();
        match (failed, left) {
            (0, 0) => tracing::debug!(pid, slot, "a process of this host is gone: nothing fails"),
            (0, _) => tracing::debug!(pid, slot, left, "a process of this host has left"),
            _ => tracing::warn!(pid, slot, failed, "{GONE}"),
        }
    }
}

impl Lane {
    /// Fails every queue pair whose service acknowledges: the link is gone for good.
    pub(crate) fn fail_all_qps(&mut self, engine: &Device, now: Time) {
        let LaneState { table, srqs, sched, .. } = &mut self.state;
        for qp in table.iter().filter(|qp| qp.service() != Service::Ud) {
            let mut core = lock(&qp.core);
            qp.with_lane_host(engine, Some(srqs), now, &mut core, |machine, host| {
                if let Some(machine) = machine.packets() {
                    machine.handle_link_gone(now, host);
                }
            });
            sched.after(engine, qp, &mut core, Event::Changed, now);
        }
    }
}

/// Completes what the queue pair's peer, a process of this host that is gone, had received and not
/// yet acknowledged: its receipt stands for the ACK.
pub(crate) fn take_receipt(
    engine: &Device,
    qp: &Arc<QpInner>,
    core: &mut QpCore,
    peer: &LocalPeer,
    now: Time,
) {
    let Some(next) = peer.received(core.machine.attr().dest_qpn, qp.qpn()) else { return };
    let aeth = Aeth { syndrome: Syndrome::ack(CreditCode::INVALID), msn: 0 };
    qp.with_host(engine, now, core, |machine, host| {
        if let Some(machine) = machine.packets() {
            // What the machine knows already changes nothing.
            machine.handle_ack(now, PartAck { psn: next.sub(1), aeth }, host);
        }
    });
}

/// Batches that are received at most from sockets before the queue pairs connected to a process
/// that is gone fail.
const MOST_BATCHES: usize = 64;

/// The warning for users.
pub(crate) const GONE: &str = "a process of this host is gone: its peers' queue pairs fail";

/// Fails a queue pair whose peer process is gone, and returns true. One of UC goes on, since
/// nothing of it is acknowledged. The caller has the scheduler see to what follows.
pub(crate) fn fail_peerless_qp(
    engine: &Device,
    qp: &Arc<QpInner>,
    core: &mut QpCore,
    srqs: &SrqTable,
    now: Time,
) -> bool {
    let before = core.machine.state();
    qp.with_lane_host(engine, Some(srqs), now, core, |machine, host| {
        if let Some(machine) = machine.packets() {
            machine.handle_peer_gone(now, host);
        }
    });
    core.machine.state() != before
}
