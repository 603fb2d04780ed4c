//! Limits of the device, and the attributes that report them.
//!
//! Owns every limit of the engine, once. Read by the control path (checks) and by queries.
//! The values are above what applications ask of a device: completion queues of 2^20 entries,
//! queues of 2^15 work requests, 32 scatter/gather entries, 1024 inline bytes. No limit reserves
//! memory: rings are allocated at the size that was asked for.

use std::sync::Arc;

use vernic_io::{LinkPort, PortState};
use vernic_wire::{Gid, Mtu, PortNum};

use crate::config::Config;

/// Most entries of a completion queue.
pub const MAX_CQE: u32 = 1 << 20;
/// Most outstanding work requests of one queue, send or receive.
pub const MAX_QP_WR: u32 = 1 << 15;
/// Most outstanding receives of a shared receive queue.
pub const MAX_SRQ_WR: u32 = 1 << 15;
/// Most shared receive queues.
pub const MAX_SRQ: u32 = 1 << 20;
/// Most scatter/gather entries of a work request.
pub const MAX_SGE: u32 = 32;
/// Most bytes of inline data of a work request.
pub const MAX_INLINE: u32 = 1024;
/// Most READs and atomics outstanding, as requester and as responder.
pub const MAX_RD_ATOMIC: u8 = 128;
/// Longest message, bytes (IBTA 9.3.3.2.4: 2^31).
pub const MAX_MSG_BYTES: u32 = 1 << 31;
/// Most bytes of device memory in all of one open device. Device memory is memory of the process,
/// so the limit is there for programs that ask for all there is. Adapters have a quarter of a MiB
/// to some MiB.
pub const MAX_DM_BYTES: u64 = 16 << 20;
/// Largest alignment of device memory, as a power of two: a page.
pub const MAX_DM_ALIGN_LOG2: u32 = 12;
/// Ticks of the completion clock per millisecond: its unit is the nanosecond.
pub const CLOCK_KHZ: u64 = 1_000_000;
/// Capabilities of the port (CapabilityMask of PortInfo, IBTA 14.2.5.6):
/// IsCommunicationManagementSupported, bit 16.
pub const PORT_CAP_FLAGS: u32 = 1 << 16;
/// Rows of the GID table: as many as an address vector's 8-bit index can name.
pub const MAX_GIDS: usize = 256;
/// Rows of the P_Key table: the default partition only, as every RoCE device.
pub const MAX_PKEYS: u16 = 1;
/// Rows of the P_Key table of a port of InfiniBand: as many as adapters have.
pub const MAX_INFINIBAND_PKEYS: u16 = 128;
/// Rows of the GID table of a port of InfiniBand: a block of GUIDInfo (IBTA 14.2.5.5).
pub const MAX_INFINIBAND_GIDS: usize = 8;
/// Rate of a port that follows a netdev, in Mb/s: 4X lanes of 10 Gb/s each, the nearest to what the
/// device reaches between processes of a host (BENCHMARKS.md). Programs choose protocols by it.
pub const PORT_MBPS: u32 = 40_000;
/// Most queue pairs: as many as all process slots of a host hold together.
pub const MAX_QP: u32 = vernic_io::Slot::LAST.value() as u32 * vernic_io::Slot::QPNS;
/// Multicast groups that a device can be in.
pub const MAX_MCAST_GROUPS: u32 = 256;
/// Queue pairs of a device in one multicast group.
pub const MAX_MCAST_QPS: u32 = 4096;

