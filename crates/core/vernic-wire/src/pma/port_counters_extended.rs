//! PortCountersExtended: what a port counts, in counters of 64 bits (IBTA 16.1.4.11): 184 bytes.
//!
//! ```text
//!  byte   0          1      2..3     4..7      8..71                       72..183
//!       +----------+------+--------+---------+---------------------------+-----------------------+
//!       | reserved | port | select | select2 | 8 counters of packets     | 14 counters of errors |
//!       +----------+------+--------+---------+---------------------------+-----------------------+
//! ```
//! The counters of errors count only if the agent says so in ClassPortInfo.

use core::fmt;

use crate::error::head;
use crate::smp::{be16, be32, be64};
use crate::{ParseError, PortNum};

/// What a port counts, in 64 bits. Data is in units of 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCountersExtended {
    /// Reserved, 0 when sent.
    pub reserved0: u8,
    /// Port; 255 is all of them.
    pub port: PortNum,
    /// Counters of packets that a write is for: bits 0 to 7, in the order of the fields.
    pub select: u16,
    /// Counters of errors that a write is for: bits 0 to 13, in the order of the fields.
    pub select2: u32,
    /// Units of 4 bytes sent.
    pub xmit_data: u64,
    /// Units of 4 bytes received.
    pub rcv_data: u64,
    /// Packets sent.
    pub xmit_packets: u64,
    /// Packets received.
    pub rcv_packets: u64,
    /// Packets to one receiver that were sent.
    pub unicast_xmit: u64,
    /// Packets to one receiver that were received.
    pub unicast_rcv: u64,
    /// Packets to groups that were sent.
    pub multicast_xmit: u64,
    /// Packets to groups that were received.
    pub multicast_rcv: u64,
    /// Small errors of the link.
    pub symbol_errors: u64,
    /// Times that the link recovered by itself.
    pub link_recovers: u64,
    /// Times that the link went down.
    pub link_downed: u64,
    /// Packets received with an error.
    pub rcv_errors: u64,
    /// Packets received that were marked as bad.
    pub rcv_remote_physical: u64,
    /// Packets received that the switch cannot forward.
    pub rcv_switch_relay: u64,
    /// Packets that were to be sent and were discarded.
    pub xmit_discards: u64,
    /// Packets not sent because of a constraint.
    pub xmit_constraint: u64,
    /// Packets received and dropped because of a constraint.
    pub rcv_constraint: u64,
    /// Times that local errors passed their threshold.
    pub local_link_integrity: u64,
    /// Buffer overruns.
    pub buffer_overruns: u64,
    /// Packets of subnet management that were dropped.
    pub vl15_dropped: u64,
    /// Ticks in which a packet waited and none was sent.
    pub xmit_wait: u64,
    /// Packets for QP 1 that were dropped.
    pub qp1_dropped: u64,
}

