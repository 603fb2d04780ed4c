//! SwitchInfo: sizes of a switch's tables and how it forwards (IBTA 14.2.5.4): 20 bytes.
//!
//! ```text
//!  byte   0..1         2..3         4..5            6..7         8
//!       +------------+------------+---------------+------------+--------------+
//!       | linear cap | random cap | multicast cap | linear top | default port |
//!       +------------+------------+---------------+------------+--------------+
//!  byte   9                     10                   11          12..13          14..15
//!       +---------------------+--------------------+-----------+---------------+-------------+
//!       | multicast primary   | multicast other    | life5 C O | LIDs per port | enforce cap |
//!       +---------------------+--------------------+-----------+---------------+-------------+
//!  byte   16              17         18..19
//!       +---------------+----------+---------------+
//!       | I O RI RO E   | reserved | multicast top |
//!       +---------------+----------+---------------+
//! ```
//! C says that a port has changed its state, O (2 bits) that a table of lanes counts for several
//! ports. I and O enforce partitions of packets that enter and leave, RI and RO filter raw packets,
//! and E says that port 0 is an enhanced one.

use core::fmt;

use crate::error::head;
use crate::smp::be16;
use crate::{Lid, ParseError};

/// Sizes of a switch's tables and how it forwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwitchInfo {
    /// LIDs that the linear forwarding table holds.
    pub linear_cap: u16,
    /// LIDs that the random forwarding table holds; 0 if there is a linear one.
    pub random_cap: u16,
    /// LIDs that the multicast forwarding table holds.
    pub multicast_cap: u16,
    /// Last LID of the linear table that counts.
    pub linear_top: Lid,
    /// Port for LIDs that the random table lacks.
    pub default_port: u8,
    /// Port for groups without an entry.
    pub default_multicast_primary: u8,
    /// Port for groups without an entry, of packets that came by the primary one.
    pub default_multicast_other: u8,
    /// Longest stay of a packet in the switch: 4.096 us times 2 to the power of this; from 20 on,
    /// without end.
    pub life_time: u8,
    /// Port state change: read, whether a port has changed its state; written, 1 clears.
    pub port_changed: bool,
    /// Programming of several tables of lanes at once, 2 bits.
    pub optimized_lanes: u8,
    /// LIDs that may be assigned to a port, of a random table.
    pub lids_per_port: u16,
    /// Entries of the tables of partition keys of the external ports.
    pub enforcement_cap: u16,
    /// Partitions of packets that enter can be enforced.
    pub enforces_inbound: bool,
    /// Partitions of packets that leave can be enforced.
    pub enforces_outbound: bool,
    /// Raw packets that enter can be filtered.
    pub filters_raw_inbound: bool,
    /// Raw packets that leave can be filtered.
    pub filters_raw_outbound: bool,
    /// Port 0 is an enhanced one: it has what a port of an adapter has.
    pub enhanced_port_0: bool,
    /// Reserved, 0 when sent.
    pub reserved16: u8,
    /// Reserved, 0 when sent.
    pub reserved17: u8,
    /// Last LID of the multicast table that counts; 0 if the switch does not know this field.
    pub multicast_top: u16,
}

impl SwitchInfo {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

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
            linear_cap: be16(b, 0),
            random_cap: be16(b, 2),
            multicast_cap: be16(b, 4),
            linear_top: Lid(be16(b, 6)),
            default_port: b[8],
            default_multicast_primary: b[9],
            default_multicast_other: b[10],
            life_time: b[11] >> 3,
            port_changed: b[11] & 0x04 != 0,
            optimized_lanes: b[11] & 3,
            lids_per_port: be16(b, 12),
            enforcement_cap: be16(b, 14),
            enforces_inbound: b[16] & 0x80 != 0,
            enforces_outbound: b[16] & 0x40 != 0,
            filters_raw_inbound: b[16] & 0x20 != 0,
            filters_raw_outbound: b[16] & 0x10 != 0,
            enhanced_port_0: b[16] & 0x08 != 0,
            reserved16: b[16] & 7,
            reserved17: b[17],
            multicast_top: be16(b, 18),
        }
    }
    /// Writes the attribute at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..2].copy_from_slice(&self.linear_cap.to_be_bytes());
        buf[2..4].copy_from_slice(&self.random_cap.to_be_bytes());
        buf[4..6].copy_from_slice(&self.multicast_cap.to_be_bytes());
        buf[6..8].copy_from_slice(&self.linear_top.0.to_be_bytes());
        buf[8] = self.default_port;
        buf[9] = self.default_multicast_primary;
        buf[10] = self.default_multicast_other;
        buf[11] = self.life_time << 3 | u8::from(self.port_changed) << 2 | self.optimized_lanes & 3;
        buf[12..14].copy_from_slice(&self.lids_per_port.to_be_bytes());
        buf[14..16].copy_from_slice(&self.enforcement_cap.to_be_bytes());
        buf[16] = u8::from(self.enforces_inbound) << 7
            | u8::from(self.enforces_outbound) << 6
            | u8::from(self.filters_raw_inbound) << 5
            | u8::from(self.filters_raw_outbound) << 4
            | u8::from(self.enhanced_port_0) << 3
            | self.reserved16 & 7;
        buf[17] = self.reserved17;
        buf[18..Self::LEN].copy_from_slice(&self.multicast_top.to_be_bytes());
    }
}

impl fmt::Display for SwitchInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (top, life, changed) = (self.linear_top, self.life_time, self.port_changed);
        write!(f, "SwitchInfo top={top} life={life} changed={changed}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; SwitchInfo::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let read = SwitchInfo::parse(&bytes).unwrap();
        assert_eq!(read.linear_cap, 0x0102);
        assert_eq!(read.random_cap, 0x0304);
        assert_eq!(read.multicast_cap, 0x0506);
        assert_eq!(read.linear_top, Lid(0x0708));
        assert_eq!(read.default_port, 0x09);
        assert_eq!(read.default_multicast_primary, 0x0A);
        assert_eq!(read.default_multicast_other, 0x0B);
        assert_eq!(read.life_time, 0x01);
        assert!(read.port_changed);
        assert_eq!(read.optimized_lanes, 0x0);
        assert_eq!(read.lids_per_port, 0x0D0E);
        assert_eq!(read.enforcement_cap, 0x0F10);
        assert!(!read.enforces_inbound);
        assert!(!read.enforces_outbound);
        assert!(!read.filters_raw_inbound);
        assert!(read.filters_raw_outbound);
        assert!(!read.enhanced_port_0);
        assert_eq!(read.reserved16, 0x1);
        assert_eq!(read.reserved17, 0x12);
        assert_eq!(read.multicast_top, 0x1314);
        let mut out = [0; SwitchInfo::LEN];
        read.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 20, have: 19 };
        assert_eq!(SwitchInfo::parse(&[0; 19]), Err(error));
    }
}
