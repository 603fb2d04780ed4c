//! Sending: from the ready list to the link.
//!
//! Queue pairs take turns. A turn builds up to 64 request packets (`turn.rs`)
//! and then up to as many response packets, straight into the batch. Requests go first, so that a
//! short ACK rides as the last segment of the same run; responses go first if the application
//! sleeps for its completions ([`TurnOrder`]). A full batch is sent and filled again.

use std::sync::{Arc, MutexGuard};

use nix::errno::Errno;
use vernic_io::{Nanos, TxPath, route_hint};
use vernic_proto::Time;
use vernic_wire::Service;

use super::plan::{self, TurnOrder};
use super::sinks::Sinks;
use super::{to_ring, turn, unreliable};
use crate::device::opened::Device;
use crate::lane::core::{BATCHES_PER_CALL, LaneState};
use crate::lane::packets::Packets;
use crate::lane::protocol::WireProtocol;
use crate::policy::{Gathered, Post, TABLE};
use crate::qp::state::{QpCore, QpInner};
use crate::sched::{Event, TurnResult};
use crate::support::events::lock;

/// Shortest time between warnings that the kernel refuses packets: a second.
const WARNING_NANOS: u64 = 1_000_000_000;

/// A run of so many small packets leaves before more are built, so that both ends work at a time.
/// Else a whole window of READs goes there, and then all of its responses come back.
const BURST_PACKETS: usize = 32;

/// Most bytes of a small packet. A larger one takes longer for its payload than for the calls, and
/// fewer calls gain more than an earlier start at the other end.
const SMALL_PACKET_BYTES: usize = 256;

impl Packets {
    /// Sends what is ready, up to [`BATCHES_PER_CALL`] batches.
    pub(super) fn transmit_ready(&mut self, lane: &mut LaneState, engine: &Device, now: Time) {
        lane.sched.retry_backpressured();
        lane.local_peers.begin();
        for _ in 0..BATCHES_PER_CALL {
            if !lane.tx.is_blocked() {
                lane.gsi.fill(lane.tx.first(), now);
                lane.fill(engine, now);
            }
            if !self.send(lane, engine, now) {
                return;
            }
        }
    }

    /// Sends what was just posted to `qp`: see [`WireProtocol::transmit_posted`].
    #[inline]
    pub(super) fn send_posted(
        &mut self,
        lane: &mut LaneState,
        engine: &Device,
        qp: &Arc<QpInner>,
        mut core: MutexGuard<'_, QpCore>,
        now: Time,
    ) {
        let (mut alone, mut in_flight) = (false, 0);
        if lane.tx.has_room() {
            lane.local_peers.begin();
            if lane.send_messages(engine, qp, &mut core, now) {
                return;
            }
            in_flight = core.machine.packets().map_or(0, |machine| machine.requests_in_flight());
            let did = lane.give_turn(engine, qp, &mut core, true, now);
            alone = did == TurnResult::Backpressured || !core.machine.wants_requests();
        } else {
            lane.sched.make_ready(qp);
        }
        drop(core);
        if !alone {
            self.transmit(lane, engine, now);
            return;
        }
        let gathered = || Gathered::new(lane.tx.packets(), lane.tx.bytes());
        let patience = engine.patience();
        match engine.policy().posted(&TABLE, in_flight, gathered, now, patience) {
            Post::Gather => {}
            Post::SendNow => drop(self.send(lane, engine, now)),
        }
    }

    /// Hands the batch to the link; true if all of it left and more may follow.
    #[inline]
    pub(super) fn send(&mut self, lane: &mut LaneState, engine: &Device, now: Time) -> bool {
        if lane.tx.is_empty() && !lane.tx.is_any_blocked() {
            return false;
        }
        self.send_lanes(lane, engine, now)
    }

    /// Hands over what [`send`](Self::send) found. Not inlined, so that a call with nothing to send
    /// saves no registers.
    #[inline(never)]
    fn send_lanes(&mut self, lane: &mut LaneState, engine: &Device, now: Time) -> bool {
        let LaneState { tx, link, .. } = lane;
        tx.send(link.as_mut(), Nanos(now.nanos()), |report| {
            if let Some(refusal) = report.failure {
                report_refusal(engine, &mut self.warned, refusal, report.failed, now);
            }
        })
    }
}

impl LaneState {
    /// Lets ready queue pairs write into the batch until it is full or none is ready.
    fn fill(&mut self, engine: &Device, now: Time) {
        // At least one of the queue pairs that wait for a destination window may go on, also while
        // others are always ready.
        self.sched.admit_waiting(now);
        // Bounded by the batch and by what goes to rings: a queue pair that wrote nothing does not
        // come back.
        while self.tx.has_room() && !self.local_peers.is_done() {
            if self.tx.has_small_run(BURST_PACKETS, SMALL_PACKET_BYTES) {
                return;
            }
            if !self.sched.has_ready() {
                self.sched.admit_waiting(now);
            }
            let Some(qp) = self.sched.take() else { return };
            let mut core = lock(&qp.core);
            self.give_turn(engine, &qp, &mut core, false, now);
        }
    }

