//! The run: event queue in virtual time, and the calls into the queue pairs.
//!
//! Owns everything of a run. One event at a time is taken from the queue, in order of time and, at
//! the same time, of insertion; each ends with [`World::settle`], which plays the engine: it asks
//! the queue pair what it wants next and puts that into the queue. The run ends when the queue is
//! empty: nothing in the simulation is periodic, so a protocol that has finished falls silent.
//!
//! Bounds: [`MAX_EVENTS`] events, [`PATIENCE`] of virtual time after healing.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use vernic_proto::{Disposition, DropReason, Qp, QpState, RxMeta, Time};
use vernic_wire::{AethCode, Bth, Headers, Opcode, Packet, Psn, RnrTimer, Service};

use crate::command::Command;
use crate::cover::{Count, Cover};
use crate::ctx::{Ctx, Trace, fail};
use crate::flow::{Flow, Recv};
use crate::judge;
use crate::memory::Memory;
use crate::net::{Air, InFlight, Link, garbage, wire_time};
use crate::plan::{Chaos, ConnPlan, Mutation, Plan};
use crate::rng::Rng;
use crate::side::{Effects, SideState, SimHost};
use crate::trace::{self, Deed};
use crate::wirecheck;
use crate::xrc::{QUEUES, is_reliable};

/// Events of one run; more mean an endless loop. The busiest seeds need a tenth of it.
const MAX_EVENTS: u64 = 20_000_000;
/// Virtual time from healing to silence: 64 messages, each after the longest RNR delay (655 ms) or
/// eight of the longest timeouts used here (67 ms), on connections one after another.
const PATIENCE: u64 = 400_000_000_000;

/// What happens next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Deliver(usize),
    Pump(usize, usize),
    Timer(usize, usize),
    Post(usize, usize),
    PostRecv(usize, usize),
    PostShared(usize),
    Chaos(Chaos, usize, usize),
    EndDrain(usize, usize),
    EndSqe(usize, usize),
    TearDown(usize),
    Reconnect(usize),
    Connect(usize, usize, QpState),
    Heal,
    Command(usize, usize, usize),
}

#[derive(Debug)]
struct Entry(Time, u64, Event);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// A machine: memory and its shared receive queues.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) memory: Memory,
    /// The second is for XRC alone.
    pub(crate) srqs: [VecDeque<Recv>; QUEUES],
    pub(crate) srq_posted: u64,
    pub(crate) srq_scheduled: bool,
    /// Largest message that a connection with the shared queue can receive; 0: not used.
    pub(crate) srq_len: u32,
    /// XRC targets are here.
    pub(crate) has_xrc: bool,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) qp: Qp,
    pub(crate) st: SideState,
    pub(crate) remaining: u32,
    pub(crate) post_scheduled: bool,
    pub(crate) recv_scheduled: bool,
    pub(crate) response_next: bool,
    /// Completions whose promise about memory was checked.
    pub(crate) checked: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Up,
    Down,
    Connecting,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) plan: ConnPlan,
    pub(crate) sides: [Side; 2],
    /// `flows[s]`: what side `s` sends.
    pub(crate) flows: [Flow; 2],
    pub(crate) links: [Link; 2],
    pub(crate) incarnation: u32,
    pub(crate) phase: Phase,
    pub(crate) in_flight: u32,
    pub(crate) born_healed: bool,
}

/// A run under way.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) ctx: Ctx,
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) nodes: Vec<Node>,
    pub(crate) conns: Vec<Conn>,
    pub(crate) healed: bool,
    pub(crate) next_id: u64,
    /// A scenario posts, loses and receives by hand.
    pub(crate) manual: bool,
    pub(crate) orders: Vec<trace::Order>,
    pub(crate) commands: Vec<Command>,
    /// The shared receive queue that a scenario's next XRC post is for.
    pub(crate) next_queue: usize,
    queue: BinaryHeap<Reverse<Entry>>,
    order: u64,
    air: Air,
    buf: Vec<u8>,
}

/// The end of a run.
#[derive(Debug)]
pub struct Report {
    /// What was exercised.
    pub cover: Cover,
    /// The first violation, if there was one.
    pub violation: Option<String>,
    /// The trace, if it was asked for.
    pub trace: Vec<String>,
    /// The deliberate fault took place.
    pub mutated: bool,
}

