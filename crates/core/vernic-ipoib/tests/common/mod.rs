//! A subnet of toys: interfaces, and around them a network that loses datagrams, an SA, and a CM.
//! Time is virtual.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use vernic_ipoib::{
    Address, Config, ConnectionId, Destination, Event, Forward, Interface, Received, Request,
    Source, Time, Transmit,
};
use vernic_wire::ipoib::{ConnectedData, Encapsulation, USUAL_QKEY, broadcast_group};
use vernic_wire::net::{Ipv4, Ipv6};
use vernic_wire::sa::{JoinState, McMemberRecord, MemberComponents, PathRecord, Selected};
use vernic_wire::{Gid, Lid, Mtu, Pkey, Qpn};

pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;
/// How long a datagram takes.
const FLIGHT: u64 = 10_000;
/// How long the SA and the CM take to answer.
const ANSWER: u64 = MILLISECOND;

/// What happens later.
enum Later {
    Datagram { to: usize, source: Source, bytes: Vec<u8> },
    Message { to: usize, id: ConnectionId, bytes: Vec<u8> },
    Join { node: usize, record: McMemberRecord, components: MemberComponents },
    Path { node: usize, dgid: Gid, pkey: Pkey },
    Connect { node: usize, id: ConnectionId, peer: usize, data: ConnectedData },
    Connected { node: usize, id: ConnectionId, data: Option<ConnectedData> },
    Disconnected { node: usize, id: ConnectionId },
}

/// A group as the SA has it.
pub(crate) struct SaGroup {
    pub(crate) record: McMemberRecord,
    pub(crate) members: BTreeMap<usize, JoinState>,
}

pub(crate) struct Node {
    pub(crate) interface: Interface,
    /// IP packets that came to the host.
    pub(crate) host: Vec<Vec<u8>>,
    pub(crate) events: Vec<Event>,
    /// LIDs of groups that the queue pair receives from.
    pub(crate) attached: BTreeSet<Lid>,
    pub(crate) is_cut: bool,
}

pub(crate) struct Subnet {
    pub(crate) now: Time,
    pub(crate) nodes: Vec<Node>,
    pub(crate) groups: BTreeMap<Gid, SaGroup>,
    /// Datagrams of a thousand that are lost.
    pub(crate) loss: u64,
    /// Requests to the SA for paths.
    pub(crate) path_queries: usize,
    /// Datagrams sent, by their encapsulation's type.
    pub(crate) sent: BTreeMap<u16, usize>,
    later: BTreeMap<(Time, u64), Later>,
    connections: BTreeMap<(usize, ConnectionId), (usize, ConnectionId)>,
    count: u64,
    random: u64,
    next_mlid: u16,
}

/// What differs from the usual configuration of a node.
pub(crate) type Change = fn(&mut Config);

impl Subnet {
    /// A subnet of so many nodes with addresses 10.0.0.1, fe80::1 and so on, which are all up.
    pub(crate) fn new(nodes: usize, change: Change) -> Self {
        let mut subnet = Self::without_group(nodes, change);
        let pkeys: BTreeSet<_> =
            subnet.nodes.iter().map(|node| node.interface.config().pkey.0).collect();
        for pkey in pkeys {
            subnet.create_broadcast_group(Pkey(pkey));
        }
        subnet.start();
        subnet
    }
    pub(crate) fn without_group(nodes: usize, change: Change) -> Self {
        let nodes = (0..nodes).map(|index| {
            let mut config = Config::new(gid_of(index), lid_of(index), qpn_of(index));
            change(&mut config);
            Node {
                interface: Interface::new(config),
                host: Vec::new(),
                events: Vec::new(),
                attached: BTreeSet::new(),
                is_cut: false,
            }
        });
        Self {
            now: Time(SECOND),
            nodes: nodes.collect(),
            groups: BTreeMap::new(),
            loss: 0,
            path_queries: 0,
            sent: BTreeMap::new(),
            later: BTreeMap::new(),
            connections: BTreeMap::new(),
            count: 0,
            random: 0x9E37_79B9_7F4A_7C15,
            next_mlid: 0xC000,
        }
    }
    pub(crate) fn create_broadcast_group(&mut self, pkey: Pkey) {
        let record = McMemberRecord {
            mgid: broadcast_group(pkey, Default::default()),
            pkey: pkey.to_full(),
            qkey: USUAL_QKEY,
            mtu: Selected::exactly(Mtu::B2048 as u8),
            rate: Selected::exactly(3),
            scope: 2,
            ..McMemberRecord::default()
        };
        self.create_group(record);
    }
    fn create_group(&mut self, record: McMemberRecord) {
        let record = McMemberRecord { mlid: Lid(self.next_mlid), ..record };
        self.next_mlid += 1;
        self.groups.insert(record.mgid, SaGroup { record, members: BTreeMap::new() });
    }
    pub(crate) fn start(&mut self) {
        for index in 0..self.nodes.len() {
            let addresses = [v4(index), v6(index)];
            let prefix_len = |ip: &IpAddr| if ip.is_ipv4() { 24 } else { 64 };
            let addresses = addresses.map(|ip| Address { ip, prefix_len: prefix_len(&ip) });
            self.with(index, |interface, now| {
                interface.set_addresses(&addresses);
                let (gid, lid) = (interface.config().gid, interface.config().lid);
                interface.handle_port(now, true, gid, lid);
            });
        }
        self.run_for(100 * MILLISECOND);
    }