/// Attributes of a device (IBTA 11.2.1.2 query HCA).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Version of this software.
    pub firmware: &'static str,
    /// Node GUID: from the netdev's MAC address, EUI-64.
    pub node_guid: u64,
    /// Vendor: an OUI, never 0; [`Config::vendor_id`](crate::Config::vendor_id).
    pub vendor_id: u32,
    /// Part number; [`Config::vendor_part_id`](crate::Config::vendor_part_id).
    pub vendor_part_id: u32,
    /// Largest region, bytes.
    pub max_mr_bytes: u64,
    /// Most queue pairs of the device.
    pub max_qp: u32,
    /// Most outstanding work requests of one queue.
    pub max_qp_wr: u32,
    /// Most scatter/gather entries of a work request.
    pub max_sge: u32,
    /// Most bytes of inline data.
    pub max_inline: u32,
    /// Most completion queues.
    pub max_cq: u32,
    /// Most entries of a completion queue.
    pub max_cqe: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// Most memory windows.
    pub max_mw: u32,
    /// Most protection domains.
    pub max_pd: u32,
    /// READs and atomics that a queue pair answers at once.
    pub max_qp_rd_atom: u8,
    /// READs and atomics that a queue pair has outstanding at once.
    pub max_qp_init_rd_atom: u8,
    /// Most shared receive queues.
    pub max_srq: u32,
    /// Most receives of a shared receive queue.
    pub max_srq_wr: u32,
    /// Most scatter/gather entries of a shared receive.
    pub max_srq_sge: u32,
    /// Most bytes of device memory.
    pub max_dm_bytes: u64,
    /// Whether a region over the whole address space can be registered here (implicit on-demand
    /// paging). A region over a range always can.
    pub implicit_odp: bool,
    /// Most address handles.
    pub max_ah: u32,
    /// Most multicast groups.
    pub max_mcast_groups: u32,
    /// Most queue pairs in one multicast group.
    pub max_mcast_qps: u32,
    /// Rows of the P_Key table.
    pub max_pkeys: u16,
    /// Ports.
    pub ports: u8,
}

impl DeviceAttr {
    pub(crate) fn new(node_guid: u64, ports: u8, config: &Config) -> Self {
        Self {
            firmware: env!("CARGO_PKG_VERSION"),
            node_guid,
            vendor_id: config.vendor_id,
            vendor_part_id: config.vendor_part_id,
            max_mr_bytes: 1 << 47,
            max_qp: MAX_QP,
            max_qp_wr: MAX_QP_WR,
            max_sge: MAX_SGE,
            max_inline: MAX_INLINE,
            max_cq: 1 << 20,
            max_cqe: MAX_CQE,
            max_mr: 1 << 23,
            max_mw: 1 << 23,
            max_pd: 1 << 20,
            max_qp_rd_atom: MAX_RD_ATOMIC,
            max_qp_init_rd_atom: MAX_RD_ATOMIC,
            max_srq: MAX_SRQ,
            max_srq_wr: MAX_SRQ_WR,
            max_srq_sge: MAX_SGE,
            max_dm_bytes: MAX_DM_BYTES,
            implicit_odp: vernic_mem::Memory::can_register_address_space(),
            max_ah: 1 << 20,
            max_mcast_groups: MAX_MCAST_GROUPS,
            max_mcast_qps: MAX_MCAST_QPS,
            max_pkeys: MAX_PKEYS,
            ports,
        }
    }
}

/// Attributes of the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// Number, from 1.
    pub port: PortNum,
    /// State.
    pub state: PortState,
    /// Largest path MTU that the device knows.
    pub max_mtu: Mtu,
    /// Largest path MTU that fits the netdev now.
    pub active_mtu: Mtu,
    /// MTU of the netdev, bytes.
    pub netdev_mtu_bytes: u32,
    /// [`PORT_CAP_FLAGS`].
    pub cap_flags: u32,
    /// Rows of the GID table.
    pub gid_table_len: usize,
    /// Rows of the P_Key table.
    pub pkey_table_len: u16,
    /// Longest message, bytes.
    pub max_msg_bytes: u32,
    /// The first GID that is not empty, if there is one.
    pub default_gid: Option<Gid>,
    /// Packets with an unknown P_Key.
    pub bad_pkey_count: u64,
    /// Packets with a wrong Q_Key.
    pub bad_qkey_count: u64,
    /// What a subnet manager has set up; `None` for ports that follow netdevs.
    pub link: Option<Arc<LinkPort>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_names_the_vendor_that_its_settings_name() {
        let mut config = Config::default();
        assert_ne!(DeviceAttr::new(1, 1, &config).vendor_id, 0);
        config.set("vendor_id", "0x2c9").unwrap();
        config.set("vendor_part_id", "4115").unwrap();
        let attributes = DeviceAttr::new(1, 1, &config);
        assert_eq!((attributes.vendor_id, attributes.vendor_part_id), (0x2c9, 4115));
        for wrong in ["0", "0x1000000", "x", ""] {
            assert!(config.set("vendor_id", wrong).is_err(), "{wrong}");
        }
    }
}
