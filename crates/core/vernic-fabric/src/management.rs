//! The agents of a node: what answers a subnet manager and a performance manager.
//!
//! Owns the answers to subnet management packets (IBTA chapter 14) and to performance management
//! (chapter 16), the steps of directed routes, the protection by the M_Key, and the traps of the
//! node. The owner of a node calls [`Agent::handle`] for each datagram of these classes, at
//! adapters and at every switch on the way of a directed route, and [`Agent::poll_trap`] when
//! [`Agent::next_deadline`] is due. An agent changes values of the node through [`ManagedNode`]
//! and keeps only what the data path does not need.
//!
//! | module | owns |
//! |---|---|
//! | `directed_route` | where a directed-route packet goes next |
//! | `keys` | checks of the M_Key, and their lease |
//! | `node` | NodeInfo, NodeDescription, SwitchInfo, GUIDInfo |
//! | `port_info`, `settings` | PortInfo, and what only management knows of a port |
//! | `tables` | partition keys, lanes, forwarding |
//! | `traps` | notices that wait for their TrapRepress |
//! | `performance` | counters of ports |
//!
//! Limits: one block of GUIDs with one GUID; port 0 of a switch is a base port; SwitchInfo has no
//! MulticastFDBTop; no random forwarding table; traps 129 to 131 do not exist, because nothing has
//! thresholds.

mod directed_route;
mod keys;
mod node;
mod performance;
mod port_info;
mod settings;
mod tables;
#[cfg(test)]
mod tests;
mod traps;

use std::collections::BTreeMap;

use vernic_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use vernic_wire::smp::{self, MadStatus, PortInfo, SmAttribute, Smp};
use vernic_wire::{Lid, PortNum, Qpn};

use crate::Time;
use crate::attributes::{Forwarding, NodeAttributes, NodeKind, PhysicalState, PortAttributes};

pub use settings::PortSettings;
pub use traps::Trap;

use settings::Settings;
use traps::TrapQueue;

/// A node as its agents see it. The owner of the data path implements this.
pub trait ManagedNode {
    /// The node as a whole.
    fn attributes(&self) -> &NodeAttributes;
    /// A port: from port 1 on, and port 0 at a switch. `None` for a port that the node lacks.
    fn port(&self, port: PortNum) -> Option<&PortAttributes>;
    /// A port, to be changed.
    fn port_mut(&mut self, port: PortNum) -> Option<&mut PortAttributes>;
    /// The tables of a switch; `None` at an adapter.
    fn forwarding(&self) -> Option<&Forwarding>;
    /// The tables of a switch, to be changed.
    fn forwarding_mut(&mut self) -> Option<&mut Forwarding>;
    /// Carries out a change of a port's state. Afterwards the attributes of the port have the new
    /// state. The agent has checked that the change is allowed (IBTA 7.2.7).
    fn change_port(&mut self, port: PortNum, change: PortChange);
}

/// A change of a port's state that a subnet manager asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortChange {
    /// From Initialize to Armed.
    Arm,
    /// From Armed to Active.
    Activate,
    /// Takes the link down, and leaves the port in this physical state: Sleep, Polling or Disabled.
    Down(PhysicalState),
}

/// Where a datagram came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ingress {
    /// The port that the datagram came in by. For one of the node's own clients: the port that the
    /// client uses, 0 at a switch.
    pub port: PortNum,
    /// Source LID of the packet; the port's own for a client of the node.
    pub slid: Lid,
    /// The queue pair that the datagram came to: 0 or 1.
    pub queue_pair: Qpn,
    /// Whether the datagram is from a client of the node itself, and not from a link.
    pub local: bool,
}

/// What becomes of a datagram. Where it is sent, it is sent as [`Agent::handle`] left its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Out of this port, with the permissive LID as source and destination.
    Port(PortNum),
    /// To this LID, from the LID of the node; a LID of the node itself is possible.
    Lid(Lid),
    /// To the clients of the port that the datagram came in by; at a switch, of port 0.
    Local,
    /// Nowhere: the agent has done what it was told to.
    Done,
    /// Nowhere, for this reason. The agent has counted it.
    Drop(DropReason),
}

