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

use vernic_proto::{Qp, QpState, Time};
use vernic_wire::{Kind, Packet};

use crate::cover::{Count, Cover};
use crate::ctx::{Ctx, Trace, fail};
use crate::flow::{Flow, Recv};
use crate::memory::Memory;
use crate::net::{Air, InFlight, Link, wire_time};
use crate::order::Command;
use crate::plan::{Chaos, ConnPlan, Mutation, Plan};
use crate::ring::{Polled, Rings};
use crate::rng::Rng;
use crate::side::{SideState, SimHost};
use crate::trace::{self, Deed};
use crate::wirecheck;
use crate::xrc::QUEUES;

/// Events of one run; more mean an endless loop. The busiest seeds need a tenth of it.
const MAX_EVENTS: u64 = 20_000_000;
/// Virtual time from healing to silence: 64 messages, each after the longest RNR delay (655 ms) or
/// eight of the longest timeouts used here (67 ms), on connections one after another.
const PATIENCE: u64 = 400_000_000_000;

/// What happens next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Deliver(usize),
    ReadRing(usize, usize),
    Strike(usize),
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
    pub(crate) rings: Rings,
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
    pub(crate) air: Air,
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
            buf: vec![0; 1 << 17],
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
            Event::ReadRing(c, s) => self.read_ring(c, s),
            Event::Strike(c) => self.strike(c),
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

    // The engine's part.

    fn pump(&mut self, c: usize, s: usize) {
        self.conns[c].sides[s].st.pump_at = None;
        let burst = self.conns[c].plan.sides[s].burst;
        let mut spent = 0;
        for _ in 0..burst {
            match self.poll(c, s) {
                Some(len) => spent += wire_time(&self.conns[c].plan.link, len),
                None => {
                    if self.can_send(c, s) {
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
        let mut polled = None;
        self.choose_route(c, s);
        for is_response in [response_first, !response_first] {
            if !self.may_send(c, s, is_response) {
                continue;
            }
            polled = if is_response {
                self.with_qp(c, s, |qp, now, host| qp.poll_response(now, host, &mut buf))
                    .map(|sent| Polled::Packet(sent.len))
            } else {
                self.poll_request(c, s, &mut buf)
            };
            if let Some(polled) = polled {
                self.conns[c].sides[s].response_next = !is_response;
                match polled {
                    Polled::Packet(len) => self.transmit(c, s, &mut buf[..len], !is_response),
                    Polled::Part(part, len) => self.transmit_part(c, s, part, &buf[..len]),
                }
                break;
            }
        }
        self.buf = buf;
        polled.map(|polled| polled.len())
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
        let side = &mut conn.sides[s];
        let by_ring = if is_request { side.st.requests_by_ring } else { side.st.responses_by_ring };
        let deed = if by_ring { None } else { trace::ordered(&mut self.orders, s, &packet) };
        side.st.note_sent(&packet);
        let mut tag = crate::net::Tag::default();
        if !side.st.lenient && is_request {
            let max_reads = u32::from(conn.plan.sides[s].max_rd);
            tag = wirecheck::request(ctx, &side.st, &mut conn.flows[s], &packet, max_reads);
        } else if packet.info().kind == Kind::Cnp {
            wirecheck::notification(ctx, &mut side.st, &packet);
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
            let arrow = if by_ring { "=>" } else { "->" };
            ctx.say(format_args!("{from}{arrow}{to} {}{lost}", trace::line(&packet)));
        }
        if by_ring {
            self.write_packet(c, s, (bytes, tag), is_request);
            return;
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
        if self.conns[c].sides[s].st.timer_at != Some(self.ctx.now) {
            return; // an earlier one took its place
        }
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
        let is_idle = side.st.pump_at.is_none();
        let timer = deadline.filter(|&at| side.st.timer_at.is_none_or(|set| at < set));
        if let Some(at) = timer {
            let at = at.max(now);
            side.st.timer_at = Some(at);
            self.at_time(at, Event::Timer(c, s));
        }
        if is_idle && self.can_send(c, s) {
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
