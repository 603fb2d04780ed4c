//! Subnet management packet (SMP): a whole management datagram of 256 bytes (IBTA 14.2.1).
//!
//! ```text
//!  byte   0..3          4..5       6             7           8..23
//!       +-------------+----------+-------------+-----------+------------------------------+
//!       | as in a MAD | D status | hop pointer | hop count | as in a MAD                  |
//!       +-------------+----------+-------------+-----------+------------------------------+
//!  byte   24..31   32..33    34..35    36..63     64..127     128..191       192..255
//!       +--------+---------+---------+----------+-----------+--------------+-------------+
//!       | M_Key  | DrSLID  | DrDLID  | reserved | attribute | initial path | return path |
//!       +--------+---------+---------+----------+-----------+--------------+-------------+
//! ```
//! D says that a directed-route packet returns. Of a packet that is routed by LID, D, hop pointer,
//! hop count, DrSLID, DrDLID and the paths are reserved.

use core::fmt;

use super::{CLASS_VERSION, DATA_LEN, MadStatus, SmAttribute, array, be16, be64};
use crate::error::head;
use crate::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use crate::{Lid, ParseError};

/// Subnet management packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Smp {
    /// Header that all management datagrams share.
    pub header: MadHeader,
    /// Key of the subnet manager.
    pub m_key: u64,
    /// LID of the node where the directed route begins; [`Lid::PERMISSIVE`] if nothing is before.
    pub dr_slid: Lid,
    /// LID of the destination; [`Lid::PERMISSIVE`] if the directed route leads to it.
    pub dr_dlid: Lid,
    /// Reserved, 0 when sent.
    pub reserved36: [u8; 28],
    /// Attribute.
    pub data: [u8; DATA_LEN],
    /// Ports that the packet leaves nodes by, from entry 1 on.
    pub initial_path: [u8; Smp::PATH_LEN],
    /// Ports that the packet came in by, from entry 1 on.
    pub return_path: [u8; Smp::PATH_LEN],
}

impl Smp {
    /// Bytes on the wire.
    pub const LEN: usize = MAD_LEN;
    /// Byte that the attribute begins at.
    pub const DATA_AT: usize = 64;
    /// Entries of a path, of which entry 0 is not used.
    pub const PATH_LEN: usize = 64;
    /// Bit of the status that says that a directed-route packet returns.
    pub const RETURNS: u16 = 0x8000;

    /// Returns a question about an attribute of the node at the end of a directed route. The route
    /// begins at the sender, and is the ports to leave by: 63 at most, others are cut off.
    pub fn by_route(path: &[u8], attribute: SmAttribute, modifier: u32) -> Self {
        let hops = path.len().min(Self::PATH_LEN - 1);
        let mut initial_path = [0; Self::PATH_LEN];
        initial_path[1..=hops].copy_from_slice(&path[..hops]);
        Self {
            header: MadHeader {
                base_version: MadHeader::BASE_VERSION,
                mgmt_class: MgmtClass::SUBNET_DIRECTED_ROUTE,
                class_version: CLASS_VERSION,
                method: Method::GET,
                class_specific: hops as u16,
                attribute_id: attribute.0,
                attribute_modifier: modifier,
                ..MadHeader::default()
            },
            m_key: 0,
            dr_slid: Lid::PERMISSIVE,
            dr_dlid: Lid::PERMISSIVE,
            reserved36: [0; 28],
            data: [0; DATA_LEN],
            initial_path,
            return_path: [0; Self::PATH_LEN],
        }
    }
    /// Whether the packet follows a list of ports.
    pub const fn is_directed(&self) -> bool {
        self.header.mgmt_class.0 == MgmtClass::SUBNET_DIRECTED_ROUTE.0
    }
    /// Whether the packet returns to where its directed route began.
    pub const fn returns(&self) -> bool {
        self.is_directed() && self.header.status & Self::RETURNS != 0
    }
    /// Result of the operation.
    pub const fn status(&self) -> MadStatus {
        let direction = if self.is_directed() { Self::RETURNS } else { 0 };
        MadStatus(self.header.status & !direction)
    }
    /// Attribute that the packet is about.
    pub const fn attribute(&self) -> SmAttribute {
        SmAttribute(self.header.attribute_id)
    }
    /// Entry of the path that the packet is at.
    pub const fn hop_pointer(&self) -> u8 {
        (self.header.class_specific >> 8) as u8
    }
    /// Ports that the directed route has.
    pub const fn hop_count(&self) -> u8 {
        self.header.class_specific as u8
    }
    /// Sets which entry of the path the packet is at.
    pub const fn set_hop_pointer(&mut self, hop: u8) {
        self.header.class_specific = u16::from_be_bytes([hop, self.hop_count()]);
    }
    /// Reads the packet at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the packet from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            header: MadHeader::from_bytes(&array(b, 0)),
            m_key: be64(b, 24),
            dr_slid: Lid(be16(b, 32)),
            dr_dlid: Lid(be16(b, 34)),
            reserved36: array(b, 36),
            data: array(b, 64),
            initial_path: array(b, 128),
            return_path: array(b, 192),
        }
    }
    /// Writes the packet at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        self.header.emit(buf);
        buf[24..32].copy_from_slice(&self.m_key.to_be_bytes());
        buf[32..34].copy_from_slice(&self.dr_slid.0.to_be_bytes());
        buf[34..36].copy_from_slice(&self.dr_dlid.0.to_be_bytes());
        buf[36..64].copy_from_slice(&self.reserved36);
        buf[64..128].copy_from_slice(&self.data);
        buf[128..192].copy_from_slice(&self.initial_path);
        buf[192..Self::LEN].copy_from_slice(&self.return_path);
    }
}

