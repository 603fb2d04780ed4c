//! RoCE as a wire protocol: the packets of the lane's link and of the rings of local peers.
//!
//! Owns what only that needs: the receive batch, and what was reported already. Receiving is in
//! `rx.rs`, sending in `tx.rs`.

use std::os::fd::RawFd;
use std::sync::{Arc, MutexGuard};

use vernic_io::{Nanos, RxBatch};
use vernic_proto::congestion::Algorithm;
use vernic_proto::{QpInit, Time};

use crate::device::opened::Device;
use crate::lane::core::LaneState;
use crate::lane::protocol::WireProtocol;
use crate::lane::silence::{ReportedSilent, ask_peer};
use crate::qp::machine::Machine;
use crate::qp::state::{QpCore, QpInner};
use crate::sched::Event;
use crate::streams::LingeringConnection;

/// Batches that are sent at most when the process ends: as many as a full link may have kept from
/// being sent.
const LAST_FLUSHES: usize = 8;

/// What a lane keeps for RoCE beside the state of its queue pairs: received packets, and what it
/// last saw or reported.
pub(crate) struct Packets {
    pub(super) rx: RxBatch,
    /// What the lane last saw in the receiver page of this process when nothing came.
    pub(super) receiver_page_seen: (u64, u64),
    /// Processes that were reported to users as silent.
    reported_silent: ReportedSilent,
    /// The time of the last warning of a refusal of the kernel.
    pub(super) warned: Option<Time>,
}

impl Packets {
    pub(crate) fn new() -> Self {
        let reported_silent = ReportedSilent::default();
        Self { rx: RxBatch::new(), receiver_page_seen: (0, 0), reported_silent, warned: None }
    }
}

impl WireProtocol for Packets {
    fn machine(&self, init: QpInit, congestion: Algorithm) -> Machine {
        Machine::Packets(vernic_proto::Qp::with_algorithm(init, congestion))
    }

    fn receive(&mut self, lane: &mut LaneState, device: &Device, now: Time) -> usize {
        self.receive_batch(lane, device, now)
    }

    fn transmit(&mut self, lane: &mut LaneState, device: &Device, now: Time) {
        lane.sched.release_acks(false, now);
        self.transmit_ready(lane, device, now);
    }

    fn transmit_all(&mut self, lane: &mut LaneState, device: &Device, now: Time) {
        lane.sched.release_acks(true, now);
        self.transmit_ready(lane, device, now);
    }

    /// A short burst goes alone, and acknowledgements that are due leave with the next poll, while
    /// the reply is on its way. A long burst goes with all that is ready. A message behind many
    /// others may wait in the batch for more ([`Post`](crate::policy::Post)).
    fn transmit_posted(
        &mut self,
        lane: &mut LaneState,
        device: &Device,
        qp: &Arc<QpInner>,
        core: MutexGuard<'_, QpCore>,
        now: Time,
    ) {
        self.send_posted(lane, device, qp, core, now);
    }

    fn fire_timers(&mut self, lane: &mut LaneState, device: &Device, now: Time) {
        lane.gsi.fire_timers(device, &mut lane.table, now);
        lane.local_peers.wake_again(now);
        let reported_silent = &mut self.reported_silent;
        lane.fire_qp_timers(device, Event::Changed, now, |local_peers, sched, qp, core| {
            reported_silent.note(device, qp.qpn(), core, now);
            ask_peer(device, qp.qpn(), core, now);
            let peer = core.machine.attr().dest_qpn;
            let path = core.side.peer.path();
            if let Some((path, process)) = path.and_then(|path| device.local_path(path, peer)) {
                if device.local().is_some() {
                    local_peers.note_found(peer, process.pid());
                }
                core.side.peer.switch_to_local_path(device, path, peer, process);
            }
            sched.exempt(qp);
        });
    }

    fn next_work(&self, lane: &LaneState, now: Time, patience: u64) -> Option<Time> {
        lane.next_packet_work(now, patience)
    }

    fn add_fds(&self, lane: &LaneState, fds: &mut Vec<RawFd>) {
        fds.extend_from_slice(lane.link.poll_fds());
    }

    fn leave_shared_port(&mut self, lane: &mut LaneState, now: Time) -> bool {
        lane.link.leave_shared_port(Nanos(now.nanos()));
        true
    }

    /// Packets that a capture keeps go to its file, and those that a link keeps are sent, with what
    /// waits behind them.
    fn leave(&mut self, lane: &mut LaneState, device: &Device) -> Vec<LingeringConnection> {
        for _ in 0..LAST_FLUSHES {
            lane.link.flush();
            if lane.tx.is_empty() {
                break;
            }
            self.send(lane, device, device.now());
        }
        Vec::new()
    }
}
