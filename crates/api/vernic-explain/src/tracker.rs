//! Everything that is known while a capture is read: its streams, its connections, what belongs
//! together.
//!
//! Two streams are the directions of one connection where messages of CM say so, or where the PSN
//! of a response is one that was sent to no other queue pair, or at the end where the addresses
//! leave no choice. Datagrams name both queue pairs.

use std::collections::HashMap;
use std::net::IpAddr;

use vernic_wire::cm::CmMessage;
use vernic_wire::opcode::Role;
use vernic_wire::{Kind, NakCode, Psn, Qpn, Service};

use crate::connection::{Connection, Connections};
use crate::file::{FileReport, Frame};
use crate::frame::{self, Icrc, RocePacket};
use crate::log::{Event, Fate, Limits, What};
use crate::requests::Cause;
use crate::story::{self, Report, Totals};
use crate::stream::{LongestWait, Stream, StreamKey, View};

/// Most streams, two for each connection, that are followed; packets of further ones are counted.
pub const MAX_STREAMS: usize = 16_384;
/// Streams with a long list of events; later ones have a short one.
const WIDE_LOGS: usize = 256;
/// How often the peer of a stream is searched for by PSN.
const MAX_SEARCHES: u32 = 16;
/// Most streams of one pair of addresses that are looked at in a search.
const MAX_CANDIDATES: usize = 1024;

/// Takes frames, and tells in the end what happened.
///
/// ```
/// use vernic_explain::{Direction, Explainer, Frame};
/// let mut explainer = Explainer::new();
/// let arp = [&[0; 12][..], &[0x08, 0x06], &[0; 28]].concat();
/// let frame = Frame { time_ns: 5, direction: Direction::Unknown, link: 1, bytes: &arp };
/// explainer.take(0, &frame);
/// let report = explainer.finish(Vec::new());
/// assert_eq!((report.frames, report.packets, report.flows.len()), (1, 0, 0));
/// ```
#[derive(Debug, Default)]
pub struct Explainer {
    totals: Totals,
    streams: Vec<Stream>,
    by_key: HashMap<StreamKey, usize>,
    by_addresses: HashMap<(IpAddr, IpAddr), Vec<usize>>,
    connections: Connections,
    /// The opposite direction of each stream of a connection, and the connection.
    connected: HashMap<StreamKey, (StreamKey, usize)>,
    /// Events of all streams so far.
    events: u64,
}

impl Explainer {
    /// Makes one that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a frame of a file, which is known by a number. Frames come in the order of their
    /// times.
    pub fn take(&mut self, file: usize, frame: &Frame<'_>) {
        self.totals.frames += 1;
        self.totals.first_ns.get_or_insert(frame.time_ns);
        self.totals.last_ns = self.totals.last_ns.max(frame.time_ns);
        let time_ns = frame.time_ns;
        match frame::packets(frame, |packet| self.packet(file, packet, time_ns)) {
            Ok(count) => self.totals.frames_of_several_packets += u64::from(count > 1),
            Err(why) => *self.totals.unread.entry(why).or_default() += 1,
        }
    }

    /// Tells what happened. `files` are told with it.
    pub fn finish(mut self, files: Vec<FileReport>) -> Report {
        for stream in &mut self.streams {
            stream.end(self.events);
        }
        self.pair_what_is_left();
        story::report(files, &self.totals, &self.streams, &self.connections, |key| {
            self.connected.get(key).map(|(_, at)| *at)
        })
    }

    fn packet(&mut self, file: usize, packet: &RocePacket<'_>, time_ns: u64) {
        let totals = &mut self.totals;
        totals.packets += 1;
        totals.bytes += u64::from(packet.payload_len);
        totals.wrong_icrcs += u64::from(packet.icrc == Icrc::Wrong);
        *totals.opcodes.entry(packet.bth.opcode.0).or_default() += 1;
        if packet.bth.dest_qpn == Qpn::GSI
            && let Ok((_, message)) = CmMessage::parse(packet.payload())
        {
            if let Some(at) = self.connections.take(file, packet, &message, time_ns) {
                self.connect(at);
            }
            return;
        }
        let Some(at) = self.stream_of(file, packet, time_ns) else {
            self.totals.not_followed += 1;
            return;
        };
        self.events += 1;
        if !self.streams[at].view.is_first(file, packet.direction) {
            self.streams[at].arrive(packet, self.events);
            return;
        }
        self.streams[at].depart(packet, time_ns);
        if packet.info().role == Role::Response {
            self.search_peer(at, packet.bth.psn);
        }
        let quiet_ns = self.note_wait(at, time_ns);
        let (what, fate) = self.judge(at, packet, quiet_ns);
        self.streams[at].count(packet, time_ns);
        let psn = packet.bth.psn;
        let event = Event {
            time_ns,
            what,
            fate,
            is_marked: packet.is_marked,
            first: psn,
            last: psn,
            count: 1,
            bytes: u64::from(packet.payload_len),
        };
        let others = self.peer_of(at).map_or(0, |peer| peer.log.latest());
        self.streams[at].log.push(event, self.events, others);
    }

    fn peer_of(&self, at: usize) -> Option<&Stream> {
        self.streams.get(self.streams[at].peer?)
    }

