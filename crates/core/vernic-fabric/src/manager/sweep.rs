//! A sweep: learns what is there, and writes what is not as it should be. Each phase begins when
//! all answers of the one before have come.

use vernic_wire::smp::{
    LinearForwardingTable, MulticastForwardingTable, NodeInfo, PortInfo, SmAttribute, Smp,
    SwitchInfo,
};
use vernic_wire::{Guid, Lid};

use super::ask::{Ask, Purpose};
use super::map::{self, ACTIVE, ARMED, End, INIT, Map, Node, Port};
use super::notices::{PORT_IN, PORT_OUT};
use super::routing::{self, Graph};
use super::{Manager, SmState};
use crate::Time;
use crate::topology::MAX_NODES;

/// What a sweep does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Nothing.
    Idle,
    /// Asks switches for news.
    Look,
    /// Learns what is there.
    Discover,
    /// Learns which other managers there are.
    Peers,
    /// Writes LIDs, MTUs, lanes.
    Ports,
    /// Writes forwarding tables.
    Tables,
    /// Makes links armed.
    Arm,
    /// Makes links active.
    Activate,
    /// Writes the tables of groups.
    Groups,
}

/// The longest path that is asked: a directed route has 63 hops.
const LONGEST_PATH: usize = Smp::PATH_LEN - 1;
/// Exponents of how long packets may wait, in a switch and at the head of a queue: 1 s.
const LIFE: u8 = 18;
/// Nanoseconds between two looks at the manager's own port while that has no link: no trap says
/// that it has come up.
const LINKLESS_NS: u64 = 100_000_000;
/// The largest LMC (IBTA 4.1.3).
const MOST_LMC: u8 = 7;
/// Exponent of how often a node sends traps: once in 134 ms, so that a second cut is told soon.
const SUBNET_TIMEOUT: u8 = 15;

impl Manager {
    /// Begins a sweep.
    pub(super) fn begin_sweep(&mut self) {
        self.asks.clear();
        self.map = Map::default();
        self.phase = Phase::Discover;
        (self.sweep_wanted, self.unanswered) = (None, 0);
        self.asks.push(Ask::read(Purpose::Node(None), &[], SmAttribute::NODE_INFO, 0));
    }
    /// Asks all switches whether a port has changed.
    pub(super) fn begin_look(&mut self) {
        self.phase = Phase::Look;
        for switch in self.subnet.switches().collect::<Vec<_>>() {
            let path = &self.subnet.nodes[switch].path;
            self.asks.push(Ask::read(Purpose::News, path, SmAttribute::SWITCH_INFO, 0));
        }
        self.asks.push(Ask::read(Purpose::Own, &[], SmAttribute::PORT_INFO, 0));
    }
    /// Takes what a node has answered to a request of a sweep.
    pub(super) fn learn(&mut self, ask: &Ask, smp: &Smp, now: Time) {
        let data = &smp.data;
        match ask.purpose {
            Purpose::Node(from) => {
                if let Ok(info) = NodeInfo::parse(data) {
                    self.learn_node(from, info, &ask.path);
                }
            }
            Purpose::Description(node) => {
                if let Some(node) = self.map.nodes.get_mut(node) {
                    node.description = *data;
                }
            }
            Purpose::Switch(node) => {
                if let Some(node) = self.map.nodes.get_mut(node) {
                    node.switch = SwitchInfo::parse(data).ok();
                }
            }
            Purpose::Port(end) => self.learn_port(end, PortInfo::from_bytes(data), &ask.path),
            Purpose::News => {
                if SwitchInfo::parse(data).is_ok_and(|info| info.port_changed) {
                    self.want_sweep(now);
                }
            }
            Purpose::Own => {
                let (own, info) = (self.own_end(), PortInfo::from_bytes(data));
                let own = own.and_then(|end| self.subnet.port(end));
                // Another manager may believe that it is the master.
                let is_known = |own: &Port| own.info.state == info.state && info.sm_lid == info.lid;
                if !own.is_some_and(is_known) {
                    self.want_sweep(now);
                }
            }
            Purpose::Write | Purpose::Peer | Purpose::Handover | Purpose::Master => {}
        }
    }
    fn learn_node(&mut self, from: Option<End>, info: NodeInfo, path: &[u8]) {
        let known = self.map.by_guid.get(&info.node_guid).copied();
        let at = known.unwrap_or(self.map.nodes.len());
        if at >= MAX_NODES {
            // More than there are LIDs: something makes them up.
            return;
        }
        let local = info.local_port.0;
        if let Some(from) = from {
            self.map.links.insert(from, (at, local));
            self.map.links.insert((at, local), from);
        }
        let is_switch = info.node_type == NodeInfo::SWITCH;
        if known.is_none() {
            self.map.by_guid.insert(info.node_guid, at);
            self.map.nodes.push(Node {
                info,
                description: [0; 64],
                switch: None,
                path: path.to_vec(),
                ports: std::collections::BTreeMap::new(),
            });
            let ask = |purpose, attribute, modifier| Ask::read(purpose, path, attribute, modifier);
            self.asks.push(ask(Purpose::Description(at), SmAttribute::NODE_DESCRIPTION, 0));
            if is_switch {
                self.asks.push(ask(Purpose::Switch(at), SmAttribute::SWITCH_INFO, 0));
                for port in 0..=info.ports.min(254) {
                    let purpose = Purpose::Port((at, port));
                    self.asks.push(ask(purpose, SmAttribute::PORT_INFO, u32::from(port)));
                }
            }
        }
        // Each port of an adapter is found by itself, and has a GUID of its own.
        if !is_switch && !self.map.nodes[at].ports.contains_key(&local) {
            let port =
                Port { info: PortInfo::default(), guid: info.port_guid, path: path.to_vec() };
            self.map.nodes[at].ports.insert(local, port);
            let purpose = Purpose::Port((at, local));
            self.asks.push(Ask::read(purpose, path, SmAttribute::PORT_INFO, u32::from(local)));
        }
    }
    fn learn_port(&mut self, end: End, info: PortInfo, path: &[u8]) {
        let (at, number) = end;
        let Some(node) = self.map.nodes.get_mut(at) else { return };
        let (is_switch, guid) = (node.is_switch(), node.info.port_guid);
        let port =
            node.ports.entry(number).or_insert_with(|| Port { info, guid, path: path.to_vec() });
        port.info = info;
        // No way leads through an adapter, but from the manager's own.
        let leads_on = is_switch && number > 0 || path.is_empty();
        let has_link = info.state >= INIT && !self.map.links.contains_key(&end);
        if leads_on && has_link && path.len() < LONGEST_PATH {
            let path = [path, &[number]].concat();
            let purpose = Purpose::Node(Some(end));
            self.asks.push(Ask::read(purpose, &path, SmAttribute::NODE_INFO, 0));
        }
    }

