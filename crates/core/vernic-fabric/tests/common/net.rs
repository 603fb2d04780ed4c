//! A whole subnet in virtual time: hosts with traffic, an oracle, and tables written by datagrams
//! of subnet management from the first host.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use vernic_fabric::Time;
use vernic_fabric::attributes::{NodeKind, PortState};
use vernic_fabric::datagram::Envelope;
use vernic_fabric::link::SubmitError;
use vernic_fabric::subnet::{NodeId, Subnet, SubnetConfig};
use vernic_fabric::topology::{End, Topology};
use vernic_wire::mad::{MAD_LEN, Method};
use vernic_wire::smp::{
    LinearForwardingTable, PortInfo, SmAttribute, Smp, SwitchInfo, VlArbitrationTable,
};
use vernic_wire::{Lid, PortNum, Psn, VirtualLane, vcrc};

use super::Random;
use super::attributes;
use super::host::Traffic;
use super::oracle::{Flow, Oracle};

pub const ONE: PortNum = PortNum(1);

/// Nanoseconds between two looks at what hosts have to send.
const STEP_NS: u64 = 5_000;

pub struct Net {
    pub plan: Topology,
    pub subnet: Subnet,
    pub now: Time,
    pub oracle: Oracle,
    pub random: Random,
    /// Nanoseconds between two packets that a host takes, of those that do not take all at once.
    pub slow: BTreeMap<usize, u64>,
    pub datagrams: u64,
    takes_next: BTreeMap<usize, Time>,
    waiting: BTreeSet<usize>,
    traffic: Vec<(usize, Traffic)>,
    buffer: Vec<u8>,
    /// What was counted as dropped when the tables were written.
    dropped_before: u64,
    config: SubnetConfig,
}

