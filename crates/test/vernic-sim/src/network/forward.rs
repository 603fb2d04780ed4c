//! What is between hosts: ports, switches' buffers, and packets on their way.
//!
//! Owns all packets from when a host has sent them until they are at another host, or lost. A
//! packet that has come in whole is routed, taken into the buffer or dropped, marked or not, and
//! stands in the line of its egress port until the link is free. It leaves the buffer when its
//! sending begins; where that is at once, it never was there.
//!
//! A switch runs through a window of time at a stretch. The packets that come in during the window
//! are known when it begins, so they are taken off the links and put in order once.

use super::events::{Event, Events, NEVER};
use super::link::{Pauses, Port, Taken, Turn};
use super::packet::{Label, Packet, Parcel, Slab, wire_bytes};
use super::routes::Routes;
use super::setup::Setup;
use super::switch::{Buffer, Ecn, Ingress, Marker, Verdict};
use super::topology::Topology;
use super::units::{PICOS, Rate};
use crate::rng::Rng;

/// ECN field of packets that may be marked, and of those that are (RFC 3168).
pub(super) const CAPABLE: u8 = 2;
pub(super) const MARKED: u8 = 3;

/// Transport bytes of an acknowledgement: BTH and AETH.
const ACK: u32 = 16;
/// Bytes of the BTH, which all packets of a WRITE have. The first one's RETH is a 50th of a packet.
const HEADERS: u32 = 12;

/// Bits of a time within a window: a microsecond in picoseconds, after the usual delay of a link.
const TIME_BITS: u32 = 20;
/// Picoseconds of the longest window. The longer it is, the less often memory is fetched, but the
/// packets of a window must fit into the cache.
const LONGEST_WINDOW: u64 = 1 << TIME_BITS;
/// Bits of a port's place among the ports of its switch, of which there are at most 1025.
const INLET_BITS: u32 = 12;
/// Bits of the number of a packet that comes in during a window.
const COMING_BITS: u32 = u64::BITS - TIME_BITS - INLET_BITS;

/// How the network is built.
#[derive(Clone, Copy, Debug)]
pub(super) struct Build {
    /// Rate of a host's link, which thresholds of ECN are named for.
    pub(super) rate: Rate,
    pub(super) delay_nanos: u64,
    pub(super) mtu: u32,
    /// Bytes of a switch's buffer.
    pub(super) buffer: u64,
    pub(super) ecn: Option<Ecn>,
    pub(super) pfc: bool,
}

impl Build {
    pub(super) fn of(setup: &Setup) -> Self {
        Self {
            rate: setup.rate,
            delay_nanos: setup.delay_nanos,
            mtu: setup.mtu.bytes(),
            buffer: setup.buffer,
            ecn: setup.ecn,
            pfc: setup.pfc,
        }
    }
}

/// What became of packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) delivered: u64,
    pub(super) dropped: u64,
    pub(super) marked: u64,
    /// Packets that came in whole anywhere.
    pub(super) hops: u64,
}

/// A packet that comes into a switch during a window.
#[derive(Clone, Copy, Debug)]
struct Coming {
    packet: Parcel,
    port: u32,
}

/// The packets that come into a switch during a window, in memory that is used again.
#[derive(Debug, Default)]
struct Inbox {
    packets: Vec<Coming>,
    /// The packets in order. Each is a word: time within the window, place of the port, number.
    order: Vec<u64>,
}

/// The network between hosts.
#[derive(Debug)]
pub(super) struct Network {
    hosts: u32,
    /// Picoseconds that each link takes from end to end.
    delay: u64,
    /// Node that a port belongs to.
    nodes: Vec<u32>,
    /// Ports of each switch.
    inlets: Vec<Vec<u32>>,
    ports: Vec<Port>,
    /// What came in by each port.
    ingress: Vec<Ingress>,
    markers: Vec<Marker>,
    pauses: Vec<Pauses>,
    buffers: Vec<Buffer>,
    /// Chance of each switch's marks.
    rngs: Vec<Rng>,
    inbox: Inbox,
    routes: Routes,
    packets: Slab,
    pub(super) tally: Tally,
}