impl PortCountersExtended {
    /// Bytes on the wire.
    pub const LEN: usize = 184;

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
            reserved0: b[0],
            port: PortNum(b[1]),
            select: be16(b, 2),
            select2: be32(b, 4),
            xmit_data: be64(b, 8),
            rcv_data: be64(b, 16),
            xmit_packets: be64(b, 24),
            rcv_packets: be64(b, 32),
            unicast_xmit: be64(b, 40),
            unicast_rcv: be64(b, 48),
            multicast_xmit: be64(b, 56),
            multicast_rcv: be64(b, 64),
            symbol_errors: be64(b, 72),
            link_recovers: be64(b, 80),
            link_downed: be64(b, 88),
            rcv_errors: be64(b, 96),
            rcv_remote_physical: be64(b, 104),
            rcv_switch_relay: be64(b, 112),
            xmit_discards: be64(b, 120),
            xmit_constraint: be64(b, 128),
            rcv_constraint: be64(b, 136),
            local_link_integrity: be64(b, 144),
            buffer_overruns: be64(b, 152),
            vl15_dropped: be64(b, 160),
            xmit_wait: be64(b, 168),
            qp1_dropped: be64(b, 176),
        }
    }
    /// Writes the attribute at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[0] = self.reserved0;
        buf[1] = self.port.0;
        buf[2..4].copy_from_slice(&self.select.to_be_bytes());
        buf[4..8].copy_from_slice(&self.select2.to_be_bytes());
        buf[8..16].copy_from_slice(&self.xmit_data.to_be_bytes());
        buf[16..24].copy_from_slice(&self.rcv_data.to_be_bytes());
        buf[24..32].copy_from_slice(&self.xmit_packets.to_be_bytes());
        buf[32..40].copy_from_slice(&self.rcv_packets.to_be_bytes());
        buf[40..48].copy_from_slice(&self.unicast_xmit.to_be_bytes());
        buf[48..56].copy_from_slice(&self.unicast_rcv.to_be_bytes());
        buf[56..64].copy_from_slice(&self.multicast_xmit.to_be_bytes());
        buf[64..72].copy_from_slice(&self.multicast_rcv.to_be_bytes());
        buf[72..80].copy_from_slice(&self.symbol_errors.to_be_bytes());
        buf[80..88].copy_from_slice(&self.link_recovers.to_be_bytes());
        buf[88..96].copy_from_slice(&self.link_downed.to_be_bytes());
        buf[96..104].copy_from_slice(&self.rcv_errors.to_be_bytes());
        buf[104..112].copy_from_slice(&self.rcv_remote_physical.to_be_bytes());
        buf[112..120].copy_from_slice(&self.rcv_switch_relay.to_be_bytes());
        buf[120..128].copy_from_slice(&self.xmit_discards.to_be_bytes());
        buf[128..136].copy_from_slice(&self.xmit_constraint.to_be_bytes());
        buf[136..144].copy_from_slice(&self.rcv_constraint.to_be_bytes());
        buf[144..152].copy_from_slice(&self.local_link_integrity.to_be_bytes());
        buf[152..160].copy_from_slice(&self.buffer_overruns.to_be_bytes());
        buf[160..168].copy_from_slice(&self.vl15_dropped.to_be_bytes());
        buf[168..176].copy_from_slice(&self.xmit_wait.to_be_bytes());
        buf[176..Self::LEN].copy_from_slice(&self.qp1_dropped.to_be_bytes());
    }
}

impl fmt::Display for PortCountersExtended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (port, sent, received) = (self.port, self.xmit_packets, self.rcv_packets);
        write!(f, "PortCountersExtended port={port} sent={sent} received={received}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; PortCountersExtended::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let read = PortCountersExtended::parse(&bytes).unwrap();
        assert_eq!(read.reserved0, 0x01);
        assert_eq!(read.port, PortNum(0x02));
        assert_eq!(read.select, 0x0304);
        assert_eq!(read.select2, 0x0506_0708);
        assert_eq!(read.xmit_data, 0x090A_0B0C_0D0E_0F10);
        assert_eq!(read.rcv_data, 0x1112_1314_1516_1718);
        assert_eq!(read.xmit_packets, 0x191A_1B1C_1D1E_1F20);
        assert_eq!(read.rcv_packets, 0x2122_2324_2526_2728);
        assert_eq!(read.unicast_xmit, 0x292A_2B2C_2D2E_2F30);
        assert_eq!(read.unicast_rcv, 0x3132_3334_3536_3738);
        assert_eq!(read.multicast_xmit, 0x393A_3B3C_3D3E_3F40);
        assert_eq!(read.multicast_rcv, 0x4142_4344_4546_4748);
        assert_eq!(read.symbol_errors, 0x494A_4B4C_4D4E_4F50);
        assert_eq!(read.link_recovers, 0x5152_5354_5556_5758);
        assert_eq!(read.link_downed, 0x595A_5B5C_5D5E_5F60);
        assert_eq!(read.rcv_errors, 0x6162_6364_6566_6768);
        assert_eq!(read.rcv_remote_physical, 0x696A_6B6C_6D6E_6F70);
        assert_eq!(read.rcv_switch_relay, 0x7172_7374_7576_7778);
        assert_eq!(read.xmit_discards, 0x797A_7B7C_7D7E_7F80);
        assert_eq!(read.xmit_constraint, 0x8182_8384_8586_8788);
        assert_eq!(read.rcv_constraint, 0x898A_8B8C_8D8E_8F90);
        assert_eq!(read.local_link_integrity, 0x9192_9394_9596_9798);
        assert_eq!(read.buffer_overruns, 0x999A_9B9C_9D9E_9FA0);
        assert_eq!(read.vl15_dropped, 0xA1A2_A3A4_A5A6_A7A8);
        assert_eq!(read.xmit_wait, 0xA9AA_ABAC_ADAE_AFB0);
        assert_eq!(read.qp1_dropped, 0xB1B2_B3B4_B5B6_B7B8);
        let mut out = [0; PortCountersExtended::LEN];
        read.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 184, have: 183 };
        assert_eq!(PortCountersExtended::parse(&[0; 183]), Err(error));
    }
}