/// Runs a plan to its end.
pub fn run(plan: Plan, trace: bool) -> Report {
    let mut world = World::new(plan, trace);
    world.run_to_silence();
    world.check_end();
    world.report()
}

impl World {
    pub(crate) fn new(plan: Plan, trace: bool) -> Self {
        let mut rng = Rng::new(plan.seed ^ 0x00C0_FFEE);
        let ctx = Ctx::new(plan.mutation, plan.fuse, trace);
        let nodes = (0..plan.nodes).map(|_| Node::new(&mut rng)).collect();
        let mut world = Self {
            ctx,
            rng,
            nodes,
            conns: Vec::new(),
            healed: false,
            next_id: plan.seed << 20,
            manual: plan.heal_at == u64::MAX,
            orders: Vec::new(),
            commands: Vec::new(),
            next_queue: 0,
            queue: BinaryHeap::new(),
            order: 0,
            air: Air::default(),
            buf: vec![0; 8192],
            plan,
        };
        world.build();
        world
    }

    pub(crate) fn at(&mut self, delay: u64, event: Event) {
        self.at_time(self.ctx.now + delay, event);
    }

    pub(crate) fn at_time(&mut self, time: Time, event: Event) {
        self.order += 1;
        self.queue.push(Reverse(Entry(time, self.order, event)));
    }

