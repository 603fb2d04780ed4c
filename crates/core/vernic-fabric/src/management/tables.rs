//! Tables of ports and switches: partition keys, lanes, forwarding (IBTA 14.2.5.7 to 14.2.5.12).
//!
//! Every table is read and written in blocks. What a block has beyond the end of a table reads as
//! empty, and is ignored when it is written.

use core::ops::Range;

use vernic_wire::smp::{
    DATA_LEN, LinearForwardingTable, MadStatus, MulticastForwardingTable, PkeyTable, SlToVlTable,
    VlArbitrationTable,
};
use vernic_wire::{Pkey, PortNum};

use super::{Answer, Ask, ManagedNode, data};
use crate::attributes::{ArbitrationEntry, Forwarding, NodeKind};

type Written = Result<(), MadStatus>;

const INVALID: MadStatus = MadStatus::INVALID_FIELD;

/// The entries of a block; an error if none of them is in the table.
fn block(number: u32, entries: usize, len: usize) -> Result<Range<usize>, MadStatus> {
    let start = usize::try_from(number).ok().and_then(|number| number.checked_mul(entries));
    match start.filter(|start| *start < len) {
        Some(start) => Ok(start..len.min(start + entries)),
        None => Err(INVALID),
    }
}

/// The port that a modifier is about: at a switch the one that it names, else the ingress.
fn port_of(node: &dyn ManagedNode, ask: Ask, named: u32) -> Result<PortNum, MadStatus> {
    let port = match node.attributes().kind {
        NodeKind::Adapter => ask.ingress,
        NodeKind::Switch => PortNum(u8::try_from(named).map_err(|_| INVALID)?),
    };
    node.port(port).map(|_| port).ok_or(INVALID)
}

/// The port and the entries of a block of partition keys: `port << 16 | block`.
fn pkey_block(node: &dyn ManagedNode, ask: Ask) -> Result<(PortNum, Range<usize>), MadStatus> {
    let port = port_of(node, ask, ask.modifier >> 16)?;
    let len = node.port(port).map_or(0, |port| port.tables.pkeys.len());
    Ok((port, block(ask.modifier & 0xFFFF, PkeyTable::ENTRIES, len)?))
}

pub(super) fn pkeys(node: &dyn ManagedNode, ask: Ask) -> Answer {
    let (port, range) = pkey_block(node, ask)?;
    let port = node.port(port).ok_or(INVALID)?;
    let mut table = PkeyTable { keys: [Pkey(0); PkeyTable::ENTRIES] };
    table.keys[..range.len()].copy_from_slice(&port.tables.pkeys[range]);
    Ok(data(|buf| table.emit(buf)))
}

pub(super) fn set_pkeys(node: &mut dyn ManagedNode, ask: Ask, data: &[u8; DATA_LEN]) -> Written {
    let (port, range) = pkey_block(node, ask)?;
    let port = node.port_mut(port).ok_or(INVALID)?;
    let table = PkeyTable::from_bytes(data);
    let len = range.len();
    port.tables.pkeys[range].copy_from_slice(&table.keys[..len]);
    Ok(())
}

/// The port that a table of lanes is of, and its row: at a switch `input port << 8 | output port`.
fn lane_row(node: &dyn ManagedNode, ask: Ask) -> Result<(PortNum, usize), MadStatus> {
    let port = port_of(node, ask, ask.modifier & 0xFF)?;
    let row = match node.attributes().kind {
        NodeKind::Adapter => 0,
        NodeKind::Switch => usize::try_from(ask.modifier >> 8).map_err(|_| INVALID)?,
    };
    let rows = node.port(port).map_or(0, |port| port.tables.lanes.len());
    if row < rows { Ok((port, row)) } else { Err(INVALID) }
}

pub(super) fn lanes(node: &dyn ManagedNode, ask: Ask) -> Answer {
    let (port, row) = lane_row(node, ask)?;
    let port = node.port(port).ok_or(INVALID)?;
    Ok(data(|buf| SlToVlTable { lanes: port.tables.lanes[row] }.emit(buf)))
}

pub(super) fn set_lanes(node: &mut dyn ManagedNode, ask: Ask, data: &[u8; DATA_LEN]) -> Written {
    let (port, row) = lane_row(node, ask)?;
    let port = node.port_mut(port).ok_or(INVALID)?;
    let table = SlToVlTable::parse(data).map_err(|_| INVALID)?;
    port.tables.lanes[row] = table.lanes;
    Ok(())
}

/// The port, whether the table is that of high priority, and the entries: `block << 16 | port`,
/// blocks 1 and 2 of low priority, 3 and 4 of high.
fn arbitration_block(
    node: &dyn ManagedNode,
    ask: Ask,
) -> Result<(PortNum, bool, Range<usize>), MadStatus> {
    let number = port_of(node, ask, ask.modifier & 0xFFFF)?;
    let port = node.port(number).ok_or(INVALID)?;
    let (is_high, half) = match ask.modifier >> 16 {
        half @ 1..=2 => (false, half - 1),
        half @ 3..=4 => (true, half - 3),
        _ => return Err(INVALID),
    };
    let len = if is_high { port.tables.high.len() } else { port.tables.low.len() };
    Ok((number, is_high, block(half, VlArbitrationTable::ENTRIES, len)?))
}

