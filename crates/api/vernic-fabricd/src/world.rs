//! The fabric with its hosts: what the rooms of the server share.

use std::collections::{BTreeMap, BTreeSet};

use vernic_attach::question::Answer;
use vernic_attach::{Refusal, RefusalKind, UserMad};
use vernic_fabric::Time;
use vernic_fabric::attributes::NodeKind;
use vernic_fabric::subnet::{NodeId, Subnet, SubnetConfig};
use vernic_fabric::topology::Topology;
use vernic_wire::smp::PortInfo;
use vernic_wire::{Guid, PortNum};

use crate::agents::PortAgents;
use crate::early::EarlyRequests;
use crate::host::{Host, HostPort};
use crate::key::Key;
use crate::known::KnownRequests;
use crate::manager::{ManagerOptions, OwnManager};
use crate::program::Outlet;

/// What a connection is to be told.
#[derive(Debug)]
pub(crate) enum News {
    /// A datagram for one of its agents.
    Datagram(UserMad),
    /// An answer to its question.
    Answer(Result<Answer, Refusal>),
}

/// The fabric and its hosts.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) name: String,
    pub(crate) plan: Topology,
    pub(crate) subnet: Subnet,
    pub(crate) hosts: Vec<Host>,
    /// Programs with packets to be sent.
    pub(crate) dirty: Vec<Key>,
    /// Programs whose packets wait for room at their port.
    pub(crate) held: Vec<Key>,
    /// Ports whose next packet waits for a program.
    pub(crate) waiting: Vec<(NodeId, PortNum)>,
    /// Ports that were opened for management, by host and port.
    pub(crate) managed: BTreeSet<(usize, u8)>,
    /// Hosts whose own connection manager has something to say.
    pub(crate) speaking: BTreeSet<usize>,
    pub(crate) scratch: Vec<u8>,
    /// Requests for connections whose service nobody has claimed.
    pub(crate) early: EarlyRequests,
    /// Requests for connections that programs have got.
    pub(crate) known: KnownRequests,
    /// The own subnet manager, if there is one.
    pub(crate) manager: Option<OwnManager>,
    /// The host of each node.
    by_node: Vec<Option<usize>>,
    by_name: BTreeMap<String, usize>,
}

