//! A small subnet manager with its subnet administration (IBTA chapters 14 and 15).
//!
//! Owns what a subnet needs to carry packets: it sweeps by directed routes, gives LIDs, writes
//! forwarding tables, brings links up, and answers who wants a path, a group or a record. It is a
//! client of a port as any program that manages a subnet: datagrams go and come through the agents
//! of the port ([`vernic_proto::mad`]), which repeat and cut them. It has no clock.
//!
//! The owner registers [`Manager::registrations`], says that a manager is at the port
//! ([`PortInfo::CAPABILITY_SM`](vernic_wire::smp::PortInfo::CAPABILITY_SM)), hands over what the
//! agents deliver, and sends what [`Manager::poll_transmit`] returns.
//!
//! | module | owns |
//! |---|---|
//! | `map` | what is known of the subnet |
//! | `ask` | requests under way |
//! | `sweep` | the phases of a sweep, and what each writes |
//! | `routing` | forwarding tables |
//! | `partitions`, `lanes` | who may talk to whom, on which service levels |
//! | `peers` | other managers: priorities and states |
//! | `admin`, `paths`, `query` | answers of subnet administration |
//! | `members`, `services`, `notices` | groups, services, subscriptions to notices |
//!
//! # What it does not do
//!
//! Lanes of high priority, keys of managers, records of links, switches and tables. OpenSM
//! does. Both can be in a subnet: the one with the higher priority manages it.

mod admin;
mod ask;
mod lanes;
mod map;
mod members;
mod notices;
mod partitions;
mod paths;
mod peers;
mod query;
mod routing;
mod services;
mod sweep;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use vernic_proto::mad::{Delivery, MadAddress, Outcome, Registration};
use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::smp::{Change, MulticastForwardingTable, Notice, SmAttribute, Smp, TrapNumber};
use vernic_wire::{Guid, Lid, Qkey, Qpn, sa, smp};

use self::ask::{Asks, Purpose};
use self::map::{End, Map};
use self::members::Members;
use self::notices::Notices;
use self::partitions::Partitions;
use self::peers::Peer;
use self::services::Services;
use self::sweep::Phase;
use crate::Time;

pub use partitions::{BadPartition, Partition};
pub use routing::Routing;

/// What the owner decides about a manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManagerConfig {
    /// GUID of the port that the manager is at.
    pub guid: Guid,
    /// Priority, 0 to 15: the highest of all managers becomes the master.
    pub priority: u8,
    /// How packets are led.
    pub routing: Routing,
    /// Ports of adapters have 2 to the power of this LIDs, 0 to 7, each with a way of its own where
    /// there are several.
    pub lmc: u8,
    /// The first half of the subnet's GIDs.
    pub prefix: u64,
    /// The key that nodes want from a manager, or 0 for none.
    pub m_key: u64,
    /// Requests under way at most: agents have little room.
    pub window: usize,
    /// Milliseconds until a request is sent again.
    pub timeout_ms: u32,
    /// How often a request is sent again.
    pub retries: u32,
    /// Nanoseconds between two looks at switches.
    pub look_ns: u64,
    /// Nanoseconds between two looks at the master, of a manager that is not.
    pub poll_ns: u64,
    /// Nanoseconds from a trap to the sweep, in which others may come.
    pub settle_ns: u64,
}

impl ManagerConfig {
    /// The usual values for a manager at a port: a priority of 0, and looks every 10 s.
    pub const fn new(guid: Guid) -> Self {
        Self {
            guid,
            priority: 0,
            routing: Routing::MinHop,
            lmc: 0,
            prefix: 0xFE80_0000_0000_0000,
            m_key: 0,
            window: 8,
            timeout_ms: 200,
            retries: 3,
            look_ns: 10_000_000_000,
            poll_ns: 1_000_000_000,
            settle_ns: 10_000_000,
        }
    }
}

/// What a manager is (IBTA 14.4.1), as the codes of SMInfo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SmState {
    /// Told by another manager to do nothing.
    NotActive = 0,
    /// Learns what is there, and whether there is a master.
    Discovering = 1,
    /// Watches the master.
    Standby = 2,
    /// Manages the subnet.
    Master = 3,
}

/// Which registration a datagram is of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Via {
    /// Subnet management by LID.
    Lid,
    /// Subnet management by directed routes.
    Directed,
    /// Subnet administration.
    Admin,
}

/// A datagram, or a message that the agents cut, to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// The registration that sends it.
    pub via: Via,
    /// Where it goes.
    pub address: MadAddress,
    /// All headers of its class, and the data.
    pub mad: Vec<u8>,
    /// Milliseconds until it is sent again without an answer; 0 if none is expected.
    pub timeout_ms: u32,
    /// How often it is sent again.
    pub retries: u32,
}

