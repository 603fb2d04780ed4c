//! The loop: windows of time, in each of which one node after the other does what it has to.
//!
//! Owns the parts and the flows. A flow is a connection that is made when it begins, a WRITE or
//! several, and the end of the connection when all are acknowledged.
//!
//! Nodes do not see what others do in the same window (see `events`), so what concerns several of
//! them is done between windows: the connections of flows that are going to begin are made before
//! a window, those of flows that have ended are taken down after it, and measures are taken then.

use vernic_wire::Mtu;

use super::algo::at_rate;
use super::end::{Terms, end_of};
use super::events::{Event, Events, NEVER};
use super::forward::{Build, Network};
use super::hosts::Hosts;
use super::load::{Load, Traffic, Wanted};
use super::measure::Measures;
use super::ring::Ring;
use super::routes::flow_hash;
use super::setup::Setup;
use super::topology::Topology;
use super::units::PICOS;
use crate::rng::Rng;

/// Bytes of a WRITE, at most: a longer flow is several.
const LONGEST_WRITE: u64 = 1 << 30;
/// WRITEs of a flow at a time.
const WRITES: u32 = 2;
/// First of the UDP source ports of RoCEv2, and how many there are (IBTA A17.3.1).
const FIRST_SOURCE_PORT: u64 = 0xC000;
const SOURCE_PORTS: u64 = 0x4000;
/// Hosts whose packets are looked at before any of them runs: what they need, some hundred lines of
/// 64 bytes, fits into the first cache.
const TOGETHER: usize = 8;
/// Bytes of a vector that is reduced, where nothing is said: 64 MB.
const VECTOR: u64 = 64_000_000;

/// A flow, by the number of its connection.
#[derive(Clone, Copy, Debug)]
struct Flow {
    wanted: Wanted,
    unposted: u64,
    /// WRITEs that are not complete.
    open: u32,
    begun: u64,
    /// Bytes placed at the last span's end.
    seen: u64,
    is_active: bool,
    /// Whether it has lasted since the last span's end.
    lasts: bool,
}

/// What became of flows. Messages of a ring count as flows.
#[derive(Clone, Debug, Default)]
pub(super) struct FlowTally {
    pub(super) begun: u64,
    pub(super) failed: u64,
    /// Why the first one failed, behind the time and the end of the connection.
    pub(super) failure: Option<(u64, u32, String)>,
    /// Bytes that were to be sent, those of flows that ended, and those that receivers have of the
    /// others.
    pub(super) wanted: u64,
    pub(super) ended: u64,
    pub(super) placed_of_open: u64,
    /// Payload that receivers have stored.
    pub(super) placed: u64,
}

/// A run.
#[derive(Debug)]
pub(super) struct World {
    now: u64,
    end: u64,
    events: Events,
    pub(super) network: Network,
    pub(super) hosts: Hosts,
    pub(super) measures: Measures,
    pub(super) topology: Topology,
    pub(super) flows: FlowTally,
    pub(super) ring: Option<Ring>,
    load: Load,
    /// When the next flow begins, and its number where the load numbers them.
    coming: Option<(u64, u32)>,
    /// When the next measures are taken.
    samples_at: u64,
    active: Vec<Flow>,
    /// Connections whose flows have ended in this window.
    over: Vec<u32>,
    mtu: Mtu,
    rng: Rng,
    /// Bytes placed by connections that have ended, and at the last span's end.
    placed: u64,
    placed_before: u64,
}