    /// Calls an interface, and does what it wants done.
    pub(crate) fn with<T>(
        &mut self,
        index: usize,
        call: impl FnOnce(&mut Interface, Time) -> T,
    ) -> T {
        let now = self.now;
        let result = call(&mut self.nodes[index].interface, now);
        self.serve(index);
        result
    }
    /// The host of a node sends a packet.
    pub(crate) fn send(&mut self, index: usize, packet: &[u8]) -> Forward {
        let forward = self.with(index, |interface, now| interface.handle_ip(now, packet));
        if let Forward::Send(destination, encapsulation) = forward {
            let mut bytes = vec![0; Encapsulation::LEN];
            encapsulation.emit(&mut bytes);
            bytes.extend_from_slice(packet);
            self.put(index, Transmit { destination, bytes });
        }
        forward
    }
    fn serve(&mut self, index: usize) {
        while let Some(transmit) = self.nodes[index].interface.poll_transmit() {
            self.put(index, transmit);
        }
        while let Some(packet) = self.nodes[index].interface.poll_deliver() {
            self.nodes[index].host.push(packet);
        }
        while let Some(event) = self.nodes[index].interface.poll_event() {
            self.nodes[index].events.push(event);
        }
        while let Some(request) = self.nodes[index].interface.poll_request() {
            self.request(index, request);
        }
    }
    fn request(&mut self, node: usize, request: Request) {
        match request {
            Request::Join { record, components } => {
                self.after(ANSWER, Later::Join { node, record, components });
            }
            Request::Leave { record } => {
                let Some(group) = self.groups.get_mut(&record.mgid) else { return };
                assert_eq!(group.members.remove(&node), Some(record.join_state));
                let full = |state: &JoinState| state.contains(JoinState::FULL_MEMBER);
                if !group.members.values().any(full) {
                    self.groups.remove(&record.mgid);
                }
            }
            Request::Attach { mlid, .. } => {
                assert!(self.nodes[node].attached.insert(mlid), "attached twice");
            }
            Request::Detach { mlid, .. } => {
                assert!(self.nodes[node].attached.remove(&mlid), "not attached");
            }
            Request::Path { dgid, pkey } => {
                self.path_queries += 1;
                self.after(ANSWER, Later::Path { node, dgid, pkey });
            }
            Request::Connect { id, peer, private_data: data, .. } => {
                let at = |other: &Node| other.interface.address().gid == peer.gid;
                let peer = self.nodes.iter().position(at).unwrap();
                self.after(ANSWER, Later::Connect { node, id, peer, data });
            }
            Request::Disconnect { id } => {
                if let Some((other, theirs)) = self.connections.remove(&(node, id)) {
                    self.connections.remove(&(other, theirs));
                    self.after(ANSWER, Later::Disconnected { node: other, id: theirs });
                }
            }
        }
    }
    fn after(&mut self, nanos: u64, later: Later) {
        self.count += 1;
        self.later.insert((self.now + nanos, self.count), later);
    }

