//! The management agents of a port: whose they are, and the packets that carry their datagrams.

use std::collections::BTreeMap;

use vernic_attach::user_mad::MAX_MAD;
use vernic_attach::{AgentId, Refusal, RefusalKind, Registration, UserMad};
use vernic_fabric::Time;
use vernic_fabric::attributes::PortAttributes;
use vernic_fabric::datagram::Envelope;
use vernic_fabric::link::SubmitError;
use vernic_fabric::subnet::{NodeId, Subnet};
use vernic_proto::mad::{
    self, Agents, AgentsConfig, Delivery, MadTransmit, Outcome, RegisterError,
};
use vernic_wire::mad::MgmtClass;
use vernic_wire::{PortNum, Psn, Qpn};

use crate::key::Key;

/// Datagrams that leave a port in one turn at most, so that other ports have theirs.
const TRANSMITS_PER_TURN: usize = 256;

/// Agents of a port.
#[derive(Debug)]
pub(crate) struct PortAgents {
    agents: Agents,
    owners: BTreeMap<mad::AgentId, Key>,
    /// A packet that the port had no room for, LRH to ICRC.
    held: Option<Vec<u8>>,
    psn: Psn,
}

impl PortAgents {
    pub(crate) fn new() -> Self {
        Self {
            // A longer message would not reach its program: the sender is told instead.
            agents: Agents::new(AgentsConfig { max_bytes: MAX_MAD, ..AgentsConfig::default() }),
            owners: BTreeMap::new(),
            held: None,
            psn: Psn::new(0),
        }
    }
    /// Registers an agent, whose datagrams come over the connection `owner`.
    ///
    /// # Errors
    /// The reason why not.
    pub(crate) fn register(
        &mut self,
        owner: Key,
        registration: &Registration,
        subnet_management: bool,
    ) -> Result<AgentId, Refusal> {
        let wanted = registration_of(registration);
        if wanted.qpn == Qpn::SMI && !subnet_management {
            let text = "agents of subnet management (QP 0) need a port that was opened for them";
            return Err(Refusal::new(RefusalKind::NotAllowed, text));
        }
        let id = self.agents.register(&wanted).map_err(|error| {
            let kind = match error {
                RegisterError::InUse { .. } => RefusalKind::Taken,
                RegisterError::TooMany(_) => RefusalKind::TooMany,
                _ => RefusalKind::Invalid,
            };
            Refusal::new(kind, error.to_string())
        })?;
        self.owners.insert(id, owner);
        Ok(AgentId(id.0))
    }
    /// Ends an agent of a connection. Returns whether there was one.
    pub(crate) fn unregister(&mut self, owner: Key, agent: AgentId) -> bool {
        let id = mad::AgentId(agent.0);
        let is_own = self.owners.get(&id) == Some(&owner);
        if is_own {
            self.owners.remove(&id);
            self.agents.unregister(id);
        }
        is_own
    }
    /// Ends all agents of a connection.
    pub(crate) fn remove_owner(&mut self, owner: Key) {
        let agents = &mut self.agents;
        self.owners.retain(|id, key| {
            let stays = *key != owner;
            if !stays {
                agents.unregister(*id);
            }
            stays
        });
    }
    /// Returns the agents, for a client in this process.
    pub(crate) const fn own(&mut self) -> &mut Agents {
        &mut self.agents
    }
    /// Returns how many agents there are.
    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }
    /// Sends a datagram of a program. One that cannot be sent comes back with an error, as the
    /// kernel's interface has no other way to say so once it was written.
    pub(crate) fn send(
        &mut self,
        owner: Key,
        mad: UserMad,
        port: &PortAttributes,
    ) -> Option<UserMad> {
        let id = mad::AgentId(mad.agent.0);
        let address = mad.address;
        let class = mad.mad.get(1).map(|class| MgmtClass(*class));
        let qpn =
            if class.is_some_and(MgmtClass::is_subnet_management) { Qpn::SMI } else { Qpn::GSI };
        let sent = if Envelope::of_port(qpn, &address, port).is_none() {
            // The port has no such GID or partition key.
            return Some(UserMad { status: libc::EINVAL as u32, ..mad });
        } else if self.owners.get(&id) == Some(&owner) {
            self.agents.send(id, address, &mad.mad, mad.timeout_ms, mad.retries)
        } else {
            Err(mad::SendError::NoAgent(id))
        };
        let status = match sent {
            Ok(()) => return None,
            Err(mad::SendError::TooMany { .. }) => libc::ENOMEM,
            Err(_) => libc::EINVAL,
        };
        Some(UserMad { status: status as u32, ..mad })
    }
    /// Takes a datagram that has arrived, LRH to ICRC. Returns whether an agent has it.
    pub(crate) fn handle(
        &mut self,
        now: Time,
        attributes: &PortAttributes,
        packet: &mut Vec<u8>,
    ) -> bool {
        let Some((envelope, mad)) = Envelope::open_received(packet) else { return false };
        let source = envelope.sender(attributes);
        self.agents.handle_mad(now, envelope.destination, source, &mad).is_ok()
    }
    /// Returns when [`serve`](Self::serve) has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.agents.next_deadline()
    }
    /// Does what is due, sends datagrams into the fabric, and yields those for programs.
    pub(crate) fn serve(
        &mut self,
        now: Time,
        subnet: &mut Subnet,
        (node, port): (NodeId, PortNum),
        mut deliver: impl FnMut(Key, UserMad),
    ) {
        if self.agents.next_deadline().is_some_and(|due| due <= now) {
            self.agents.handle_timeout(now);
        }
        for _ in 0..TRANSMITS_PER_TURN {
            let packet = match self.held.take() {
                Some(packet) => packet,
                None => match self.agents.poll_transmit(now) {
                    Some(transmit) => match self.packet(subnet, (node, port), &transmit) {
                        Some(packet) => packet,
                        None => continue,
                    },
                    None => break,
                },
            };
            if subnet.submit(node, port, &packet, now) == Err(SubmitError::Full) {
                self.held = Some(packet);
                break;
            }
        }
        let ready = self.agents.ready().filter(|agent| self.owners.contains_key(agent));
        let ready: Vec<_> = ready.collect();
        for agent in ready {
            while let Some(delivery) = self.agents.poll_deliver(agent) {
                if let Some(owner) = self.owners.get(&agent) {
                    deliver(*owner, user_mad(delivery));
                }
            }
        }
    }
    /// Makes the packet of a datagram; `None` if the port has no longer the GID or partition key of
    /// the index that the datagram names. Who waits for an answer is told by the lack of it.
    fn packet(
        &mut self,
        subnet: &Subnet,
        (node, port): (NodeId, PortNum),
        transmit: &MadTransmit,
    ) -> Option<Vec<u8>> {
        let attributes = subnet.port(node, port)?;
        let envelope = Envelope::of_port(transmit.qpn, &transmit.address, attributes)?;
        self.psn = self.psn.next();
        let mut packet = Vec::new();
        envelope.seal_to_send(self.psn, &transmit.mad, &mut packet);
        Some(packet)
    }
}

fn registration_of(wanted: &Registration) -> mad::Registration {
    let Registration { class, class_version, methods, oui, .. } = *wanted;
    mad::Registration::of_user(class, class_version, methods, oui, wanted.wants_rmpp())
}

/// Returns a delivery as a program sees it.
fn user_mad(delivery: Delivery) -> UserMad {
    let status = match delivery.outcome {
        Outcome::Received => 0,
        Outcome::TimedOut => libc::ETIMEDOUT,
        Outcome::Aborted(_) => libc::ECONNABORTED,
    };
    UserMad {
        agent: AgentId(delivery.agent.0),
        status: status as u32,
        timeout_ms: 0,
        retries: 0,
        address: delivery.address,
        mad: delivery.mad,
    }
}