    /// Takes events until none is left, a property is violated, or patience ends.
    pub(crate) fn run_to_silence(&mut self) {
        let limit = Time(self.plan.heal_at) + PATIENCE;
        let mut events = 0;
        while self.ctx.violation.is_none() {
            let Some(Reverse(Entry(time, _, event))) = self.queue.pop() else { break };
            events += 1;
            if events > MAX_EVENTS || time > limit {
                let what = if time > limit { "no end in time" } else { "no end: endless loop" };
                fail!(self.ctx, "{what} after {events} events: {}", self.describe());
                break;
            }
            self.ctx.now = time;
            self.handle(event);
        }
        self.ctx.cover.add(Count::Events, events);
        self.ctx.cover.add(Count::VirtualMs, self.ctx.now.nanos() / 1_000_000);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Deliver(slot) => self.deliver(slot),
            Event::Pump(c, s) => self.pump(c, s),
            Event::Timer(c, s) => self.timer(c, s),
            Event::Post(c, s) => self.post_some(c, s),
            Event::PostRecv(c, s) => self.post_receives(c, s),
            Event::PostShared(node) => self.post_shared(node),
            Event::Chaos(chaos, c, s) => self.wreak(chaos, c, s),
            Event::EndDrain(c, s) => self.end_drain(c, s),
            Event::EndSqe(c, s) => self.end_sqe(c, s),
            Event::TearDown(c) => self.tear_down(c),
            Event::Reconnect(c) => self.reconnect(c),
            Event::Connect(c, s, state) => self.connect_step(c, s, state),
            Event::Heal => self.heal(),
            Event::Command(c, s, number) => self.obey(c, s, number),
        }
    }

    /// Calls into a queue pair with its host.
    pub(crate) fn with_qp<R>(
        &mut self,
        c: usize,
        s: usize,
        call: impl FnOnce(&mut Qp, Time, &mut SimHost<'_>) -> R,
    ) -> R {
        let Self { conns, nodes, ctx, .. } = self;
        let conn = &mut conns[c];
        let [first, second] = &mut conn.flows;
        let (out, inn) = if s == 0 { (first, second) } else { (second, first) };
        let side = &mut conn.sides[s];
        let node = &mut nodes[side.st.node];
        let now = ctx.now;
        let mut host = SimHost {
            memory: &mut node.memory,
            srqs: &mut node.srqs,
            st: &mut side.st,
            out,
            inn,
            ctx,
        };
        call(&mut side.qp, now, &mut host)
    }

    // The network.

    fn deliver(&mut self, slot: usize) {
        let Some(packet) = self.air.remove(slot) else { return };
        let (c, s) = (packet.conn, packet.to);
        let conn = &mut self.conns[c];
        conn.in_flight -= 1;
        if packet.incarnation == conn.incarnation {
            if self.rng.ppm(if self.healed { 0 } else { self.conns[c].plan.link.garbage }) {
                let bytes = garbage(&mut self.rng, &packet.bytes);
                self.ctx.hit(Count::Garbage);
                self.receive(c, s, &bytes, &InFlight { bytes: Vec::new(), ..packet });
            }
            self.receive(c, s, &packet.bytes, &packet);
            if self.ctx.mutates(Mutation::Replay) {
                let mut bytes = packet.bytes.clone();
                bytes[11] = bytes[11].wrapping_add(1);
                self.receive(c, s, &bytes, &packet);
            }
        }
        if packet.incarnation != self.conns[c].incarnation && self.conns[c].plan.ghosts {
            self.receive_ghost(c, s, &packet.bytes);
        }
        self.air.recycle(packet.bytes);
        self.settle(c, s);
    }

    fn receive(&mut self, c: usize, s: usize, bytes: &[u8], from: &InFlight) {
        let Ok(packet) = Packet::parse(bytes) else {
            if !self.conns[c].sides[s].st.lenient {
                fail!(self.ctx, "a packet that was sent does not parse");
            }
            return;
        };
        let service = self.conns[c].plan.service;
        let meta = RxMeta {
            grh: (service == Service::Ud).then_some([0x47; 40]),
            ecn: if self.rng.ppm(5_000) { 3 } else { 0 },
            sl: 0xA,
        };
        let is_request = packet.info().is_request();
        let conn = &mut self.conns[c];
        let orderly = conn.plan.link.duplicate == 0 && conn.plan.link.reorder == 0;
        let (st, inn) = (&mut conn.sides[s].st, &mut conn.flows[1 - s]);
        st.fx = Effects::default();
        st.recv_status = None;
        let mut seq = 0;
        st.piece = None;
        if is_request && !st.lenient {
            (st.piece, seq) = judge::expect(st, inn, &packet, &from.tag);
        }
        let rnr = rnr_timer(&packet).is_some();
        let out = &mut self.conns[c].flows[s];
        out.rnr_now = u32::from(rnr);
        out.rnr_naks += out.rnr_now;
        let disposition =
            self.with_qp(c, s, |qp, now, host| qp.handle_packet(now, &packet, &meta, host));
        self.conns[c].flows[s].rnr_now = 0;
        self.ctx.hit(Count::Packets);
        judge::count(&mut self.ctx, disposition);
        self.ctx.say(format_args!(
            "{} <- {} : {disposition:?}",
            self.conns[c].sides[s].st.label(),
            trace::line(&packet)
        ));
        if meta.ecn == 3 {
            self.notify(c, 1 - s);
        }
        let Self { conns, ctx, nodes, .. } = self;
        let conn = &mut conns[c];
        let side = &mut conn.sides[s];
        if side.st.lenient {
            return;
        }
        if is_request && is_reliable(service) {
            let memory = &nodes[side.st.node].memory;
            judge::judge_rc(
                ctx,
                &side.st,
                &mut conn.flows[1 - s],
                memory,
                &packet,
                seq,
                disposition,
            );
        } else if is_request {
            judge::judge_unreliable(
                ctx,
                &side.st,
                &mut conn.flows[1 - s],
                &packet,
                disposition,
                orderly,
            );
        } else {
            note_response(ctx, &mut conn.flows[s], &packet, disposition, orderly);
        }
        side.st.piece = None;
    }

    /// A packet of this side came to the other with a mark: a notification comes back at once.
    fn notify(&mut self, c: usize, s: usize) {
        let qpn = self.conns[c].sides[s].st.qpn;
        let mut bytes = [0; Bth::LEN + 16];
        Headers::new(Bth::new(Opcode::CNP, qpn, Psn::new(0))).emit(&mut bytes);
        let Ok(packet) = Packet::parse(&bytes) else { return };
        let meta = RxMeta { grh: None, ecn: 0, sl: 0xA };
        let disposition =
            self.with_qp(c, s, |qp, now, host| qp.handle_packet(now, &packet, &meta, host));
        self.ctx.hit(Count::Notified);
        if disposition != Disposition::Drop(DropReason::Cnp) {
            fail!(self.ctx, "{disposition:?} of a congestion notification");
        }
        if self.conns[c].plan.sides[s].erratic.is_some() {
            self.settle(c, s);
        }
    }

    /// A packet of an earlier connection between the same numbers: it may cost time, nothing else.
    fn receive_ghost(&mut self, c: usize, s: usize, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else { return };
        let conn = &mut self.conns[c];
        conn.flows.iter_mut().for_each(Flow::disturb);
        let st = &mut conn.sides[s].st;
        (st.fx, st.piece) = (Effects::default(), None);
        let received = st.recvs_done;
        let meta = RxMeta { grh: None, ecn: 0, sl: 0xA };
        let disposition =
            self.with_qp(c, s, |qp, now, host| qp.handle_packet(now, &packet, &meta, host));
        self.ctx.hit(Count::Ghosts);
        // A completion that comes now anyway is checked as any other.
        let st = &self.conns[c].sides[s].st;
        let changed = st.fx != Effects::default() || received != st.recvs_done;
        let taken = matches!(disposition, Disposition::Accepted | Disposition::Rnr);
        if (changed || taken) && !st.lenient {
            fail!(self.ctx, "{} {disposition:?} {packet} of an earlier connection", st.label());
        }
    }

    // The engine's part.

    fn pump(&mut self, c: usize, s: usize) {
        self.conns[c].sides[s].st.pump_at = None;
        let burst = self.conns[c].plan.sides[s].burst;
        let mut spent = 0;
        for _ in 0..burst {
            match self.poll(c, s) {
                Some(len) => spent += wire_time(&self.conns[c].plan.link, len),
                None => {
                    if self.conns[c].sides[s].qp.wants_transmit() {
                        fail!(
                            self.ctx,
                            "{} wants to transmit and does not",
                            self.conns[c].sides[s].st.label()
                        );
                    }
                    break;
                }
            }
            if self.ctx.violation.is_some() {
                return;
            }
        }
        self.check_flushed(c, s);
        self.settle_after(c, s, spent);
    }

    /// Polls one packet and sends it. Responses and requests take turns where both wait: with
    /// absolute priority a peer that reads without pause would starve this side's requests.
    fn poll(&mut self, c: usize, s: usize) -> Option<usize> {
        let mut buf = std::mem::take(&mut self.buf);
        let response_first = self.conns[c].sides[s].response_next;
        let mut sent = None;
        for is_response in [response_first, !response_first] {
            sent = self.with_qp(c, s, |qp, now, host| {
                if is_response {
                    qp.poll_response(now, host, &mut buf)
                } else {
                    qp.poll_request(now, host, &mut buf)
                }
            });
            if let Some(sent) = sent {
                self.conns[c].sides[s].response_next = !is_response;
                self.transmit(c, s, &mut buf[..sent.len], !is_response);
                break;
            }
        }
        self.buf = buf;
        sent.map(|sent| sent.len)
    }

    fn transmit(&mut self, c: usize, s: usize, bytes: &mut [u8], is_request: bool) {
        let Ok(packet) = Packet::parse(bytes) else {
            fail!(
                self.ctx,
                "{} sent bytes that are no packet: {:02x?}",
                self.conns[c].sides[s].st.label(),
                &bytes[..bytes.len().min(64)]
            );
            return;
        };
        let Self { conns, ctx, .. } = self;
        let conn = &mut conns[c];
        let (side, deed) = (&mut conn.sides[s], trace::ordered(&mut self.orders, s, &packet));
        side.st.note_sent(&packet);
        let mut tag = crate::net::Tag::default();
        if !side.st.lenient && is_request {
            let max_reads = u32::from(conn.plan.sides[s].max_rd);
            tag = wirecheck::request(ctx, &side.st, &mut conn.flows[s], &packet, max_reads);
        } else if !side.st.lenient {
            let memory = &self.nodes[side.st.node].memory;
            wirecheck::response(ctx, &side.st, &mut conn.flows[1 - s], memory, &packet);
        }
        if ctx.is_tracing() {
            let lost = match deed {
                Some(Deed::Lose) => " LOST",
                Some(Deed::Duplicate(_)) => " TWICE",
                None => "",
            };
            let (from, to) = (conn.sides[s].st.label(), conn.sides[1 - s].st.label());
            ctx.say(format_args!("{from}->{to} {}{lost}", trace::line(&packet)));
        }
        let flow = if is_request { &mut conn.flows[s] } else { &mut conn.flows[1 - s] };
        let dead = self.plan.mutation == Mutation::DeadNetwork;
        if deed == Some(Deed::Lose) || dead {
            flow.disturb();
            return;
        }
        let mut fate = conn.links[s].fate(ctx, &mut self.rng, &conn.plan.link, self.healed, bytes);
        if let Some(Deed::Duplicate(later)) = deed {
            fate.disturbed = true;
            fate.arrivals[1] = fate.arrivals[0].map(|at| at + later);
        }
        if fate.disturbed {
            flow.disturb();
        }
        conn.in_flight += fate.arrivals.iter().flatten().count() as u32;
        let incarnation = conn.incarnation;
        for arrival in fate.arrivals.into_iter().flatten() {
            let bytes = self.air.buffer(bytes);
            let slot = self.air.insert(InFlight { bytes, conn: c, to: 1 - s, incarnation, tag });
            self.at_time(arrival, Event::Deliver(slot));
        }
    }

    fn timer(&mut self, c: usize, s: usize) {
        self.conns[c].sides[s].st.timer_at = None;
        if self.conns[c].sides[s].qp.next_deadline().is_some_and(|at| at <= self.ctx.now) {
            self.with_qp(c, s, |qp, now, host| qp.handle_timeout(now, host));
            if self.conns[c].sides[s].qp.next_deadline().is_some_and(|at| at <= self.ctx.now) {
                fail!(
                    self.ctx,
                    "{} has a deadline in the past after its timeout",
                    self.conns[c].sides[s].st.label()
                );
            }
        }
        self.settle(c, s);
    }

    /// After any call: asks the queue pair and the application what they want next.
    pub(crate) fn settle(&mut self, c: usize, s: usize) {
        self.settle_after(c, s, 0);
    }

    fn settle_after(&mut self, c: usize, s: usize, busy: u64) {
        let now = self.ctx.now;
        let tx_delay = self.conns[c].plan.sides[s].tx_delay;
        let side = &mut self.conns[c].sides[s];
        let deadline = side.qp.next_deadline();
        let wants = side.qp.wants_transmit() && side.st.pump_at.is_none();
        let timer = deadline.filter(|&at| side.st.timer_at.is_none_or(|set| at < set));
        if let Some(at) = timer {
            let at = at.max(now);
            side.st.timer_at = Some(at);
            self.at_time(at, Event::Timer(c, s));
        }
        if wants {
            let at = now + busy + self.rng.below(tx_delay + 1);
            self.conns[c].sides[s].st.pump_at = Some(at);
            self.at_time(at, Event::Pump(c, s));
        }
        self.check_done(c, s);
        self.check_state(c, s);
        if !self.manual {
            self.schedule_application(c, s);
        }
    }

    pub(crate) fn report(self) -> Report {
        let trace = match self.ctx.trace {
            Trace::Off => Vec::new(),
            Trace::Lines(lines) => lines,
        };
        Report {
            cover: self.ctx.cover,
            violation: self.ctx.violation,
            trace,
            mutated: self.ctx.mutated,
        }
    }
}