    /// Sends what was just posted to a queue pair, and returns true, if that is all that is to be
    /// done: SENDs through a ring with room, and no packets that wait to go with them.
    #[inline]
    fn send_messages(
        &mut self,
        engine: &Device,
        qp: &Arc<QpInner>,
        core: &mut QpCore,
        now: Time,
    ) -> bool {
        let is_reliable = matches!(qp.service(), Service::Rc | Service::Xrc);
        let route = core.side.peer.route();
        if if is_reliable { !route.is_ring() } else { self.local_peers.is_empty() } {
            return false;
        }
        // A part carries the acknowledgement that is due.
        let is_alone = self.tx.is_empty()
            && (!core.side.ack.rides() || route.answers_beside_requests())
            && !self.sched.waits_for_window(qp);
        if !is_alone || TurnOrder::of(qp) != TurnOrder::RequestsFirst {
            return false;
        }
        let Self { local_peers, srqs, .. } = self;
        let is_done = qp.with_lane_host(engine, Some(srqs), now, core, |machine, host| {
            let Some(machine) = machine.packets() else { return false };
            if !is_reliable {
                return unreliable::send_posted(machine, host, local_peers, now);
            }
            let ring =
                host.side.peer.route().request_ring().and_then(|id| local_peers.out(id, now));
            ring.is_some_and(|ring| to_ring::send_messages(machine, host, ring, now))
        });
        if is_done {
            self.sched.after_messages(qp, core);
        }
        is_done
    }

    /// Gives one queue pair its turn, and does what follows it. A queue pair that was `posted` to
    /// is sure to have done something, and writes responses only where they are due.
    #[inline]
    fn give_turn(
        &mut self,
        engine: &Device,
        qp: &Arc<QpInner>,
        core: &mut QpCore,
        posted: bool,
        now: Time,
    ) -> TurnResult {
        let order = TurnOrder::of(qp);
        let rides = posted
            && match order {
                TurnOrder::RequestsFirst => core.side.ack.rides(),
                TurnOrder::ResponsesFirst => core.machine.wants_responses(),
            };
        let admitted = self.sched.admits(qp, core, now);
        let parts = plan::parts(order, admitted != 0, posted && !rides);
        let Self { tx, udp_backpressure, local_peers, srqs, .. } = self;
        let did = qp.with_lane_host(engine, Some(srqs), now, core, |machine, host| {
            let Some(machine) = machine.packets() else { return TurnResult::Nothing };
            let mut sinks = Sinks { tx, udp_backpressure, local_peers };
            turn::run(machine, host, &mut sinks, (parts, admitted as usize), now)
        });
        let did = if posted && did == TurnResult::Nothing { TurnResult::Wrote } else { did };
        self.sched.after(engine, qp, core, Event::Turn(did), now);
        did
    }
}