impl Network {
    /// Builds a plan.
    ///
    /// # Errors
    /// A buffer that is too small for the headroom of its switch.
    pub(super) fn new(plan: &Topology, build: &Build, mut rng: Rng) -> Result<Self, String> {
        let Build { rate, delay_nanos, mtu, buffer, ecn, pfc } = *build;
        let (mut nodes, mut ports) = (Vec::new(), Vec::new());
        let (mut ingress, mut markers) = (Vec::new(), Vec::new());
        let mut headroom = vec![0; plan.switches as usize];
        let mut inlets = vec![Vec::new(); plan.switches as usize];
        for cable in &plan.cables {
            for node in cable.ends {
                let side = Ingress::new(cable.rate, delay_nanos, mtu);
                if plan.is_switch(node) {
                    headroom[(node - plan.hosts) as usize] += side.limit();
                    inlets[(node - plan.hosts) as usize].push(ports.len() as u32);
                }
                nodes.push(node);
                ports.push(Port::new(cable.rate));
                ingress.push(side);
                markers.push(Marker::new(ecn, rate, cable.rate));
            }
        }
        let buffers = headroom.into_iter().map(|headroom| Buffer::new(buffer, headroom, pfc));
        assert!(inlets.iter().all(|ports| ports.len() < 1 << INLET_BITS));
        let salt = rng.word();
        Ok(Self {
            hosts: plan.hosts,
            delay: delay_nanos * PICOS,
            inlets,
            rngs: (0..plan.switches).map(|_| rng.fork()).collect(),
            inbox: Inbox::default(),
            pauses: vec![Pauses::default(); ports.len()],
            nodes,
            ports,
            ingress,
            markers,
            buffers: buffers.collect::<Result<_, _>>()?,
            routes: Routes::new(plan, salt),
            packets: Slab::default(),
            tally: Tally::default(),
        })
    }

    /// Nodes, hosts first.
    pub(super) fn nodes(&self) -> u32 {
        self.hosts + self.buffers.len() as u32
    }

    /// How far ahead a node knows what the others do to it, in picoseconds.
    pub(super) fn window(&self) -> u64 {
        self.delay.min(LONGEST_WINDOW)
    }

    /// Runs a switch from `begins` to before `until`.
    pub(super) fn run_switch(
        &mut self,
        node: u32,
        (begins, until): (u64, u64),
        events: &mut Events,
    ) {
        let mut inbox = std::mem::take(&mut self.inbox);
        let later = self.gather(node, (begins, until), &mut inbox);
        let mut order = inbox.order.iter().peekable();
        loop {
            let own = events.own(node);
            let arrival = order.peek().map_or(NEVER, |key| begins + (**key >> (64 - TIME_BITS)));
            if arrival.min(own) >= until {
                break;
            }
            if arrival <= own
                && let Some(key) = order.next()
            {
                let coming = inbox.packets[(key & ((1 << COMING_BITS) - 1)) as usize];
                self.forward(arrival, (node, coming), events);
                continue;
            }
            match events.take(node, own) {
                Some(Event::Free { port }) => self.free(own, port, events),
                Some(Event::Pause { port, on }) => self.pause(own, (port, on), events),
                _ => {}
            }
        }
        events.settle(node, later);
        self.inbox = inbox;
    }

    /// Takes the packets off the links that come into a switch before `until`, and orders them.
    /// Returns when the first one after that comes.
    #[inline]
    fn gather(&mut self, node: u32, (begins, until): (u64, u64), inbox: &mut Inbox) -> u64 {
        inbox.packets.clear();
        inbox.order.clear();
        let mut later = NEVER;
        for (place, port) in self.inlets[(node - self.hosts) as usize].iter().enumerate() {
            let link = &mut self.ports[*port as usize ^ 1];
            // Bounded: what a link brings in a window.
            while link.first_arrival() < until {
                let key = (link.first_arrival() - begins) << INLET_BITS | place as u64;
                let Some(packet) = link.arrive() else { break };
                inbox.order.push(key << COMING_BITS | inbox.packets.len() as u64);
                inbox.packets.push(Coming { packet, port: *port });
            }
            later = later.min(link.first_arrival());
        }
        inbox.order.sort_unstable();
        later
    }

