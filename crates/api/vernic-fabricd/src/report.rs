//! What programs are told of adapters and their ports.

use vernic_attach::{AdapterReport, PortReport};
use vernic_fabric::attributes::{LinkSpeed, PortAttributes};
use vernic_fabric::subnet::Subnet;
use vernic_wire::PortNum;

use crate::host::Host;

/// Returns the adapter of a host.
pub(crate) fn adapter(subnet: &Subnet, host: &Host) -> Option<AdapterReport> {
    let node = subnet.attributes(host.node)?;
    let ports = (1..=node.ports).filter_map(|number| port(subnet, host, PortNum(number)));
    Some(AdapterReport {
        host: host.name.clone(),
        description: node.description.clone(),
        guid: node.guid,
        system_guid: node.system_guid,
        vendor_id: node.vendor_id,
        device_id: node.device_id,
        revision: node.revision,
        ports: ports.collect(),
    })
}

/// Returns a port of a host.
pub(crate) fn port(subnet: &Subnet, host: &Host, number: PortNum) -> Option<PortReport> {
    let port = subnet.port(host.node, number)?;
    let known = host.ports.get(usize::from(number.0).checked_sub(1)?)?;
    Some(PortReport {
        number,
        lid: port.lid,
        lmc: port.lmc,
        sm_lid: port.sm_lid,
        sm_service_level: port.sm_service_level,
        state: port.state as u8,
        physical_state: port.physical as u8,
        mtu_capability: port.mtu_capability,
        active_mtu: port.neighbor_mtu,
        width: port.width as u8,
        speed: speed(port),
        capabilities: port.capabilities,
        subnet_timeout: port.subnet_timeout,
        lanes_supported: port.lanes_supported,
        operational_lanes: port.operational_lanes,
        gid_prefix: port.gid_prefix,
        guids: vec![port.guid],
        pkeys: port.tables.pkeys.clone(),
        service_lanes: port.tables.lanes.first().copied().unwrap_or_default(),
        p_key_violations: port.p_key_violations,
        q_key_violations: port.q_key_violations,
        management_dropped: port.counters.management_dropped,
        reregisters: known.reregisters,
    })
}

/// Returns the speed of a lane as verbs code it.
const fn speed(port: &PortAttributes) -> u8 {
    match port.speed {
        LinkSpeed::Sdr => 1,
        LinkSpeed::Ddr => 2,
        LinkSpeed::Qdr => 4,
        LinkSpeed::Fdr => 16,
        LinkSpeed::Edr => 32,
    }
}
