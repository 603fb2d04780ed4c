//! Sending: from the ready list to the link.
//!
//! Queue pairs take turns. A turn builds up to [`TURN_PACKETS`] request packets and then up to as
//! many response packets, straight into the batch: requests first, so that a short ACK rides as the
//! last segment of the same run, unless the application sleeps for its completions ([`Order`]). A
//! full batch is sent and filled again.

use std::sync::Arc;

use nix::errno::Errno;
use vernic_io::{Nanos, TxBatch, TxLanes, TxPath, route_hint};
use vernic_proto::{Qp, QpState, QpType, RunLimits, Time, Transmit};
use vernic_wire::{AckTimeout, Qpn, Service};

use crate::device::opened::Device;
use crate::lane::core::{BATCHES_PER_CALL, Lane};
use crate::lane::pacer::{Grant, Pacer};
use crate::local::guests::Guests;
use crate::local::pull::LIMITS;
use crate::local::rings::{Near, RingOut};
use crate::local::way::{DatagramWay, QpWay, Way};
use crate::policy::{Gathered, Post, TABLE};
use crate::qp::direct::{self, Turn as DirectTurn};
use crate::qp::host::QpHost;
use crate::qp::state::QpInner;
use crate::sched::{Event, Turn};
use crate::support::events::lock;

/// Packets of each direction in one turn: one full GSO run.
const TURN_PACKETS: usize = 64;

/// Bytes of requests after which a turn goes on to the responses: one full GSO run. A batch holds
/// four, so however much a queue pair has to ask, its answers leave within two of its turns.
const TURN_BYTES: usize = 60 * 1024;

/// Shortest time between warnings that the kernel refuses packets: a second.
const WARNING_NANOS: u64 = 1_000_000_000;

impl Lane {
    /// Sends what is ready, up to [`BATCHES_PER_CALL`] batches.
    pub(crate) fn transmit(&mut self, engine: &Device, now: Time) {
        self.sched.release_acks(false, now);
        self.transmit_ready(engine, now);
    }

    /// As [`transmit`](Self::transmit), with every ACK that waits.
    pub(crate) fn transmit_all(&mut self, engine: &Device, now: Time) {
        self.sched.release_acks(true, now);
        self.transmit_ready(engine, now);
    }

    fn transmit_ready(&mut self, engine: &Device, now: Time) {
        if self.streams.is_some() {
            return self.transmit_streams(engine, now);
        }
        self.sched.retry_backpressured();
        self.near.begin();
        for _ in 0..BATCHES_PER_CALL {
            if !self.tx.is_blocked() {
                self.gsi.fill(self.tx.first());
                self.fill(engine, now);
            }
            if !self.send(engine, now) {
                return;
            }
        }
    }

    /// Sends what was just posted to `qp`, ahead of everything else that is ready: its poster waits
    /// for it. A short burst goes alone, and acknowledgements that are due leave with the next
    /// poll, while the answer is on its way; a long one goes with all that is ready. One that
    /// stands behind many others may wait in the batch for more ([`Post`]).
    pub(crate) fn transmit_posted(&mut self, engine: &Device, qp: &Arc<QpInner>, now: Time) {
        if qp.is_stream {
            self.sched.make_ready(qp);
            return self.transmit_streams(engine, now);
        }
        let (mut alone, mut in_flight) = (false, 0);
        if self.tx.has_room() {
            self.near.begin();
            let mut core = lock(&qp.core);
            in_flight = core.machine.packets().map_or(0, |machine| machine.requests_in_flight());
            let order = Order::of(qp);
            let rides = match order {
                Order::RequestsFirst => core.side.ack.rides(),
                Order::AnswersFirst => core.machine.wants_responses(),
            };
            let srqs = Some(&self.srqs);
            let asks = self.sched.admits(qp, &mut core, now);
            let halves = match () {
                () if !asks => &[Half::Answers],
                () if rides => order.halves(),
                () => &[Half::Requests][..],
            };
            let Self { tx, pacer, near, guests, .. } = self;
            let did = qp.with_lane_host(engine, srqs, now, &mut core, |machine, host| {
                let Some(machine) = machine.packets() else { return Turn::Nothing };
                let mut outs = Outs { tx, pacer, near, guests };
                if is_paced(machine) {
                    paced_turn(machine, host, &mut outs, now)
                } else {
                    turn(machine, host, &mut outs, halves, now)
                }
            });
            let did = if did == Turn::Backpressured { did } else { Turn::Wrote };
            alone = did == Turn::Backpressured || !core.machine.wants_requests();
            self.sched.after(engine, qp, &mut core, Event::Turn(did), now);
        } else {
            self.sched.make_ready(qp);
        }
        if !alone {
            self.transmit(engine, now);
            return;
        }
        let gathered = || Gathered { packets: self.tx.packets(), bytes: self.tx.bytes() };
        let patience = engine.patience();
        match engine.policy.posted(&TABLE, in_flight, gathered, now, patience) {
            Post::Gather => {}
            Post::SendNow => drop(self.send(engine, now)),
        }
    }