/// What can be seen of a manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManagerView {
    /// What the manager is.
    pub state: SmState,
    /// Sweeps that are complete.
    pub sweeps: u64,
    /// When the subnet was first up.
    pub up_since: Option<Time>,
    /// Whether a sweep is under way, or wanted.
    pub is_busy: bool,
    /// Switches of the last complete sweep.
    pub switches: usize,
    /// Ports of adapters of the last complete sweep.
    pub adapter_ports: usize,
    /// Requests of subnet management sent, repeats not counted.
    pub requests: u64,
    /// Requests of the last sweep without an answer.
    pub unanswered: u64,
    /// Groups that there are.
    pub groups: usize,
}

/// A subnet manager. See the head of the module.
#[derive(Debug)]
pub struct Manager {
    config: ManagerConfig,
    state: SmState,
    phase: Phase,
    asks: Asks,
    out: VecDeque<Outgoing>,
    /// What the sweep under way has learnt.
    map: Map,
    /// What the last complete one has.
    subnet: Map,
    /// LIDs that were given, by port GUID.
    lids: BTreeMap<Guid, Lid>,
    /// LIDs of the sweep under way.
    wanted_lids: BTreeMap<End, Lid>,
    /// Linear tables as they were written, by node GUID.
    written: BTreeMap<Guid, Vec<u8>>,
    /// Blocks of multicast tables as they were written: node, block and position.
    written_groups: BTreeMap<(Guid, usize, usize), [u16; MulticastForwardingTable::ENTRIES]>,
    /// Ports that were asked to register anew.
    reregistered: BTreeSet<Guid>,
    peers: Vec<Peer>,
    /// The way to the master, while this manager is not.
    master: Vec<u8>,
    /// Requests to the master without an answer.
    silent: u32,
    sweep_wanted: Option<Time>,
    /// When switches, or the master, are looked at next.
    look_at: Option<Time>,
    sweeps: u64,
    up_since: Option<Time>,
    unanswered: u64,
    last_own_id: u32,
    members: Members,
    services: Services,
    notices: Notices,
    partitions: Partitions,
    /// Data lanes of ports whose tables of lanes are written, by node GUID and port.
    lanes_written: BTreeMap<(Guid, u8), u8>,
}