/// Why an agent drops a datagram.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DropReason {
    /// The datagram came to another queue pair than that of its class.
    QueuePair,
    /// No agent is of that class.
    Class,
    /// The node lacks the port that the datagram came in by, or that its path names.
    NoSuchPort,
    /// A hop count above 63.
    HopCount,
    /// A hop pointer that the hop count and the direction do not allow.
    HopPointer,
    /// The path or a LID leads through an adapter.
    NotASwitch,
    /// Wrong M_Key.
    ManagementKey,
    /// An answer on its way out.
    Direction,
}

/// Agents of one node.
#[derive(Debug)]
pub struct Agent {
    settings: Settings,
    traps: TrapQueue,
    drops: BTreeMap<DropReason, u64>,
}

/// What a request is about, whichever its attribute.
#[derive(Clone, Copy, Debug)]
struct Ask {
    /// The port that the request came in by.
    ingress: PortNum,
    modifier: u32,
    m_key: u64,
}

impl Agent {
    /// Capabilities that the agent gives to a node: bits of PortInfo.CapabilityMask. A node adds
    /// its own, as [`PortInfo::CAPABILITY_EXTENDED_SPEEDS`] with links that are faster than QDR.
    pub const CAPABILITIES: u32 = PortInfo::CAPABILITY_TRAPS
        | PortInfo::CAPABILITY_SL_MAPPING
        | PortInfo::CAPABILITY_SYSTEM_GUID
        | PortInfo::CAPABILITY_CAPABILITY_NOTICE
        | PortInfo::CAPABILITY_CLIENT_REREGISTER
        | PortInfo::CAPABILITY_CHANGE_NOTICE;