    /// Hands the batch to the link; true if all of it left and more may follow.
    fn send(&mut self, engine: &Device, now: Time) -> bool {
        let Self { tx, link, warned, .. } = self;
        tx.send(link.as_mut(), Nanos(now.nanos()), |report| {
            if let Some(refusal) = report.failure {
                tell_refusal(engine, warned, refusal, report.failed, now);
            }
        })
    }

    /// Lets ready queue pairs write into the batch until it is full or none is ready.
    fn fill(&mut self, engine: &Device, now: Time) {
        // Of those that wait in a budget at least one may go on, also while others are always
        // ready.
        self.sched.let_in(now);
        // Bounded by the batch and by what goes to rings: a queue pair that wrote nothing does not
        // come back.
        while self.tx.has_room() && !self.near.is_done() {
            if !self.sched.has_ready() {
                self.sched.let_in(now);
            }
            let Some(qp) = self.sched.take() else { return };
            let mut core = lock(&qp.core);
            let (order, srqs) = (Order::of(&qp), Some(&self.srqs));
            let asks = self.sched.admits(&qp, &mut core, now);
            let halves = if asks { order.halves() } else { &[Half::Answers] };
            let Self { tx, pacer, near, guests, .. } = self;
            let did = qp.with_lane_host(engine, srqs, now, &mut core, |machine, host| {
                let Some(machine) = machine.packets() else { return Turn::Nothing };
                let mut outs = Outs { tx, pacer, near, guests };
                if is_paced(machine) {
                    paced_turn(machine, host, &mut outs, now)
                } else {
                    turn(machine, host, &mut outs, halves, now)
                }
            });
            self.sched.after(engine, &qp, &mut core, Event::Turn(did), now);
        }
    }
}

/// The kernel refused `packets`. A refusal of another kind than the last is worth a warning,
/// which all services need: unreliable ones have no other sign of it.
#[cold]
fn tell_refusal(
    engine: &Device,
    warned: &mut Option<Time>,
    refusal: (TxPath, i32),
    packets: usize,
    now: Time,
) {
    let known = lock(&engine.refusal).replace(refusal) == Some(refusal);
    let (path, errno) = refusal;
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

/// Whether it sends, and nothing but the lane keeps it from overrunning its receiver.
fn is_paced(machine: &Qp) -> bool {
    matches!(machine.service(), Service::Uc | Service::Ud)
        && matches!(machine.state(), QpState::Rts | QpState::Sqd)
}

/// What a queue pair writes first in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The application's next message is not kept waiting by an ACK.
    RequestsFirst,
    /// Where applications sleep for their completions, an ACK costs little beside the wake-up. It
    /// goes ahead of the reply, as from hardware: the peer's send completes before the reply
    /// arrives, and programs that wait for one event of either kind count on that (perftest's do).
    AnswersFirst,
}