impl World {
    /// Builds a run.
    ///
    /// # Errors
    /// Values that do not go together, in words.
    pub(super) fn new(setup: &Setup) -> Result<Self, String> {
        let mut rng = Rng::new(setup.seed);
        let topology = Topology::new(setup.topology, setup.rate, setup.hosts)?;
        let build = Build::of(setup);
        let network = Network::new(&topology, &build, rng.fork())?;
        let end = setup.time_nanos * PICOS;
        // More than a link can bring in all that time.
        let endless = setup.rate.bytes_in(setup.time_nanos) + 1;
        let bytes = setup.bytes.unwrap_or(endless);
        let load = Load::new(&setup.traffic, &topology, setup.load_factor, bytes, rng.fork())?;
        let ring = match setup.traffic {
            Traffic::AllReduce => {
                Some(Ring::new(topology.senders.len(), setup.bytes.unwrap_or(VECTOR))?)
            }
            _ => None,
        };
        let measures = Measures::new(&network, end);
        let hosts = Hosts::new(topology.hosts, at_rate(setup.algorithm, setup.rate)?, setup.keep);
        let mut world = Self {
            now: 0,
            end,
            events: Events::new(topology.hosts, network.nodes()),
            samples_at: measures.interval(),
            network,
            hosts,
            measures,
            topology,
            flows: FlowTally::default(),
            ring,
            coming: None,
            load,
            active: Vec::new(),
            over: Vec::new(),
            mtu: setup.mtu,
            rng,
            placed: 0,
            placed_before: 0,
        };
        world.plan_flow(0);
        world.begin_ring();
        Ok(world)
    }

    /// Runs to the end of its time.
    pub(super) fn run(&mut self) {
        let mut begins = 0;
        while begins <= self.end {
            // Measures are taken behind all that happens at their time.
            let last = self.samples_at.min(self.end);
            let until = (begins + self.network.window()).min(last + 1);
            self.begin_flows(until);
            self.run_hosts((begins, until));
            for node in self.topology.hosts..self.network.nodes() {
                if self.events.next(node) < until {
                    self.network.run_switch(node, (begins, until), &mut self.events);
                }
            }
            self.take_down(until);
            if self.samples_at < until {
                self.sample();
            }
            let flow = self.coming.map_or(NEVER, |(at, _)| at);
            begins = self.events.first().min(flow).min(self.samples_at).max(until);
        }
        self.close();
    }

    /// Runs all hosts through a window. What some of them will need is looked at together. In a
    /// large network each of these looks is a miss of caches: so made, they wait together instead
    /// of one after the other.
    fn run_hosts(&mut self, window: (u64, u64)) {
        let hosts = self.topology.hosts;
        for first in (0..hosts).step_by(TOGETHER) {
            let some = first..hosts.min(first + TOGETHER as u32);
            let busy = |world: &Self, host: &u32| world.events.next(*host) < window.1;
            if !some.clone().any(|host| busy(self, &host)) {
                continue;
            }
            let mut seen = 0;
            for host in some.clone().filter(|host| busy(self, host)) {
                let packets = self.network.arriving(host, window.1);
                seen ^= packets.fold(0, |seen, packet| seen ^ packet.generation);
            }
            for host in some.clone().filter(|host| busy(self, host)) {
                let packets = self.network.arriving(host, window.1);
                let ends = packets.map(|packet| end_of(packet.dest_qpn()));
                for end in ends.chain(self.hosts.first_waiting(host)) {
                    seen ^= u32::from(self.hosts.end(end).foresee());
                }
            }
            std::hint::black_box(seen);
            for host in some {
                if busy(self, &host) {
                    self.run_host(host, window.1);
                }
            }
        }
    }

    /// Runs a host to before `until`.
    #[inline]
    fn run_host(&mut self, host: u32, until: u64) {
        loop {
            let (arrival, own) = (self.network.first_arrival(host), self.events.own(host));
            self.now = arrival.min(own);
            if self.now >= until {
                break;
            }
            if arrival <= own {
                self.arrive(host);
            } else if let Some(event) = self.events.take(host, own) {
                self.handle(host, event);
            }
        }
        self.events.settle(host, self.now);
    }

