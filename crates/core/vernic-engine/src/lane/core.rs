//! The lane: the unit of progress. The thread that holds the lane moves packets.
//!
//! Owns everything that packets of several queue pairs share. That is the link, both batches, the
//! tables of queue pairs and XRC shared receive queues, the ready list, the timer wheel and the
//! multicast groups of a device. The lane is behind one mutex in
//! [`Engine`](crate::progress::engine::Engine), which data-path threads only try to lock. Receiving
//! is in `rx.rs`, sending in `tx.rs`, QP1 in `gsi.rs`, what the control path asks in `control.rs`;
//! this file holds what all of these need.
//!
//! Lock order: lane, then a queue pair's core, then a receive or completion queue; lane, then the
//! machine of communication management (`cm.rs`), and no queue pair beside it.
//!
//! Limits: a call receives one batch (at most 1 MiB) and sends [`BATCHES_PER_CALL`] batches; the
//! rest waits for the next call. So no verbs call takes longer than moving that many bytes.

use std::sync::Arc;

use vernic_io::host::Intake;
use vernic_io::{Link, Nanos, RxBatch, TxLanes};
use vernic_proto::Time;

use crate::cm::CmShared;
use crate::device::opened::Device;
use crate::lane::groups::Groups;
use crate::lane::gsi::Gsi;
use crate::lane::pacer::{self, Pacer};
use crate::lane::silence::ToldSilent;
use crate::local::guests::Guests;
use crate::local::rings::Near;
use crate::qp::table::QpTable;
use crate::qp::xrc::SrqTable;
use crate::sched::{Event, Scheduler};
use crate::streams::{HELD_NANOS, Streams};

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

/// The lane of a device; see the module documentation.
pub(crate) struct Lane {
    pub(super) link: Box<dyn Link>,
    pub(super) tx: TxLanes,
    pub(super) rx: RxBatch,
    pub(super) table: QpTable,
    /// XRC shared receive queues.
    pub(super) srqs: SrqTable,
    /// The scheduler: it says which queue pair has its turn next.
    pub(super) sched: Scheduler,
    pub(super) pacer: Pacer,
    /// Rings that are shared with processes of this host.
    pub(super) near: Near,
    /// The receiver page of this process, which says how much is in flight to it, and what the lane
    /// last saw there when nothing came.
    pub(super) intake: Option<Arc<Intake>>,
    pub(super) intake_seen: (u64, u64),
    pub(super) groups: Groups,
    pub(super) gsi: Gsi,
    /// Local peers that access memory of this process without packets, or whose memory this process
    /// so accesses.
    pub(super) guests: Guests,
    /// Connections, of an iWARP device.
    pub(crate) streams: Option<Streams>,
    /// Processes that were reported to users as silent.
    told_silent: ToldSilent,
    /// The time of the last warning of a refusal of the kernel.
    pub(super) warned: Option<Time>,
}

impl Lane {
    pub(crate) fn new(
        device: &Device,
        link: Box<dyn Link>,
        streams: Option<Streams>,
        cm: Arc<CmShared>,
        now: Time,
    ) -> Self {
        Self {
            streams,
            tx: TxLanes::new(&link.limits()),
            rx: RxBatch::new(),
            link,
            table: QpTable::new(),
            srqs: SrqTable::default(),
            sched: Scheduler::new(now),
            pacer: Pacer::new(device.config().pace),
            near: Near::new(),
            intake: device.slots().intake().cloned(),
            intake_seen: (0, 0),
            groups: Groups::default(),
            gsi: Gsi::new(cm),
            guests: Guests::default(),
            told_silent: ToldSilent::default(),
            warned: None,
        }
    }

    /// Returns when the background thread must poll the lane again though no packet comes; `None`:
    /// never. Acknowledgements may wait for that thread `patience` nanoseconds longer than for
    /// others.
    pub(crate) fn next_work(&self, now: Time, patience: u64) -> Option<Time> {
        if self.tx.is_blocked() {
            return Some(now + RETRY_NANOS);
        }
        if self.sched.has_ready() || self.gsi.is_pending() || self.near.is_pending() {
            return Some(now);
        }
        let link = self.link.deadline().map(|Nanos(n)| Time(n));
        let queue_pairs = self.sched.next_at(now, patience);
        // Packets in the batch wait for others to join them.
        let company = (!self.tx.is_empty()).then(|| now + patience);
        let backpressured = self.sched.has_backpressured().then(|| {
            let pause = if self.near.is_stuck(now) { STUCK_NANOS } else { pacer::RETRY_NANOS };
            now + pause
        });
        let waits = self.streams.as_ref().is_some_and(Streams::has_held);
        let waiting = waits.then(|| now + HELD_NANOS);
        let streams = self.streams.as_ref().and_then(Streams::next_deadline);
        let (mads, wake) = (self.gsi.deadline(), self.near.wake_at());
        let blocked = self.tx.is_any_blocked().then(|| now + RETRY_NANOS);
        [queue_pairs, company, link, backpressured, waiting, streams, mads, wake, blocked]
            .into_iter()
            .flatten()
            .min()
    }

    /// Fires the timers that are due.
    pub(crate) fn fire_timers(&mut self, engine: &Device, now: Time) {
        self.gsi.fire_timers(engine, &mut self.table, now);
        self.look_after_streams(engine, now);
        self.near.wake_again(now);
        if !self.sched.has_timer(now) {
            return;
        }
        for _ in 0..TIMERS_PER_CALL {
            let Some(qpn) = self.sched.pop_timer(now) else { break };
            if let Some(qp) = self.table.find(qpn) {
                let mut core = crate::support::events::lock(&qp.core);
                if !core.side.timer.fired(now) {
                    continue;
                }
                // A stream may have a connection to close.
                let event =
                    if qp.is_stream { Event::Stream { again: true } } else { Event::Changed };
                if core.machine.next_deadline().is_some_and(|deadline| deadline <= now) {
                    let before = *core.machine.counters();
                    qp.with_host(engine, now, &mut core, |machine, host| {
                        machine.handle_timeout(now, host);
                    });
                    engine.counts().timer_fired(&before, core.machine.counters());
                    self.told_silent.note(engine, qp.qpn(), &core, now);
                    let peer = core.machine.attr().dest_qpn;
                    let path = core.side.peer.path();
                    let straight = path.and_then(|path| engine.straighten(path, peer));
                    if let Some((path, process)) = straight {
                        if engine.near().is_some() {
                            self.near.note_found(peer, process.pid());
                        }
                        core.side.peer.go_straight(engine, path, peer, process);
                    }
                    self.sched.exempt(qp);
                }
                self.sched.after(engine, qp, &mut core, event, now);
            }
        }
        self.sched.plan_timers();
    }
}
