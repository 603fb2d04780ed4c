//! PortInfoRecord: 68 bytes, the attributes of a port (IBTA 15.2.5).
//!
//! ```text
//!  byte   0..1   2          3         4..67
//!       +------+----------+---------+----------+
//!       | LID  | port     | options | PortInfo |
//!       +------+----------+---------+----------+
//! ```
//! PortInfo is as in subnet management datagrams, and bytes here.

use core::fmt;

use super::{be16, part};
use crate::error::head;
use crate::{Lid, ParseError, PortNum};

bitflags::bitflags! {
    /// Components of a [`PortInfoRecord`], as a component mask says which of them count. Those of
    /// PortInfo that are not named follow each other in the order of its fields.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct PortInfoComponents: u64 {
        /// [`PortInfoRecord::lid`].
        const LID = 1 << 0;
        /// [`PortInfoRecord::port`].
        const PORT_NUM = 1 << 1;
        /// [`PortInfoRecord::options`].
        const OPTIONS = 1 << 2;
        /// PortInfo: the first half of the port's GIDs.
        const GID_PREFIX = 1 << 4;
        /// PortInfo: the port's first LID.
        const BASE_LID = 1 << 5;
        /// PortInfo: the LID of the subnet manager.
        const SM_LID = 1 << 6;
        /// PortInfo: what the port can do.
        const CAPABILITY_MASK = 1 << 7;
        /// PortInfo: the logical state.
        const PORT_STATE = 1 << 15;
        /// PortInfo: the physical state.
        const PHYSICAL_STATE = 1 << 16;
        /// PortInfo: how many LIDs the port has, as a power of two.
        const LMC = 1 << 20;
        /// PortInfo: the MTU of the other end.
        const NEIGHBOR_MTU = 1 << 23;

        const _ = !0;
    }
}

/// The attributes of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortInfoRecord {
    /// The first LID of the node's port, or of the switch that the port is of.
    pub lid: Lid,
    /// The port.
    pub port: PortNum,
    /// Options of a request; 0 without.
    pub options: u8,
    /// PortInfo.
    pub port_info: [u8; 64],
}

impl PortInfoRecord {
    /// Bytes on the wire.
    pub const LEN: usize = 68;

    /// Reads the record at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the record from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self { lid: Lid(be16(b, 0)), port: PortNum(b[2]), options: b[3], port_info: part(b, 4) }
    }
    /// Writes the record at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..2].copy_from_slice(&self.lid.0.to_be_bytes());
        buf[2] = self.port.0;
        buf[3] = self.options;
        buf[4..Self::LEN].copy_from_slice(&self.port_info);
    }
}

impl Default for PortInfoRecord {
    fn default() -> Self {
        Self::from_bytes(&[0; Self::LEN])
    }
}

impl fmt::Display for PortInfoRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} at lid {}", self.port, self.lid)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; PortInfoRecord::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let record = PortInfoRecord::parse(&bytes).unwrap();
        assert_eq!((record.lid, record.port, record.options), (Lid(0x0102), PortNum(3), 4));
        assert_eq!((record.port_info[0], record.port_info[63]), (5, 68));
        assert_eq!(record.to_string(), "port 3 at lid 0x0102");
        let mut out = [0; PortInfoRecord::LEN];
        record.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 68, have: 67 };
        assert_eq!(PortInfoRecord::parse(&[0; 67]), Err(error));
    }
}