    #[inline]
    fn handle(&mut self, host: u32, event: Event) {
        let (now, network, events) = (self.now, &mut self.network, &mut self.events);
        match event {
            Event::Free { port } => {
                network.free(now, port, events);
                self.hosts.send(now, host, network, events);
            }
            Event::Pause { port, on } => {
                network.pause(now, (port, on), events);
                self.hosts.send(now, host, network, events);
            }
            Event::Timer { end, generation } => {
                if self.hosts.handle_timer(now, (end, generation), network, events) {
                    self.follow_up(end);
                }
            }
            Event::Flow { number } => self.post(number),
        }
    }

    /// The present, in picoseconds.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Asks the load when the flow number `number` begins.
    fn plan_flow(&mut self, number: u32) {
        self.coming = self.load.begins(number, self.now).map(|at| (at, number));
    }

    /// Makes the connections of the flows that begin before `until`.
    fn begin_flows(&mut self, until: u64) {
        while let Some((at, number)) = self.coming.filter(|(at, _)| *at < until) {
            self.now = at;
            let wanted = self.load.flow(number);
            let connection = self.connect(wanted);
            self.flows.begun += 1;
            self.flows.wanted += wanted.bytes;
            self.events.push_flow(wanted.from, at, connection);
            self.plan_flow(number + 1);
        }
    }

    #[inline]
    fn arrive(&mut self, host: u32) {
        let Some((parcel, packet)) = self.network.arrive(host) else { return };
        let (network, events) = (&mut self.network, &mut self.events);
        if let Some(end) = self.hosts.deliver(self.now, (&packet, parcel), network, events) {
            self.follow_up(end);
        }
    }

    /// Connects the hosts of a flow. Returns the number of the connection.
    fn connect(&mut self, wanted: Wanted) -> u32 {
        let Wanted { from, to, .. } = wanted;
        let word = self.rng.word();
        let source_port = (FIRST_SOURCE_PORT + word % SOURCE_PORTS) as u16;
        let psns = [(word >> 16) as u32 & 0xFF_FFFF, (word >> 40) as u32];
        let hash = flow_hash(from, to, source_port);
        let terms = Terms { mtu: self.mtu, psns, hosts: [from, to], hash };
        let number = self.hosts.connect(self.now, &terms);
        let flow = Flow {
            wanted,
            unposted: wanted.bytes,
            open: 0,
            begun: self.now,
            seen: 0,
            is_active: true,
            lasts: false,
        };
        match self.active.get_mut(number as usize) {
            Some(place) => *place = flow,
            None => self.active.push(flow),
        }
        number
    }

    /// Posts what there is room for.
    fn post(&mut self, number: u32) {
        let end = 2 * number;
        if let Some(ring) = &mut self.ring {
            for _ in 0..ring.post(number as usize, self.hosts.end(end).room()) {
                self.hosts.end_mut(end).post(ring.piece, true);
            }
        } else {
            let flow = &mut self.active[number as usize];
            while flow.unposted > 0 && flow.open < WRITES {
                let bytes = flow.unposted.min(LONGEST_WRITE);
                if !self.hosts.end_mut(end).post(bytes as u32, false) {
                    break;
                }
                flow.unposted -= bytes;
                flow.open += 1;
            }
        }
        self.hosts.settle(self.now, end, &mut self.network, &mut self.events);
    }

    /// Does what follows from what an end has told its device.
    #[inline]
    fn follow_up(&mut self, end: u32) {
        let device = &mut self.hosts.end_mut(end).device;
        if device.completed == 0 && device.received == 0 && device.failure.is_none() {
            return;
        }
        let completed = std::mem::take(&mut device.completed);
        let received = std::mem::take(&mut device.received);
        let failure = device.failure.take();
        let number = end / 2;
        if !self.active[number as usize].is_active {
            return;
        }
        if let Some(failure) = failure {
            let failure = (self.now, end, failure);
            let first = self.flows.failure.take().filter(|first| *first < failure);
            self.flows.failure = Some(first.unwrap_or(failure));
            self.flows.failed += 1;
            self.finish(number);
        } else if self.ring.is_some() {
            self.go_round(number, completed, received);
        } else {
            let flow = &mut self.active[number as usize];
            flow.open -= completed;
            if flow.unposted > 0 {
                self.post(number);
            } else if flow.open == 0 {
                self.end_flow(number);
            }
        }
    }

