//! A program on a host: packets in both directions, and what it has joined.

use vernic_attach::data::Membership;
use vernic_attach::{Connection, PacketBatch, Packets};
use vernic_fabric::Time;
use vernic_fabric::link::SubmitError;
use vernic_fabric::subnet::{NodeId, Subnet};
use vernic_wire::{Bth, Lid, Lrh, Opcode, PortNum, VirtualLane};

use crate::connections::Connections;
use crate::known::KnownRequests;
use crate::packet::{self, pkey, transport_at};

/// How long packets wait in the receive buffer of the adapter for a program that takes nothing.
/// After that they are dropped, so that other programs of the host, and whoever sends to them, go
/// on. A program of a busy machine is held up for some ten milliseconds.
const PATIENCE_NS: u64 = 100_000_000;

/// Most joins of a program.
pub(crate) const MAX_JOINS: usize = 1024;

/// What a program has sent and got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramCounts {
    /// Packets that it has sent into the fabric.
    pub(crate) sent: u64,
    /// Packets that it got.
    pub(crate) received: u64,
    /// Packets for it that were dropped, because it took nothing for too long.
    pub(crate) not_taken: u64,
    /// Packets that it wanted to send and must not: no packet, a foreign source, management, a
    /// partition that the port is not in. Joins beyond the bound, too.
    pub(crate) refused: u64,
    /// Packets that its port did not carry: no link, no lane for the service level.
    pub(crate) discarded: u64,
}

/// A packet that the port had no room for, in the buffer with the message that it came in.
#[derive(Clone, Copy, Debug)]
struct Held {
    port: PortNum,
    at: usize,
    len: usize,
}

/// A program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) host: usize,
    pub(crate) slot: u16,
    pub(crate) counts: ProgramCounts,
    pub(crate) joins: Vec<Membership>,
    /// Ports whose news it was not told of yet, a bit each.
    pub(crate) news: [u64; 4],
    /// Whether the batch is among those that are sent next.
    pub(crate) is_dirty: bool,
    /// The connections of the program, as far as its messages tell.
    pub(crate) connections: Connections,
    batch: PacketBatch,
    blocked_since: Option<Time>,
    /// The last message, while packets of it are held.
    message: Vec<u8>,
    held: Vec<Held>,
}

/// Where packets of a program go to.
#[derive(Debug)]
pub(crate) struct Outlet<'w> {
    pub(crate) subnet: &'w mut Subnet,
    /// The program's adapter.
    pub(crate) node: NodeId,
    pub(crate) known: &'w KnownRequests,
}

/// What became of a packet for a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Offer {
    /// The program has it, or it was dropped and counted.
    Done,
    /// There is no room now.
    Wait,
}

