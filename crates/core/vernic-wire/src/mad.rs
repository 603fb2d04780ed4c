//! Management datagram (MAD) common header: 24 bytes, first of the 256 bytes that every management
//! datagram has (IBTA 13.4.3).
//!
//! ```text
//!  byte   0           1          2            3            4..5     6..7
//!       +-----------+----------+------------+------------+--------+----------------+
//!       | base vers | class    | class vers | R method7  | status | class specific |
//!       +-----------+----------+------------+------------+--------+----------------+
//!       | transaction id                                       8..15               |
//!       +-------------------------+-----------------+------------------------------+
//!       | attribute id 16..17     | reserved 18..19 | attribute modifier 20..23    |
//!       +-------------------------+-----------------+------------------------------+
//! ```

mod address;

use core::fmt;

pub use address::{MadAddress, MadGrh};

use crate::ParseError;
use crate::error::head;

/// Bytes of a whole management datagram, header and all.
pub const MAD_LEN: usize = 256;

/// Management class (IBTA 13.4.4, table 104): which agent a datagram is for. Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MgmtClass(pub u8);

impl MgmtClass {
    /// Subnet management, routed by LID.
    pub const SUBNET_LID_ROUTED: Self = Self(0x01);
    /// Subnet administration.
    pub const SUBNET_ADMIN: Self = Self(0x03);
    /// Performance management.
    pub const PERFORMANCE: Self = Self(0x04);
    /// Baseboard management.
    pub const BASEBOARD: Self = Self(0x05);
    /// Device management.
    pub const DEVICE: Self = Self(0x06);
    /// Communication management.
    pub const COMMUNICATION: Self = Self(0x07);
    /// SNMP tunnelling.
    pub const SNMP: Self = Self(0x08);
    /// Subnet management, directed route.
    pub const SUBNET_DIRECTED_ROUTE: Self = Self(0x81);

    /// Name, or `None` for vendor and reserved classes.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::SUBNET_LID_ROUTED => Some("SUBNET_LID_ROUTED"),
            Self::SUBNET_ADMIN => Some("SUBNET_ADMIN"),
            Self::PERFORMANCE => Some("PERFORMANCE"),
            Self::BASEBOARD => Some("BASEBOARD"),
            Self::DEVICE => Some("DEVICE"),
            Self::COMMUNICATION => Some("COMMUNICATION"),
            Self::SNMP => Some("SNMP"),
            Self::SUBNET_DIRECTED_ROUTE => Some("SUBNET_DIRECTED_ROUTE"),
            _ => None,
        }
    }

    /// Whether it is of subnet management, which has queue pair 0.
    pub const fn is_subnet_management(self) -> bool {
        matches!(self, Self::SUBNET_LID_ROUTED | Self::SUBNET_DIRECTED_ROUTE)
    }
}

impl fmt::Display for MgmtClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "class {:#04x}", self.0),
        }
    }
}

/// Method with its response bit (IBTA 13.4.5, table 105). Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Method(pub u8);

impl Method {
    /// Read an attribute.
    pub const GET: Self = Self(0x01);
    /// Write an attribute.
    pub const SET: Self = Self(0x02);
    /// A datagram that is not answered by the method's response; all of communication management.
    pub const SEND: Self = Self(0x03);
    /// Unsolicited notice.
    pub const TRAP: Self = Self(0x05);
    /// Forwarded notice.
    pub const REPORT: Self = Self(0x06);
    /// Stop repeating a notice.
    pub const TRAP_REPRESS: Self = Self(0x07);
    /// Read all attributes that match; of subnet administration, as all that follow up to DELETE.
    pub const GET_TABLE: Self = Self(0x12);
    /// Read the nodes that a packet passes on its way.
    pub const GET_TRACE_TABLE: Self = Self(0x13);
    /// Read what matches a request of several datagrams.
    pub const GET_MULTI: Self = Self(0x14);
    /// Remove an attribute.
    pub const DELETE: Self = Self(0x15);
    /// Answer to GET and SET.
    pub const GET_RESP: Self = Self(0x81);
    /// Answer to REPORT.
    pub const REPORT_RESP: Self = Self(0x86);
    /// Answer to GET_TABLE and GET_TRACE_TABLE.
    pub const GET_TABLE_RESP: Self = Self(0x92);
    /// Answer to GET_MULTI.
    pub const GET_MULTI_RESP: Self = Self(0x94);
    /// Answer to DELETE.
    pub const DELETE_RESP: Self = Self(0x95);