/// The delay that an RNR NAK asks for.
fn rnr_timer(packet: &Packet<'_>) -> Option<RnrTimer> {
    match packet.aeth()?.syndrome.decode() {
        AethCode::RnrNak(timer) => Some(timer),
        _ => None,
    }
}

/// What a response tells the oracle's own books.
fn note_response(
    ctx: &mut Ctx,
    out: &mut Flow,
    packet: &Packet<'_>,
    disposition: Disposition,
    orderly: bool,
) {
    if let Disposition::Drop(reason) = disposition
        && reason == vernic_proto::DropReason::BadState
    {
        out.disturb();
    }
    let seq = out.extend(packet.psn(), out.high);
    // A NAK says that everything before its number has arrived, others include it.
    let nak =
        packet.aeth().is_some_and(|aeth| !matches!(aeth.syndrome.decode(), AethCode::Ack { .. }));
    let reached = seq.map_or(0, |seq| seq + u64::from(!nak));
    out.acked = out.acked.max(reached.min(out.high));
    let Some(timer) = rnr_timer(packet) else {
        // An answer to the request that was not ready: a copy of it was taken after all.
        if disposition == Disposition::Accepted && seq.is_some_and(|seq| seq >= out.rnr_seq) {
            out.rnr_until = Time(0);
        }
        return;
    };
    // With an answer missing before it, it also reports that loss, which is repaired at once.
    let Some(upto) = seq.and_then(|seq| out.holding(seq)) else { return };
    let answers_missing = out.next_done < upto
        && out.msgs[out.next_done..upto]
            .iter()
            .any(|msg| !msg.is_local() && !msg.is_send() && !msg.is_write());
    if orderly
        && disposition == Disposition::Accepted
        && out.rnr_until <= ctx.now
        && !answers_missing
    {
        out.rnr_until = ctx.now + timer.nanos();
        out.rnr_seq = seq.unwrap_or(0);
    }
}
