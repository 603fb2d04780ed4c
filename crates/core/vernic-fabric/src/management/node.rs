//! NodeInfo, NodeDescription, SwitchInfo and GUIDInfo (IBTA 14.2.5.2 to 14.2.5.5).

use vernic_wire::smp::{
    CLASS_VERSION, DATA_LEN, GuidInfo, MadStatus, NodeDescription, NodeInfo, SwitchInfo,
};
use vernic_wire::{Guid, PortNum};

use super::{Answer, Ask, ManagedNode, data, home};
use crate::attributes::{Forwarding, NodeKind};

pub(super) fn description(node: &dyn ManagedNode) -> Answer {
    let description = NodeDescription::new(&node.attributes().description);
    Ok(data(|buf| description.emit(buf)))
}

pub(super) fn info(node: &dyn ManagedNode, ask: Ask) -> Answer {
    let attributes = node.attributes();
    let port = node.port(home(node, ask.ingress)).ok_or(MadStatus::INVALID_FIELD)?;
    let info = NodeInfo {
        base_version: 1,
        class_version: CLASS_VERSION,
        node_type: match attributes.kind {
            NodeKind::Adapter => NodeInfo::ADAPTER,
            NodeKind::Switch => NodeInfo::SWITCH,
        },
        ports: attributes.ports,
        system_guid: attributes.system_guid,
        node_guid: attributes.guid,
        port_guid: port.guid,
        partition_cap: cap16(port.tables.pkeys.len()),
        device_id: attributes.device_id,
        revision: attributes.revision,
        local_port: ask.ingress,
        vendor_id: attributes.vendor_id,
    };
    Ok(data(|buf| info.emit(buf)))
}

pub(super) fn switch_info(node: &dyn ManagedNode) -> Answer {
    let forwarding = node.forwarding().ok_or(MadStatus::ATTRIBUTE_NOT_SUPPORTED)?;
    let enforced = node.port(PortNum(1)).map_or(0, |port| port.tables.pkeys.len());
    let info = SwitchInfo {
        linear_cap: cap16(forwarding.linear.len()),
        multicast_cap: cap16(forwarding.multicast.len()),
        linear_top: forwarding.top,
        default_multicast_primary: forwarding.default_multicast_primary,
        default_multicast_other: forwarding.default_multicast_other,
        life_time: forwarding.life_time,
        port_changed: forwarding.port_changed,
        enforcement_cap: cap16(enforced),
        enforces_inbound: enforced > 0,
        enforces_outbound: enforced > 0,
        ..SwitchInfo::default()
    };
    Ok(data(|buf| info.emit(buf)))
}

pub(super) fn set_switch_info(
    node: &mut dyn ManagedNode,
    data: &[u8; DATA_LEN],
) -> Result<(), MadStatus> {
    let ports = node.attributes().ports;
    let forwarding = node.forwarding_mut().ok_or(MadStatus::ATTRIBUTE_NOT_SUPPORTED)?;
    let info = SwitchInfo::parse(data).map_err(|_| MadStatus::INVALID_FIELD)?;
    let is_port = |port| port <= ports || port == Forwarding::NOWHERE.0;
    let is_valid = usize::from(info.linear_top.0) < forwarding.linear.len()
        && is_port(info.default_multicast_primary)
        && is_port(info.default_multicast_other);
    if !is_valid {
        return Err(MadStatus::INVALID_FIELD);
    }
    forwarding.top = info.linear_top;
    forwarding.default_multicast_primary = info.default_multicast_primary;
    forwarding.default_multicast_other = info.default_multicast_other;
    forwarding.life_time = info.life_time;
    // Writing 1 clears.
    forwarding.port_changed &= !info.port_changed;
    Ok(())
}

pub(super) fn guid_info(node: &dyn ManagedNode, ask: Ask) -> Answer {
    let port = node.port(home(node, ask.ingress)).ok_or(MadStatus::INVALID_FIELD)?;
    if ask.modifier != 0 {
        return Err(MadStatus::INVALID_FIELD);
    }
    let mut guids = [Guid(0); 8];
    guids[0] = port.guid;
    Ok(data(|buf| GuidInfo { guids }.emit(buf)))
}

/// Checks a block of GUIDs. The first one cannot be written, and there are no others.
pub(super) fn set_guid_info(
    node: &dyn ManagedNode,
    ask: Ask,
    data: &[u8; DATA_LEN],
) -> Result<(), MadStatus> {
    guid_info(node, ask)?;
    let others = &GuidInfo::from_bytes(data).guids[1..];
    match others.iter().all(|guid| *guid == Guid(0)) {
        true => Ok(()),
        false => Err(MadStatus::INVALID_FIELD),
    }
}

/// A length as a field of 16 bits tells it.
fn cap16(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}