    /// When the next packet comes to a host.
    #[inline]
    pub(super) fn first_arrival(&self, host: u32) -> u64 {
        self.ports[2 * host as usize + 1].first_arrival()
    }

    /// Packets that come to a host before `until`.
    #[inline]
    pub(super) fn arriving(&self, host: u32, until: u64) -> impl Iterator<Item = &Packet> {
        let arriving = self.ports[2 * host as usize + 1].arriving(until);
        arriving.map(|parcel| self.packets.at(parcel.place))
    }

    /// Takes the next packet that comes to a host, and what it holds.
    #[inline]
    pub(super) fn arrive(&mut self, host: u32) -> Option<(Parcel, Packet)> {
        let parcel = self.ports[2 * host as usize + 1].arrive()?;
        self.tally.hops += 1;
        self.tally.delivered += 1;
        Some((parcel, self.packets.remove(parcel.place)))
    }

    /// A packet has come into a switch.
    #[inline]
    fn forward(&mut self, now: u64, (node, coming): (u32, Coming), events: &mut Events) {
        self.tally.hops += 1;
        let Coming { packet, port } = coming;
        let out = self.routes.port(node, packet.label.to(), packet.label.hash());
        if self.ports[out as usize].is_idle(now) {
            self.transmit(now, out, packet, events);
        } else {
            self.queue(now, (port, out), packet, events);
        }
    }

    /// Takes a packet into the buffer of its switch, and into the line of its egress port.
    #[inline]
    fn queue(
        &mut self,
        now: u64,
        (came_by, out): (u32, u32),
        mut packet: Parcel,
        events: &mut Events,
    ) {
        let depth = self.ports[out as usize].depth();
        let switch = (self.nodes[out as usize] - self.hosts) as usize;
        let buffer = &mut self.buffers[switch];
        let ingress = &mut self.ingress[came_by as usize];
        let verdict = buffer.admit(ingress, packet.label.frame(), depth);
        if verdict == Verdict::Drop {
            self.tally.dropped += 1;
            if self.packets.remove(packet.place).has_tail {
                self.packets.remove_tail(packet.place);
            }
            return;
        }
        if let Verdict::Headroom { pause: true } = verdict {
            self.send_pause(now, came_by, true, events);
        }
        let marker = &self.markers[out as usize];
        if packet.label.ecn() == CAPABLE && marker.marks(depth, &mut self.rngs[switch]) {
            packet.label = packet.label.with_ecn(MARKED);
            self.tally.marked += 1;
        }
        let in_headroom = verdict != Verdict::Shared;
        self.ports[out as usize].queue(Taken { packet, came_by, in_headroom });
        // The link is busy or paused: this asks for the event of its end.
        self.pump(now, out, events);
    }

    /// Sends the next packet of a switch's line, if the link is free.
    #[inline]
    fn pump(&mut self, now: u64, out: u32, events: &mut Events) {
        let port = &mut self.ports[out as usize];
        let node = self.nodes[out as usize];
        if !port.has_line() || port.turn((node, out), now, events) == Turn::Wait {
            return;
        }
        let Some((taken, arrives)) = port.send_first(now, self.delay) else { return };
        if port.has_line() {
            // The link is busy now: this asks for the event of its end.
            port.turn((node, out), now, events);
        }
        events.note(self.nodes[out as usize ^ 1], arrives);
        let Taken { packet, came_by, in_headroom } = taken;
        let buffer = &mut self.buffers[(node - self.hosts) as usize];
        let ingress = &mut self.ingress[came_by as usize];
        if buffer.release(ingress, packet.label.frame(), in_headroom) {
            self.send_pause(now, came_by, false, events);
        }
    }

    /// Puts a packet onto a link, which is free. It arrives by the port `out ^ 1`.
    #[inline]
    fn transmit(&mut self, now: u64, out: u32, packet: Parcel, events: &mut Events) {
        let arrives = self.ports[out as usize].send(now, packet, self.delay);
        events.note(self.nodes[out as usize ^ 1], arrives);
    }

    /// Sends a PFC frame to the other end of a port.
    #[cold]
    fn send_pause(&mut self, now: u64, port: u32, on: bool, events: &mut Events) {
        let at = self.ports[port as usize].pause_leaves(now) + self.delay;
        events.push_pause(self.nodes[port as usize ^ 1], at, (port ^ 1, on));
    }