    /// Whether the response bit is set.
    pub const fn is_response(self) -> bool {
        self.0 & 0x80 != 0
    }
}

/// Header that all management datagrams share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MadHeader {
    /// Version of this format; 1.
    pub base_version: u8,
    /// Agent that the datagram is for.
    pub mgmt_class: MgmtClass,
    /// Version of the class's formats; 1, but 2 for subnet administration and communication.
    pub class_version: u8,
    /// What to do.
    pub method: Method,
    /// Result of the operation, 0 for success; in directed-route datagrams the top bit is a
    /// direction.
    pub status: u16,
    /// Class-specific field; hop pointer and hop count in directed-route datagrams.
    pub class_specific: u16,
    /// Pairs an answer with its question.
    pub transaction_id: u64,
    /// What is read, written or sent: for communication management the message.
    pub attribute_id: u16,
    /// Reserved, 0 when sent.
    pub reserved: u16,
    /// Which of several attributes of that id.
    pub attribute_modifier: u32,
}

impl MadHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 24;
    /// The only base version.
    pub const BASE_VERSION: u8 = 1;

    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    #[inline]
    pub const fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match head(bytes) {
            Ok(head) => Ok(Self::from_bytes(head)),
            Err(error) => Err(error),
        }
    }
    /// Reads the header from its bytes.
    #[inline]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            base_version: b[0],
            mgmt_class: MgmtClass(b[1]),
            class_version: b[2],
            method: Method(b[3]),
            status: u16::from_be_bytes([b[4], b[5]]),
            class_specific: u16::from_be_bytes([b[6], b[7]]),
            transaction_id: u64::from_be_bytes([
                b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15],
            ]),
            attribute_id: u16::from_be_bytes([b[16], b[17]]),
            reserved: u16::from_be_bytes([b[18], b[19]]),
            attribute_modifier: u32::from_be_bytes([b[20], b[21], b[22], b[23]]),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        buf[0] = self.base_version;
        buf[1] = self.mgmt_class.0;
        buf[2] = self.class_version;
        buf[3] = self.method.0;
        buf[4..6].copy_from_slice(&self.status.to_be_bytes());
        buf[6..8].copy_from_slice(&self.class_specific.to_be_bytes());
        buf[8..16].copy_from_slice(&self.transaction_id.to_be_bytes());
        buf[16..18].copy_from_slice(&self.attribute_id.to_be_bytes());
        buf[18..20].copy_from_slice(&self.reserved.to_be_bytes());
        buf[20..Self::LEN].copy_from_slice(&self.attribute_modifier.to_be_bytes());
    }
}

impl fmt::Display for MadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} method={:#04x} attribute={:#06x} tid={:#x} status={:#x}",
            self.mgmt_class, self.method.0, self.attribute_id, self.transaction_id, self.status
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let mut bytes: [u8; MadHeader::LEN] = core::array::from_fn(|i| i as u8 + 1);
        bytes[3] = 0x81;
        let mad = MadHeader::parse(&bytes).unwrap();
        assert_eq!((mad.base_version, mad.mgmt_class, mad.class_version), (1, MgmtClass(2), 3));
        assert_eq!(mad.method, Method::GET_RESP);
        assert!(mad.method.is_response());
        assert_eq!((mad.status, mad.class_specific), (0x0506, 0x0708));
        assert_eq!(mad.transaction_id, 0x090A_0B0C_0D0E_0F10);
        assert_eq!((mad.attribute_id, mad.reserved), (0x1112, 0x1314));
        assert_eq!(mad.attribute_modifier, 0x1516_1718);
        let mut out = [0; MadHeader::LEN];
        mad.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn twenty_three_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 24, have: 23 };
        assert_eq!(MadHeader::parse(&[0; 23]), Err(error));
    }
}