impl Order {
    fn of(qp: &QpInner) -> Self {
        let sleeps = qp.cqs().any(|cq| cq.has_channel());
        if sleeps { Self::AnswersFirst } else { Self::RequestsFirst }
    }

    fn halves(self) -> &'static [Half] {
        match self {
            Self::RequestsFirst => &[Half::Requests, Half::Answers],
            Self::AnswersFirst => &[Half::Answers, Half::Requests],
        }
    }
}

/// A part of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Requests,
    /// Of the requests those packets alone that ask a silent peer.
    Probe,
    Answers,
}

impl Half {
    /// Whether the queue pair has anything for it.
    #[inline]
    fn is_wanted(self, machine: &Qp) -> bool {
        match self {
            Self::Requests | Self::Probe => machine.wants_requests(),
            Self::Answers => machine.wants_responses(),
        }
    }
}

/// Where packets go.
struct Outs<'a> {
    tx: &'a mut TxLanes,
    pacer: &'a mut Pacer,
    near: &'a mut Near,
    guests: &'a Guests,
}

/// Where the packets of a half of a turn are written.
trait Out {
    /// Space for one packet.
    fn room(&mut self) -> Room<'_>;
    /// The packet in that space is sent.
    fn push(&mut self, path: &TxPath, sent: &Transmit);
}

/// Space for a packet.
enum Room<'a> {
    Free(&'a mut [u8]),
    /// None until what there is has been sent, which the lane does next.
    Batch,
    /// None until the receiver has taken something.
    Receiver,
}

impl Out for TxBatch {
    #[inline]
    fn room(&mut self) -> Room<'_> {
        self.room().map_or(Room::Batch, Room::Free)
    }
    #[inline]
    fn push(&mut self, path: &TxPath, sent: &Transmit) {
        debug_assert!(sent.run.is_none(), "a run goes to no wire");
        self.push(path, sent.len);
    }
}

impl Out for RingOut<'_> {
    #[inline]
    fn room(&mut self) -> Room<'_> {
        self.room().map_or(Room::Receiver, Room::Free)
    }
    #[inline]
    fn push(&mut self, path: &TxPath, sent: &Transmit) {
        self.push(path, sent.len, sent.run.is_some());
    }
}

/// One queue pair's turn.
fn turn(
    machine: &mut Qp,
    host: &mut QpHost<'_>,
    outs: &mut Outs<'_>,
    halves: &[Half],
    now: Time,
) -> Turn {
    let pauses = choose_way(machine, host, outs) == Choice::Pause;
    machine.set_runs(runs(machine, host));
    let (mut did, mut lane_is_full) = (Turn::Nothing, false);
    for half in halves {
        let mut half = *half;
        if halves.len() > 1 && !half.is_wanted(machine) {
            continue;
        }
        if half == Half::Requests
            && let Some(moved) = directly(machine, host, outs.near, now)
        {
            if moved != Turn::Nothing || !machine.is_probing() {
                did = did.and(moved);
                continue;
            }
            // What it waits for may be lost: the probe that finds out leaves all the same.
            half = Half::Probe;
        }
        if half == Half::Requests && pauses {
            if !machine.is_probing() {
                continue;
            }
            half = Half::Probe;
        }
        let way = match (half, host.side.way) {
            (Half::Requests | Half::Probe, QpWay { requests: Way::Ring(id), .. }) => Some(id),
            (Half::Requests | Half::Probe, _) => None,
            (Half::Answers, QpWay { answers, .. }) => answers,
        };
        let wrote = match way.and_then(|id| outs.near.out(id, now)) {
            Some(mut ring) => {
                if machine.attr().timeout == AckTimeout::INFINITE {
                    ring.wait_for_ever();
                }
                let wrote = half_turn(half, machine, host, &mut ring, now);
                ring.finish(&host.engine.counters);
                wrote
            }
            None => {
                if half != Half::Answers {
                    machine.set_runs(None);
                }
                let lane = host.side.path.map_or(0, |path| path.lane());
                match outs.tx.of(lane) {
                    Some(tx) => half_turn(half, machine, host, tx, now),
                    None => {
                        lane_is_full = true;
                        Turn::Backpressured
                    }
                }
            }
        };
        did = did.and(wrote);
    }
    if did == Turn::Backpressured && !lane_is_full {
        host.engine.counters.near_full_turns.add(1);
    }
    did
}

