//! The run: hosts, the subnet between them, and virtual time.
//!
//! Owns everything of a run. It plays the device of each host: takes packets off the adapter, finds
//! the queue pair, asks those that have something to send in turns, and wakes them by their timers.
//!
//! Bounds: [`PATIENCE_NS`] of virtual time, and so much more per message.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;

use vernic_fabric::attributes::NodeKind;
use vernic_fabric::link::{LinkConfig, SubmitError};
use vernic_fabric::subnet::{NodeId, Subnet, SubnetConfig};
use vernic_proto::{Disposition, RxMeta, Time};
use vernic_wire::{Lid, LinkPacket, LocalRoute, Lrh, Packet, PortNum, icrc, link_packet, vcrc};

use super::end::{Books, End, peer_of};
use super::manager::ManagerHost;
use super::plan::{Deed, Mutation, Plan};

const ONE: PortNum = PortNum(1);
/// Virtual time in which the manager must have set up the subnet.
const SETUP_NS: u64 = 60_000_000_000;
/// Virtual time from the first message to the last, at most: some rounds of retries.
const PATIENCE_NS: u64 = 60_000_000_000;
/// Virtual time after the last message in which nothing more may come: twice the ACK timeout.
const SILENCE_NS: u64 = 1_100_000_000;
/// How often a full port is tried again: a packet of 1 KiB takes about so long.
const AGAIN_NS: u64 = 300;
/// Packets of a queue pair before it is another one's turn.
const TURN: u32 = 4;
/// A timer that is no queue pair's, but that of its host's port.
const PORT_TIMER: u32 = u32::MAX;

/// What a run did.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is what its name says")]
pub struct Totals {
    pub messages: u64,
    pub bytes: u64,
    pub packets_sent: u64,
    pub packets_received: u64,
    pub connections: u64,
    pub repeated: u64,
    pub timeouts: u64,
    pub wrong_icrcs: u64,
    pub cuts: u64,
    pub sweeps: u64,
    /// Virtual nanoseconds until the subnet was up.
    pub setup_ns: u64,
    /// Virtual nanoseconds from the first message to the last completion.
    pub traffic_ns: u64,
}

impl Totals {
    /// Adds those of another run.
    pub fn merge(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.packets_sent += other.packets_sent;
        self.packets_received += other.packets_received;
        self.connections += other.connections;
        self.repeated += other.repeated;
        self.timeouts += other.timeouts;
        self.wrong_icrcs += other.wrong_icrcs;
        self.cuts += other.cuts;
        self.sweeps += other.sweeps;
        self.setup_ns += other.setup_ns;
        self.traffic_ns += other.traffic_ns;
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "messages={} bytes={} packets={} received={} connections={} repeated={} timeouts={} \
             wrong_icrcs={} cuts={} sweeps={} setup_ms={:.3} traffic_ms={:.3}",
            self.messages,
            self.bytes,
            self.packets_sent,
            self.packets_received,
            self.connections,
            self.repeated,
            self.timeouts,
            self.wrong_icrcs,
            self.cuts,
            self.sweeps,
            self.setup_ns as f64 / 1e6,
            self.traffic_ns as f64 / 1e6
        )
    }
}

/// The end of a run.
#[derive(Debug)]
pub struct Report {
    /// What it did.
    pub totals: Totals,
    /// The first violation, if there was one.
    pub violation: Option<String>,
    /// The deliberate fault took place.
    pub mutated: bool,
}

/// Runs a plan to its end. `is_up` is called when the manager has set up the subnet.
pub fn run(plan: &Plan, is_up: impl FnOnce()) -> Report {
    let mut world = World::new(plan);
    if world.set_up() {
        is_up();
        world.exchange();
        world.check_end();
    }
    let World { totals, books, .. } = world;
    Report { totals, violation: books.violation, mutated: books.mutated }
}

/// The device of a host.
#[derive(Debug)]
struct SimAdapter {
    node: NodeId,
    lid: Lid,
    /// By the number of the peer.
    ends: Vec<Option<Box<End>>>,
    /// Peers whose queue pairs have something to send.
    ready: VecDeque<u32>,
    /// A packet that the port had no room for, LRH to ICRC.
    held: Vec<u8>,
    is_waiting: bool,
    /// Messages posted so far, and those of them that are not complete.
    posted: u64,
    under_way: u32,
    is_dirty: bool,
}

