//! The subnet manager at its host: its agents, and the way of their datagrams.

use vernic_fabric::Time;
use vernic_fabric::datagram::Envelope;
use vernic_fabric::link::SubmitError;
use vernic_fabric::manager::{Manager, ManagerConfig, ManagerView, Via};
use vernic_fabric::subnet::{NodeId, Subnet};
use vernic_proto::mad::{AgentId, Agents, AgentsConfig, MadTransmit};
use vernic_wire::smp::PortInfo;
use vernic_wire::{PortNum, Psn};

use super::plan::Plan;

const ONE: PortNum = PortNum(1);

/// A manager at port 1 of a host.
#[derive(Debug)]
pub(super) struct ManagerHost {
    node: NodeId,
    agents: Agents,
    manager: Manager,
    via: Vec<(Via, AgentId)>,
    /// A datagram that the port had no room for.
    held: Option<MadTransmit>,
    buffer: Vec<u8>,
}

impl ManagerHost {
    /// Starts a manager.
    pub(super) fn start(subnet: &mut Subnet, node: NodeId, plan: &Plan) -> Self {
        let guid = subnet.port(node, ONE).expect("a host has port 1").guid;
        let mut agents = Agents::new(AgentsConfig::default());
        let register = |(via, registration)| {
            (via, agents.register(&registration).expect("the host has no other manager"))
        };
        let via = Manager::registrations().into_iter().map(register).collect();
        let (routing, timeout_ms) = (plan.routing, plan.manager_timeout_ms);
        let config = ManagerConfig { routing, timeout_ms, ..ManagerConfig::new(guid) };
        subnet.set_capabilities(node, ONE, PortInfo::CAPABILITY_SM, true, Time(0));
        let manager = Manager::new(config);
        Self { node, agents, manager, via, held: None, buffer: Vec::new() }
    }
    /// Returns the host that the manager is at.
    pub(super) fn node(&self) -> NodeId {
        self.node
    }
    /// Returns what can be seen of the manager.
    pub(super) fn view(&self) -> ManagerView {
        self.manager.view()
    }
    /// Returns when there is something to do though nothing arrives.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let held = self.held.is_some().then_some(Time(0));
        [self.agents.next_deadline(), self.manager.next_deadline(), held]
            .into_iter()
            .flatten()
            .min()
    }
    /// Takes what has arrived, does what is due, and sends. Returns whether anything was sent.
    pub(super) fn work(&mut self, subnet: &mut Subnet, now: Time) -> bool {
        while subnet.poll_datagram(self.node, ONE, &mut self.buffer) {
            self.take(subnet, now);
        }
        self.agents.handle_timeout(now);
        for (via, id) in &self.via {
            while let Some(delivery) = self.agents.poll_deliver(*id) {
                self.manager.handle(*via, &delivery, now);
            }
        }
        self.manager.handle_timeout(now);
        while let Some(out) = self.manager.poll_transmit() {
            let agent = self.via.iter().find(|(via, _)| *via == out.via).map(|(_, id)| *id);
            let agent = agent.expect("the manager sends as it has registered");
            let sent = self.agents.send(agent, out.address, &out.mad, out.timeout_ms, out.retries);
            sent.expect("the manager has no more under way than agents take");
        }
        let mut any = false;
        while let Some(out) = self.held.take().or_else(|| self.agents.poll_transmit(now)) {
            if !self.send(subnet, &out, now) {
                self.held = Some(out);
                break;
            }
            any = true;
        }
        any
    }

    fn take(&mut self, subnet: &Subnet, now: Time) {
        let Some(port) = subnet.port(self.node, ONE) else { return };
        // What is damaged comes again.
        let Some((envelope, mad)) = Envelope::open_received(&mut self.buffer) else { return };
        // What no agent wants is counted there.
        let sender = envelope.sender(port);
        let _ = self.agents.handle_mad(now, envelope.destination, sender, &mad);
    }
    /// Sends a datagram. Returns whether there was room for it.
    fn send(&mut self, subnet: &mut Subnet, out: &MadTransmit, now: Time) -> bool {
        let port = subnet.port(self.node, ONE);
        let envelope = port.and_then(|port| Envelope::of_port(out.qpn, &out.address, port));
        // What the port does not take otherwise is repeated.
        let Some(envelope) = envelope else { return true };
        envelope.seal_to_send(Psn::new(0), &out.mad, &mut self.buffer);
        subnet.submit(self.node, ONE, &self.buffer, now) != Err(SubmitError::Full)
    }
}