    /// The stream of a packet, which begins with it if there is room.
    fn stream_of(&mut self, file: usize, packet: &RocePacket<'_>, time_ns: u64) -> Option<usize> {
        let key = StreamKey::of(packet);
        if let Some(at) = self.by_key.get(&key) {
            return Some(*at);
        }
        let at = self.streams.len();
        if at >= MAX_STREAMS {
            return None;
        }
        let limits = if at < WIDE_LOGS { Limits::WIDE } else { Limits::NARROW };
        let view = View::new(file, packet.direction);
        self.streams.push(Stream::new(key, packet, view, time_ns, limits));
        self.by_key.insert(key, at);
        self.by_addresses.entry((key.src, key.dst)).or_default().push(at);
        let opposite = key.reversed().or_else(|| self.connected.get(&key).map(|(peer, _)| *peer));
        if let Some(peer) = opposite.and_then(|key| self.by_key.get(&key).copied()) {
            self.pair(at, peer);
        }
        Some(at)
    }

    fn pair(&mut self, at: usize, peer: usize) {
        if at != peer {
            self.streams[at].peer = Some(peer);
            self.streams[peer].peer = Some(at);
        }
    }

    /// The queue pairs of a connection are known.
    fn connect(&mut self, at: usize) {
        let Some((of_active, of_passive)) = self.connections.all()[at].streams() else { return };
        self.connected.insert(of_active, (of_passive, at));
        self.connected.insert(of_passive, (of_active, at));
        let found = (self.by_key.get(&of_active), self.by_key.get(&of_passive));
        if let (Some(active), Some(passive)) = found {
            self.pair(*active, *passive);
        }
    }

    /// Searches the requests that a response with this PSN answers.
    fn search_peer(&mut self, at: usize, psn: Psn) {
        let Stream { key, peer, searches, .. } = &mut self.streams[at];
        if peer.is_some() || *searches >= MAX_SEARCHES {
            return;
        }
        *searches += 1;
        let opposite = (key.dst, key.src);
        let candidates = self.by_addresses.get(&opposite).map_or(&[][..], Vec::as_slice);
        let is_it = |other: &&usize| {
            let stream = &self.streams[**other];
            let is_free = **other != at && stream.peer.is_none() && stream.is_reliable();
            is_free && stream.requests.covers(psn)
        };
        let mut found = candidates.iter().take(MAX_CANDIDATES).filter(is_it);
        if let (Some(peer), None) = (found.next(), found.next()) {
            let peer = *peer;
            self.pair(at, peer);
        }
    }

    /// Pairs streams between two addresses where no others are left.
    fn pair_what_is_left(&mut self) {
        let left = |streams: &[Stream], addresses: &[usize]| -> Vec<usize> {
            let is_left =
                |at: &usize| streams[*at].peer.is_none() && streams[*at].key.src_qpn.is_none();
            addresses.iter().copied().filter(is_left).take(3).collect()
        };
        let addresses: Vec<_> = self.by_addresses.keys().copied().collect();
        for (src, dst) in addresses {
            let there = left(&self.streams, &self.by_addresses[&(src, dst)]);
            if src == dst {
                if let [one, other] = there[..] {
                    self.pair(one, other);
                }
            } else if let Some(back) = self.by_addresses.get(&(dst, src))
                && let ([one], [other]) = (&there[..], &left(&self.streams, back)[..])
            {
                let (one, other) = (*one, *other);
                self.pair(one, other);
            }
        }
    }

    /// Notes the time since the last packet of either direction, and returns it.
    fn note_wait(&mut self, at: usize, time_ns: u64) -> u64 {
        let stream = &self.streams[at];
        if stream.packets == 0 && self.peer_of(at).is_none() {
            return 0;
        }
        let peer = self.peer_of(at);
        let since = if stream.packets == 0 { 0 } else { stream.last_ns };
        let quiet_ns = time_ns.saturating_sub(since.max(peer.map_or(0, |peer| peer.last_ns)));
        if stream.longest_wait.is_none_or(|longest| longest.nanos < quiet_ns) {
            let waited_for = stream.waits_for(peer);
            let wait = LongestWait { nanos: quiet_ns, until_ns: time_ns, waited_for };
            self.streams[at].longest_wait = Some(wait);
        }
        quiet_ns
    }

    /// What a packet is, and what follows from it for its stream and the opposite one.
    fn judge(&mut self, at: usize, packet: &RocePacket<'_>, quiet_ns: u64) -> (What, Fate) {
        let info = packet.info();
        let what = What::Packet(packet.bth.opcode);
        let peer = self.streams[at].peer;
        match info.role {
            Role::Neither => {
                self.streams[at].cnps += u64::from(info.kind == Kind::Cnp);
                (what, Fate::New)
            }
            Role::Request if info.service == Service::Ud || info.service == Service::Rd => {
                (what, self.streams[at].requests.take_datagram(packet))
            }
            Role::Request => {
                let mtu = self.mtu_of(at);
                (what, self.streams[at].requests.take(packet, mtu, quiet_ns))
            }
            Role::Response => {
                let said = self.streams[at].responses.take(packet);
                if let Some(peer) = peer {
                    let requests = &mut self.streams[peer].requests;
                    requests.acknowledge(said.acknowledged);
                    match said.what {
                        What::Rnr(_) => requests.pending = Some(Cause::Rnr),
                        What::Nak(NakCode::PSN_SEQUENCE) => requests.pending = Some(Cause::Nak),
                        _ => {}
                    }
                }
                (said.what, said.fate)
            }
        }
    }

    /// The path MTU of a stream, as far as it is known.
    fn mtu_of(&self, at: usize) -> Option<u32> {
        let of_connection = || {
            let (_, connection) = self.connected.get(&self.streams[at].key)?;
            let Connection { mtu, .. } = &self.connections.all()[*connection];
            mtu.map(|mtu| mtu.bytes())
        };
        self.peer_of(at).and_then(Stream::mtu).or_else(of_connection)
    }
}