    /// All bytes of a flow are acknowledged.
    fn end_flow(&mut self, number: u32) {
        let Flow { wanted: Wanted { from, to, bytes }, begun, .. } = self.active[number as usize];
        let ideal = self.network.ideal((from, to), bytes, self.mtu.bytes());
        self.measures.end_flow(bytes, self.now - begun, ideal);
        self.flows.ended += bytes;
        self.finish(number);
    }

    fn finish(&mut self, number: u32) {
        self.active[number as usize].is_active = false;
        self.over.push(number);
    }

    /// Takes the connections down whose flows have ended, in the order of their numbers.
    fn take_down(&mut self, now: u64) {
        let mut over = std::mem::take(&mut self.over);
        over.sort_unstable();
        for number in over.drain(..) {
            self.placed += self.hosts.end(2 * number + 1).device.placed;
            self.hosts.disconnect(now, number);
        }
        self.over = over;
    }

    /// Connects the ring, and has each host send its first piece.
    fn begin_ring(&mut self) {
        let Some(hosts) = self.ring.as_ref().map(Ring::len) else { return };
        let members = self.topology.senders.clone();
        for (at, from) in members.iter().enumerate() {
            self.connect(Wanted { from: *from, to: members[(at + 1) % hosts], bytes: 0 });
        }
        for arc in 0..hosts {
            self.ask(arc);
        }
    }

    fn ask(&mut self, arc: usize) {
        let Some(ring) = &mut self.ring else { return };
        ring.ask(arc, self.now);
        self.flows.begun += 1;
        self.flows.wanted += u64::from(ring.piece);
        self.post(arc as u32);
    }

    /// Pieces of the ring's arc `number` were acknowledged, or received.
    fn go_round(&mut self, number: u32, completed: u32, received: u32) {
        let members = &self.topology.senders;
        let (arc, hosts) = (number as usize, members.len());
        let ends = (members[arc], members[(arc + 1) % hosts]);
        for _ in 0..completed {
            let Some(ring) = &mut self.ring else { return };
            let (Some(begun), piece) = (ring.complete(arc), u64::from(ring.piece)) else { return };
            let ideal = self.network.ideal(ends, piece, self.mtu.bytes());
            self.measures.end_flow(piece, self.now - begun, ideal);
            self.flows.ended += piece;
        }
        if completed > 0 {
            self.post(number);
        }
        for _ in 0..received {
            let Some(ring) = &mut self.ring else { return };
            let next = ring.receive(arc, self.now);
            self.ask(next);
        }
    }

    fn sample(&mut self) {
        self.now = self.samples_at;
        if self.measures.sample(&self.network) {
            let mut shares = Vec::new();
            let placed = self.placed_by_flows(&mut shares);
            self.measures.end_span(self.now, &shares, placed - self.placed_before);
            self.placed_before = placed;
        }
        self.samples_at += self.measures.interval();
    }

    /// Bytes placed so far; the shares of lasting flows since the last call.
    fn placed_by_flows(&mut self, shares: &mut Vec<u64>) -> u64 {
        let mut sum = self.placed;
        for (number, flow) in self.active.iter_mut().enumerate().filter(|(_, f)| f.is_active) {
            let placed = self.hosts.end(2 * number as u32 + 1).device.placed;
            if flow.lasts {
                shares.push(placed - flow.seen);
            }
            (flow.seen, flow.lasts) = (placed, true);
            sum += placed;
        }
        sum
    }

    /// The time is over: sums up.
    fn close(&mut self) {
        self.now = self.end;
        let before = self.placed;
        self.flows.placed = self.placed_by_flows(&mut Vec::new());
        self.flows.placed_of_open = self.flows.placed - before;
    }
}
