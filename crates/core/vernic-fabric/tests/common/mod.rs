//! A fabric in virtual time: hosts, switches, cables, and an oracle of what was sent.
//!
//! Everything follows from the seed. Frames arrive when their last byte has left and the cable's
//! latency has passed. The cables keep the order of frames; rules of a test lose or damage some.

// Each test of the crate uses its own part of this.
#![allow(dead_code, unreachable_pub)]

pub mod attributes;
pub mod cable;
pub mod host;
pub mod lab;
pub mod net;
pub mod oracle;
pub mod shape;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use vernic_fabric::Time;
use vernic_fabric::attributes::{Forwarding, PortAttributes, PortState};
use vernic_fabric::link::{FrameKind, LinkConfig, Transmit};
use vernic_fabric::switch::{Switch, View};
use vernic_wire::{Lid, PortNum, VirtualLane};

use cable::{Cable, End};
use host::Host;
use oracle::Oracle;

/// A small generator of numbers that are as good as random (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A switch with its attributes.
pub struct SwitchNode {
    pub switch: Switch,
    pub ports: Vec<PortAttributes>,
    pub forwarding: Forwarding,
}

impl SwitchNode {
    fn new(ports: u8, config: LinkConfig) -> Self {
        let attributes = attributes::port(ports);
        Self {
            switch: Switch::new(ports, config),
            ports: vec![attributes; usize::from(ports) + 1],
            forwarding: attributes::forwarding(),
        }
    }
    /// Calls the switch with its attributes.
    pub fn with<R>(&mut self, call: impl FnOnce(&mut Switch, &mut View<'_>) -> R) -> R {
        let mut view = View { ports: &mut self.ports, forwarding: &mut self.forwarding };
        call(&mut self.switch, &mut view)
    }
}

pub enum Node {
    Host(Box<Host>),
    Switch(Box<SwitchNode>),
}

/// The whole.
pub struct Fabric {
    pub now: Time,
    pub nodes: Vec<Node>,
    pub cables: Vec<Cable>,
    pub oracle: Oracle,
    pub random: Random,
    config: LinkConfig,
    /// When a node, or a direction of a cable, is due.
    agenda: BinaryHeap<Reverse<(Time, Due)>>,
    /// The entry of each node in the agenda that counts.
    planned: Vec<Option<Time>>,
    steps: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Due {
    Arrival(usize, usize),
    Node(usize),
}

impl Fabric {
    pub fn new(seed: u64, config: LinkConfig) -> Self {
        Self {
            now: Time(0),
            nodes: Vec::new(),
            cables: Vec::new(),
            oracle: Oracle::default(),
            random: Random(seed),
            config,
            agenda: BinaryHeap::new(),
            planned: Vec::new(),
            steps: 0,
        }
    }
    pub fn add_host(&mut self) -> usize {
        let lid = Lid(self.nodes.len() as u16 + 1);
        self.nodes.push(Node::Host(Box::new(Host::new(lid, self.config))));
        self.nodes.len() - 1
    }
    pub fn add_switch(&mut self, ports: u8) -> usize {
        let lid = Lid(self.nodes.len() as u16 + 1);
        let mut node = SwitchNode::new(ports, self.config);
        node.ports[0].lid = lid;
        self.nodes.push(Node::Switch(Box::new(node)));
        self.nodes.len() - 1
    }
    /// Connects two ports. Returns the cable.
    pub fn connect(&mut self, a: (usize, u8), b: (usize, u8), latency_ns: u64) -> usize {
        self.cables.push(Cable::new(End::new(a), End::new(b), latency_ns));
        let cable = self.cables.len() - 1;
        self.plug(cable, true);
        cable
    }
    /// Plugs a cable in, or pulls it, which loses what it carries.
    pub fn plug(&mut self, cable: usize, plugged: bool) {
        self.oracle.lost_on_cables += self.cables[cable].plug(plugged);
        for end in self.cables[cable].ends {
            let now = self.now;
            match &mut self.nodes[end.node] {
                Node::Host(host) => host.port.handle_cable(&mut host.attributes, plugged, now),
                Node::Switch(node) => {
                    node.with(|switch, view| switch.handle_cable(view, end.port, plugged, now));
                }
            }
            self.poll(end.node);
        }
    }
    pub fn host(&mut self, node: usize) -> &mut Host {
        match &mut self.nodes[node] {
            Node::Host(host) => host,
            Node::Switch(_) => panic!("node {node} is a switch"),
        }
    }
    pub fn switch(&mut self, node: usize) -> &mut SwitchNode {
        match &mut self.nodes[node] {
            Node::Switch(switch) => switch,
            Node::Host(_) => panic!("node {node} is a host"),
        }
    }
    pub fn hosts(&self) -> Vec<usize> {
        let is_host = |node: &usize| matches!(self.nodes[*node], Node::Host(_));
        (0..self.nodes.len()).filter(is_host).collect()
    }
    /// Returns the attributes of every port that has a cable.
    pub fn linked(&self) -> Vec<&PortAttributes> {
        self.cables.iter().flat_map(|cable| cable.ends).map(|end| self.attributes(end)).collect()
    }
    pub fn attributes(&self, end: End) -> &PortAttributes {
        match &self.nodes[end.node] {
            Node::Host(host) => &host.attributes,
            Node::Switch(node) => &node.ports[usize::from(end.port.0)],
        }
    }
    /// Waits for the links and makes all of them active, as a subnet manager does.
    pub fn activate(&mut self) {
        self.run_for(5_000_000);
        for state in [PortState::Armed, PortState::Active] {
            for end in self.cables.iter().flat_map(|cable| cable.ends).collect::<Vec<_>>() {
                if self.attributes(end).state != PortState::Down {
                    self.set_state(end, state);
                }
            }
        }
    }
    pub fn set_state(&mut self, end: End, state: PortState) {
        match &mut self.nodes[end.node] {
            Node::Host(host) => host.attributes.state = state,
            Node::Switch(node) => {
                node.ports[usize::from(end.port.0)].state = state;
                node.switch.refresh();
            }
        }
        self.poll(end.node);
    }
    /// Lets time pass.
    pub fn run_for(&mut self, nanos: u64) {
        let end = self.now + nanos;
        while let Some(Reverse((at, due))) = self.agenda.peek().copied() {
            if at > end {
                break;
            }
            self.agenda.pop();
            self.now = self.now.max(at);
            self.step(due);
        }
        self.now = end;
    }
    /// Lets time pass until nothing is sent, or held, any more. Returns whether that came to pass
    /// in so many nanoseconds.
    pub fn settle(&mut self, nanos: u64) -> bool {
        let end = self.now + nanos;
        self.hosts().into_iter().for_each(|host| self.poll(host));
        while self.now < end {
            if self.idle() {
                return true;
            }
            self.run_for(20_000);
        }
        self.idle()
    }
    fn idle(&self) -> bool {
        self.cables.iter().all(Cable::carries_no_packet)
            && self.nodes.iter().all(|node| match node {
                Node::Host(host) => host.is_idle(),
                Node::Switch(node) => node.switch.packets() == 0,
            })
    }
    /// Returns how many packets are held anywhere, or are under way.
    pub fn held(&self) -> u64 {
        let nodes = self.nodes.iter().map(|node| match node {
            Node::Host(host) => host.port.packets(),
            Node::Switch(node) => node.switch.packets(),
        });
        let cables = self.cables.iter().map(Cable::packets);
        nodes.chain(cables).sum::<usize>() as u64
    }