    /// Goes on to the next phase if everything of this one is done.
    pub(super) fn advance(&mut self, now: Time) {
        while self.asks.is_empty() && self.phase != Phase::Idle {
            match self.phase {
                Phase::Discover => {
                    self.phase = Phase::Peers;
                    self.ask_peers();
                }
                Phase::Peers => {
                    self.phase = Phase::Idle;
                    if self.decide(now) {
                        self.phase = Phase::Ports;
                        self.write_partitions();
                        self.write_ports();
                    }
                }
                Phase::Ports => {
                    self.phase = Phase::Tables;
                    self.write_tables();
                    self.write_lanes();
                }
                Phase::Tables => {
                    self.phase = Phase::Arm;
                    self.write_states(ARMED);
                }
                Phase::Arm => {
                    self.phase = Phase::Activate;
                    self.write_states(ACTIVE);
                }
                Phase::Activate => {
                    self.phase = Phase::Groups;
                    self.take_over_map();
                    self.write_groups();
                }
                Phase::Groups => {
                    self.phase = Phase::Idle;
                    self.finish(now);
                }
                Phase::Look | Phase::Idle => self.phase = Phase::Idle,
            }
        }
    }
    /// Takes what the sweep has learnt for what there is, and tells subscribers what is new.
    fn take_over_map(&mut self) {
        let ports = |map: &Map| -> std::collections::BTreeSet<Guid> {
            map.end_ports().map(|(_, port)| port.guid).collect()
        };
        self.map.complete();
        let before = ports(&std::mem::replace(&mut self.subnet, self.map.clone()));
        let after = ports(&self.subnet);
        let (members, partitions) = (&mut self.members, &self.partitions);
        members.retain(|guid, pkey| after.contains(&guid) && partitions.is_member(guid, pkey));
        let (notices, subnet) = (&mut self.notices, &self.subnet);
        notices.retain(|lid| subnet.by_lid(lid).is_some());
        for (number, changed) in [
            (PORT_IN, after.difference(&before).copied().collect::<Vec<_>>()),
            (PORT_OUT, before.difference(&after).copied().collect()),
        ] {
            for guid in changed {
                self.report_gid(number, map::gid(self.config.prefix, guid));
            }
        }
    }
    fn finish(&mut self, now: Time) {
        let is_linked = !self.subnet.links.is_empty();
        self.sweeps += 1;
        if is_linked {
            self.up_since.get_or_insert(now);
        }
        self.look_at = Some(now + self.look_ns(is_linked));
        if self.unanswered > 0 {
            // What did not answer may be about to come or to go.
            self.want_sweep(now + self.config.look_ns);
        }
    }
    /// Nanoseconds until switches, and the manager's own port, are looked at.
    pub(super) fn look_ns(&self, is_linked: bool) -> u64 {
        if is_linked { self.config.look_ns } else { self.config.look_ns.min(LINKLESS_NS) }
    }
    /// The manager's own port.
    pub(super) fn own_end(&self) -> Option<End> {
        let own = self.map.nodes.first()?;
        Some((0, *own.ports.keys().next()?))
    }

