//! NodeRecord: 108 bytes, a port of a node (IBTA 15.2.5).
//!
//! ```text
//!  byte   0..1   2..3       4..43      44..107
//!       +------+----------+----------+-------------+
//!       | LID  | reserved | NodeInfo | description |
//!       +------+----------+----------+-------------+
//! ```
//! NodeInfo and NodeDescription are as in subnet management datagrams, and bytes here.

use core::fmt;

use super::{be16, part};
use crate::error::head;
use crate::{Lid, ParseError};

bitflags::bitflags! {
    /// Components of a [`NodeRecord`], as a component mask says which of them count.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct NodeComponents: u64 {
        /// [`NodeRecord::lid`].
        const LID = 1 << 0;
        /// NodeInfo: version of the datagrams.
        const BASE_VERSION = 1 << 2;
        /// NodeInfo: version of subnet management.
        const CLASS_VERSION = 1 << 3;
        /// NodeInfo: what the node is.
        const NODE_TYPE = 1 << 4;
        /// NodeInfo: how many ports it has.
        const PORT_COUNT = 1 << 5;
        /// NodeInfo: the GUID of the system.
        const SYSTEM_GUID = 1 << 6;
        /// NodeInfo: the GUID of the node.
        const NODE_GUID = 1 << 7;
        /// NodeInfo: the GUID of the port.
        const PORT_GUID = 1 << 8;
        /// NodeInfo: how many partitions it can be in.
        const PARTITION_CAPACITY = 1 << 9;
        /// NodeInfo: the vendor's number of the model.
        const DEVICE_ID = 1 << 10;
        /// NodeInfo: the vendor's number of the revision.
        const REVISION = 1 << 11;
        /// NodeInfo: the port.
        const PORT_NUM = 1 << 12;
        /// NodeInfo: the vendor.
        const VENDOR_ID = 1 << 13;
        /// [`NodeRecord::description`].
        const DESCRIPTION = 1 << 14;
    }
}

/// A port of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeRecord {
    /// The port's first LID.
    pub lid: Lid,
    /// Reserved, 0 when sent.
    pub reserved2: u16,
    /// NodeInfo.
    pub node_info: [u8; 40],
    /// NodeDescription: UTF-8, with zeros behind.
    pub description: [u8; 64],
}

impl NodeRecord {
    /// Bytes on the wire.
    pub const LEN: usize = 108;

    /// Reads the record at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the record from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            lid: Lid(be16(b, 0)),
            reserved2: be16(b, 2),
            node_info: part(b, 4),
            description: part(b, 44),
        }
    }
    /// Writes the record at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..2].copy_from_slice(&self.lid.0.to_be_bytes());
        buf[2..4].copy_from_slice(&self.reserved2.to_be_bytes());
        buf[4..44].copy_from_slice(&self.node_info);
        buf[44..Self::LEN].copy_from_slice(&self.description);
    }
}

impl Default for NodeRecord {
    fn default() -> Self {
        Self::from_bytes(&[0; Self::LEN])
    }
}

impl fmt::Display for NodeRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.description.iter().position(|byte| *byte == 0);
        let text = &self.description[..end.unwrap_or(self.description.len())];
        write!(f, "node at lid {} {}", self.lid, text.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; NodeRecord::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let record = NodeRecord::parse(&bytes).unwrap();
        assert_eq!((record.lid, record.reserved2), (Lid(0x0102), 0x0304));
        assert_eq!((record.node_info[0], record.node_info[39]), (5, 44));
        assert_eq!((record.description[0], record.description[63]), (45, 108));
        let mut out = [0; NodeRecord::LEN];
        record.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 108, have: 107 };
        assert_eq!(NodeRecord::parse(&[0; 107]), Err(error));
    }

    #[test]
    fn a_node_reads_as_a_trace_whatever_its_description() {
        let mut record = NodeRecord { lid: Lid(9), ..NodeRecord::default() };
        record.description[..7].copy_from_slice(b"\x1bswitch");
        assert_eq!(record.to_string(), "node at lid 0x0009 \\x1bswitch");
    }
}