/// Whether requests may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Go,
    /// When what is on its way by the link has been acknowledged.
    Pause,
}

/// Requests go through a ring as soon as there is one and none is on its way by the link. Since a
/// queue pair that always has something to send always has something on its way, it pauses for
/// that: a round trip, once. Not where a loss would then go unnoticed, or could not be repaired.
#[inline]
fn choose_way(machine: &mut Qp, host: &mut QpHost<'_>, outs: &Outs<'_>) -> Choice {
    let near = &outs.near;
    if near.is_empty() || host.side.way.requests != Way::Wire {
        return Choice::Go;
    }
    let Some(path) = &host.side.path else { return Choice::Go };
    let Some(id) = near.neighbour_of(path, machine.attr().dest_qpn) else { return Choice::Go };
    if machine.has_unacknowledged() {
        let attr = machine.attr();
        let is_repaired = attr.timeout != AckTimeout::INFINITE && attr.retry_cnt != 0;
        return if is_repaired && !machine.is_repeating() { Choice::Pause } else { Choice::Go };
    }
    tracing::debug!(qpn = %host.qp.qpn, neighbour = %id, "packets go through memory from now on");
    host.side.way.requests = Way::Ring(id);
    if host.qp.qp_type == QpType::Rc {
        host.side.tickets.connect(outs.guests.get(id).cloned());
    }
    Choice::Go
}

/// Which packets of SENDs may travel as one: through a ring, to a neighbour that copies their bytes
/// by itself.
#[inline]
fn runs(machine: &Qp, host: &QpHost<'_>) -> Option<RunLimits> {
    let guest = host.side.tickets.guest().filter(|_| host.side.way.is_ring())?;
    if guest.pulls() {
        return Some(LIMITS);
    }
    if machine.next_send_bytes() >= LIMITS.min_bytes {
        guest.want_pulls(&host.engine.memory);
    }
    None
}

/// What needs no packets; `None` if packets are next.
#[inline]
fn directly(machine: &mut Qp, host: &mut QpHost<'_>, near: &mut Near, now: Time) -> Option<Turn> {
    let (turn, bytes) = direct::turn(machine, host, now);
    near.spend(bytes as usize);
    match turn {
        DirectTurn::Packets => None,
        // The acknowledgements that it waits for make it ready again.
        DirectTurn::Wait => Some(Turn::Nothing),
        DirectTurn::More => Some(Turn::Wrote),
    }
}

#[inline]
fn half_turn(
    half: Half,
    machine: &mut Qp,
    host: &mut QpHost<'_>,
    out: &mut impl Out,
    now: Time,
) -> Turn {
    match half {
        Half::Requests => turn_of_requests(machine, host, out, now),
        Half::Probe => turn_of_probe(machine, host, out, now),
        Half::Answers => turn_of_answers(machine, host, out, now),
    }
}

/// The answers of a turn.
fn turn_of_answers(machine: &mut Qp, host: &mut QpHost<'_>, out: &mut impl Out, now: Time) -> Turn {
    let mut written = false;
    for _ in 0..TURN_PACKETS {
        let room = match out.room() {
            Room::Free(room) => room,
            Room::Batch => break,
            Room::Receiver if machine.wants_responses() => return Turn::Backpressured,
            Room::Receiver => break,
        };
        let Some(sent) = machine.poll_response(now, host, room) else { break };
        let Some(path) = &host.side.path else { break };
        out.push(path, &sent);
        written = true;
    }
    Turn::written(written)
}

