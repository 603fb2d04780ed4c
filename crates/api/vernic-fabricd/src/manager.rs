//! The fabric's own subnet manager, as one more client of a host's agents.

use vernic_fabric::Time;
use vernic_fabric::manager::{Manager, ManagerConfig, ManagerView, Partition, Routing, Via};
use vernic_proto::mad::{AgentId, Agents, Delivery, Outcome};
use vernic_wire::{Guid, PortNum};

/// What the own subnet manager is told.
#[derive(Clone, Debug)]
pub struct ManagerOptions {
    /// How the manager leads packets.
    pub routing: Routing,
    /// Priority, 0 to 15: the manager with the highest one becomes the master.
    pub priority: u8,
    /// Ports of hosts have 2 to the power of this LIDs, 0 to 7.
    pub lmc: u8,
    /// Partitions besides the default one, or the members of that.
    pub partitions: Vec<Partition>,
}

impl ManagerOptions {
    /// Returns the usual ones: priority 0, a LID for each port, and the default partition alone.
    pub const fn new(routing: Routing) -> Self {
        Self { routing, priority: 0, lmc: 0, partitions: Vec::new() }
    }
}

/// The manager with its agents.
#[derive(Debug)]
pub(crate) struct OwnManager {
    manager: Manager,
    agents: Vec<(Via, AgentId)>,
    /// The host that the manager is at.
    pub(crate) host: usize,
    /// The port of the host.
    pub(crate) port: PortNum,
}

impl OwnManager {
    /// Starts a manager at a port that no other one is at. `None` if the port's agents are taken.
    pub(crate) fn start(
        host: usize,
        (port, guid): (PortNum, Guid),
        options: ManagerOptions,
        agents: &mut Agents,
    ) -> Option<Self> {
        let ManagerOptions { routing, priority, lmc, partitions } = options;
        let config = ManagerConfig { routing, priority, lmc, ..ManagerConfig::new(guid) };
        let register = |(via, registration)| Some((via, agents.register(&registration).ok()?));
        let agents = Manager::registrations().into_iter().map(register).collect::<Option<_>>()?;
        let manager = Manager::with_partitions(config, partitions);
        Some(Self { manager, agents, host, port })
    }
    /// Takes what has been delivered, does what is due, and sends.
    pub(crate) fn serve(&mut self, agents: &mut Agents, now: Time) {
        for (via, id) in &self.agents {
            while let Some(delivery) = agents.poll_deliver(*id) {
                self.manager.handle(*via, &delivery, now);
            }
        }
        self.manager.handle_timeout(now);
        while let Some(out) = self.manager.poll_transmit() {
            let agent = self.agents.iter().find(|(via, _)| *via == out.via).map(|(_, id)| *id);
            let Some(agent) = agent else { continue };
            let sent = agents.send(agent, out.address, &out.mad, out.timeout_ms, out.retries);
            if sent.is_err() {
                // As if nobody had answered.
                let (outcome, address) = (Outcome::TimedOut, out.address);
                let unsent = Delivery { agent, outcome, address, mad: out.mad };
                self.manager.handle(out.via, &unsent, now);
            }
        }
    }
    /// Returns when [`serve`](Self::serve) has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.manager.next_deadline()
    }
    /// Returns what can be seen of the manager.
    pub(crate) fn view(&self) -> ManagerView {
        self.manager.view()
    }
}