impl Program {
    pub(crate) fn new(host: usize, slot: u16) -> Self {
        Self {
            host,
            slot,
            counts: ProgramCounts::default(),
            joins: Vec::new(),
            news: [0; 4],
            is_dirty: false,
            connections: Connections::default(),
            batch: PacketBatch::new(),
            blocked_since: None,
            message: Vec::new(),
            held: Vec::new(),
        }
    }
    /// Offers a packet that has arrived.
    pub(crate) fn offer(
        &mut self,
        socket: &Connection,
        port: PortNum,
        packet: &[u8],
        now: Time,
    ) -> Offer {
        if !self.batch.has_room(packet.len()) && !self.flush(socket, now) {
            let since = self.blocked_since.unwrap_or(now);
            if now.since(since) < PATIENCE_NS {
                return Offer::Wait;
            }
            self.counts.not_taken += 1;
            return Offer::Done;
        }
        if self.batch.push(port, packet) {
            self.counts.received += 1;
        } else {
            // Longer than any packet of a link.
            self.counts.not_taken += 1;
        }
        Offer::Done
    }
    /// Returns whether [`offer`](Self::offer) would take a packet of so many bytes, or drop it.
    pub(crate) fn would_take(&mut self, socket: &Connection, len: usize, now: Time) -> bool {
        self.batch.has_room(len)
            || self.flush(socket, now)
            || self.blocked_since.is_some_and(|since| now.since(since) >= PATIENCE_NS)
    }
    /// Sends what there is. Returns whether there was room for it. A connection that has ended
    /// takes everything: its end is noticed where it is read.
    pub(crate) fn flush(&mut self, socket: &Connection, now: Time) -> bool {
        if !self.batch.is_empty()
            && let Err(error) = socket.send(self.batch.message())
            && vernic_sys::is_for_later(&error)
        {
            self.blocked_since.get_or_insert(now);
            return false;
        }
        self.batch.clear();
        self.blocked_since = None;
        true
    }
    /// Whether the program does not take its packets.
    pub(crate) const fn is_blocked(&self) -> bool {
        self.blocked_since.is_some()
    }
    /// Whether packets of it wait for room at the port.
    pub(crate) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }
    /// Notes that a port of the adapter has changed.
    pub(crate) fn note_news(&mut self, port: PortNum) {
        self.news[usize::from(port.0 >> 6)] |= 1 << (port.0 & 63);
    }
    /// Takes a port whose news are to be told.
    pub(crate) fn take_news(&mut self) -> Option<PortNum> {
        let (at, word) = (0..).zip(&mut self.news).find(|(_, word)| **word != 0)?;
        let bit = word.trailing_zeros();
        *word &= *word - 1;
        Some(PortNum(at * 64 + bit as u8))
    }
    /// Sends the packets of a message. Those that the port has no room for are held, with all
    /// behind them of the same service level.
    pub(crate) fn submit(&mut self, outlet: &mut Outlet<'_>, message: &[u8], now: Time) {
        let Some(packets) = Packets::parse(message) else { return };
        let mut full = Full::default();
        let start = message.as_ptr() as usize;
        for (port, packet) in packets {
            if !self.submit_one(outlet, port, packet, now, &mut full) {
                let at = packet.as_ptr() as usize - start;
                self.held.push(Held { port, at, len: packet.len() });
            }
        }
        if !self.held.is_empty() {
            self.message.clear();
            self.message.extend_from_slice(message);
        }
    }
    /// Tries again to send what is held. Returns whether nothing is held any more.
    pub(crate) fn retry(&mut self, outlet: &mut Outlet<'_>, now: Time) -> bool {
        let (message, mut held) =
            (std::mem::take(&mut self.message), std::mem::take(&mut self.held));
        let mut full = Full::default();
        held.retain(|held| {
            let packet = &message[held.at..held.at + held.len];
            !self.submit_one(outlet, held.port, packet, now, &mut full)
        });
        (self.message, self.held) = (message, held);
        self.held.is_empty()
    }
    /// Sends a packet, if that is allowed now: a subnet manager may have changed the port since the
    /// packet was held. Returns whether it is done with.
    fn submit_one(
        &mut self,
        outlet: &mut Outlet<'_>,
        port: PortNum,
        packet: &[u8],
        now: Time,
        full: &mut Full,
    ) -> bool {
        let Outlet { subnet, node, .. } = outlet;
        let level = packet.get(1).map_or(0, |byte| byte >> 4);
        if full.has(port, level) {
            return false;
        }
        if !is_allowed(subnet, *node, port, packet) {
            self.counts.refused += 1;
            return true;
        }
        match subnet.submit(*node, port, packet, now) {
            Ok(()) => {
                self.counts.sent += 1;
                if let Some(mad) = packet::connection_message(packet) {
                    let asker = |from: Lid, id| outlet.known.asker((self.host, from.0), id);
                    self.connections.note_sent((self.slot, port), packet, mad, asker);
                }
            }
            Err(SubmitError::Full) => {
                full.add(port, level);
                return false;
            }
            Err(SubmitError::Discarded) => self.counts.discarded += 1,
            Err(_) => self.counts.refused += 1,
        }
        true
    }
}

/// Ports and service levels that have no room.
#[derive(Debug, Default)]
struct Full(Vec<(PortNum, u8)>);

impl Full {
    fn has(&self, port: PortNum, level: u8) -> bool {
        self.0.contains(&(port, level))
    }
    fn add(&mut self, port: PortNum, level: u8) {
        self.0.push((port, level));
    }
}

/// Whether a program may send a packet: it has headers, comes from a LID of the port, is none of
/// subnet management, and has a partition key of the port's table.
pub(crate) fn is_allowed(subnet: &Subnet, node: NodeId, port: PortNum, packet: &[u8]) -> bool {
    let Ok(lrh) = Lrh::parse(packet) else { return false };
    let Some(port) = subnet.port(node, port) else { return false };
    let is_own = port.lid.is_unicast() && lrh.slid >> port.lmc == port.lid.0 >> port.lmc;
    let is_management = VirtualLane::new(lrh.virtual_lane).is_management();
    let is_in_table = pkey(&lrh, packet).is_none_or(|pkey| port.has_pkey(pkey));
    let is_to_port = Lid(lrh.dlid) != Lid::RESERVED;
    is_own && !is_management && !is_from_smi(&lrh, packet) && is_to_port && is_in_table
}

/// Whether a datagram says that it is from queue pair 0.
fn is_from_smi(lrh: &Lrh, packet: &[u8]) -> bool {
    let at = transport_at(lrh).unwrap_or(Lrh::LEN);
    let is_datagram = [Opcode::UD_SEND_ONLY, Opcode::UD_SEND_ONLY_IMM]
        .iter()
        .any(|op| packet.get(at) == Some(&op.0));
    let source = at + Bth::LEN + 5;
    is_datagram && packet.get(source..source + 3).is_none_or(|source| source == [0; 3])
}
