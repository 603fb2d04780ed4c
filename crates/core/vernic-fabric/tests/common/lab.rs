//! A subnet in virtual time whose hosts have management agents, as programs use them.

use std::collections::BTreeMap;

use vernic_fabric::Time;
use vernic_fabric::attributes::PortAttributes;
use vernic_fabric::datagram::Envelope;
use vernic_fabric::link::SubmitError;
use vernic_fabric::manager::{Manager, ManagerConfig, Partition, Via};
use vernic_fabric::subnet::{NodeId, Subnet, SubnetConfig};
use vernic_fabric::topology::Topology;
use vernic_proto::mad::{
    AgentId, Agents, AgentsConfig, Delivery, MadAddress, MadTransmit, Registration,
};
use vernic_wire::mad::MgmtClass;
use vernic_wire::smp::PortInfo;
use vernic_wire::{Guid, PortNum, Psn, Qkey, Qpn};

const ONE: PortNum = PortNum(1);

/// A host with agents, and perhaps a manager.
pub struct LabHost {
    pub agents: Agents,
    pub manager: Option<Manager>,
    via: BTreeMap<AgentId, Via>,
    /// A datagram that the port had no room for.
    held: Option<MadTransmit>,
    /// An agent that asks subnet administration.
    pub client: AgentId,
}

pub struct Lab {
    pub subnet: Subnet,
    pub now: Time,
    pub hosts: BTreeMap<NodeId, LabHost>,
    buffer: Vec<u8>,
}

