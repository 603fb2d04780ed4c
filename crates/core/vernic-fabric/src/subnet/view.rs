//! What can be seen of the ports and cables of a subnet.

use std::num::NonZeroU64;

use vernic_wire::{PortNum, VirtualLane};

use super::node::Plane;
use super::{NodeId, Subnet};
use crate::topology::Rate;

/// A lane of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneView {
    /// The lane.
    pub lane: VirtualLane,
    /// Blocks of 64 bytes that wait to leave.
    pub queued_blocks: u32,
    /// Blocks that the other end has told that it has room for; 0 in the lane of management.
    pub credits: u16,
    /// Free blocks of the receive buffer.
    pub free_blocks: u16,
}

/// What of a port is no attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortView {
    /// The port at the other end of the cable, if there is a cable.
    pub peer: Option<(NodeId, PortNum)>,
    /// Bytes of data per second that the link carries at most.
    pub bytes_per_s: u64,
    /// The lanes in operation, and that of management.
    pub lanes: Vec<LaneView>,
    /// Packets that an adapter got that were not for this port.
    pub misdirected: u64,
}

/// A cable.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CableView {
    /// The two ports.
    pub ends: [(NodeId, PortNum); 2],
    /// Whether the cable is plugged in.
    pub is_up: bool,
    /// How many bits are wrong, of all.
    pub bit_error_rate: f64,
    /// Packets that it carried when it was cut.
    pub lost: u64,
}

/// Bytes per second of a rate. Less than one byte is one.
pub(super) fn bytes_per_s(rate: Rate) -> Option<NonZeroU64> {
    NonZeroU64::new((rate.bits_per_s() / 8).max(1))
}

impl Subnet {
    /// Returns how many packets for queue pairs 0 and 1 of a node were no datagrams, or datagrams
    /// that the agent of a switch does not take.
    pub fn bad_datagrams(&self, node: NodeId) -> u64 {
        self.nodes.get(node.at()).map_or(0, |node| node.bad_datagrams)
    }
    /// Returns what of a port from 1 on is no attribute.
    pub fn port_view(&self, node: NodeId, port: PortNum) -> Option<PortView> {
        let attributes = self.port(node, port).filter(|_| port != PortNum(0))?;
        let found = &self.nodes[node.at()];
        let data = (0..attributes.operational_lanes.min(15)).map(VirtualLane::new);
        let lanes = data.chain([VirtualLane::MANAGEMENT]);
        let peer = self.cable_at(node, port).ok().map(|at| {
            let ends = self.cables[at].sides.map(|side| (NodeId(side.node as u32), side.port));
            if ends[0] == (node, port) { ends[1] } else { ends[0] }
        });
        Some(match &found.plane {
            Plane::Switch(switch) => PortView {
                peer,
                bytes_per_s: switch.rate(attributes, port),
                lanes: lanes
                    .map(|lane| LaneView {
                        lane,
                        queued_blocks: switch.queued_blocks(port, lane),
                        credits: switch.credits(port, lane),
                        free_blocks: switch.free_blocks(port, lane),
                    })
                    .collect(),
                misdirected: 0,
            },
            Plane::Adapter(ports) => {
                let port = &ports.get(usize::from(port.0) - 1)?.port;
                PortView {
                    peer,
                    bytes_per_s: port.rate(attributes),
                    lanes: lanes
                        .map(|lane| LaneView {
                            lane,
                            queued_blocks: port.queued_blocks(lane),
                            credits: port.credits(lane),
                            free_blocks: port.free_blocks(lane),
                        })
                        .collect(),
                    misdirected: port.misdirected(),
                }
            }
        })
    }
    /// Returns all cables, in the order of the plan.
    pub fn cables(&self) -> impl Iterator<Item = CableView> + '_ {
        self.cables.iter().map(|cable| CableView {
            ends: cable.sides.map(|side| (NodeId(side.node as u32), side.port)),
            is_up: cable.is_up,
            bit_error_rate: cable.bit_error_rate(),
            lost: cable.lost,
        })
    }
}