/// The packets of a probe.
#[cold]
fn turn_of_probe(machine: &mut Qp, host: &mut QpHost<'_>, out: &mut impl Out, now: Time) -> Turn {
    let mut written = false;
    // A probe has two packets.
    while machine.is_probing() {
        let room = match out.room() {
            Room::Free(room) => room,
            Room::Batch => break,
            Room::Receiver => return Turn::Backpressured,
        };
        let Some(sent) = machine.poll_probe(now, host, room) else { break };
        let Some(path) = &host.side.path else { break };
        out.push(path, &sent);
        written = true;
    }
    Turn::written(written)
}

/// The requests of a turn.
fn turn_of_requests(
    machine: &mut Qp,
    host: &mut QpHost<'_>,
    out: &mut impl Out,
    now: Time,
) -> Turn {
    let mut written = false;
    let mut bytes = 0;
    for _ in 0..TURN_PACKETS {
        if bytes >= TURN_BYTES {
            break;
        }
        let room = match out.room() {
            Room::Free(room) => room,
            Room::Batch => break,
            Room::Receiver if machine.wants_requests() => return Turn::Backpressured,
            Room::Receiver => break,
        };
        let Some(sent) = machine.poll_request(now, host, room) else { break };
        // Every request of a state that sends has a path: the way to RTR set it.
        let Some(path) = &host.side.path else { break };
        out.push(path, &sent);
        bytes += sent.len + sent.run.map_or(0, |run| run.length as usize);
        written = true;
    }
    Turn::written(written)
}

/// The turn of a queue pair of an unreliable service, which has requests only: as many as their
/// receivers have room for.
fn paced_turn(machine: &mut Qp, host: &mut QpHost<'_>, outs: &mut Outs<'_>, now: Time) -> Turn {
    let mut did = Turn::Nothing;
    let mut bytes = 0;
    let mut grant: Option<Grant> = None;
    for _ in 0..TURN_PACKETS {
        if bytes >= TURN_BYTES {
            break;
        }
        let (path, dest) = match machine.next_dest() {
            Some(dest) => (host.side.slots.path(dest.ah).copied(), dest.qpn),
            None => (host.side.path, machine.attr().dest_qpn),
        };
        if let Some(path) = &path
            && machine.wants_requests()
        {
            match by_ring(machine, host, outs, path, dest, now) {
                ByRing::Sent(sent) => {
                    (did, bytes) = (Turn::Wrote, bytes + sent);
                    continue;
                }
                ByRing::Wait => {
                    did = Turn::Backpressured;
                    break;
                }
                ByRing::Not => {}
            }
        }
        let Outs { tx, pacer, .. } = outs;
        let Some(tx) = tx.of(path.map_or(0, |path| path.lane())) else {
            did = Turn::Backpressured;
            break;
        };
        let Some(room) = tx.room() else { break };
        if let Some(path) = path
            && machine.wants_requests()
            && !grant.is_some_and(|grant| grant.covers(&path))
        {
            if let Some(grant) = grant.take() {
                pacer.settle(grant);
            }
            grant = pacer.ask(&path, &host.engine.slots, &host.engine.counters, now);
            if grant.is_none() {
                did = Turn::Backpressured;
                break;
            }
        }
        let Some(sent) = machine.poll_request(now, host, room) else { break };
        // Every request of a state that sends has a path: a post or the way to RTR set it.
        let Some(path) = path else { break };
        tx.push(&path, sent.len);
        if let Some(grant) = &mut grant {
            grant.spend(sent.len);
        }
        bytes += sent.len;
        did = Turn::Wrote;
    }
    if let Some(grant) = grant {
        outs.pacer.settle(grant);
    }
    did
}