    fn put(&mut self, from: usize, transmit: Transmit) {
        let config = *self.nodes[from].interface.config();
        let source = Source { slid: config.lid, qpn: config.qpn };
        let bytes = transmit.bytes;
        match transmit.destination {
            Destination::Datagram { route, qpn, qkey } => {
                assert_eq!(qkey, USUAL_QKEY);
                assert!(bytes.len() <= 2048, "a datagram of {} bytes", bytes.len());
                let kind = u16::from_be_bytes([bytes[0], bytes[1]]);
                *self.sent.entry(kind).or_default() += 1;
                let is_multicast = qpn == Qpn::MULTICAST;
                assert_eq!(is_multicast, route.dlid.is_multicast());
                let receivers: Vec<_> = (0..self.nodes.len())
                    .filter(|index| {
                        let node = &self.nodes[*index];
                        let other = node.interface.config();
                        let gets_it = match is_multicast {
                            true => node.attached.contains(&route.dlid),
                            false => (other.lid, other.qpn) == (route.dlid, qpn),
                        };
                        gets_it && !node.is_cut && other.pkey.matches(config.pkey)
                    })
                    .collect();
                if is_multicast {
                    let members = |group: &SaGroup| group.members.contains_key(&from);
                    let group = self.groups.values().find(|g| g.record.mlid == route.dlid);
                    assert!(group.is_none_or(members), "sends to a group without being a member");
                }
                for to in receivers {
                    if self.nodes[from].is_cut || self.chance(self.loss) {
                        continue;
                    }
                    self.after(FLIGHT, Later::Datagram { to, source, bytes: bytes.clone() });
                }
            }
            Destination::Connection(id) => {
                let Some((to, id)) = self.connections.get(&(from, id)).copied() else { return };
                self.after(FLIGHT, Later::Message { to, id, bytes });
            }
        }
    }
    fn chance(&mut self, of_thousand: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % 1000 < of_thousand
    }

    /// Lets so much time pass.
    pub(crate) fn run_for(&mut self, nanos: u64) {
        let end = self.now + nanos;
        loop {
            let first = self.later.first_key_value().map(|((at, _), _)| *at);
            let due = self.nodes.iter().filter_map(|node| node.interface.next_deadline()).min();
            let Some(next) = first.into_iter().chain(due).min().filter(|next| *next <= end) else {
                break;
            };
            self.now = next.max(self.now);
            for index in 0..self.nodes.len() {
                if self.nodes[index].interface.next_deadline().is_some_and(|at| at <= self.now) {
                    self.with(index, Interface::handle_timeout);
                    let next = self.nodes[index].interface.next_deadline();
                    assert!(next.is_none_or(|next| next > self.now), "a deadline that stays");
                }
            }
            while let Some(entry) = self.later.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let later = entry.remove();
                self.happen(later);
            }
        }
        self.now = end;
    }
    fn happen(&mut self, later: Later) {
        match later {
            Later::Datagram { to, source, bytes } => {
                let received = self.with(to, |interface, now| {
                    match interface.handle_datagram(now, source, &bytes) {
                        Received::Deliver(packet) => Some(packet.to_vec()),
                        Received::Taken | Received::Dropped(_) => None,
                    }
                });
                self.nodes[to].host.extend(received);
            }
            Later::Message { to, id, bytes } => {
                let received =
                    self.with(to, |interface, _| match interface.handle_message(id, &bytes) {
                        Received::Deliver(packet) => Some(packet.to_vec()),
                        Received::Taken | Received::Dropped(_) => None,
                    });
                self.nodes[to].host.extend(received);
            }
            Later::Join { node, record, components } => {
                let answer = self.join(node, record, components);
                self.with(node, |interface, now| interface.handle_joined(now, record.mgid, answer));
            }
            Later::Path { node, dgid, pkey } => {
                let mut to = self.nodes.iter().map(|node| node.interface.config());
                let to = to.rfind(|config| config.gid == dgid && config.pkey.matches(pkey));
                let answer = to.map(|config| PathRecord {
                    dgid,
                    dlid: config.lid,
                    pkey,
                    mtu: Selected::exactly(Mtu::B2048 as u8),
                    ..PathRecord::default()
                });
                self.with(node, |interface, now| interface.handle_path(now, dgid, answer));
            }
            Later::Connect { node, id, peer, data } => {
                let gid = self.nodes[node].interface.config().gid;
                let answer = self
                    .with(peer, |interface, now| interface.handle_connect_request(now, gid, data));
                match answer {
                    Ok((theirs, data)) => {
                        self.connections.insert((node, id), (peer, theirs));
                        self.connections.insert((peer, theirs), (node, id));
                        self.after(ANSWER, Later::Connected { node, id, data: Some(data) });
                        let data = None;
                        self.after(2 * ANSWER, Later::Connected { node: peer, id: theirs, data });
                    }
                    Err(_) => self.after(ANSWER, Later::Disconnected { node, id }),
                }
            }
            Later::Connected { node, id, data } => {
                if self.connections.contains_key(&(node, id)) {
                    self.with(node, |interface, now| interface.handle_connected(now, id, data));
                }
            }
            Later::Disconnected { node, id } => {
                self.with(node, |interface, now| interface.handle_disconnected(now, id));
            }
        }
    }
    fn join(
        &mut self,
        node: usize,
        record: McMemberRecord,
        components: MemberComponents,
    ) -> Option<McMemberRecord> {
        if !self.groups.contains_key(&record.mgid) {
            let has_all = components.contains(MemberComponents::QKEY | MemberComponents::MTU);
            let is_full = record.join_state.contains(JoinState::FULL_MEMBER);
            (has_all && is_full).then(|| self.create_group(record))?;
        }
        let group = self.groups.get_mut(&record.mgid)?;
        let state = group.members.entry(node).or_default();
        // A full member's send-only join adds nothing here.
        *state = record.join_state;
        Some(McMemberRecord { join_state: record.join_state, ..group.record })
    }

    /// Pairs of the connections that there are, each once.
    pub(crate) fn connected(&self) -> BTreeSet<(usize, usize)> {
        let pairs = self.connections.iter().map(|((a, _), (b, _))| (*a.min(b), *a.max(b)));
        pairs.collect()
    }
    /// Takes what came to a host.
    pub(crate) fn take_host(&mut self, index: usize) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.nodes[index].host)
    }
    pub(crate) fn has_event(&self, index: usize, is_one: impl Fn(&Event) -> bool) -> bool {
        self.nodes[index].events.iter().any(is_one)
    }
    pub(crate) fn counter(&self, index: usize, name: &str) -> u64 {
        let all = self.nodes[index].interface.counters().iter();
        let found: VecDeque<_> = all.filter(|(known, _)| *known == name).collect();
        found[0].1
    }
}