pub(super) fn arbitration(node: &dyn ManagedNode, ask: Ask) -> Answer {
    let (port, is_high, range) = arbitration_block(node, ask)?;
    let port = node.port(port).ok_or(INVALID)?;
    let entries = if is_high { &port.tables.high } else { &port.tables.low };
    let mut table = VlArbitrationTable { entries: [(0, 0); VlArbitrationTable::ENTRIES] };
    for (out, entry) in table.entries.iter_mut().zip(&entries[range]) {
        *out = (entry.lane.value(), entry.weight);
    }
    Ok(data(|buf| table.emit(buf)))
}

pub(super) fn set_arbitration(
    node: &mut dyn ManagedNode,
    ask: Ask,
    data: &[u8; DATA_LEN],
) -> Written {
    let (port, is_high, range) = arbitration_block(node, ask)?;
    let port = node.port_mut(port).ok_or(INVALID)?;
    let table = VlArbitrationTable::from_bytes(data);
    let written = (0..range.len())
        .map(|at| ArbitrationEntry { lane: table.lane(at), weight: table.entries[at].1 });
    // The lane of subnet management does not take part (IBTA 7.6.9.2).
    if written.clone().any(|entry| entry.lane.is_management() && entry.weight > 0) {
        return Err(INVALID);
    }
    let entries = if is_high { &mut port.tables.high } else { &mut port.tables.low };
    entries[range].iter_mut().zip(written).for_each(|(entry, new)| *entry = new);
    Ok(())
}

fn forwarding(node: &dyn ManagedNode) -> Result<&Forwarding, MadStatus> {
    node.forwarding().ok_or(MadStatus::ATTRIBUTE_NOT_SUPPORTED)
}

pub(super) fn linear(node: &dyn ManagedNode, ask: Ask) -> Answer {
    let table = &forwarding(node)?.linear;
    let range = block(ask.modifier, LinearForwardingTable::LEN, table.len())?;
    let mut ports = [Forwarding::NOWHERE.0; LinearForwardingTable::LEN];
    ports[..range.len()].copy_from_slice(&table[range]);
    Ok(data(|buf| LinearForwardingTable { ports }.emit(buf)))
}

pub(super) fn set_linear(node: &mut dyn ManagedNode, ask: Ask, data: &[u8; DATA_LEN]) -> Written {
    let ports = node.attributes().ports;
    let len = forwarding(node)?.linear.len();
    let range = block(ask.modifier, LinearForwardingTable::LEN, len)?;
    let written = &LinearForwardingTable::from_bytes(data).ports[..range.len()];
    if written.iter().any(|port| *port > ports && *port != Forwarding::NOWHERE.0) {
        return Err(INVALID);
    }
    let forwarding = node.forwarding_mut().ok_or(MadStatus::ATTRIBUTE_NOT_SUPPORTED)?;
    forwarding.linear[range].copy_from_slice(written);
    Ok(())
}

/// The groups of a block and the place of the ports' 16 bits: `position << 28 | block`.
fn multicast_block(node: &dyn ManagedNode, ask: Ask) -> Result<(Range<usize>, usize), MadStatus> {
    let len = forwarding(node)?.multicast.len();
    let position = ask.modifier >> 28;
    if position > u32::from(node.attributes().ports) / 16 {
        return Err(INVALID);
    }
    let range = block(ask.modifier & 0x0FFF_FFFF, MulticastForwardingTable::ENTRIES, len)?;
    Ok((range, usize::try_from(position).map_err(|_| INVALID)?))
}

pub(super) fn multicast(node: &dyn ManagedNode, ask: Ask) -> Answer {
    let (range, position) = multicast_block(node, ask)?;
    let mut ports = [0; MulticastForwardingTable::ENTRIES];
    for (out, group) in ports.iter_mut().zip(&forwarding(node)?.multicast[range]) {
        *out = group[position];
    }
    Ok(data(|buf| MulticastForwardingTable { ports }.emit(buf)))
}

/// Writes the ports of groups. Bits of ports that the switch lacks are not kept.
pub(super) fn set_multicast(
    node: &mut dyn ManagedNode,
    ask: Ask,
    data: &[u8; DATA_LEN],
) -> Written {
    let (range, position) = multicast_block(node, ask)?;
    let ports = usize::from(node.attributes().ports);
    let bits = (ports + 1 - 16 * position).min(16);
    let exist = u16::MAX >> (16 - bits);
    let forwarding = node.forwarding_mut().ok_or(MadStatus::ATTRIBUTE_NOT_SUPPORTED)?;
    let written = MulticastForwardingTable::from_bytes(data).ports;
    for (group, new) in forwarding.multicast[range].iter_mut().zip(written) {
        group[position] = new & exist;
    }
    Ok(())
}
