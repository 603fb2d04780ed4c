//! The machine: which part a packet, an answer or the time is for.
//!
//! `send` has the host's packets, `receive` those of the link, `resolve` what is asked and answered
//! about addresses, `multicast` the groups, `connect` the connections.

mod connect;
mod multicast;
mod receive;
mod resolve;
mod send;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use vernic_wire::ipoib::HardwareAddress;
use vernic_wire::sa::McMemberRecord;
use vernic_wire::{Gid, Lid, Qkey, Qpn};

use crate::Time;
use crate::addresses::{Address, Addresses, Gateway};
use crate::config::{Config, Mode};
use crate::connections::Connections;
use crate::counters::{Counters, DropReason};
use crate::groups::Group;
use crate::link::{Link, LinkState};
use crate::neighbors::Neighbor;
use crate::output::{Destination, Event, Request, Route, Transmit};
use crate::paths::Path;
use crate::timers::Timers;
use crate::waiting::Waiting;

const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// Most messages to the host that wait to be fetched; more are dropped.
const MAX_DELIVERIES: usize = 64;

/// What is due.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Due {
    Link,
    Neighbor(IpAddr),
    Path(Gid),
    Group(Gid),
    Connection(HardwareAddress),
}

/// An interface of IP over InfiniBand. See the head of the crate.
#[derive(Debug)]
pub struct Interface {
    config: Config,
    link: Link,
    addresses: Addresses,
    /// IP groups that the host has joined.
    host_groups: BTreeSet<IpAddr>,
    neighbors: BTreeMap<IpAddr, Neighbor>,
    paths: BTreeMap<Gid, Path>,
    groups: BTreeMap<Gid, Group>,
    connections: Connections,
    waiting: Waiting,
    timers: Timers<Due>,
    // The queues that the owner empties after each call. What one call adds is bounded by the
    // tables above.
    transmits: VecDeque<Transmit>,
    deliveries: VecDeque<Vec<u8>>,
    requests: VecDeque<Request>,
    events: VecDeque<Event>,
    counters: Counters,
}

