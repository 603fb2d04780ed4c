//! The state of a fabric, as `vernic fabric show` has it.

use vernic_fabric::attributes::{NodeKind, PortAttributes, PortCounters};
use vernic_fabric::subnet::{NodeId, PortView};
use vernic_wire::PortNum;

use crate::cables::Cables;
use crate::clients::{Clients, Role};
use crate::control::{
    CableState, LaneState, NodeState, PortState, ProgramState, State, Undelivered,
};
use crate::host::Host;
use crate::load::{self, Load};
use crate::world::World;

/// Returns the state of everything.
pub(crate) fn state(
    world: &World,
    clients: &mut Clients,
    (load, outside): (&Load, &Cables),
    uptime_s: u64,
) -> State {
    let nodes = world.subnet.nodes();
    State {
        name: world.name.clone(),
        pid: std::process::id(),
        uptime_s,
        manager: load::manager(world),
        nodes: nodes.filter_map(|id| node(world, clients, outside, id)).collect(),
        cables: cables(world, load),
    }
}

fn cables(world: &World, load: &Load) -> Vec<CableState> {
    let state = |(at, cable): (usize, vernic_fabric::subnet::CableView)| CableState {
        ends: cable.ends.map(|end| end_name(world, end)),
        up: cable.is_up,
        bit_error_rate: cable.bit_error_rate,
        lost: cable.lost,
        load: load.of(at),
    };
    world.subnet.cables().enumerate().map(state).collect()
}

/// Returns the name of a port, as `node:port`.
pub(crate) fn end_name(world: &World, (node, port): (NodeId, PortNum)) -> String {
    let name = world.plan.nodes().get(node.0 as usize).map_or("", |node| node.name.as_str());
    format!("{name}:{port}")
}

fn node(world: &World, clients: &mut Clients, outside: &Cables, id: NodeId) -> Option<NodeState> {
    let attributes = world.subnet.attributes(id)?;
    let is_switch = attributes.kind == NodeKind::Switch;
    let host = world.host_of(id).map(|at| &world.hosts[at]);
    let first = u8::from(!is_switch);
    let ports = (first..=attributes.ports).map(PortNum);
    Some(NodeState {
        name: attributes.description.clone(),
        kind: if is_switch { "switch" } else { "adapter" }.to_owned(),
        guid: attributes.guid.to_string(),
        programs: host.map(|host| programs(host, clients)).unwrap_or_default(),
        undelivered: undelivered(world, host, id),
        ports: ports.filter_map(|number| port(world, host, outside, (id, number))).collect(),
    })
}

fn undelivered(world: &World, host: Option<&Host>, node: NodeId) -> Undelivered {
    let counts = host.map(|host| host.counts).unwrap_or_default();
    let ports = host.map_or(0, |host| host.ports.len());
    let views = (1..=ports).filter_map(|port| world.subnet.port_view(node, PortNum(port as u8)));
    Undelivered {
        no_datagram: world.subnet.bad_datagrams(node),
        misdirected: views.map(|view| view.misdirected).sum(),
        no_program: counts.no_program,
        no_member: counts.no_member,
        raw: counts.raw,
        no_connection: counts.no_connection,
        no_agent: counts.no_agent,
    }
}

fn programs(host: &Host, clients: &mut Clients) -> Vec<ProgramState> {
    let program = |(slot, key)| {
        let client = clients.get(key)?;
        let Role::Program(program) = &client.role else { return None };
        let counts = program.counts;
        Some(ProgramState {
            pid: client.pid,
            slot,
            sent: counts.sent,
            received: counts.received,
            not_taken: counts.not_taken,
            refused: counts.refused,
            discarded: counts.discarded,
            blocked: program.is_blocked(),
            services: host.services_of(slot),
            groups: program.joins.iter().map(|group| group.mgid.to_string()).collect(),
        })
    };
    host.all_programs().filter_map(program).collect()
}

fn port(
    world: &World,
    host: Option<&Host>,
    outside: &Cables,
    (node, number): (NodeId, PortNum),
) -> Option<PortState> {
    let port = world.subnet.port(node, number)?;
    let view = world.subnet.port_view(node, number);
    let known = host.and_then(|host| host.ports.get(usize::from(number.0).checked_sub(1)?));
    let agents = known.and_then(|port| port.agents.as_ref()).map_or(0, |agents| agents.len());
    Some(PortState {
        port: number.0,
        peer: view
            .as_ref()
            .and_then(|view| view.peer)
            .map(|end| end_name(world, end))
            .or_else(|| outside.peer(node, number)),
        state: format!("{:?}", port.state),
        physical: format!("{:?}", port.physical),
        lid: port.lid.0,
        lmc: port.lmc,
        sm_lid: port.sm_lid.0,
        gbit_per_s: view.as_ref().map_or(0.0, |view| view.bytes_per_s as f64 * 8e-9),
        mtu: port.neighbor_mtu.bytes(),
        agents,
        lanes: view.as_ref().map(lanes).unwrap_or_default(),
        counters: counters(port),
    })
}

fn lanes(view: &PortView) -> Vec<LaneState> {
    let lane = |lane: &vernic_fabric::subnet::LaneView| LaneState {
        lane: lane.lane.value(),
        queued_blocks: lane.queued_blocks,
        credits: lane.credits,
        free_blocks: lane.free_blocks,
    };
    view.lanes.iter().map(lane).collect()
}

/// Returns the counters that are not 0, by the names that `perfquery` gives them.
fn counters(port: &PortAttributes) -> Vec<(String, u64)> {
    let PortCounters {
        xmit_data,
        rcv_data,
        xmit_packets,
        rcv_packets,
        unicast_xmit,
        unicast_rcv,
        multicast_xmit,
        multicast_rcv,
        symbol_errors,
        link_recovers,
        link_downed,
        rcv_errors,
        rcv_remote_physical,
        rcv_switch_relay,
        xmit_discards,
        xmit_constraint,
        rcv_constraint,
        local_link_integrity,
        buffer_overruns,
        management_dropped,
        xmit_wait,
    } = port.counters;
    let all = [
        ("PortXmitData", xmit_data),
        ("PortRcvData", rcv_data),
        ("PortXmitPkts", xmit_packets),
        ("PortRcvPkts", rcv_packets),
        ("PortUnicastXmitPkts", unicast_xmit),
        ("PortUnicastRcvPkts", unicast_rcv),
        ("PortMulticastXmitPkts", multicast_xmit),
        ("PortMulticastRcvPkts", multicast_rcv),
        ("SymbolErrorCounter", symbol_errors),
        ("LinkErrorRecoveryCounter", link_recovers),
        ("LinkDownedCounter", link_downed),
        ("PortRcvErrors", rcv_errors),
        ("PortRcvRemotePhysicalErrors", rcv_remote_physical),
        ("PortRcvSwitchRelayErrors", rcv_switch_relay),
        ("PortXmitDiscards", xmit_discards),
        ("PortXmitConstraintErrors", xmit_constraint),
        ("PortRcvConstraintErrors", rcv_constraint),
        ("LocalLinkIntegrityErrors", local_link_integrity),
        ("ExcessiveBufferOverrunErrors", buffer_overruns),
        ("VL15Dropped", management_dropped),
        ("PortXmitWait", xmit_wait),
        ("MKeyViolations", u64::from(port.m_key_violations)),
        ("PKeyViolations", u64::from(port.p_key_violations)),
        ("QKeyViolations", u64::from(port.q_key_violations)),
    ];
    let seen = all.into_iter().filter(|(_, value)| *value != 0);
    seen.map(|(name, value)| (name.to_owned(), value)).collect()
}
