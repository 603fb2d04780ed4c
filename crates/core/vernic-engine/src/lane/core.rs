//! The state of the lane: what the wire protocols work on, and what threads see of it.
//!
//! Owns everything that queue pairs share. That is the link and its batch, the tables of queue
//! pairs and XRC shared receive queues, the ready list, the timer wheel, the rings of local peers
//! and the multicast groups of a device. The wire protocol that moves bytes with it is beside it,
//! in the [`Lane`](crate::lane::protocol::Lane) (`protocol.rs`). Receiving packets is in `rx.rs`,
//! sending them in `tx.rs`, QP1 in `gsi.rs`; this file holds what all of these need.
//!
//! Lock order: lane, then a queue pair's core, then a receive or completion queue; lane, then the
//! machine of communication management (`cm.rs`), and no queue pair beside it. A post tries the
//! lane while it has its queue pair (`Engine::kick_locked`), which waits for nobody.
//!
//! Limits: a call receives one batch (at most 1 MiB) and sends [`BATCHES_PER_CALL`] batches; the
//! rest waits for the next call. So no verbs call takes longer than moving that many bytes.

use std::sync::Arc;

use vernic_io::host::ReceiverPage;
use vernic_io::{Link, Nanos, TxLanes};
use vernic_local::LocalPeers;
use vernic_proto::Time;

use crate::device::opened::Device;
use crate::lane::drop_log::DropLog;
use crate::lane::groups::Groups;
use crate::lane::gsi::Gsi;
use crate::lane::udp_backpressure::{self, UdpBackpressure};
use crate::qp::arrivals::Arrivals;
use crate::qp::state::{QpCore, QpInner};
use crate::qp::table::QpTable;
use crate::qp::xrc::SrqTable;
use crate::sched::{Event, Scheduler};
use crate::support::events::lock;

/// Batches that one call sends at most: enough to keep a socket busy, little enough that a post
/// returns soon.
pub(crate) const BATCHES_PER_CALL: usize = 2;

/// How soon a full socket or lane is tried again, in nanoseconds: a fraction of the time that it
/// takes the kernel to deliver a socket buffer.
const RETRY_NANOS: u64 = 50_000;

/// How soon a turn that was put off is tried again if a local peer takes nothing for long, in
/// nanoseconds. The peer rings when it takes something, so this covers rings that are lost.
const STUCK_NANOS: u64 = 1_000_000;

/// Timers that one call fires at most.
const TIMERS_PER_CALL: usize = 256;

/// The state of a device's lane; see the module documentation. An iWARP device has a link that
/// carries nothing, no rings and no groups.
pub(crate) struct LaneState {
    pub(super) link: Box<dyn Link>,
    pub(super) tx: TxLanes,
    pub(super) table: QpTable,
    /// XRC shared receive queues.
    pub(super) srqs: SrqTable,
    /// The scheduler: it says which queue pair has its turn next.
    pub(super) sched: Scheduler,
    /// Completions for the thread that runs the lane.
    pub(super) arrivals: Arrivals,
    pub(super) udp_backpressure: UdpBackpressure,
    /// The processes of this host that share memory with this one.
    pub(super) local_peers: LocalPeers,
    /// The receiver page of this process, which says how much is in flight to it.
    pub(super) receiver_page: Option<Arc<ReceiverPage>>,
    /// Bytes that receiving has pulled out of the memory of local peers since
    /// [`take_pulled`](Self::take_pulled).
    pub(super) pulled: u64,
    pub(super) groups: Groups,
    pub(super) gsi: Gsi,
    pub(super) drop_log: DropLog,
}

impl LaneState {
    pub(crate) fn new(device: &Device, link: Box<dyn Link>, gsi: Gsi, now: Time) -> Self {
        Self {
            tx: TxLanes::new(&link.limits()),
            link,
            table: QpTable::new(),
            srqs: SrqTable::default(),
            sched: Scheduler::new(now),
            arrivals: Arrivals::new(),
            udp_backpressure: UdpBackpressure::new(device.config().pace),
            local_peers: LocalPeers::default(),
            receiver_page: device.slots().receiver_page().cloned(),
            pulled: 0,
            groups: Groups::default(),
            gsi,
            drop_log: DropLog::default(),
        }
    }

    /// Returns the completions for the thread that runs the lane.
    #[inline]
    pub(crate) fn arrivals(&mut self) -> &mut Arrivals {
        &mut self.arrivals
    }

    /// Returns how many bytes were pulled out of the memory of local peers since the last call.
    #[inline]
    pub(crate) fn take_pulled(&mut self) -> u64 {
        std::mem::take(&mut self.pulled)
    }

    /// Returns when the background thread must poll the lane again for its packets though none
    /// comes; `None`: never. Acknowledgements may wait for that thread `patience` nanoseconds
    /// longer than for others.
    pub(super) fn next_packet_work(&self, now: Time, patience: u64) -> Option<Time> {
        if self.tx.is_blocked() {
            return Some(now + RETRY_NANOS);
        }
        if self.sched.has_ready() || self.gsi.is_pending() || self.local_peers.is_pending() {
            return Some(now);
        }
        let link = self.link.deadline().map(|Nanos(n)| Time(n));
        let queue_pairs = self.sched.next_at(now, patience);
        // Packets in the batch wait for others to join them.
        let batching = (!self.tx.is_empty()).then(|| now + patience);
        let backpressured = self.sched.has_backpressured().then(|| {
            let pause = if self.local_peers.is_stuck(now) {
                STUCK_NANOS
            } else {
                udp_backpressure::RETRY_NANOS
            };
            now + pause
        });
        let (mads, wake) = (self.gsi.deadline(), self.local_peers.wake_at());
        let blocked = self.tx.is_any_blocked().then(|| now + RETRY_NANOS);
        [queue_pairs, batching, link, backpressured, mads, wake, blocked]
            .into_iter()
            .flatten()
            .min()
    }

    /// Fires the timers of queue pairs that are due. `event` is what a fired timer is to the
    /// scheduler. Calls `expired` once a machine has handled its deadline.
    #[inline]
    pub(super) fn fire_qp_timers(
        &mut self,
        device: &Device,
        event: Event,
        now: Time,
        mut expired: impl FnMut(&mut LocalPeers, &mut Scheduler, &Arc<QpInner>, &mut QpCore),
    ) {
        if !self.sched.has_timer(now) {
            return;
        }
        let Self { sched, table, local_peers, .. } = self;
        for _ in 0..TIMERS_PER_CALL {
            let Some(qpn) = sched.pop_timer(now) else { break };
            let Some(qp) = table.find(qpn) else { continue };
            let mut core = lock(&qp.core);
            if !core.side.timer.fired(now) {
                continue;
            }
            if core.machine.next_deadline().is_some_and(|deadline| deadline <= now) {
                let before = *core.machine.counters();
                qp.with_host(device, now, &mut core, |machine, host| {
                    machine.handle_timeout(now, host);
                });
                device.counts().timer_fired(&before, core.machine.counters());
                expired(local_peers, sched, qp, &mut core);
            }
            sched.after(device, qp, &mut core, event, now);
        }
        sched.plan_timers();
    }
}