    /// A link is free.
    #[inline]
    pub(super) fn free(&mut self, now: u64, port: u32, events: &mut Events) {
        self.ports[port as usize].disarm();
        self.go_on(now, port, events);
    }

    /// A PFC frame has come.
    pub(super) fn pause(&mut self, now: u64, (port, on): (u32, bool), events: &mut Events) {
        self.ports[port as usize].set_paused(on);
        self.pauses[port as usize].note(now, on);
        if !on {
            self.go_on(now, port, events);
        }
    }

    /// A port may send again. Hosts are asked by the caller.
    #[inline]
    fn go_on(&mut self, now: u64, port: u32, events: &mut Events) {
        if self.nodes[port as usize] >= self.hosts {
            self.pump(now, port, events);
        }
    }

    /// Whether a host may send now. If its link is busy, an event will ask again.
    #[inline]
    pub(super) fn may_send(&mut self, now: u64, host: u32, events: &mut Events) -> bool {
        let port = 2 * host;
        self.ports[port as usize].turn((host, port), now, events) == Turn::Send
    }

    /// Sends a host's packet; the host has asked whether it may.
    #[inline]
    pub(super) fn send(
        &mut self,
        now: u64,
        host: u32,
        (packet, label): (Packet, Label),
        tail: &[u8],
        events: &mut Events,
    ) {
        self.tally.sent += 1;
        let place = self.packets.insert(packet);
        if packet.has_tail {
            self.packets.insert_tail(place, tail.into());
        }
        self.transmit(now, 2 * host, Parcel { place, label }, events);
    }

    /// What is behind the first bytes of the packet that has come from this place just now.
    pub(super) fn take_tail(&mut self, place: u32) -> Option<Box<[u8]>> {
        self.packets.remove_tail(place)
    }

    /// Packets between hosts.
    pub(super) fn under_way(&self) -> usize {
        self.packets.len()
    }

    /// Numbers of the switches' ports.
    pub(super) fn switch_ports(&self) -> impl Iterator<Item = u32> {
        (0..self.ports.len() as u32).filter(|port| self.nodes[*port as usize] >= self.hosts)
    }

    /// One port.
    pub(super) fn port(&self, number: u32) -> &Port {
        &self.ports[number as usize]
    }

    /// PFC at all ports.
    pub(super) fn pauses(&self) -> &[Pauses] {
        &self.pauses
    }

    /// Nodes at both ends of a port's link, its own first.
    pub(super) fn ends(&self, port: u32) -> (u32, u32) {
        (self.nodes[port as usize], self.nodes[port as usize ^ 1])
    }

    /// Bytes of the shared pools in use, and bytes in lines.
    #[cfg(test)]
    pub(super) fn bytes_held(&self) -> (u64, u64) {
        let lines = self.switch_ports().map(|port| u64::from(self.port(port).depth())).sum();
        (self.buffers.iter().map(Buffer::used).sum(), lines)
    }

    /// Picoseconds from a message's post to its acknowledgement where nothing else is sent: its
    /// last packet goes through all links behind the one before it, and the answer comes back.
    pub(super) fn ideal(&self, (from, to): (u32, u32), bytes: u64, mtu: u32) -> u64 {
        let packets = bytes.div_ceil(u64::from(mtu)).max(1);
        let last = u64::from(wire_bytes((bytes - (packets - 1) * u64::from(mtu)) as u32 + HEADERS));
        let full = u64::from(wire_bytes(mtu + HEADERS));
        let ack = u64::from(wire_bytes(ACK));
        // When the last packet but one, and the last one, have come in at the next node.
        let (mut one, mut other, mut back) = (0, 0, 0);
        let mut port = 2 * from;
        loop {
            let link = &self.ports[port as usize];
            let ahead = if port == 2 * from { packets - 1 } else { (packets - 1).min(1) };
            let sent = one + link.picos(ahead * full);
            other = other.max(sent) + link.picos(last) + self.delay;
            one = sent + self.delay;
            back += link.picos(ack) + self.delay;
            let (_, far) = self.ends(port);
            if far < self.hosts {
                return other + back;
            }
            port = self.routes.port(far, to, 0);
        }
    }
}