impl Interface {
    /// An interface whose port is down, without addresses. Limits of 0 count as 1.
    pub fn new(config: Config) -> Self {
        let config = Config {
            max_neighbors: config.max_neighbors.max(1),
            max_groups: config.max_groups.max(1),
            ..config
        };
        Self {
            config,
            link: Link::default(),
            addresses: Addresses::default(),
            host_groups: BTreeSet::new(),
            neighbors: BTreeMap::new(),
            paths: BTreeMap::new(),
            groups: BTreeMap::new(),
            connections: Connections::default(),
            waiting: Waiting::new(&config),
            timers: Timers::new(),
            transmits: VecDeque::new(),
            deliveries: VecDeque::new(),
            requests: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Takes the state of the port: whether it is active, and its addresses. An active port joins
    /// the broadcast group. One that goes down, or gets another GID, forgets all that it knows of
    /// others.
    pub fn handle_port(&mut self, now: Time, is_active: bool, gid: Gid, lid: Lid) {
        let is_other = gid != self.config.gid;
        let was_down = self.link.state == LinkState::Down;
        if !was_down && (!is_active || is_other) {
            self.go_down();
        }
        let moved = lid != self.config.lid;
        (self.config.gid, self.config.lid) = (gid, lid);
        if is_active && self.link.state == LinkState::Down {
            self.ask_for_link();
        } else if is_active && moved {
            self.handle_reregister(now);
        }
    }

    /// The subnet manager is another one, or has forgotten us: paths are asked for again, and
    /// others are told where we are. Memberships are the business of the owner's SA client.
    pub fn handle_reregister(&mut self, now: Time) {
        for gid in std::mem::take(&mut self.paths).into_keys() {
            self.timers.cancel(Due::Path(gid));
        }
        for ip in self.neighbors_that(|neighbor| neighbor.address().is_some()) {
            self.advance(now, ip);
        }
        self.announce_all();
    }

    fn ask_for_link(&mut self) {
        let (record, components) = self.link.ask(&self.config);
        self.requests.push_back(Request::Join { record, components });
    }

    /// Our membership in the broadcast group has these values.
    fn go_up(&mut self, record: McMemberRecord) {
        let old = self.link.group().copied();
        self.link.joined(record);
        if old.is_none_or(|old| old.mlid != record.mlid) {
            if let Some(old) = old {
                self.requests.push_back(Request::Detach { mgid: old.mgid, mlid: old.mlid });
            }
            self.requests.push_back(Request::Attach { mgid: record.mgid, mlid: record.mlid });
        }
        let values = |record: &McMemberRecord| (record.qkey, record.mtu);
        if old.is_none_or(|old| values(&old) != values(&record)) {
            let (mtu, qkey) = (self.mtu().unwrap_or_default(), record.qkey);
            self.events.push_back(Event::Up { mtu, qkey });
        }
        self.sync_groups();
        self.announce_all();
    }

    fn go_down(&mut self) {
        if let Some(group) = self.link.group().copied() {
            let (mgid, mlid) = (group.mgid, group.mlid);
            self.requests.push_back(Request::Detach { mgid, mlid });
            self.events.push_back(Event::Down);
        }
        self.link = Link::default();
        let groups = std::mem::take(&mut self.groups);
        for (mgid, mlid) in groups.iter().filter_map(|(mgid, group)| Some((mgid, group.attached?)))
        {
            self.requests.push_back(Request::Detach { mgid: *mgid, mlid });
        }
        for peer in self.connections.peers() {
            self.end_connection(peer);
        }
        for (ip, neighbor) in std::mem::take(&mut self.neighbors) {
            if neighbor.is_asked_for {
                let answer = Err(DropReason::LinkDown);
                self.events.push_back(Event::Resolved { ip, answer });
            }
        }
        self.paths.clear();
        self.timers = Timers::new();
        for _ in self.waiting.take_if(|_| true) {
            self.counters.note_drop(DropReason::LinkDown);
        }
    }

    /// Sets our addresses. Others are told of new ones, and new ones of IPv6 are listened for.
    pub fn set_addresses(&mut self, addresses: &[Address]) {
        let old = self.addresses.own().to_vec();
        self.addresses.set_own(addresses);
        self.sync_groups();
        for address in addresses.iter().filter(|address| !old.contains(address)) {
            self.announce(address.ip);
        }
    }
    /// Sets the routers of the link, by which everything is reached that is not on it.
    pub fn set_gateways(&mut self, gateways: &[Gateway]) {
        self.addresses.set_gateways(gateways);
    }

    /// The longest IP packet that the host may send; `None` while the link is down.
    pub fn mtu(&self) -> Option<u32> {
        let datagram = self.link.mtu()?;
        match (self.config.mode, self.connected_mtu()) {
            (Mode::Connected, Some(connected)) => Some(connected.max(datagram)),
            _ => Some(datagram),
        }
    }
    /// The Q_Key of the link; `None` while it is down.
    pub fn qkey(&self) -> Option<Qkey> {
        self.link.group().map(|group| group.qkey)
    }
    /// The broadcast group of the link, with the values of all groups; `None` while it is down.
    pub const fn group(&self) -> Option<&McMemberRecord> {
        self.link.group()
    }
    /// Our hardware address.
    pub const fn address(&self) -> HardwareAddress {
        self.config.address()
    }
    /// Configuration, with the port's addresses as they are now.
    pub const fn config(&self) -> &Config {
        &self.config
    }
    /// Our IP addresses.
    pub fn addresses(&self) -> &[Address] {
        self.addresses.own()
    }
    /// What has been counted.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }
    /// IP addresses whose hardware address is known, in their order.
    pub fn neighbors(&self) -> impl Iterator<Item = (IpAddr, HardwareAddress)> {
        self.neighbors.iter().filter_map(|(ip, neighbor)| Some((*ip, neighbor.address()?)))
    }

    /// The next packet to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }
    /// The next IP packet for the host that the machine has made itself.
    pub fn poll_deliver(&mut self) -> Option<Vec<u8>> {
        self.deliveries.pop_front()
    }
    /// What the owner is asked for next.
    pub fn poll_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }
    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
    /// When [`handle_timeout`](Self::handle_timeout) is to be called at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.next()
    }
    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(due) = self.timers.pop(now) {
            match due {
                Due::Link => self.ask_for_link(),
                Due::Neighbor(ip) => self.neighbor_is_due(now, ip),
                Due::Path(gid) => self.path_is_due(now, gid),
                Due::Group(mgid) => self.group_is_due(now, mgid),
                Due::Connection(peer) => self.connection_is_due(now, peer),
            }
        }
    }

    fn datagram(&self, route: Route, qpn: Qpn) -> Destination {
        Destination::Datagram { route, qpn, qkey: self.qkey().unwrap_or_default() }
    }
    fn deliver(&mut self, packet: Vec<u8>) {
        if self.deliveries.len() < MAX_DELIVERIES {
            self.deliveries.push_back(packet);
        }
    }
}