impl Manager {
    /// Makes a manager, which begins to sweep at once.
    pub fn new(config: ManagerConfig) -> Self {
        Self::with_partitions(config, Vec::new())
    }
    /// Makes a manager of a subnet with partitions, besides the default one. Those of the same
    /// number are one; those beyond 128, which no table holds, are left out.
    pub fn with_partitions(config: ManagerConfig, partitions: Vec<Partition>) -> Self {
        let partitions = Partitions::new(partitions);
        Self {
            config,
            state: SmState::Discovering,
            phase: Phase::Idle,
            asks: Asks::default(),
            out: VecDeque::new(),
            map: Map::default(),
            subnet: Map::default(),
            lids: BTreeMap::new(),
            wanted_lids: BTreeMap::new(),
            written: BTreeMap::new(),
            written_groups: BTreeMap::new(),
            reregistered: BTreeSet::new(),
            peers: Vec::new(),
            master: Vec::new(),
            silent: 0,
            sweep_wanted: Some(Time(0)),
            look_at: None,
            sweeps: 0,
            up_since: None,
            unanswered: 0,
            last_own_id: 1 << 31,
            members: Members::new(partitions.groups()),
            services: Services::default(),
            notices: Notices::default(),
            partitions,
            lanes_written: BTreeMap::new(),
        }
    }
    /// Returns what the manager registers at its port.
    pub fn registrations() -> [(Via, Registration); 3] {
        let bits = |methods: &[Method]| methods.iter().fold(0, |bits, m| bits | 1 << (m.0 & 0x7F));
        let registration = |qpn, class, class_version, methods, rmpp| Registration {
            qpn,
            class,
            class_version,
            methods,
            oui: 0,
            rmpp,
        };
        let managed = bits(&[Method::GET, Method::SET, Method::TRAP]);
        let admin = [Method::GET, Method::SET, Method::GET_TABLE, Method::DELETE];
        [
            (Via::Lid, registration(Qpn::SMI, MgmtClass::SUBNET_LID_ROUTED, 1, managed, false)),
            (
                Via::Directed,
                registration(Qpn::SMI, MgmtClass::SUBNET_DIRECTED_ROUTE, 1, managed, false),
            ),
            (
                Via::Admin,
                registration(
                    Qpn::GSI,
                    MgmtClass::SUBNET_ADMIN,
                    sa::CLASS_VERSION,
                    bits(&admin),
                    true,
                ),
            ),
        ]
    }
    /// Takes what the agents of the port deliver to one of the registrations.
    pub fn handle(&mut self, via: Via, delivery: &Delivery, now: Time) {
        let Ok(header) = MadHeader::parse(&delivery.mad) else { return };
        match (via, delivery.outcome) {
            (Via::Admin, Outcome::Received) => self.handle_admin(delivery, now),
            // A Report that nobody confirmed, or an answer that could not be transferred.
            (Via::Admin, _) => {}
            (_, Outcome::Received) => {
                let Ok(mad) = <&[u8; MAD_LEN]>::try_from(&delivery.mad[..]) else { return };
                self.handle_smp(via, delivery.address, &Smp::from_bytes(mad), now);
            }
            (_, _) => {
                if let Some(ask) = self.asks.answer(&header) {
                    self.unanswered += 1;
                    match ask.purpose {
                        Purpose::Master => self.miss_master(now),
                        Purpose::News => self.want_sweep(now),
                        _ => {}
                    }
                }
            }
        }
        self.advance(now);
    }
    fn handle_smp(&mut self, via: Via, from: MadAddress, smp: &Smp, now: Time) {
        if smp.header.method.is_response() {
            let Some(ask) = self.asks.answer(&smp.header) else { return };
            match ask.purpose {
                Purpose::Handover if smp.status() == smp::MadStatus::OK => {
                    self.yield_to(ask.path, now);
                }
                Purpose::Peer | Purpose::Master => self.learn_peer(&ask, smp, now),
                // The values are those in force, or a write was refused: the next sweep sees.
                _ => self.learn(&ask, smp, now),
            }
        } else if smp.header.method == Method::TRAP {
            self.handle_trap(from, smp, now);
        } else if smp.attribute() == SmAttribute::SM_INFO {
            self.answer_sm_info(via, from, smp, now);
        }
    }
    /// Confirms a trap, sweeps if it says that the subnet has changed, and tells subscribers.
    fn handle_trap(&mut self, from: MadAddress, smp: &Smp, now: Time) {
        let Ok(notice) = Notice::parse(&smp.data) else { return };
        let mut repress = *smp;
        repress.header.method = Method::TRAP_REPRESS;
        let mut mad = vec![0; MAD_LEN];
        repress.emit(&mut mad);
        self.send(Via::Lid, from, mad, 0);
        if !self.is_master() {
            return;
        }
        // Capabilities, or a standby that has more right to be the master.
        let flags = Change::from_details(&notice.details).flags;
        let is_change =
            notice.number == TrapNumber::CHANGE && (flags == 0 || flags & Change::PRIORITY != 0);
        if notice.number == TrapNumber::LINK_STATE || is_change {
            self.want_sweep(now + self.config.settle_ns);
        }
        self.report(&notice);
    }
    /// Begins what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.services.expire(now);
        if self.phase == Phase::Idle {
            if self.sweep_wanted.is_some_and(|at| at <= now) {
                if self.state != SmState::NotActive {
                    self.begin_sweep();
                }
                self.sweep_wanted = None;
            } else if self.look_at.is_some_and(|at| at <= now) {
                self.look_at = None;
                match self.state {
                    SmState::Master => {
                        let is_linked = !self.subnet.links.is_empty();
                        self.look_at = Some(now + self.look_ns(is_linked));
                        self.begin_look();
                    }
                    SmState::Standby => self.ask_master(),
                    SmState::Discovering | SmState::NotActive => {}
                }
            }
        }
        self.advance(now);
    }
    /// Returns when [`handle_timeout`](Self::handle_timeout) is due.
    pub fn next_deadline(&self) -> Option<Time> {
        let idle =
            [self.sweep_wanted, self.look_at].map(|at| at.filter(|_| self.phase == Phase::Idle));
        idle.into_iter().chain([self.services.next_deadline()]).flatten().min()
    }
    /// Returns the next datagram to be sent.
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        if let Some(next) = self.out.pop_front() {
            return Some(next);
        }
        let mad = self.asks.poll(self.config.window, self.config.m_key)?;
        let (timeout_ms, retries) = (self.config.timeout_ms, self.config.retries);
        let (address, mad) = (ask::anywhere(), mad.to_vec());
        Some(Outgoing { via: Via::Directed, address, mad, timeout_ms, retries })
    }
    /// Returns what can be seen of the manager.
    pub fn view(&self) -> ManagerView {
        let switches = self.subnet.switches().count();
        ManagerView {
            state: self.state,
            sweeps: self.sweeps,
            up_since: self.up_since,
            is_busy: self.phase != Phase::Idle || self.sweep_wanted.is_some(),
            switches,
            adapter_ports: self.subnet.end_ports().count() - switches,
            requests: self.asks.sent,
            unanswered: self.unanswered,
            groups: self.members.len(),
        }
    }

    /// Wants a sweep, at this time at the latest.
    fn want_sweep(&mut self, at: Time) {
        self.sweep_wanted = Some(self.sweep_wanted.map_or(at, |before| before.min(at)));
    }
    fn next_own_id(&mut self) -> u64 {
        self.last_own_id = self.last_own_id.wrapping_add(1) | 1 << 31;
        u64::from(self.last_own_id)
    }
    fn send(&mut self, via: Via, address: MadAddress, mad: Vec<u8>, timeout_ms: u32) {
        // The other end's key is not ours to send with.
        let qkey = if via == Via::Admin { Qkey(0x8001_0000) } else { Qkey(0) };
        let (address, retries) = (MadAddress { qkey, ..address }, self.config.retries);
        self.out.push_back(Outgoing { via, address, mad, timeout_ms, retries });
    }
}