struct World<'a> {
    plan: &'a Plan,
    subnet: Subnet,
    manager: ManagerHost,
    manager_due: Option<Time>,
    hosts: Vec<SimAdapter>,
    /// The host at each node.
    host_at: Vec<Option<u32>>,
    timers: BinaryHeap<Reverse<(Time, u32, u32)>>,
    /// Cables to be mended.
    mends: VecDeque<(Time, usize)>,
    next_deed: usize,
    /// The subnet is up, so that hosts may send.
    is_open: bool,
    /// Hosts with something to do.
    dirty: VecDeque<u32>,
    books: Books,
    totals: Totals,
    now: Time,
    /// A packet that has arrived.
    buffer: Vec<u8>,
    /// A packet that leaves: as long as any.
    frame: Vec<u8>,
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan) -> Self {
        let mut config = SubnetConfig { seed: plan.seed, ..SubnetConfig::MODELLED };
        if !plan.is_undisturbed() {
            // A flow-control packet may be lost, so credits are told again before retries end.
            config.link.idle_update_ns = LinkConfig::DEFAULT.idle_update_ns;
        }
        let mut subnet = Subnet::new(&plan.topology, config);
        let kinds = plan.topology.nodes().iter().map(|node| node.kind);
        let nodes: Vec<_> = (0..)
            .map(NodeId)
            .zip(kinds)
            .filter_map(|(node, kind)| (kind == NodeKind::Adapter).then_some(node))
            .collect();
        let mut host_at = vec![None; plan.topology.nodes().len()];
        for (host, node) in (0..).zip(&nodes) {
            host_at[node.0 as usize] = Some(host);
        }
        let manager = ManagerHost::start(&mut subnet, nodes[0], plan);
        let hosts = nodes
            .iter()
            .map(|node| SimAdapter {
                node: *node,
                lid: Lid::RESERVED,
                ends: nodes.iter().map(|_| None).collect(),
                ready: VecDeque::new(),
                held: Vec::new(),
                is_waiting: false,
                posted: 0,
                under_way: 0,
                is_dirty: false,
            })
            .collect();
        Self {
            plan,
            subnet,
            manager,
            manager_due: Some(Time(0)),
            hosts,
            host_at,
            timers: BinaryHeap::new(),
            mends: VecDeque::new(),
            next_deed: 0,
            is_open: false,
            dirty: VecDeque::new(),
            books: Books::new(nodes.len()),
            totals: Totals::default(),
            now: Time(0),
            buffer: Vec::new(),
            frame: vec![0; LinkPacket::MAX_LEN],
        }
    }

    /// Lets the manager set up the subnet. Returns whether it has.
    fn set_up(&mut self) -> bool {
        let end = Time(SETUP_NS);
        let hosts = self.hosts.len();
        // A first sweep may begin before all links are trained.
        let is_up = |world: &Self| {
            let view = world.manager.view();
            view.up_since.is_some() && !view.is_busy && view.adapter_ports == hosts
        };
        while !is_up(self) {
            if !self.step(end) {
                let view = self.manager.view();
                self.books.fail(format!("the subnet did not come up: {view:?}"));
                return false;
            }
        }
        self.totals.setup_ns = self.now.nanos();
        for host in &mut self.hosts {
            host.lid = self.subnet.port(host.node, ONE).map_or(Lid::RESERVED, |port| port.lid);
        }
        true
    }
    /// Sends all messages, and waits until they are complete.
    fn exchange(&mut self) {
        self.is_open = true;
        let begin = self.now;
        let end = begin + PATIENCE_NS + self.plan.total() * 100_000;
        for host in 0..self.hosts.len() as u32 {
            self.post(host);
        }
        let total = self.plan.total();
        while self.books.total_completed < total && self.books.violation.is_none() {
            self.wreak();
            if !self.step(end) {
                let missing = self.books.missing(self.plan.messages);
                let (complete, now) = (self.books.total_completed, self.now);
                self.books.fail(format!(
                    "{complete} of {total} messages are complete at {now:?}; from, to, received: \
                     {missing:?}"
                ));
            }
        }
        self.totals.traffic_ns = self.now.since(begin);
        // What was sent twice must not be taken twice.
        let end = self.now + SILENCE_NS;
        while self.books.violation.is_none() && self.step(end) {}
    }
    fn check_end(&mut self) {
        let totals = &mut self.totals;
        totals.messages = self.books.total_received;
        totals.bytes = self.books.bytes;
        totals.sweeps = self.manager.view().sweeps;
        for end in self.hosts.iter().flat_map(|host| &host.ends).flatten() {
            let counters = end.qp.counters();
            totals.connections += 1;
            totals.repeated += counters.retransmitted_packets;
            totals.timeouts += counters.ack_timeouts;
        }
        totals.connections /= 2;
        let totals = *totals;
        if let Some(missing) = self.books.missing(self.plan.messages) {
            self.books.fail(format!("from, to, received: {missing:?}"));
        }
        let is_whole = totals.packets_sent == totals.packets_received
            && totals.repeated + totals.timeouts + totals.wrong_icrcs == 0;
        if self.plan.is_undisturbed() && !is_whole {
            self.books.fail(format!("packets were lost or repeated without a reason: {totals}"));
        }
    }

    /// Does what the plan has for the messages that are complete.
    fn wreak(&mut self) {
        while let Some((after, deed)) = self.plan.deeds.get(self.next_deed) {
            // One cut at a time: the next waits until the cable is mended.
            let must_wait = matches!(deed, Deed::Cut(..)) && !self.mends.is_empty();
            if *after > self.books.total_completed || must_wait {
                return;
            }
            self.next_deed += 1;
            match *deed {
                Deed::Cut(cable, nanos) => {
                    self.set_cable(cable, false);
                    self.mends.push_back((self.now + nanos, cable));
                    self.totals.cuts += 1;
                }
                Deed::BitErrors(rate) => {
                    for cable in self.plan.topology.cables() {
                        let end = cable.ends[0];
                        let node = NodeId(end.node as u32);
                        let set = self.subnet.set_bit_error_rate(node, end.port, rate);
                        set.expect("a cable of the plan");
                    }
                }
            }
        }
    }
    fn set_cable(&mut self, cable: usize, is_up: bool) {
        let end = self.plan.topology.cables()[cable].ends[0];
        let set = self.subnet.set_cable(NodeId(end.node as u32), end.port, is_up, self.now);
        set.expect("a cable of the plan");
    }

    /// Does all that is due now, and goes on to when something is next. Returns whether that is
    /// before the end.
    fn step(&mut self, end: Time) -> bool {
        loop {
            self.subnet.run(self.now);
            let mut is_idle = true;
            while let Some((node, _)) = self.subnet.poll_ready() {
                is_idle = false;
                if node == self.manager.node() {
                    self.manager_due = Some(self.now);
                }
                if let Some(host) = self.host_at[node.0 as usize] {
                    self.receive(host);
                }
            }
            if self.manager_due.is_some_and(|due| due <= self.now) {
                is_idle &= !self.manager.work(&mut self.subnet, self.now);
                self.manager_due = self.manager.next_deadline().map(|due| due.max(self.now + 1));
            }
            while let Some(host) = self.dirty.pop_front() {
                self.hosts[host as usize].is_dirty = false;
                is_idle &= !self.send(host);
            }
            if is_idle {
                break;
            }
        }
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        let mend = self.mends.front().map(|(at, _)| *at);
        let due = [self.subnet.poll_timeout(), timer, mend, self.manager_due];
        let Some(next) = due.into_iter().flatten().min().filter(|next| *next <= end) else {
            return false;
        };
        self.now = self.now.max(next);
        while let Some((at, cable)) = self.mends.front().copied()
            && at <= self.now
        {
            self.mends.pop_front();
            self.set_cable(cable, true);
        }
        while let Some(Reverse((at, host, peer))) = self.timers.peek().copied()
            && at <= self.now
        {
            self.timers.pop();
            self.fire(host, peer, at);
        }
        true
    }
    /// Does what a timer is for.
    fn fire(&mut self, host: u32, peer: u32, at: Time) {
        let now = self.now;
        let found = &mut self.hosts[host as usize];
        if peer == PORT_TIMER {
            found.is_waiting = false;
            self.mark(host);
            return;
        }
        let Some(end) = &mut found.ends[peer as usize] else { return };
        if end.timer_at != Some(at) {
            return; // An earlier one has taken its place.
        }
        end.timer_at = None;
        if end.qp.next_deadline().is_some_and(|due| due <= now) {
            end.with(self.plan, &mut self.books, |qp, device| qp.handle_timeout(now, device));
        }
        self.settle(host, peer);
    }
    fn mark(&mut self, host: u32) {
        let found = &mut self.hosts[host as usize];
        if !std::mem::replace(&mut found.is_dirty, true) {
            self.dirty.push_back(host);
        }
    }
    /// After any call: asks the queue pair what it wants next.
    fn settle(&mut self, host: u32, peer: u32) {
        let found = &mut self.hosts[host as usize];
        let Some(end) = &mut found.ends[peer as usize] else { return };
        let wants = end.qp.wants_transmit();
        if wants && !std::mem::replace(&mut end.is_ready, true) {
            found.ready.push_back(peer);
        }
        let due = end.qp.next_deadline().map(|at| at.max(self.now));
        if let Some(at) = due.filter(|at| end.timer_at.is_none_or(|set| *at < set)) {
            end.timer_at = Some(at);
            self.timers.push(Reverse((at, host, peer)));
        }
        if wants {
            self.mark(host);
        }
    }

    /// Posts messages of a host as long as it may have more under way.
    fn post(&mut self, host: u32) {
        let plan = self.plan;
        let peers = self.hosts.len() as u64 - 1;
        loop {
            let found = &mut self.hosts[host as usize];
            if found.under_way >= plan.window || found.posted >= peers * u64::from(plan.messages) {
                return;
            }
            // A burst to each peer in turn, beginning with the next host.
            let burst = u64::from(plan.burst);
            let (round, inside) = (found.posted / (peers * burst), found.posted % (peers * burst));
            let left = u64::from(plan.messages) - round * burst;
            let step = inside / left.min(burst);
            let peer = ((u64::from(host) + 1 + step) % (peers + 1)) as u32;
            self.connect(host, peer);
            let found = &mut self.hosts[host as usize];
            let Some(end) = &mut found.ends[peer as usize] else { return };
            if !end.post(plan) {
                return;
            }
            found.posted += 1;
            found.under_way += 1;
            self.settle(host, peer);
        }
    }
    /// Makes a connection, if there is none.
    fn connect(&mut self, host: u32, peer: u32) {
        if self.hosts[host as usize].ends[peer as usize].is_some() {
            return;
        }
        for (own, other) in [(host, peer), (peer, host)] {
            let dlid = self.hosts[other as usize].lid;
            let end = End::new(self.plan, &mut self.books, own, other, dlid);
            self.hosts[own as usize].ends[other as usize] = Some(Box::new(end));
        }
    }

    /// Takes what has arrived at a host.
    fn receive(&mut self, host: u32) {
        let node = self.hosts[host as usize].node;
        let mut packet = std::mem::take(&mut self.buffer);
        while self.subnet.poll_receive(node, ONE, &mut packet) {
            if self.books.mutates(self.plan, Mutation::LostPacket) {
                continue;
            }
            let is_strayed = self.books.mutates(self.plan, Mutation::WrongHost);
            let host = if is_strayed { (host + 1) % self.hosts.len() as u32 } else { host };
            self.handle(host, &packet);
        }
        self.buffer = packet;
        if self.is_open {
            self.post(host);
        }
    }
    /// Hands a packet, LRH to ICRC, to its queue pair.
    fn handle(&mut self, host: u32, bytes: &[u8]) {
        let opened = Lrh::parse(bytes).ok().zip(bytes[Lrh::LEN..].split_last_chunk());
        let Some((lrh, (transport, stamped))) = opened else {
            self.books.fail(format!("a packet without headers at h{}", host + 1));
            return;
        };
        if icrc::of_infiniband(&lrh, None, transport) != u32::from_le_bytes(*stamped) {
            // A damaged packet whose VCRC is right by chance.
            self.totals.wrong_icrcs += 1;
            return;
        }
        self.totals.packets_received += 1;
        let Ok(packet) = Packet::parse(transport) else {
            self.books.fail(format!("a packet that nobody can read at h{}", host + 1));
            return;
        };
        let found = &mut self.hosts[host as usize];
        let to = found.lid;
        let peer = peer_of(packet.dest_qpn()).filter(|peer| (*peer as usize) < found.ends.len());
        let end = peer.and_then(|peer| Some((peer, found.ends[peer as usize].as_mut()?)));
        let Some((peer, end)) = end else {
            self.books.fail(format!("no queue pair at h{} for {packet}", host + 1));
            return;
        };
        let before = self.books.total_completed;
        let meta = RxMeta { grh: None, ecn: 0, route: LocalRoute::NONE, is_peer: true };
        let now = self.now;
        let disposition = end.with(self.plan, &mut self.books, |qp, device| {
            qp.handle_packet(now, &packet, &meta, device)
        });
        // All completions of the call are this host's own.
        found.under_way -= (self.books.total_completed - before) as u32;
        let from = self.hosts[peer as usize].lid;
        if (lrh.dlid, lrh.slid) != (to.0, from.0) {
            let what = format!("from {} to {} at {to} from {from}", lrh.slid, lrh.dlid);
            self.books.fail(format!("a packet went astray: {what}: {packet}"));
        }
        let is_right = match disposition {
            Disposition::Accepted => true,
            Disposition::Nak(class) => !self.plan.is_undisturbed() && !class.row().fatal,
            Disposition::Duplicate | Disposition::Drop(_) => !self.plan.is_undisturbed(),
            Disposition::Rnr | Disposition::Kept => false,
        };
        if !is_right {
            self.books.fail(format!("{disposition:?} at h{} for {packet}", host + 1));
        }
        self.settle(host, peer);
    }

    /// Sends what the queue pairs of a host have, in turns, as long as the port takes it. Returns
    /// whether anything was sent.
    fn send(&mut self, host: u32) -> bool {
        let mut any = false;
        if self.hosts[host as usize].is_waiting {
            return false;
        }
        let found = &mut self.hosts[host as usize];
        let held = found.held.len();
        if held > 0 {
            self.frame[..held].copy_from_slice(&found.held);
            found.held.clear();
            if !self.submit(host, held) {
                return false;
            }
            any = true;
        }
        while let Some(peer) = self.hosts[host as usize].ready.pop_front() {
            if let Some(end) = &mut self.hosts[host as usize].ends[peer as usize] {
                end.is_ready = false;
            }
            for _ in 0..TURN {
                let Some(len) = self.poll(host, peer) else { break };
                if !self.submit(host, len) {
                    self.settle(host, peer);
                    return any;
                }
                any = true;
            }
            self.settle(host, peer);
        }
        any
    }
    /// Gives the packet in `frame`, LRH to ICRC, to the port. If that has no room, the packet is
    /// held, and tried again soon.
    fn submit(&mut self, host: u32, len: usize) -> bool {
        let found = &mut self.hosts[host as usize];
        let packet = &self.frame[..len];
        match self.subnet.submit(found.node, ONE, packet, self.now) {
            Err(SubmitError::Full) => {
                found.held.extend_from_slice(packet);
                found.is_waiting = true;
                self.timers.push(Reverse((self.now + AGAIN_NS, host, PORT_TIMER)));
                return false;
            }
            // A host whose cable is cut.
            Err(SubmitError::Discarded) if !self.plan.is_undisturbed() => {}
            Err(error) => self.books.fail(format!("h{}: {error}", host + 1)),
            Ok(()) => self.totals.packets_sent += 1,
        }
        true
    }
    /// Writes the next packet of a queue pair to `frame`. Returns its length, LRH to ICRC.
    fn poll(&mut self, host: u32, peer: u32) -> Option<usize> {
        let slid = self.hosts[host as usize].lid;
        let dlid = self.hosts[peer as usize].lid;
        let now = self.now;
        let end = self.hosts[host as usize].ends[peer as usize].as_mut()?;
        let first = end.response_next;
        let len = [first, !first].into_iter().find_map(|is_response| {
            let buf = &mut self.frame[Lrh::LEN..];
            let sent = end.with(self.plan, &mut self.books, |qp, device| match is_response {
                true => qp.poll_response(now, device, buf),
                false => qp.poll_request(now, device, buf),
            })?;
            end.response_next = !is_response;
            Some(sent.len)
        })?;
        let len = Lrh::LEN + len + icrc::LEN;
        let lrh = Lrh { next_header: Lrh::NEXT_BTH, dlid: dlid.0, slid: slid.0, ..Lrh::default() };
        lrh.emit(&mut self.frame);
        if let Err(error) = link_packet::finish(&mut self.frame[..len + vcrc::LEN]) {
            self.books.fail(format!("h{} wrote no packet: {error}", host + 1));
        }
        Some(len)
    }
}