/// What became of a packet of an unreliable service.
enum ByRing {
    /// It went through memory, this many bytes, or was lost on the way.
    Sent(usize),
    /// It must wait.
    Wait,
    /// It goes by the link.
    Not,
}

/// Writes a packet of an unreliable service to a ring, if it goes to a neighbour.
#[inline]
fn by_ring(
    machine: &mut Qp,
    host: &mut QpHost<'_>,
    outs: &mut Outs<'_>,
    path: &TxPath,
    dest: Qpn,
    now: Time,
) -> ByRing {
    let Outs { pacer, near, .. } = outs;
    if near.is_empty() || host.side.way.requests == Way::Barred {
        return ByRing::Not;
    }
    let is_idle = || pacer.is_idle(path, &host.engine.slots);
    let id = match near.way_of_datagram(path, dest, now, is_idle) {
        DatagramWay::Ring(id) => id,
        DatagramWay::Wait => return ByRing::Wait,
        DatagramWay::Wire => return ByRing::Not,
    };
    let counters = &host.engine.counters;
    let Some(mut ring) = near.out(id, now) else { return ByRing::Not };
    let Some(room) = ring.room() else {
        counters.near_full_turns.add(1);
        return ByRing::Wait;
    };
    let Some(sent) = machine.poll_request(now, host, room) else { return ByRing::Sent(0) };
    ring.push(path, sent.len, false);
    ring.finish(counters);
    ByRing::Sent(sent.len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{post_writes, rc_pair, without_background};
    use crate::{Config, Context, EMPTY_WC, Route};

    fn gathered(context: &Context) -> usize {
        context.engine().with_lane(|lane| lane.tx.packets())
    }

    /// When the background thread looks next.
    #[derive(Clone, Copy)]
    enum Looks {
        ByItself,
        At(Time),
        WhenReadable,
    }

    #[test]
    fn posts_behind_many_others_gather_while_the_background_thread_looks_soon() {
        const POSTS: usize = 128;
        let context = without_background();
        let cq = context.create_cq(4096, None).unwrap();
        let [qp, _peer] = rc_pair(&context, &cq, POSTS as u32);
        let engine = context.engine();
        let plan = |looks_at: Looks| match looks_at {
            Looks::ByItself => engine.policy.forget_plan(),
            Looks::At(time) => engine.policy.plan_look(Some(time)),
            Looks::WhenReadable => engine.policy.plan_look(None),
        };
        let post = |times: usize, looks_at: Looks| -> Vec<usize> {
            let each = |_| {
                plan(looks_at);
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
        // It sleeps until a packet comes.
        assert_eq!(post(POSTS, Looks::WhenReadable), [0; POSTS]);
        drain();

        let soon = Looks::At(engine.now() + engine.patience());
        // Few in flight: each leaves at once. Then they gather until a quarter of all in flight
        // wait.
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

        // It leaves the sockets to those who poll: while somebody does.
        engine.policy.back_off();
        let post_after = |polled_at: Time| {
            engine.policy.called(polled_at);
            post(1, Looks::ByItself)
        };
        post(few, Looks::WhenReadable);
        assert_eq!(post_after(Time(0)), [0]);
        // A moment that nothing here reaches.
        assert_eq!(post_after(engine.now() + 1_000_000_000_000), [1]);
        assert_eq!(post_after(Time(0)), [0]);
        engine.policy.come_back();
    }

    #[test]
    fn a_queue_pair_that_always_has_something_to_send_goes_over_to_memory() {
        const MET: usize = 100;
        let mut config = Config::default();
        config.set("same_host", "on").unwrap();
        let context = Context::open(Some("lo"), config).unwrap();
        context.stop_background();
        let cq = context.create_cq(4096, None).unwrap();
        let [qp, _peer] = rc_pair(&context, &cq, 2048);
        // What a poll receives is acknowledged by the next one, so something is always on its way.
        for round in 0..1000 {
            if round == MET {
                context.engine().serve_neighbours();
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