pub(crate) fn gid_of(index: usize) -> Gid {
    let mut gid = [0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0xFF, 0xFE, 0, 0, 0];
    gid[14..].copy_from_slice(&(index as u16 + 1).to_be_bytes());
    Gid(gid)
}
pub(crate) fn lid_of(index: usize) -> Lid {
    Lid(index as u16 + 1)
}
pub(crate) fn qpn_of(index: usize) -> Qpn {
    Qpn::new(0x1000 + index as u32)
}
pub(crate) fn v4(index: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, index as u8 + 1])
}
pub(crate) fn v6(index: usize) -> IpAddr {
    format!("fe80::{:x}", index + 1).parse().unwrap()
}

/// An IP packet of a protocol that nobody knows, with `tag` in its payload of `len` bytes.
pub(crate) fn packet(src: IpAddr, dst: IpAddr, tag: u32, len: usize) -> Vec<u8> {
    packet_of(src, dst, 253, &[&tag.to_be_bytes()[..], &vec![7; len.saturating_sub(4)]].concat())
}
pub(crate) fn packet_of(src: IpAddr, dst: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut ip = Ipv4 {
                tos: 0,
                total_length: (Ipv4::LEN + payload.len()) as u16,
                ident: 0,
                flags_and_offset: Ipv4::DF,
                ttl: 64,
                protocol,
                checksum: 0,
                src,
                dst,
            };
            ip.checksum = ip.computed_checksum();
            let mut bytes = vec![0; Ipv4::LEN];
            ip.emit(&mut bytes);
            bytes
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut bytes = vec![0; Ipv6::LEN];
            let payload_length = payload.len() as u16;
            let next_header = protocol;
            Ipv6 {
                traffic_class: 0,
                flow_label: 0,
                payload_length,
                next_header,
                hop_limit: 64,
                src,
                dst,
            }
            .emit(&mut bytes);
            bytes
        }
        _ => panic!("two versions"),
    };
    bytes.extend_from_slice(payload);
    bytes
}
/// The tag of a packet.
pub(crate) fn tag(packet: &[u8]) -> u32 {
    let at = if packet[0] >> 4 == 4 { Ipv4::LEN } else { Ipv6::LEN };
    u32::from_be_bytes(packet[at..at + 4].try_into().unwrap())
}