impl World {
    pub(crate) fn new(name: &str, plan: Topology, config: SubnetConfig) -> Self {
        let subnet = Subnet::new(&plan, config);
        let mut hosts = Vec::new();
        let (mut by_node, mut by_name) = (vec![None; plan.nodes().len()], BTreeMap::new());
        for (at, node) in plan.nodes().iter().enumerate() {
            if node.kind == NodeKind::Adapter {
                by_node[at] = Some(hosts.len());
                // Of several hosts of one name, the first has it.
                by_name.entry(node.name.clone()).or_insert(hosts.len());
                hosts.push(Host::new(NodeId(at as u32), node.name.clone(), node.ports));
            }
        }
        Self {
            name: name.to_owned(),
            plan,
            subnet,
            hosts,
            dirty: Vec::new(),
            held: Vec::new(),
            waiting: Vec::new(),
            managed: BTreeSet::new(),
            speaking: BTreeSet::new(),
            scratch: Vec::new(),
            early: EarlyRequests::default(),
            known: KnownRequests::default(),
            manager: None,
            by_node,
            by_name,
        }
    }
    pub(crate) fn host_of(&self, node: NodeId) -> Option<usize> {
        self.by_node.get(node.0 as usize).copied().flatten()
    }
    /// Returns the host whose adapter has a GUID.
    pub(crate) fn host_of_guid(&self, guid: Guid) -> Option<usize> {
        let node = self.plan.nodes().iter().position(|node| node.guid == guid)?;
        self.by_node[node]
    }
    /// Counts one more, or one less, subnet manager at a port, whose capabilities say so.
    pub(crate) fn count_manager(&mut self, at: usize, number: PortNum, is_new: bool, now: Time) {
        let host = &mut self.hosts[at];
        let node = host.node;
        let Some(port) = host.port(number) else { return };
        let managers = port.managers;
        port.managers = if is_new { managers + 1 } else { managers.saturating_sub(1) };
        let is_manager = port.managers > 0;
        self.subnet.set_capabilities(node, number, PortInfo::CAPABILITY_SM, is_manager, now);
    }
    /// Returns the host of a name.
    ///
    /// # Errors
    /// A refusal that names some hosts.
    pub(crate) fn host(&self, name: &str) -> Result<usize, Refusal> {
        self.by_name.get(name).copied().ok_or_else(|| {
            let some: Vec<_> = self.hosts.iter().take(3).map(|host| host.name.as_str()).collect();
            let (count, some, fabric) = (self.hosts.len(), some.join(", "), &self.name);
            let more = if count > 3 { ", ..." } else { "" };
            let shown: String = name.chars().take(64).collect();
            let text = format!(
                "the fabric {fabric:?} has no host {shown:?}; its {count} hosts are {some}{more}"
            );
            Refusal::new(RefusalKind::NoSuchNode, text)
        })
    }
    /// Returns where packets of a host's programs go to.
    pub(crate) fn outlet(&mut self, at: usize) -> Outlet<'_> {
        Outlet { subnet: &mut self.subnet, node: self.hosts[at].node, known: &self.known }
    }
    /// Sends what hosts say for programs that have ended, and for none.
    pub(crate) fn serve_host_cms(&mut self, now: Time) {
        let Self { speaking, hosts, subnet, .. } = self;
        speaking.retain(|at| {
            let host = &mut hosts[*at];
            let Some(cm) = &mut host.cm else { return false };
            host.counts.no_connection += cm.serve(subnet, host.node, now);
            !cm.is_idle()
        });
    }
    /// Sends and delivers datagrams of all agents, and answers of subnet administration; `tell`
    /// brings one to a connection.
    pub(crate) fn serve_agents(&mut self, now: Time, mut tell: impl FnMut(Key, News)) {
        if let Some(manager) = &mut self.manager {
            let port = self.hosts[manager.host].port(manager.port);
            if let Some(agents) = port.and_then(|port| port.agents.as_mut()) {
                manager.serve(agents.own(), now);
            }
        }
        for (at, port) in &self.managed {
            let host = &mut self.hosts[*at];
            let end = (host.node, PortNum(*port));
            let Some(HostPort { agents: Some(agents), administration, .. }) = host.port(end.1)
            else {
                continue;
            };
            let mut deliver = |key, mad| tell(key, News::Datagram(mad));
            agents.serve(now, &mut self.subnet, end, &mut deliver);
            if let Some(administration) = administration
                && administration.serve(agents.own(), now, |key, answer| {
                    tell(key, News::Answer(answer));
                })
            {
                agents.serve(now, &mut self.subnet, end, |key, mad| tell(key, News::Datagram(mad)));
            }
        }
    }
    /// Returns when agents have something to do.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let port = |(at, port): &(usize, u8)| {
            let port = self.hosts[*at].ports.get(usize::from(*port).checked_sub(1)?)?;
            port.agents.as_ref()?.next_deadline()
        };
        let manager = self.manager.as_ref().and_then(OwnManager::next_deadline);
        let speaking = self.speaking.iter().filter_map(|at| self.hosts[*at].cm.as_ref());
        let of_hosts = speaking.filter_map(|cm| cm.next_deadline());
        let of_ports = self.managed.iter().filter_map(port);
        of_ports.chain(of_hosts).chain(manager).chain(self.early.next_due()).min()
    }
    /// Starts the own subnet manager, at the last host. Returns whether there is a host for it.
    pub(crate) fn start_manager(&mut self, options: ManagerOptions, now: Time) -> bool {
        let Some(at) = self.hosts.len().checked_sub(1) else { return false };
        let (host, number) = (&mut self.hosts[at], PortNum(1));
        let node = host.node;
        let guid = self.subnet.port(node, number).map(|port| port.guid);
        let Some((port, guid)) = host.port(number).zip(guid) else { return false };
        let agents = port.agents.get_or_insert_with(|| Box::new(PortAgents::new()));
        self.manager = OwnManager::start(at, (number, guid), options, agents.own());
        if self.manager.is_some() {
            port.managers += 1;
            self.managed.insert((at, number.0));
            self.subnet.set_capabilities(node, number, PortInfo::CAPABILITY_SM, true, now);
        }
        self.manager.is_some()
    }
}
