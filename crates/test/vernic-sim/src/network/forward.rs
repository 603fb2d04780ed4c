//! What is between hosts: ports, switches' buffers, and packets on their way.
//!
//! Owns all packets from when a host has sent them until they are at another host, or lost. A
//! packet that has come in whole is routed, taken into the buffer or dropped, marked or not, and
//! stands in the line of its egress port until the link is free. It leaves the buffer when its
//! sending begins; where that is at once, it never was there.

use super::events::{Event, Events};
use super::link::{Pauses, Port, Taken, Turn};
use super::packet::{Label, Packet, Parcel, Slab, wire_bytes};
use super::routes::Routes;
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

/// The network between hosts.
#[derive(Debug)]
pub(super) struct Network {
    hosts: u32,
    /// Picoseconds that each link takes from end to end.
    delay: u64,
    /// Node that a port belongs to.
    nodes: Vec<u32>,
    ports: Vec<Port>,
    /// What came in by each port.
    ingress: Vec<Ingress>,
    markers: Vec<Marker>,
    pauses: Vec<Pauses>,
    buffers: Vec<Buffer>,
    routes: Routes,
    packets: Slab,
    rng: Rng,
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
        for cable in &plan.cables {
            for node in cable.ends {
                let side = Ingress::new(cable.rate, delay_nanos, mtu);
                if plan.is_switch(node) {
                    headroom[(node - plan.hosts) as usize] += side.limit();
                }
                nodes.push(node);
                ports.push(Port::new(cable.rate));
                ingress.push(side);
                markers.push(Marker::new(ecn, rate, cable.rate));
            }
        }
        let buffers = headroom.into_iter().map(|headroom| Buffer::new(buffer, headroom, pfc));
        Ok(Self {
            hosts: plan.hosts,
            delay: delay_nanos * PICOS,
            pauses: vec![Pauses::default(); ports.len()],
            nodes,
            ports,
            ingress,
            markers,
            buffers: buffers.collect::<Result<_, _>>()?,
            routes: Routes::new(plan, rng.word()),
            packets: Slab::default(),
            rng,
            tally: Tally::default(),
        })
    }

    /// Looks at what [`arrive`](Self::arrive) will need.
    #[inline]
    pub(super) fn foresee(&self, port: u32, packet: Parcel) -> u32 {
        let node = self.nodes[port as usize];
        if node < self.hosts {
            return self.packets.at(packet.place).generation;
        }
        let out = self.routes.port(node, packet.label.to(), packet.label.hash());
        self.ports[out as usize].foresee() ^ u32::from(self.ingress[port as usize].is_pausing())
    }

    /// The host that has a port.
    #[inline]
    pub(super) fn host_at(&self, port: u32) -> Option<u32> {
        Some(self.nodes[port as usize]).filter(|node| *node < self.hosts)
    }

    /// The packet that is about to come in by a host's port.
    #[inline]
    pub(super) fn coming(&self, port: u32, packet: Parcel) -> Option<&Packet> {
        self.host_at(port).map(|_| self.packets.at(packet.place))
    }

    /// A packet has come in by a port. Returns what it holds if that is a host's.
    #[inline]
    pub(super) fn arrive(
        &mut self,
        now: u64,
        (port, packet): (u32, Parcel),
        events: &mut Events,
    ) -> Option<Packet> {
        self.tally.hops += 1;
        let node = self.nodes[port as usize];
        if node < self.hosts {
            self.tally.delivered += 1;
            return Some(self.packets.remove(packet.place));
        }
        let out = self.routes.port(node, packet.label.to(), packet.label.hash());
        if self.ports[out as usize].is_idle(now) {
            self.transmit(now, out, packet, events);
        } else {
            self.queue(now, (port, out), packet, events);
        }
        None
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
        let buffer = &mut self.buffers[(self.nodes[out as usize] - self.hosts) as usize];
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
        if packet.label.ecn() == CAPABLE && marker.marks(depth, &mut self.rng) {
            packet.label = packet.label.with_ecn(MARKED);
            self.tally.marked += 1;
        }
        let in_headroom = verdict != Verdict::Shared;
        self.ports[out as usize].queue(Taken { packet, came_by, in_headroom });
        // The link is busy or paused: this asks for the event of its end.
        self.pump(now, out, events);
    }

    /// Sends the next packet of a line, if the link is free.
    #[inline]
    fn pump(&mut self, now: u64, out: u32, events: &mut Events) {
        let port = &mut self.ports[out as usize];
        if !port.has_line() || port.turn(out, now, events) == Turn::Wait {
            return;
        }
        let Some(Taken { packet, came_by, in_headroom }) = port.take() else { return };
        self.transmit(now, out, packet, events);
        let port = &mut self.ports[out as usize];
        if port.has_line() {
            // The link is busy now: this asks for the event of its end.
            port.turn(out, now, events);
        }
        let buffer = &mut self.buffers[(self.nodes[out as usize] - self.hosts) as usize];
        let ingress = &mut self.ingress[came_by as usize];
        if buffer.release(ingress, packet.label.frame(), in_headroom) {
            self.send_pause(now, came_by, false, events);
        }
    }

    /// Puts a packet onto a link, which is free. It arrives by the port `out ^ 1`.
    #[inline]
    fn transmit(&mut self, now: u64, out: u32, packet: Parcel, events: &mut Events) {
        let sent = self.ports[out as usize].send(now, packet);
        events.push(sent + self.delay, Event::Arrive { port: out ^ 1, packet });
    }

    /// Sends a PFC frame to the other end of a port.
    #[cold]
    fn send_pause(&mut self, now: u64, port: u32, on: bool, events: &mut Events) {
        let at = self.ports[port as usize].pause_leaves(now) + self.delay;
        events.push(at, Event::Pause { port: port ^ 1, on });
    }

    /// A link is free. Returns the host whose it is.
    #[inline]
    pub(super) fn free(&mut self, now: u64, port: u32, events: &mut Events) -> Option<u32> {
        self.ports[port as usize].disarm();
        self.go_on(now, port, events)
    }

    /// A PFC frame has come. Returns the host that may have something to send now.
    pub(super) fn pause(
        &mut self,
        now: u64,
        (port, on): (u32, bool),
        events: &mut Events,
    ) -> Option<u32> {
        self.ports[port as usize].set_paused(on);
        self.pauses[port as usize].note(now, on);
        if on { None } else { self.go_on(now, port, events) }
    }

    #[inline]
    fn go_on(&mut self, now: u64, port: u32, events: &mut Events) -> Option<u32> {
        let host = self.host_at(port);
        if host.is_none() {
            self.pump(now, port, events);
        }
        host
    }

    /// Whether a host may send by its port now. If its link is busy, an event will ask again.
    #[inline]
    pub(super) fn may_send(&mut self, now: u64, port: u32, events: &mut Events) -> bool {
        self.ports[port as usize].turn(port, now, events) == Turn::Send
    }

    /// Sends a host's packet; the host has asked whether it may.
    #[inline]
    pub(super) fn send(
        &mut self,
        now: u64,
        port: u32,
        (packet, label): (Packet, Label),
        tail: &[u8],
        events: &mut Events,
    ) {
        self.tally.sent += 1;
        let place = self.packets.insert(packet);
        if packet.has_tail {
            self.packets.insert_tail(place, tail.into());
        }
        self.transmit(now, port, Parcel { place, label }, events);
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