    /// Agents of a node with ports up to this one.
    pub fn new(ports: u8) -> Self {
        Self { settings: Settings::new(ports), traps: TrapQueue::default(), drops: BTreeMap::new() }
    }
    /// Handles a datagram of subnet management or performance management, and leaves in `mad` what
    /// is to be sent.
    ///
    /// Datagrams by LID come here if the LID is of the node, and those of a directed route always,
    /// from links and from the node's own clients.
    pub fn handle(
        &mut self,
        node: &mut dyn ManagedNode,
        ingress: Ingress,
        mad: &mut [u8; MAD_LEN],
        now: Time,
    ) -> Route {
        let route = self.dispatch(node, ingress, mad, now);
        if let Route::Drop(reason) = route {
            *self.drops.entry(reason).or_default() += 1;
        }
        route
    }
    /// How many datagrams were dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops.get(&reason).copied().unwrap_or_default()
    }
    /// What only management knows of a port; `None` for a port that the node lacks.
    pub fn settings(&self, port: PortNum) -> Option<&PortSettings> {
        self.settings.of(port)
    }
    /// When [`Agent::handle_timeout`] or [`Agent::poll_trap`] is due next.
    pub fn next_deadline(&self) -> Option<Time> {
        [self.settings.next_lease(), self.traps.next_deadline()].into_iter().flatten().min()
    }
    /// Ends the protection by M_Keys whose lease is over.
    pub fn handle_timeout(&mut self, node: &mut dyn ManagedNode, now: Time) {
        self.settings.end_leases(node, now);
    }

    fn dispatch(
        &mut self,
        node: &mut dyn ManagedNode,
        ingress: Ingress,
        mad: &mut [u8; MAD_LEN],
        now: Time,
    ) -> Route {
        if node.port(home(node, ingress.port)).is_none() || node.port(ingress.port).is_none() {
            return Route::Drop(DropReason::NoSuchPort);
        }
        let is_at = |queue_pair| match ingress.queue_pair == queue_pair {
            true => Ok(()),
            false => Err(Route::Drop(DropReason::QueuePair)),
        };
        let route = match MgmtClass(mad[1]) {
            MgmtClass::SUBNET_LID_ROUTED => {
                is_at(Qpn::SMI).map(|()| self.handle_smp(node, ingress, mad, now))
            }
            MgmtClass::SUBNET_DIRECTED_ROUTE => {
                is_at(Qpn::SMI).map(|()| self.handle_directed(node, ingress, mad, now))
            }
            MgmtClass::PERFORMANCE => {
                is_at(Qpn::GSI).map(|()| performance::handle(node, ingress, mad))
            }
            _ => Err(Route::Drop(DropReason::Class)),
        };
        route.unwrap_or_else(|refused| refused)
    }
    /// Handles a packet that is routed by LID.
    fn handle_smp(
        &mut self,
        node: &mut dyn ManagedNode,
        ingress: Ingress,
        mad: &mut [u8; MAD_LEN],
        now: Time,
    ) -> Route {
        let mut smp = Smp::from_bytes(mad);
        if is_for_manager(node, ingress.port, &smp) {
            return Route::Local;
        }
        match self.answer(node, ingress, &mut smp, now) {
            Ok(()) => {
                smp.emit(mad);
                answer_route(ingress)
            }
            Err(route) => route,
        }
    }
    /// Handles a packet of a directed route: one step of the route, or an answer at its end.
    fn handle_directed(
        &mut self,
        node: &mut dyn ManagedNode,
        ingress: Ingress,
        mad: &mut [u8; MAD_LEN],
        now: Time,
    ) -> Route {
        let mut smp = Smp::from_bytes(mad);
        let shape = directed_route::Shape::of(node);
        let route = if smp.returns() {
            directed_route::step_back(&mut smp, shape, ingress.local)
        } else {
            match directed_route::step_out(&mut smp, shape, ingress) {
                directed_route::Step::Away(route) => route,
                directed_route::Step::Here if smp.header.method.is_response() => {
                    Route::Drop(DropReason::Direction)
                }
                directed_route::Step::Here if is_for_manager(node, ingress.port, &smp) => {
                    Route::Local
                }
                directed_route::Step::Here => match self.answer(node, ingress, &mut smp, now) {
                    Ok(()) => {
                        smp.header.status |= Smp::RETURNS;
                        match smp.dr_dlid == Lid::PERMISSIVE {
                            true => directed_route::step_back(&mut smp, shape, true),
                            false => answer_route(ingress),
                        }
                    }
                    Err(route) => route,
                },
            }
        };
        smp.emit(mad);
        route
    }
    /// Turns a request into its answer; an error if there is none.
    fn answer(
        &mut self,
        node: &mut dyn ManagedNode,
        ingress: Ingress,
        smp: &mut Smp,
        now: Time,
    ) -> Result<(), Route> {
        let versions = (smp.header.base_version, smp.header.class_version);
        let method = smp.header.method;
        smp.header.method = Method::GET_RESP;
        if versions != (MadHeader::BASE_VERSION, smp::CLASS_VERSION) {
            smp.header.status = MadStatus::BAD_VERSION.0;
            return Ok(());
        }
        smp.header.method = method;
        self.settings.end_leases(node, now);
        if !self.check_m_key(node, ingress, smp, now) {
            return Err(Route::Drop(DropReason::ManagementKey));
        }
        smp.header.method = Method::GET_RESP;
        let ask = Ask {
            ingress: ingress.port,
            modifier: smp.header.attribute_modifier,
            m_key: smp.m_key,
        };
        let attribute = smp.attribute();
        let (status, data) = match method {
            Method::GET => match self.read(node, attribute, ask) {
                Ok(data) => (MadStatus::OK, Some(data)),
                Err(status) => (status, None),
            },
            Method::SET => match self.write(node, attribute, ask, &smp.data) {
                Ok(data) => (MadStatus::OK, Some(data)),
                // The answer has the values that are in force.
                Err(status) => (status, self.read(node, attribute, ask).ok()),
            },
            Method::TRAP_REPRESS => {
                self.traps.repress(smp.header.transaction_id);
                return Err(Route::Done);
            }
            _ => (MadStatus::METHOD_NOT_SUPPORTED, None),
        };
        smp.header.status = status.0;
        smp.data = data.unwrap_or(smp.data);
        Ok(())
    }
    fn read(&self, node: &dyn ManagedNode, attribute: SmAttribute, ask: Ask) -> Answer {
        match attribute {
            SmAttribute::NODE_DESCRIPTION => node::description(node),
            SmAttribute::NODE_INFO => node::info(node, ask),
            SmAttribute::SWITCH_INFO => node::switch_info(node),
            SmAttribute::GUID_INFO => node::guid_info(node, ask),
            SmAttribute::PORT_INFO => self.port_info(node, ask),
            SmAttribute::PKEY_TABLE => tables::pkeys(node, ask),
            SmAttribute::SL_TO_VL => tables::lanes(node, ask),
            SmAttribute::VL_ARBITRATION => tables::arbitration(node, ask),
            SmAttribute::LINEAR_FORWARDING => tables::linear(node, ask),
            SmAttribute::MULTICAST_FORWARDING => tables::multicast(node, ask),
            _ => Err(MadStatus::ATTRIBUTE_NOT_SUPPORTED),
        }
    }
    fn write(
        &mut self,
        node: &mut dyn ManagedNode,
        attribute: SmAttribute,
        ask: Ask,
        data: &[u8; smp::DATA_LEN],
    ) -> Answer {
        match attribute {
            SmAttribute::SWITCH_INFO => node::set_switch_info(node, data)?,
            SmAttribute::GUID_INFO => node::set_guid_info(node, ask, data)?,
            SmAttribute::PORT_INFO => return self.set_port_info(node, ask, data),
            SmAttribute::PKEY_TABLE => tables::set_pkeys(node, ask, data)?,
            SmAttribute::SL_TO_VL => tables::set_lanes(node, ask, data)?,
            SmAttribute::VL_ARBITRATION => tables::set_arbitration(node, ask, data)?,
            SmAttribute::LINEAR_FORWARDING => tables::set_linear(node, ask, data)?,
            SmAttribute::MULTICAST_FORWARDING => tables::set_multicast(node, ask, data)?,
            _ => return Err(MadStatus::ATTRIBUTE_NOT_SUPPORTED),
        }
        self.read(node, attribute, ask)
    }
}