impl Lab {
    pub fn new(plan: &Topology, config: SubnetConfig) -> Self {
        let subnet = Subnet::new(plan, config);
        Self { subnet, now: Time(0), hosts: BTreeMap::new(), buffer: Vec::new() }
    }
    pub fn node(&self, name: &str) -> NodeId {
        self.subnet.node(name).expect("a name of the plan")
    }
    /// Gives a host agents.
    pub fn add(&mut self, name: &str) -> NodeId {
        let node = self.node(name);
        let mut agents = Agents::new(AgentsConfig::default());
        let client = Registration {
            qpn: Qpn::GSI,
            class: MgmtClass::SUBNET_ADMIN,
            class_version: 2,
            // Report.
            methods: 1 << 6,
            oui: 0,
            rmpp: true,
        };
        let client = agents.register(&client).expect("the first agent");
        let (manager, via, held) = (None, BTreeMap::new(), None);
        self.hosts.insert(node, LabHost { agents, manager, via, held, client });
        node
    }
    /// Starts a manager at a host.
    pub fn manage(&mut self, name: &str, change: impl FnOnce(&mut ManagerConfig)) -> NodeId {
        self.manage_parted(name, &[], change)
    }
    /// Starts a manager of partitions at a host.
    pub fn manage_parted(
        &mut self,
        name: &str,
        partitions: &[&str],
        change: impl FnOnce(&mut ManagerConfig),
    ) -> NodeId {
        let partitions = partitions.iter().map(|text| text.parse::<Partition>().expect("one"));
        let node = self.node(name);
        if !self.hosts.contains_key(&node) {
            self.add(name);
        }
        let guid: Guid = self.subnet.port(node, ONE).expect("a host").guid;
        let mut config = ManagerConfig::new(guid);
        change(&mut config);
        let host = self.hosts.get_mut(&node).expect("added");
        for (via, registration) in Manager::registrations() {
            let id = host.agents.register(&registration).expect("no other manager");
            host.via.insert(id, via);
        }
        host.manager = Some(Manager::with_partitions(config, partitions.collect()));
        self.subnet.set_capabilities(node, ONE, PortInfo::CAPABILITY_SM, true, self.now);
        node
    }
    /// Ends a manager as a kill does.
    pub fn kill(&mut self, node: NodeId) {
        let host = self.hosts.get_mut(&node).expect("a host with agents");
        for id in std::mem::take(&mut host.via).into_keys() {
            host.agents.unregister(id);
        }
        host.manager = None;
        self.subnet.set_capabilities(node, ONE, PortInfo::CAPABILITY_SM, false, self.now);
    }
    pub fn manager(&self, node: NodeId) -> &Manager {
        self.hosts[&node].manager.as_ref().expect("a manager")
    }
    /// Asks subnet administration, and returns the answer.
    pub fn ask(&mut self, node: NodeId, message: &[u8]) -> Option<Delivery> {
        let lid = self.subnet.port(node, ONE)?.sm_lid;
        let (qpn, qkey) = (Qpn::GSI, Qkey(0x8001_0000));
        let address = MadAddress { qpn, qkey, lid, ..MadAddress::default() };
        let host = self.hosts.get_mut(&node)?;
        host.agents.send(host.client, address, message, 1_000, 2).expect("it is sent");
        let end = self.now + 30_000_000_000;
        loop {
            let host = self.hosts.get_mut(&node)?;
            if let Some(delivery) = host.agents.poll_deliver(host.client) {
                return Some(delivery);
            }
            if self.now >= end || !self.step(end) {
                return None;
            }
        }
    }
    /// Lets time pass until a condition is true. Returns whether it is.
    pub fn until(&mut self, nanos: u64, is_done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + nanos;
        while !is_done(self) {
            if self.now >= end || !self.step(end) {
                return is_done(self);
            }
        }
        true
    }
    pub fn pass(&mut self, nanos: u64) {
        let end = self.now + nanos;
        while self.now < end && self.step(end) {}
        self.now = self.now.max(end);
        self.subnet.run(self.now);
    }
    /// Does all that is due, and goes on to when something is next. Returns whether that is before
    /// the end.
    fn step(&mut self, end: Time) -> bool {
        self.work();
        let hosts = self.hosts.values().flat_map(|host| {
            let manager = host.manager.as_ref().and_then(Manager::next_deadline);
            [host.agents.next_deadline(), manager]
        });
        let next = hosts.chain([self.subnet.poll_timeout()]).flatten().min();
        let Some(next) = next.filter(|next| *next <= end) else { return false };
        self.now = self.now.max(next);
        self.subnet.run(self.now);
        true
    }
    fn work(&mut self) {
        let now = self.now;
        loop {
            self.subnet.run(now);
            let mut is_idle = true;
            for (node, host) in &mut self.hosts {
                while self.subnet.poll_datagram(*node, ONE, &mut self.buffer) {
                    is_idle = false;
                    let port = self.subnet.port(*node, ONE).expect("a host");
                    take(host, port, &mut self.buffer, now);
                }
                host.agents.handle_timeout(now);
                let LabHost { agents, manager, via, held, .. } = host;
                if let Some(manager) = manager {
                    for (id, via) in &*via {
                        while let Some(delivery) = agents.poll_deliver(*id) {
                            manager.handle(*via, &delivery, now);
                        }
                    }
                    manager.handle_timeout(now);
                    while let Some(out) = manager.poll_transmit() {
                        let id =
                            via.iter().find(|(_, via)| **via == out.via).expect("registered").0;
                        let sent =
                            agents.send(*id, out.address, &out.mad, out.timeout_ms, out.retries);
                        sent.expect("it is sent");
                    }
                }
                while let Some(out) = held.take().or_else(|| agents.poll_transmit(now)) {
                    if !send(&mut self.subnet, *node, &out, &mut self.buffer, now) {
                        *held = Some(out);
                        break;
                    }
                    is_idle = false;
                }
            }
            if is_idle {
                return;
            }
        }
    }
}

fn take(host: &mut LabHost, port: &PortAttributes, packet: &mut Vec<u8>, now: Time) {
    let (envelope, mad) = Envelope::open_received(packet).expect("a datagram");
    // What no agent wants is counted there.
    let _ = host.agents.handle_mad(now, envelope.destination, envelope.sender(port), &mad);
}

/// Sends a datagram. Returns whether there was room for it.
fn send(
    subnet: &mut Subnet,
    node: NodeId,
    out: &MadTransmit,
    buffer: &mut Vec<u8>,
    now: Time,
) -> bool {
    let port = subnet.port(node, ONE).expect("a host");
    // What the port does not take is repeated.
    let Some(envelope) = Envelope::of_port(out.qpn, &out.address, port) else { return true };
    envelope.seal_to_send(Psn::new(0), &out.mad, buffer);
    subnet.submit(node, ONE, buffer, now) != Err(SubmitError::Full)
}
