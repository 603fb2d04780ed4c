//! NodeInfo: what a node is, and the port that the request came in by (IBTA 14.2.5.3): 40 bytes.
//!
//! ```text
//!  byte   0           1            2           3       4..11         12..19      20..27
//!       +-----------+------------+-----------+-------+-------------+-----------+-----------+
//!       | base vers | class vers | node type | ports | system GUID | node GUID | port GUID |
//!       +-----------+------------+-----------+-------+-------------+-----------+-----------+
//!  byte   28..29          30..31      32..35     36           37..39
//!       +---------------+-----------+----------+------------+-----------+
//!       | partition cap | device id | revision | local port | vendor id |
//!       +---------------+-----------+----------+------------+-----------+
//! ```

use core::fmt;

use crate::error::head;
use crate::smp::{be16, be32, be64};
use crate::{Guid, ParseError, PortNum};

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeInfo {
    /// Version of management datagrams that the node knows; 1.
    pub base_version: u8,
    /// Version of subnet management that the node knows; 1.
    pub class_version: u8,
    /// Kind of node: [`NodeInfo::ADAPTER`], [`NodeInfo::SWITCH`] or [`NodeInfo::ROUTER`].
    pub node_type: u8,
    /// External ports, port 0 of a switch not counted.
    pub ports: u8,
    /// GUID of the box that the node is part of.
    pub system_guid: Guid,
    /// GUID of the node.
    pub node_guid: Guid,
    /// GUID of the port that the request came in by; of a switch, that of port 0.
    pub port_guid: Guid,
    /// Entries of the table of partition keys.
    pub partition_cap: u16,
    /// Vendor's number of the model.
    pub device_id: u16,
    /// Vendor's number of the revision.
    pub revision: u32,
    /// Port that the request came in by.
    pub local_port: PortNum,
    /// IEEE vendor id, 24 bits.
    pub vendor_id: u32,
}

impl NodeInfo {
    /// Bytes on the wire.
    pub const LEN: usize = 40;

    /// Node type: a channel adapter.
    pub const ADAPTER: u8 = 1;
    /// Node type: a switch.
    pub const SWITCH: u8 = 2;
    /// Node type: a router.
    pub const ROUTER: u8 = 3;

    /// Reads the attribute at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the attribute from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            base_version: b[0],
            class_version: b[1],
            node_type: b[2],
            ports: b[3],
            system_guid: Guid(be64(b, 4)),
            node_guid: Guid(be64(b, 12)),
            port_guid: Guid(be64(b, 20)),
            partition_cap: be16(b, 28),
            device_id: be16(b, 30),
            revision: be32(b, 32),
            local_port: PortNum((be32(b, 36) >> 24) as u8),
            vendor_id: be32(b, 36) & 0xFFFFFF,
        }
    }
    /// Writes the attribute at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[0] = self.base_version;
        buf[1] = self.class_version;
        buf[2] = self.node_type;
        buf[3] = self.ports;
        buf[4..12].copy_from_slice(&self.system_guid.0.to_be_bytes());
        buf[12..20].copy_from_slice(&self.node_guid.0.to_be_bytes());
        buf[20..28].copy_from_slice(&self.port_guid.0.to_be_bytes());
        buf[28..30].copy_from_slice(&self.partition_cap.to_be_bytes());
        buf[30..32].copy_from_slice(&self.device_id.to_be_bytes());
        buf[32..36].copy_from_slice(&self.revision.to_be_bytes());
        let word = u32::from(self.local_port.0) << 24 | self.vendor_id & 0xFFFFFF;
        buf[36..Self::LEN].copy_from_slice(&word.to_be_bytes());
    }
}

impl fmt::Display for NodeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (guid, ports, port) = (self.node_guid, self.ports, self.local_port);
        write!(f, "NodeInfo type={} guid={guid} ports={ports} port={port}", self.node_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; NodeInfo::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let read = NodeInfo::parse(&bytes).unwrap();
        assert_eq!(read.base_version, 0x01);
        assert_eq!(read.class_version, 0x02);
        assert_eq!(read.node_type, 0x03);
        assert_eq!(read.ports, 0x04);
        assert_eq!(read.system_guid, Guid(0x0506_0708_090A_0B0C));
        assert_eq!(read.node_guid, Guid(0x0D0E_0F10_1112_1314));
        assert_eq!(read.port_guid, Guid(0x1516_1718_191A_1B1C));
        assert_eq!(read.partition_cap, 0x1D1E);
        assert_eq!(read.device_id, 0x1F20);
        assert_eq!(read.revision, 0x2122_2324);
        assert_eq!(read.local_port, PortNum(0x25));
        assert_eq!(read.vendor_id, 0x26_2728);
        let mut out = [0; NodeInfo::LEN];
        read.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 40, have: 39 };
        assert_eq!(NodeInfo::parse(&[0; 39]), Err(error));
    }
}
