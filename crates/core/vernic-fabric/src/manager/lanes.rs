//! Service levels of partitions: which lane each takes, and how lanes share a link (IBTA 7.6.9,
//! 14.2.5.8, 14.2.5.9).
//!
//! Nothing is written as long as no partition has a service level of its own: all packets have
//! service level 0 then, and a port that nobody has managed maps that to lane 0.

use vernic_wire::smp::{PortInfo, SlToVlTable, SmAttribute, VlArbitrationTable};
use vernic_wire::{ServiceLevel, VirtualLane};

use super::Manager;
use super::map::{End, INIT};

/// The weight of a lane that no partition has one for, in units of 64 bytes: a packet of 4 KiB.
pub(super) const WEIGHT: u8 = 64;
/// The first blocks of the tables of low and of high priority.
const LOW: u32 = 1;
const HIGH: u32 = 3;

/// Returns how many data lanes a code of PortInfo stands for.
const fn lanes_of(code: u8) -> u8 {
    match code {
        0 | 1 => 1,
        2 => 2,
        3 => 4,
        4 => 8,
        _ => 15,
    }
}

/// Returns the lane of a service level on a link of so many data lanes.
const fn lane_of(level: u8, lanes: u8) -> u8 {
    level % lanes
}

/// Returns the lanes of all service levels.
fn levels(lanes: u8) -> SlToVlTable {
    SlToVlTable {
        lanes: core::array::from_fn(|level| VirtualLane::new(lane_of(level as u8, lanes))),
    }
}

/// Returns the table of low priority: all lanes, each with its weight.
fn shares(lanes: u8, weights: &[(ServiceLevel, u8)]) -> VlArbitrationTable {
    let mut table = VlArbitrationTable { entries: [(0, 0); VlArbitrationTable::ENTRIES] };
    for (lane, entry) in (0..lanes).zip(&mut table.entries) {
        let mut own = weights.iter().filter(|(level, _)| lane_of(level.value(), lanes) == lane);
        *entry = (lane, own.next().map_or(WEIGHT, |(_, weight)| *weight));
    }
    table
}

impl Manager {
    /// Writes the lanes of service levels and their shares to all ports that have a link, where
    /// they are other ones than before.
    pub(super) fn write_lanes(&mut self) {
        let weights: Vec<_> = self.partitions.weights().collect();
        if weights.is_empty() {
            return;
        }
        let is_linked = |info: &PortInfo| info.state >= INIT;
        let ends: Vec<End> = self.map.links.keys().copied().collect();
        for end in ends {
            let Some(port) = self.map.port(end).filter(|port| is_linked(&port.info)) else {
                continue;
            };
            let node = &self.map.nodes[end.0];
            let (guid, path) = (node.info.node_guid, port.path.clone());
            let lanes = lanes_of(port.info.operational_lanes);
            let [low, high] = [port.info.low_cap, port.info.high_cap].map(usize::from);
            // A port that comes up anew may be one that has lost its tables.
            let is_new = port.info.state == INIT;
            if self.lanes_written.insert((guid, end.1), lanes) == Some(lanes) && !is_new {
                continue;
            }
            let (is_switch, ports) = (node.is_switch(), node.info.ports);
            // At a switch a table for each port that packets come by, 0 for its own.
            let inputs = if is_switch { 0..=u32::from(ports) } else { 0..=0 };
            let output = if is_switch { u32::from(end.1) } else { 0 };
            let table = levels(lanes);
            for input in inputs {
                let modifier = input << 8 | output;
                self.push_write(&path, SmAttribute::SL_TO_VL, modifier, |buf| table.emit(buf));
            }
            let none = VlArbitrationTable { entries: [(0, 0); VlArbitrationTable::ENTRIES] };
            let has = |block: u32| match block {
                LOW => low > 0,
                HIGH => high > 0,
                // Second halves.
                block if block < HIGH => low > VlArbitrationTable::ENTRIES,
                _ => high > VlArbitrationTable::ENTRIES,
            };
            for block in (LOW..=HIGH + 1).filter(|block| has(*block)) {
                let table = if block == LOW { shares(lanes, &weights) } else { none };
                let modifier = block << 16 | output;
                let emit = |buf: &mut [u8]| table.emit(buf);
                self.push_write(&path, SmAttribute::VL_ARBITRATION, modifier, emit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_go_round_the_lanes_and_share_by_weights() {
        let lanes = levels(4).lanes.map(VirtualLane::value);
        assert_eq!(lanes[..6], [0, 1, 2, 3, 0, 1]);
        let table = shares(2, &[(ServiceLevel::new(3), 200)]);
        assert_eq!(table.entries[..3], [(0, WEIGHT), (1, 200), (0, 0)]);
        assert_eq!([1, 2, 3, 4, 5].map(lanes_of), [1, 2, 4, 8, 15]);
    }
}