    /// Gives every end port its LIDs: those that it has, or had, or the next that are free. The
    /// first is a multiple of how many there are (IBTA 4.1.3).
    fn assign_lids(&mut self) {
        let ends = self.map.end_ports();
        let ends: Vec<(End, Guid, Lid, u16)> =
            ends.map(|(end, port)| (end, port.guid, port.info.lid, self.lids_of(end))).collect();
        let mut taken = std::collections::BTreeSet::new();
        let mut take = |lid: Lid, count: u16| {
            let last = lid.0.saturating_add(count - 1);
            let is_right =
                lid.0.is_multiple_of(count) && lid.is_unicast() && Lid(last).is_unicast();
            let is_free = is_right && (lid.0..=last).all(|lid| !taken.contains(&lid));
            if is_free {
                taken.extend(lid.0..=last);
            }
            is_free
        };
        let mut assigned = vec![None; ends.len()];
        for (slot, (_, guid, _, count)) in assigned.iter_mut().zip(&ends) {
            *slot = self.lids.get(guid).copied().filter(|lid| take(*lid, *count));
        }
        for (slot, (_, _, lid, count)) in assigned.iter_mut().zip(&ends) {
            if slot.is_none() && take(*lid, *count) {
                *slot = Some(*lid);
            }
        }
        // Ports that are gone may come back.
        for lid in self.lids.values() {
            take(*lid, 1 << self.config.lmc.min(MOST_LMC));
        }
        let mut next = 1_u16;
        for (slot, (end, guid, _, count)) in assigned.into_iter().zip(&ends) {
            let lid = slot.or_else(|| {
                let first = next.next_multiple_of(*count);
                let mut free = (first..Lid::FIRST_MULTICAST.0).step_by(usize::from(*count));
                let lid = free.find(|lid| take(Lid(*lid), *count))?;
                next = lid + count;
                Some(Lid(lid))
            });
            if let Some(lid) = lid {
                self.lids.insert(*guid, lid);
                self.wanted_lids.insert(*end, lid);
            }
        }
    }
    /// Returns how many LIDs an end port is to have.
    fn lids_of(&self, end: End) -> u16 {
        if self.map.is_switch(end.0) { 1 } else { 1 << self.config.lmc.min(MOST_LMC) }
    }
    fn write_ports(&mut self) {
        self.wanted_lids.clear();
        self.assign_lids();
        let own = self.own_end().and_then(|end| self.wanted_lids.get(&end)).copied();
        let own = own.unwrap_or(Lid(0));
        let ends: Vec<End> = self
            .map
            .nodes
            .iter()
            .enumerate()
            .flat_map(|(at, node)| node.ports.keys().map(move |port| (at, *port)))
            .collect();
        for end in ends {
            let Some(port) = self.map.port(end) else { continue };
            let (path, guid) = (port.path.clone(), port.guid);
            let before = port.info;
            let mut info = before;
            let is_home = self.map.home(end) == end;
            if is_home {
                info.lid = self.wanted_lids.get(&end).copied().unwrap_or(before.lid);
                info.sm_lid = own;
                info.gid_prefix = self.config.prefix;
                info.lmc = self.lids_of(end).trailing_zeros() as u8;
                info.sm_service_level = 0;
                info.subnet_timeout = SUBNET_TIMEOUT;
                info.m_key = self.config.m_key;
            }
            let peer = self.map.links.get(&end).and_then(|peer| self.map.port(*peer));
            if let Some(peer) = peer.filter(|_| before.state >= INIT) {
                info.neighbor_mtu = before.mtu_cap.min(peer.info.mtu_cap);
                info.operational_lanes = before.lanes_supported.min(peer.info.lanes_supported);
            }
            if self.map.is_switch(end.0) && end.1 > 0 {
                info.head_of_queue_life = LIFE;
                let enforces = self.enforces(end);
                (info.enforces_inbound, info.enforces_outbound) = (enforces, enforces);
            }
            // Clients register anew with a manager that knows nothing of them (IBTA 14.4.11).
            let registers = is_home
                && before.capabilities & PortInfo::CAPABILITY_CLIENT_REREGISTER != 0
                && self.reregistered.insert(guid);
            if info == before && !registers {
                continue;
            }
            if let Some(port) = self.map.port_mut(end) {
                port.info = PortInfo { client_reregister: false, ..info };
            }
            let info =
                PortInfo { state: 0, physical_state: 0, client_reregister: registers, ..info };
            self.push_write(&path, SmAttribute::PORT_INFO, u32::from(end.1), |buf| info.emit(buf));
        }
    }
    fn write_tables(&mut self) {
        let graph = Graph::new(&self.map);
        let (tables, top) = routing::tables(&self.map, &graph, self.config.routing);
        for (switch, mut table) in graph.switches.into_iter().zip(tables) {
            let node = &self.map.nodes[switch];
            let (path, guid) = (node.path.clone(), node.info.node_guid);
            let before = node.switch.unwrap_or_default();
            let info = SwitchInfo {
                linear_top: top,
                life_time: LIFE,
                default_multicast_primary: 255,
                default_multicast_other: 255,
                ..before
            };
            // Writing 1 clears.
            if info != before || before.port_changed {
                self.push_write(&path, SmAttribute::SWITCH_INFO, 0, |buf| info.emit(buf));
            }
            table.resize(table.len().next_multiple_of(LinearForwardingTable::LEN), 255);
            let written = self.written.remove(&guid).unwrap_or_default();
            for (block, ports) in (0..).zip(table.as_chunks().0) {
                let at = block as usize * LinearForwardingTable::LEN;
                if written.get(at..at + LinearForwardingTable::LEN) != Some(&ports[..]) {
                    let block_of = LinearForwardingTable { ports: *ports };
                    let attribute = SmAttribute::LINEAR_FORWARDING;
                    self.push_write(&path, attribute, block, |buf| block_of.emit(buf));
                }
            }
            self.written.insert(guid, table);
        }
    }
    /// Brings the links that are in the state before to this one.
    fn write_states(&mut self, state: u8) {
        let is_due = |info: &PortInfo| info.state == state - 1;
        let ends: Vec<End> = self.map.links.keys().copied().collect();
        for end in ends {
            let Some(port) = self.map.port_mut(end).filter(|port| is_due(&port.info)) else {
                continue;
            };
            port.info.state = state;
            let path = port.path.clone();
            let info = PortInfo { physical_state: 0, ..port.info };
            self.push_write(&path, SmAttribute::PORT_INFO, u32::from(end.1), |buf| info.emit(buf));
        }
    }
    /// Writes the entries of the groups in all switches, where they are other ones.
    pub(super) fn write_groups(&mut self) {
        let graph = Graph::new(&self.subnet);
        let groups: Vec<_> = self
            .members
            .trees(&self.subnet)
            .map(|(index, receivers, senders)| {
                (index, routing::group(&self.subnet, &graph, &receivers, &senders))
            })
            .collect();
        let blocks = groups.iter().map(|(index, _)| index / MulticastForwardingTable::ENTRIES);
        let blocks = blocks.max().map_or(0, |block| block + 1).max(self.members.blocks_written);
        for (at, switch) in graph.switches.iter().enumerate() {
            let node = &self.subnet.nodes[*switch];
            let (path, guid, ports) = (node.path.clone(), node.info.node_guid, node.info.ports);
            for block in 0..blocks {
                for position in 0..=usize::from(ports / 16) {
                    let mut masks = [0; MulticastForwardingTable::ENTRIES];
                    for (index, trees) in groups
                        .iter()
                        .filter(|(index, _)| index / MulticastForwardingTable::ENTRIES == block)
                    {
                        masks[index % MulticastForwardingTable::ENTRIES] = trees[at][position];
                    }
                    let key = (guid, block, position);
                    let before = self.written_groups.insert(key, masks);
                    if before != Some(masks) {
                        let modifier = (position as u32) << 28 | block as u32;
                        let table = MulticastForwardingTable { ports: masks };
                        let attribute = SmAttribute::MULTICAST_FORWARDING;
                        self.push_write(&path, attribute, modifier, |buf| table.emit(buf));
                    }
                }
            }
        }
        self.members.blocks_written = blocks;
    }
    pub(super) fn push_write(
        &mut self,
        path: &[u8],
        attribute: SmAttribute,
        modifier: u32,
        emit: impl FnOnce(&mut [u8]),
    ) {
        self.asks.push(Ask::write(Purpose::Write, path, attribute, modifier, emit));
    }
    /// Forgets what it has written: another manager may have written since.
    pub(super) fn forget_written(&mut self) {
        self.written.clear();
        self.written_groups.clear();
        self.reregistered.clear();
        self.partitions.forget_written();
        self.lanes_written.clear();
    }
    /// Returns whether it is the one that may write.
    pub(super) fn is_master(&self) -> bool {
        self.state == SmState::Master
    }
}
