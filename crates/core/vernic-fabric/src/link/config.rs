//! What the owner decides about a port, and management cannot change.

use std::num::NonZeroU64;

use vernic_wire::LinkPacket;
use vernic_wire::link_packet::credit_blocks;

/// Sizes and times of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// Receive buffer of each data lane, in blocks of 64 bytes. At least
    /// [`LEAST_BLOCKS`](Self::LEAST_BLOCKS), which a smaller value is raised to.
    pub lane_blocks: u16,
    /// Receive buffer of the lane of subnet management, in blocks of 64 bytes.
    pub management_blocks: u16,
    /// What the node itself may have waiting in each lane to be sent, in blocks of 64 bytes.
    pub submit_blocks: u16,
    /// Bytes per second, where the link is slower than its width and speed say. `None`: it is not.
    pub bytes_per_s: Option<NonZeroU64>,
    /// Whether sending takes the time that width and speed of the link say. If not, it takes that
    /// of `bytes_per_s`, or none.
    pub paced: bool,
    /// Nanoseconds after which a lane's credits are told again once they have changed. Until then a
    /// lost flow-control packet can hold up the other end.
    pub update_ns: u64,
    /// Nanoseconds to which that time doubles, step by step, while credits do not change.
    pub idle_update_ns: u64,
    /// Nanoseconds between two signals of training. More than the time of a cable there and back.
    pub training_ns: u64,
}

impl LinkConfig {
    /// The smallest receive buffer of a data lane: the longest packet that there is.
    pub const LEAST_BLOCKS: u16 = credit_blocks(LinkPacket::MAX_LEN);
    /// Four of the longest packets in each data lane and 16 datagrams of subnet management, which
    /// is about what switches have. Credits are repeated as often as IBTA 7.9.4 asks (65,536 symbol
    /// times, 262 us at the lowest rate), and less often while nothing moves.
    pub const DEFAULT: Self = Self {
        lane_blocks: 4 * Self::LEAST_BLOCKS,
        management_blocks: 16 * 5,
        submit_blocks: 4 * Self::LEAST_BLOCKS,
        bytes_per_s: None,
        paced: true,
        update_ns: 65_536,
        idle_update_ns: 67_108_864,
        training_ns: 1_000_000,
    };

    /// The receive buffer of a data lane in blocks.
    pub(crate) fn data_blocks(&self) -> u16 {
        self.lane_blocks.max(Self::LEAST_BLOCKS)
    }
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}