/// An attribute as it is sent, or why there is none.
type Answer = Result<[u8; smp::DATA_LEN], MadStatus>;

/// The port that has what is of the node: port 0 of a switch, at an adapter each port.
fn home(node: &dyn ManagedNode, port: PortNum) -> PortNum {
    match node.attributes().kind {
        NodeKind::Switch => PortNum(0),
        NodeKind::Adapter => port,
    }
}

/// Whether a packet is not for the agent but for the subnet manager at the node.
fn is_for_manager(node: &dyn ManagedNode, ingress: PortNum, smp: &Smp) -> bool {
    let manages = || {
        let home = node.port(home(node, ingress));
        home.is_some_and(|port| port.capabilities & PortInfo::CAPABILITY_SM != 0)
    };
    smp.header.method.is_response()
        || smp.header.method == Method::TRAP
        || smp.attribute() == SmAttribute::SM_INFO && manages()
}

/// Where the answer to a request goes that came by LID.
fn answer_route(ingress: Ingress) -> Route {
    if ingress.local {
        Route::Local
    } else if ingress.slid.is_unicast() {
        Route::Lid(ingress.slid)
    } else {
        Route::Port(ingress.port)
    }
}

/// Bytes of an attribute, which zeros follow.
fn data(emit: impl FnOnce(&mut [u8])) -> [u8; smp::DATA_LEN] {
    let mut data = [0; smp::DATA_LEN];
    emit(&mut data);
    data
}
