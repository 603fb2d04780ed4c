//! The loop: events in the order of time, each handed to the part that it is for.
//!
//! Owns the parts and the flows. A flow is a connection that is made when it begins, a WRITE or
//! several, and the end of the connection when all are acknowledged.

use vernic_wire::Mtu;

use super::algo::at_rate;
use super::end::{Terms, end_of};
use super::events::{Event, Events};
use super::forward::{Build, Network};
use super::hosts::Hosts;
use super::load::{Load, Traffic, Wanted};
use super::measure::Measures;
use super::packet::Parcel;
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
    /// Why the first one failed.
    pub(super) failure: Option<String>,
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
    active: Vec<Flow>,
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
        let build = Build {
            rate: setup.rate,
            delay_nanos: setup.delay_nanos,
            mtu: setup.mtu.bytes(),
            buffer: setup.buffer,
            ecn: setup.ecn,
            pfc: setup.pfc,
        };
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
        let hosts = Hosts::new(topology.hosts, at_rate(setup.algorithm, setup.rate), setup.keep);
        let mut world = Self {
            now: 0,
            end,
            events: Events::new(),
            network,
            hosts,
            measures,
            topology,
            flows: FlowTally::default(),
            ring,
            load,
            active: Vec::new(),
            mtu: setup.mtu,
            rng,
            placed: 0,
            placed_before: 0,
        };
        world.events.push(world.measures.interval(), Event::Sample);
        world.plan_flow(0);
        world.begin_ring();
        Ok(world)
    }

    /// Runs to the end of its time.
    pub(super) fn run(&mut self) {
        while self.events.turn() {
            self.foresee();
            while let Some((at, event)) = self.events.pop() {
                if at > self.end {
                    return self.close();
                }
                self.now = at;
                self.handle(event);
            }
        }
        self.close();
    }

    /// Looks at what the next events will need. In a large network each of these looks is a miss
    /// of all caches: made at once, they wait together instead of one after the other.
    fn foresee(&self) {
        let mut seen = 0;
        for event in self.events.due() {
            seen ^= match event {
                Event::Arrive { port, packet } => self.network.foresee(port, packet),
                Event::Free { port } => self.network.port(port).foresee(),
                _ => 0,
            };
        }
        for event in self.events.due() {
            seen ^= self.end_of(event).map_or(0, |end| u32::from(self.hosts.end(end).foresee()));
        }
        std::hint::black_box(seen);
    }

    /// The end that an event is for, as far as that is known before it is handled.
    #[inline]
    fn end_of(&self, event: Event) -> Option<u32> {
        match event {
            Event::Arrive { port, packet } => {
                self.network.coming(port, packet).map(|packet| end_of(packet.dest_qpn()))
            }
            Event::Free { port } => self.hosts.first_waiting(self.network.host_at(port)?),
            Event::Timer { end } => Some(end),
            _ => None,
        }
    }

    #[inline]
    fn handle(&mut self, event: Event) {
        let at = self.now;
        match event {
            Event::Arrive { port, packet } => self.arrive(port, packet),
            Event::Free { port } => {
                if let Some(host) = self.network.free(at, port, &mut self.events) {
                    self.hosts.send(at, host, &mut self.network, &mut self.events);
                }
            }
            Event::Pause { port, on } => {
                if let Some(host) = self.network.pause(at, (port, on), &mut self.events) {
                    self.hosts.send(at, host, &mut self.network, &mut self.events);
                }
            }
            Event::Timer { end } => {
                let (network, events) = (&mut self.network, &mut self.events);
                if self.hosts.handle_timer(at, end, network, events) {
                    self.follow_up(end);
                }
            }
            Event::Flow { number } => {
                let wanted = self.load.flow(number);
                self.begin(wanted);
                self.plan_flow(number + 1);
            }
            Event::Sample => self.sample(),
        }
    }

    /// The present, in picoseconds.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    fn plan_flow(&mut self, number: u32) {
        if let Some(at) = self.load.begins(number, self.now) {
            self.events.push(at, Event::Flow { number });
        }
    }

    #[inline]
    fn arrive(&mut self, port: u32, packet: Parcel) {
        let arrived = self.network.arrive(self.now, (port, packet), &mut self.events);
        let Some(came) = arrived else { return };
        let (network, events) = (&mut self.network, &mut self.events);
        if let Some(end) = self.hosts.deliver(self.now, (&came, packet), network, events) {
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

    fn begin(&mut self, wanted: Wanted) {
        let number = self.connect(wanted);
        self.flows.begun += 1;
        self.flows.wanted += wanted.bytes;
        self.post(number);
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
        if let Some(failure) = failure {
            self.flows.failed += 1;
            self.flows.failure.get_or_insert(failure);
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
        self.placed += self.hosts.end(2 * number + 1).device.placed;
        self.active[number as usize].is_active = false;
        self.hosts.disconnect(self.now, number);
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
        if self.measures.sample(&self.network) {
            let mut shares = Vec::new();
            let placed = self.placed_by_flows(&mut shares);
            self.measures.end_span(self.now, &shares, placed - self.placed_before);
            self.placed_before = placed;
        }
        self.events.push(self.now + self.measures.interval(), Event::Sample);
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