/// Reports that the kernel refused `packets`. A refusal of another kind than the last is worth a
/// warning, which all services need: unreliable ones have no other sign of a refusal.
#[cold]
fn report_refusal(
    engine: &Device,
    warned: &mut Option<Time>,
    refusal: (TxPath, i32),
    packets: usize,
    now: Time,
) {
    let (path, errno) = refusal;
    let known = engine.port_of(&path).note_refusal(refusal);
    let error = std::io::Error::from_raw_os_error(errno);
    let is_group = path.remote().is_multicast() && errno == Errno::ENETUNREACH as i32;
    let hint = if is_group { route_hint(path.local().to_ip()) } else { "" };
    if known || warned.is_some_and(|at| now.since(at) < WARNING_NANOS) {
        tracing::debug!(%path, %error, packets, "the kernel refused packets{hint}");
    } else {
        *warned = Some(now);
        tracing::warn!(%path, %error, packets, "the kernel refused packets{hint}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vernic_proto::{AttrMask, QpAttr, QpState};

    use crate::testing::{post_sends, post_writes, rc_pair};
    use crate::{Config, Context, EMPTY_WC, Route};

    fn gathered(context: &Context) -> usize {
        context.engine().with_lane(|lane| lane.tx.packets())
    }

    /// The time of the background thread's next poll.
    #[derive(Clone, Copy)]
    enum NextPoll {
        ByItself,
        At(Time),
        WhenReadable,
    }

    #[test]
    fn posts_behind_many_others_gather_while_the_background_thread_looks_soon() {
        const POSTS: usize = 128;
        let mut config = Config::default();
        // No congestion window, which would hold some of the posts back.
        config.set("congestion", "none").unwrap();
        let context = Context::open(Some("lo"), config).unwrap();
        context.stop_background();
        let cq = context.create_cq(4096, None).unwrap();
        let [qp, _peer] = rc_pair(&context, &cq, POSTS as u32);
        let engine = context.engine();
        let plan = |next_poll_at: NextPoll| match next_poll_at {
            NextPoll::ByItself => engine.policy().forget_plan(),
            NextPoll::At(time) => engine.policy().plan_poll(Some(time)),
            NextPoll::WhenReadable => engine.policy().plan_poll(None),
        };
        let post = |times: usize, next_poll_at: NextPoll| -> Vec<usize> {
            let each = |_| {
                plan(next_poll_at);
                post_writes(&qp, 1);
                gathered(&context)
            };
            (0..times).map(each).collect()
        };
        let drain = || {
            let mut left = POSTS;
            while left != 0 {
                left -= cq.poll(&mut [EMPTY_WC; 64]).unwrap();
            }
        };
        // The background thread sleeps until a packet comes.
        assert_eq!(post(POSTS, NextPoll::WhenReadable), [0; POSTS]);
        drain();

        let soon = NextPoll::At(engine.now() + engine.patience());
        // Few are in flight: each post leaves at once. Then posts gather until a quarter of all in
        // flight wait.
        let few = TABLE.gather_in_flight as usize;
        assert_eq!(post(few, soon), vec![0; few]);
        assert_eq!(post(6, soon), [1, 2, 3, 0, 1, 2]);
        let rest = post(POSTS - few - 6 - 1, soon);
        let left = rest.iter().filter(|gathered| **gathered == 0).count();
        assert!((4..12).contains(&left), "{rest:?}");
        assert_ne!(post(1, soon), [0]);
        let now = engine.now();
        let next = engine.with_lane(|lane| lane.next_work(now, engine.patience()));
        assert!(next.is_some_and(|next| next > now), "nobody is woken for it");
        drain();
        assert_eq!(gathered(&context), 0);

        // The background thread leaves the sockets to threads that poll. Posts gather only while a
        // thread does.
        engine.policy().back_off();
        let post_after = |polled_at: Time| {
            engine.policy().called(polled_at);
            post(1, NextPoll::ByItself)
        };
        post(few, NextPoll::WhenReadable);
        assert_eq!(post_after(Time(0)), [0]);
        // A time that nothing here reaches.
        assert_eq!(post_after(engine.now() + 1_000_000_000_000), [1]);
        assert_eq!(post_after(Time(0)), [0]);
        engine.policy().come_back();
    }

    /// A device that shares memory with itself, and makes progress only in calls of the test.
    fn sharing() -> std::sync::Arc<Context> {
        let mut config = Config::default();
        config.set("same_host", "on").unwrap();
        let context = Context::open(Some("lo"), config).unwrap();
        context.stop_background();
        context
    }

    #[test]
    fn a_queue_pair_in_error_flushes_posts_though_its_peer_reads_nothing() {
        const MOST: usize = 8192;
        let context = sharing();
        let cq = context.create_cq(2 * MOST as u32, None).unwrap();
        let [qp, _peer] = rc_pair(&context, &cq, MOST as u32);
        let mut wcs = [EMPTY_WC; 64];
        while !matches!(qp.route(), Route::SharedMemory { .. }) {
            context.engine().serve_local_peers();
            post_sends(&qp, 1);
            // The peer has no receive: the SENDs before this one stay where they are.
            cq.poll(&mut wcs).unwrap();
        }
        // Nobody reads the ring from now on.
        let full = || context.counters().near_full_turns;
        for posted in 0.. {
            if full() != 0 {
                break;
            }
            assert!(posted < MOST, "the ring is never full");
            post_sends(&qp, 1);
        }
        let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
        qp.modify(&attr, AttrMask::STATE).unwrap();
        let flushed = cq.ring().waiting();
        post_sends(&qp, 1);
        assert_eq!(cq.ring().waiting(), flushed + 1);
    }

    #[test]
    fn a_queue_pair_that_always_has_something_to_send_goes_over_to_memory() {
        const MET: usize = 100;
        let context = sharing();
        let cq = context.create_cq(4096, None).unwrap();
        let [qp, _peer] = rc_pair(&context, &cq, 2048);
        // Each poll acknowledges what the poll before it received, so something is always in
        // flight.
        for round in 0..1000 {
            if round == MET {
                context.engine().serve_local_peers();
            }
            post_writes(&qp, 1);
            let is_shared = matches!(qp.route(), Route::SharedMemory { .. });
            assert!(round >= MET || !is_shared, "in round {round}");
            if is_shared {
                return;
            }
            cq.poll(&mut [EMPTY_WC; 64]).unwrap();
        }
        panic!("by the wire still: {:?}", qp.route());
    }
}