    fn step(&mut self, due: Due) {
        self.steps += 1;
        assert!(self.steps < 3_000_000, "the fabric does not come to rest: {due:?}");
        match due {
            Due::Node(node) => {
                if self.planned[node].take_if(|at| *at <= self.now).is_some() {
                    self.poll(node);
                }
            }
            Due::Arrival(cable, side) => {
                let now = self.now;
                while let Some((kind, bytes)) = self.cables[cable].take(side, now) {
                    let end = self.cables[cable].ends[1 - side];
                    self.arrive(end, kind, &bytes);
                    self.cables[cable].recycle(bytes);
                }
            }
        }
    }
    /// Brings a frame to one end of a cable.
    pub fn arrive(&mut self, end: End, kind: FrameKind, bytes: &[u8]) {
        let (now, frame) = (self.now, kind.frame(bytes));
        match &mut self.nodes[end.node] {
            Node::Host(host) => host.port.handle_frame(&mut host.attributes, frame, now),
            Node::Switch(node) => {
                node.with(|switch, view| switch.handle_frame(view, end.port, frame, now));
            }
        }
        self.poll(end.node);
    }
    /// Lets a node do all that it can do now.
    pub fn poll(&mut self, at: usize) {
        let now = self.now;
        let mut out = Vec::new();
        if let Node::Host(host) = &mut self.nodes[at] {
            host.work(now, &mut self.oracle);
        }
        loop {
            let (port, transmit) = match &mut self.nodes[at] {
                Node::Host(host) => {
                    let next = host.port.poll_transmit(&mut host.attributes, now, &mut out);
                    host.work(now, &mut self.oracle);
                    let Some(transmit) = next else { break };
                    (PortNum(1), transmit)
                }
                Node::Switch(node) => {
                    let next = node.with(|switch, view| switch.poll_transmit(view, now, &mut out));
                    let Some(next) = next else { break };
                    next
                }
            };
            self.carry(End { node: at, port }, transmit, &out);
        }
        let timeout = match &self.nodes[at] {
            Node::Host(host) => host.timeout(now),
            Node::Switch(node) => node.switch.poll_timeout(),
        };
        if let Some(timeout) = timeout {
            assert!(timeout > now, "node {at} is due at {timeout:?}, and had nothing to send");
            self.planned.resize(self.nodes.len(), None);
            if self.planned[at].is_none_or(|planned| timeout < planned) {
                self.planned[at] = Some(timeout);
                self.agenda.push(Reverse((timeout, Due::Node(at))));
            }
        }
    }
    fn carry(&mut self, end: End, transmit: Transmit, bytes: &[u8]) {
        let found = self.cables.iter().enumerate().find_map(|(at, cable)| {
            let side = cable.ends.iter().position(|one| *one == end)?;
            Some((at, side))
        });
        let Some((cable, side)) = found else { panic!("{end:?} sends without a cable") };
        let from = transmit.free_at.max(self.now);
        match self.cables[cable].put(side, from, transmit.kind, bytes, &mut self.random) {
            Ok(arrival) => self.agenda.push(Reverse((arrival, Due::Arrival(cable, side)))),
            Err(cable::Lost) => {
                self.oracle.lost_on_cables += u64::from(transmit.kind == FrameKind::Packet);
            }
        }
    }
    /// Checks that every packet sent was delivered or counted as dropped, and that nothing is held
    /// beyond what the fabric still holds.
    pub fn check_conservation(&self) {
        let mut dropped = self.oracle.lost_on_cables;
        for node in &self.nodes {
            match node {
                Node::Host(host) => {
                    dropped += attributes::dropped(&host.attributes) + host.port.misdirected();
                }
                Node::Switch(node) => {
                    dropped += node.ports.iter().map(attributes::dropped).sum::<u64>();
                }
            }
        }
        let (sent, delivered) = (self.oracle.sent, self.oracle.delivered);
        assert_eq!(
            sent + self.oracle.refused,
            delivered + dropped + self.held(),
            "{:?}",
            self.oracle
        );
    }
    /// Checks that all receive buffers are empty and no link has failed.
    pub fn check_clean(&self) {
        for attributes in self.linked() {
            let counters = attributes.counters;
            assert_eq!((counters.buffer_overruns, counters.local_link_integrity), (0, 0));
            assert_eq!((counters.link_downed, attributes.state), (0, PortState::Active));
        }
        for end in self.cables.iter().flat_map(|cable| cable.ends) {
            for lane in (0..16).map(VirtualLane::new) {
                let free = match &self.nodes[end.node] {
                    Node::Host(host) => host.port.free_blocks(lane),
                    Node::Switch(node) => node.switch.free_blocks(end.port, lane),
                };
                let size = if lane.is_management() {
                    self.config.management_blocks
                } else {
                    self.config.lane_blocks
                };
                assert_eq!(free, size, "{end:?} lane {lane:?}");
            }
        }
    }
}