impl Net {
    /// Makes a subnet whose links are up and whose tables lead by shortest ways.
    pub fn new(plan: Topology, config: SubnetConfig, seed: u64) -> Self {
        let subnet = Subnet::new(&plan, config);
        let mut net = Self {
            plan,
            subnet,
            now: Time(0),
            oracle: Oracle::default(),
            random: Random(seed),
            slow: BTreeMap::new(),
            datagrams: 0,
            takes_next: BTreeMap::new(),
            waiting: BTreeSet::new(),
            traffic: Vec::new(),
            buffer: Vec::new(),
            dropped_before: 0,
            config,
        };
        net.run_for(10_000_000);
        net.manage();
        net
    }
    pub fn hosts(&self) -> Vec<usize> {
        let nodes = self.plan.nodes().iter().enumerate();
        nodes.filter(|(_, node)| node.kind == NodeKind::Adapter).map(|(at, _)| at).collect()
    }
    pub fn switches(&self) -> Vec<usize> {
        let nodes = self.plan.nodes().iter().enumerate();
        nodes.filter(|(_, node)| node.kind == NodeKind::Switch).map(|(at, _)| at).collect()
    }
    pub fn named(&self, name: &str) -> usize {
        self.plan.node_by_name(name).expect("a name of the plan")
    }
    pub const fn lid(node: usize) -> u16 {
        node as u16 + 1
    }
    /// Adds packets to be sent from a host to a LID.
    pub fn send_to(&mut self, from: usize, destination: u16, payload: usize, packets: u64) {
        let flow = Flow { source: Self::lid(from), destination, service_level: 0 };
        self.traffic.push((from, Traffic::new(flow, payload, packets)));
    }
    /// Sends no more.
    pub fn traffic_ends(&mut self) {
        self.traffic.clear();
    }
    /// Returns how many packets of a service level have arrived.
    pub fn delivered_at(&self, level: u8) -> u64 {
        let flows = self.oracle.by_flow.iter().filter(|(flow, _)| flow.service_level == level);
        flows.map(|(_, count)| count).sum()
    }
    /// Adds packets to be sent from a host to another.
    pub fn send(&mut self, from: usize, to: usize, level: u8, payload: usize, packets: u64) {
        let flow =
            Flow { source: Self::lid(from), destination: Self::lid(to), service_level: level };
        let traffic = Traffic::new(flow, payload, packets);
        self.traffic.push((from, traffic));
    }
    /// Lets time pass.
    pub fn run_for(&mut self, nanos: u64) {
        let end = self.now + nanos;
        while self.now < end {
            self.work();
            self.now = (self.now + STEP_NS).min(end);
            self.subnet.run(self.now);
            assert!(self.subnet.poll_timeout().is_none_or(|at| at > self.now), "a step too long");
        }
        self.work();
    }
    /// Lets time pass until all that was to be sent has arrived or is gone. Returns whether it has.
    pub fn settle(&mut self, nanos: u64) -> bool {
        let end = self.now + nanos;
        while self.now < end && !(self.traffic.is_empty() && self.subnet.packets() == 0) {
            self.run_for(STEP_NS);
        }
        self.traffic.is_empty() && self.subnet.packets() == 0
    }
    /// Submits what ports take, and takes what has arrived.
    fn work(&mut self) {
        let now = self.now;
        for (host, traffic) in &mut self.traffic {
            let node = NodeId(*host as u32);
            while let Some(bytes) = traffic.next_packet() {
                match self.subnet.submit(node, ONE, &bytes, now) {
                    Ok(()) => self.oracle.sent += 1,
                    Err(SubmitError::Discarded) => self.oracle.refused += 1,
                    Err(SubmitError::Full) => {
                        traffic.refuse(bytes);
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        self.traffic.retain(|(_, traffic)| traffic.left > 0);
        self.subnet.run(now);
        while let Some((node, port)) = self.subnet.poll_ready() {
            assert_eq!(port, ONE);
            self.waiting.insert(node.0 as usize);
        }
        for host in std::mem::take(&mut self.waiting) {
            self.take(host);
        }
    }
    fn take(&mut self, host: usize) {
        let node = NodeId(host as u32);
        while self.subnet.poll_datagram(node, ONE, &mut self.buffer) {
            self.datagrams += 1;
        }
        let interval = self.slow.get(&host).copied();
        while self.takes_next.get(&host).is_none_or(|at| *at <= self.now) {
            if !self.subnet.poll_receive(node, ONE, &mut self.buffer) {
                return;
            }
            self.buffer.extend([0; vcrc::LEN]);
            vcrc::stamp(&mut self.buffer);
            self.oracle.deliver(Self::lid(host), &self.buffer);
            if let Some(interval) = interval {
                self.takes_next.insert(host, self.now + interval);
            }
        }
        self.waiting.insert(host);
    }

    /// Writes the tables of all switches, and makes all links active that are up.
    pub fn manage(&mut self) {
        let hosts = self.hosts();
        let ways = self.ways_from(hosts[0]);
        for (at, path) in &ways {
            self.name(*at, path);
        }
        for switch in self.switches() {
            if let Some(path) = ways.get(&switch) {
                self.route(switch, path, &ways);
            }
        }
        for state in [PortState::Armed, PortState::Active] {
            for (at, path) in &ways {
                for (port, _) in self.plan.clone().ends_at(*at) {
                    let attributes = self.subnet.port(NodeId(*at as u32), port).expect("a port");
                    if matches!(attributes.state, PortState::Init | PortState::Armed) {
                        self.set_port(path, u32::from(port.0), |info| info.state = state as u8);
                    }
                }
            }
        }
        self.dropped_before = self.dropped();
    }
    fn name(&mut self, at: usize, path: &[u8]) {
        self.set_port(path, 0, |info| info.lid = Lid(Self::lid(at)));
    }
    fn route(&mut self, switch: usize, path: &[u8], ways: &BTreeMap<usize, Vec<u8>>) {
        let top = Self::lid(self.plan.nodes().len() - 1).next_multiple_of(64) - 1;
        let mut data = self.ask(path, Method::GET, SmAttribute::SWITCH_INFO, 0, &[0; 64]);
        let mut info = SwitchInfo::parse(&data).expect("long enough");
        info.linear_top = Lid(top);
        info.emit(&mut data);
        self.ask(path, Method::SET, SmAttribute::SWITCH_INFO, 0, &data);
        let mut table = vec![255; (usize::from(top) + 1).next_multiple_of(64)];
        for target in ways.keys() {
            let ports = self.ports_to(switch, *target);
            if let Some(port) = ports.get(*target % ports.len().max(1)) {
                table[usize::from(Self::lid(*target))] = *port;
            }
        }
        for (block, ports) in (0..).zip(table.as_chunks().0) {
            let mut data = [0; 64];
            LinearForwardingTable { ports: *ports }.emit(&mut data);
            self.ask(path, Method::SET, SmAttribute::LINEAR_FORWARDING, block, &data);
        }
    }
    /// Writes the port by which a switch sends packets to a LID, 255 for none.
    pub fn lead(&mut self, switch: usize, lid: u16, port: u8) {
        let path = self.path_to(switch);
        let block = u32::from(lid / 64);
        let (get, set) = (Method::GET, Method::SET);
        let mut data = self.ask(&path, get, SmAttribute::LINEAR_FORWARDING, block, &[0; 64]);
        data[usize::from(lid % 64)] = port;
        self.ask(&path, set, SmAttribute::LINEAR_FORWARDING, block, &data);
    }
    /// Writes how long packets may be in a switch, as a code.
    pub fn set_life_time(&mut self, switch: usize, code: u8) {
        let path = self.path_to(switch);
        let (get, set) = (Method::GET, Method::SET);
        let mut data = self.ask(&path, get, SmAttribute::SWITCH_INFO, 0, &[0; 64]);
        let info = SwitchInfo::parse(&data).expect("long enough");
        SwitchInfo { life_time: code, ..info }.emit(&mut data);
        self.ask(&path, set, SmAttribute::SWITCH_INFO, 0, &data);
    }
    /// Writes the ports below 16 by which a switch sends packets to a group.
    pub fn lead_group(&mut self, switch: usize, group: u16, ports: u16) {
        let path = self.path_to(switch);
        let index = group - 0xC000;
        let block = u32::from(index / 32);
        let (get, set) = (Method::GET, Method::SET);
        let attribute = SmAttribute::MULTICAST_FORWARDING;
        let mut data = self.ask(&path, get, attribute, block, &[0; 64]);
        data[usize::from(index % 32) * 2..][..2].copy_from_slice(&ports.to_be_bytes());
        self.ask(&path, set, attribute, block, &data);
    }
    /// Writes the arbitration of low priority of a switch's port: lanes and weights.
    pub fn arbitrate(&mut self, switch: usize, port: u8, entries: &[(u8, u8)]) {
        let path = self.path_to(switch);
        let mut table = VlArbitrationTable { entries: [(0, 0); VlArbitrationTable::ENTRIES] };
        table.entries[..entries.len()].copy_from_slice(entries);
        let mut data = [0; 64];
        table.emit(&mut data);
        let modifier = 1 << 16 | u32::from(port);
        self.ask(&path, Method::SET, SmAttribute::VL_ARBITRATION, modifier, &data);
    }
    /// Returns the ports that lead from the first host to a node.
    pub fn path_to(&self, node: usize) -> Vec<u8> {
        self.ways_from(self.hosts()[0]).remove(&node).expect("a way to the node")
    }
    /// Returns the ports of a switch that are nearest to a node.
    fn ports_to(&self, switch: usize, target: usize) -> Vec<u8> {
        if switch == target {
            return vec![0];
        }
        let hops = self.ways_from(target);
        let near = |node: usize| hops.get(&node).map(Vec::len);
        let Some(here) = near(switch) else { return Vec::new() };
        let neighbours = self.neighbours(switch);
        let is_nearer = |(_, end): &(PortNum, End)| near(end.node).is_some_and(|hops| hops < here);
        neighbours.into_iter().filter(is_nearer).map(|(port, _)| port.0).collect()
    }
    fn neighbours(&self, node: usize) -> Vec<(PortNum, End)> {
        let is_up = |port| {
            let port = self.subnet.port(NodeId(node as u32), port);
            port.is_some_and(|port| port.state > PortState::Down)
        };
        let ends = self.plan.ends_at(node).map(|(port, _)| port).filter(|port| is_up(*port));
        ends.filter_map(|port| Some((port, self.plan.peer(End { node, port })?))).collect()
    }
    /// Returns the ports that lead from a node to each other. No way leads through a host.
    fn ways_from(&self, first: usize) -> BTreeMap<usize, Vec<u8>> {
        let mut ways = BTreeMap::from([(first, Vec::new())]);
        let mut queue = VecDeque::from([first]);
        while let Some(node) = queue.pop_front() {
            if node != first && self.plan.nodes()[node].kind == NodeKind::Adapter {
                continue;
            }
            for (port, end) in self.neighbours(node) {
                if !ways.contains_key(&end.node) {
                    let way = [ways[&node].clone(), vec![port.0]].concat();
                    ways.insert(end.node, way);
                    queue.push_back(end.node);
                }
            }
        }
        ways
    }
    /// Changes PortInfo of a port at the end of a directed route.
    pub fn set_port(&mut self, path: &[u8], port: u32, change: impl FnOnce(&mut PortInfo)) {
        let mut data = self.ask(path, Method::GET, SmAttribute::PORT_INFO, port, &[0; 64]);
        let mut info = PortInfo::from_bytes(&data);
        (info.state, info.physical_state) = (0, 0);
        change(&mut info);
        info.emit(&mut data);
        self.ask(path, Method::SET, SmAttribute::PORT_INFO, port, &data);
    }
    /// Asks the agent at the end of a directed route from the first host.
    pub fn ask(
        &mut self,
        path: &[u8],
        method: Method,
        attribute: SmAttribute,
        modifier: u32,
        data: &[u8; 64],
    ) -> [u8; 64] {
        let mut smp = Smp::by_route(path, attribute, modifier);
        (smp.header.method, smp.header.transaction_id, smp.data) = (method, 77, *data);
        let mut mad = [0; MAD_LEN];
        smp.emit(&mut mad);
        let mut bytes = Vec::new();
        Envelope::of_smp(0xFFFF, 0xFFFF, 0).seal(Psn::new(0), &mad, &mut bytes);
        bytes.truncate(bytes.len() - vcrc::LEN);
        let host = NodeId(self.hosts()[0] as u32);
        self.subnet.submit(host, ONE, &bytes, self.now).expect("there is room");
        let answered = (0..100).any(|_| {
            self.now = self.now + 10_000;
            self.subnet.run(self.now);
            self.subnet.poll_datagram(host, ONE, &mut self.buffer)
        });
        assert!(answered, "{path:?} {attribute} does not answer");
        self.buffer.extend([0; vcrc::LEN]);
        vcrc::stamp(&mut self.buffer);
        let (_, mad) = Envelope::open(&self.buffer).expect("a datagram");
        let answer = Smp::from_bytes(&mad);
        assert_eq!(answer.status().0, 0, "{path:?} {attribute}");
        answer.data
    }

    fn dropped(&self) -> u64 {
        let ports = self.subnet.nodes().flat_map(|node| (0..=254).map(move |at| (node, at)));
        let ports = ports.filter_map(|(node, at)| self.subnet.port(node, PortNum(at)));
        ports.map(attributes::dropped).sum()
    }
    /// Checks that every packet sent was delivered or counted as dropped since the tables were
    /// written, or is still held.
    pub fn check_conservation(&self) {
        let lost: u64 = self.subnet.cables().map(|cable| cable.lost).sum();
        let dropped = self.dropped() - self.dropped_before;
        let (sent, refused) = (self.oracle.sent, self.oracle.refused);
        let held = self.subnet.packets() as u64;
        assert_eq!(
            sent + refused,
            self.oracle.delivered + dropped + lost + held,
            "{dropped} dropped, {lost} lost, {held} held, {:?}",
            self.oracle
        );
    }
    /// Checks that no link has failed, and that all receive buffers are empty.
    pub fn check_clean(&self) {
        for cable in self.subnet.cables() {
            for (node, port) in cable.ends {
                let attributes = self.subnet.port(node, port).expect("a port with a cable");
                let counters = attributes.counters;
                assert_eq!((counters.buffer_overruns, counters.local_link_integrity), (0, 0));
                assert!(!cable.is_up || attributes.state == PortState::Active);
                for lane in self.subnet.port_view(node, port).expect("a port").lanes {
                    let link = self.config.link;
                    let size = match lane.lane {
                        VirtualLane::MANAGEMENT => link.management_blocks,
                        _ => link.lane_blocks,
                    };
                    assert_eq!((lane.free_blocks, lane.queued_blocks), (size, 0), "{node:?}");
                }
            }
        }
    }
}