impl fmt::Display for Smp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (method, modifier) = (self.header.method.0, self.header.attribute_modifier);
        write!(f, "SMP method={method:#04x} {} modifier={modifier:#x}", self.attribute())?;
        if self.is_directed() {
            let way = if self.returns() { "back" } else { "out" };
            write!(f, " hop={}/{} {way}", self.hop_pointer(), self.hop_count())?;
        }
        write!(f, " {}", self.status())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let mut bytes: [u8; Smp::LEN] = core::array::from_fn(|i| (i as u8).wrapping_add(1));
        bytes[1] = MgmtClass::SUBNET_DIRECTED_ROUTE.0;
        bytes[4..8].copy_from_slice(&[0x80, 0x1C, 3, 5]);
        let mut smp = Smp::parse(&bytes).unwrap();
        assert!(smp.is_directed() && smp.returns());
        assert_eq!(smp.status(), MadStatus::INVALID_FIELD);
        assert_eq!((smp.hop_pointer(), smp.hop_count()), (3, 5));
        assert_eq!(smp.attribute(), SmAttribute(0x1112));
        assert_eq!(smp.m_key, 0x191A_1B1C_1D1E_1F20);
        assert_eq!((smp.dr_slid, smp.dr_dlid), (Lid(0x2122), Lid(0x2324)));
        assert_eq!((smp.data[0], smp.initial_path[0], smp.return_path[0]), (65, 129, 193));
        let mut out = [0; Smp::LEN];
        smp.emit(&mut out);
        assert_eq!(out, bytes);
        smp.set_hop_pointer(4);
        assert_eq!((smp.hop_pointer(), smp.hop_count()), (4, 5));
    }

    #[test]
    fn the_direction_is_no_status_and_belongs_to_directed_routes() {
        let mut bytes = [0; Smp::LEN];
        bytes[1] = MgmtClass::SUBNET_LID_ROUTED.0;
        bytes[4] = 0x80;
        let smp = Smp::parse(&bytes).unwrap();
        assert!(!smp.returns());
        assert_eq!(smp.status(), MadStatus(0x8000));
    }

    #[test]
    fn a_question_by_a_route_begins_and_ends_at_nodes_of_it() {
        let smp = Smp::by_route(&[3, 1], SmAttribute(0x15), 7);
        assert!(smp.is_directed() && !smp.returns());
        assert_eq!((smp.hop_pointer(), smp.hop_count()), (0, 2));
        assert_eq!(smp.initial_path[..4], [0, 3, 1, 0]);
        assert_eq!(smp.attribute(), SmAttribute(0x15));
        assert_eq!((smp.dr_slid, smp.dr_dlid), (Lid::PERMISSIVE, Lid::PERMISSIVE));
        assert_eq!(Smp::by_route(&[1; 200], SmAttribute(0x15), 0).hop_count(), 63);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 256, have: 255 };
        assert_eq!(Smp::parse(&[0; 255]), Err(error));
    }
}
