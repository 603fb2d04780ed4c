//! PortCounters: what a port counts, in counters that stop at their largest value (IBTA 16.1.3.5):
//! 44 bytes.
//!
//! ```text
//!  byte   0          1      2..3       4..5            6               7
//!       +----------+------+----------+---------------+---------------+-------------+
//!       | reserved | port | select   | symbol errors | link recovers | link downed |
//!       +----------+------+----------+---------------+---------------+-------------+
//!  byte   8..9             10..11                12..13             14..15
//!       +----------------+---------------------+------------------+---------------+
//!       | receive errors | remote phys. errors | relay errors     | xmit discards |
//!       +----------------+---------------------+------------------+---------------+
//!  byte   16                17               18        19                     20..21
//!       +-----------------+----------------+---------+----------------------+-------------+
//!       | xmit constraint | rcv constraint | select2 | integrity4 overruns4 | QP1 dropped |
//!       +-----------------+----------------+---------+----------------------+-------------+
//!  byte   22..23         24..27      28..31     32..35         36..39        40..43
//!       +--------------+-----------+----------+--------------+-------------+-----------+
//!       | VL15 dropped | xmit data | rcv data | xmit packets | rcv packets | xmit wait |
//!       +--------------+-----------+----------+--------------+-------------+-----------+
//! ```

use core::fmt;

use crate::error::head;
use crate::smp::{be16, be32};
use crate::{ParseError, PortNum};

/// What a port counts. Data is in units of 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// Reserved, 0 when sent.
    pub reserved0: u8,
    /// Port; 255 is all of them.
    pub port: PortNum,
    /// Counters that a write is for: bits in the order of the fields, `QP1 dropped` and `xmit wait`
    /// left out.
    pub select: u16,
    /// Small errors of the link.
    pub symbol_errors: u16,
    /// Times that the link recovered by itself.
    pub link_recovers: u8,
    /// Times that the link went down.
    pub link_downed: u8,
    /// Packets received with an error.
    pub rcv_errors: u16,
    /// Packets received that were marked as bad.
    pub rcv_remote_physical: u16,
    /// Packets received that the switch cannot forward.
    pub rcv_switch_relay: u16,
    /// Packets that were to be sent and were discarded.
    pub xmit_discards: u16,
    /// Packets not sent because of a constraint.
    pub xmit_constraint: u8,
    /// Packets received and dropped because of a constraint.
    pub rcv_constraint: u8,
    /// Further counters that a write is for: bit 0 is `xmit wait`.
    pub select2: u8,
    /// Times that local errors passed their threshold, 4 bits.
    pub local_link_integrity: u8,
    /// Buffer overruns, 4 bits.
    pub buffer_overruns: u8,
    /// Packets for QP 1 that were dropped.
    pub qp1_dropped: u16,
    /// Packets of subnet management that were dropped.
    pub vl15_dropped: u16,
    /// Units of 4 bytes sent.
    pub xmit_data: u32,
    /// Units of 4 bytes received.
    pub rcv_data: u32,
    /// Packets sent.
    pub xmit_packets: u32,
    /// Packets received.
    pub rcv_packets: u32,
    /// Ticks in which a packet waited and none was sent.
    pub xmit_wait: u32,
}

impl PortCounters {
    /// Bytes on the wire.
    pub const LEN: usize = 44;

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
            symbol_errors: be16(b, 4),
            link_recovers: b[6],
            link_downed: b[7],
            rcv_errors: be16(b, 8),
            rcv_remote_physical: be16(b, 10),
            rcv_switch_relay: be16(b, 12),
            xmit_discards: be16(b, 14),
            xmit_constraint: b[16],
            rcv_constraint: b[17],
            select2: b[18],
            local_link_integrity: b[19] >> 4,
            buffer_overruns: b[19] & 15,
            qp1_dropped: be16(b, 20),
            vl15_dropped: be16(b, 22),
            xmit_data: be32(b, 24),
            rcv_data: be32(b, 28),
            xmit_packets: be32(b, 32),
            rcv_packets: be32(b, 36),
            xmit_wait: be32(b, 40),
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
        buf[4..6].copy_from_slice(&self.symbol_errors.to_be_bytes());
        buf[6] = self.link_recovers;
        buf[7] = self.link_downed;
        buf[8..10].copy_from_slice(&self.rcv_errors.to_be_bytes());
        buf[10..12].copy_from_slice(&self.rcv_remote_physical.to_be_bytes());
        buf[12..14].copy_from_slice(&self.rcv_switch_relay.to_be_bytes());
        buf[14..16].copy_from_slice(&self.xmit_discards.to_be_bytes());
        buf[16] = self.xmit_constraint;
        buf[17] = self.rcv_constraint;
        buf[18] = self.select2;
        buf[19] = self.local_link_integrity << 4 | self.buffer_overruns & 15;
        buf[20..22].copy_from_slice(&self.qp1_dropped.to_be_bytes());
        buf[22..24].copy_from_slice(&self.vl15_dropped.to_be_bytes());
        buf[24..28].copy_from_slice(&self.xmit_data.to_be_bytes());
        buf[28..32].copy_from_slice(&self.rcv_data.to_be_bytes());
        buf[32..36].copy_from_slice(&self.xmit_packets.to_be_bytes());
        buf[36..40].copy_from_slice(&self.rcv_packets.to_be_bytes());
        buf[40..Self::LEN].copy_from_slice(&self.xmit_wait.to_be_bytes());
    }
}

impl fmt::Display for PortCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (port, sent, received) = (self.port, self.xmit_packets, self.rcv_packets);
        write!(f, "PortCounters port={port} sent={sent} received={received}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; PortCounters::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let read = PortCounters::parse(&bytes).unwrap();
        assert_eq!(read.reserved0, 0x01);
        assert_eq!(read.port, PortNum(0x02));
        assert_eq!(read.select, 0x0304);
        assert_eq!(read.symbol_errors, 0x0506);
        assert_eq!(read.link_recovers, 0x07);
        assert_eq!(read.link_downed, 0x08);
        assert_eq!(read.rcv_errors, 0x090A);
        assert_eq!(read.rcv_remote_physical, 0x0B0C);
        assert_eq!(read.rcv_switch_relay, 0x0D0E);
        assert_eq!(read.xmit_discards, 0x0F10);
        assert_eq!(read.xmit_constraint, 0x11);
        assert_eq!(read.rcv_constraint, 0x12);
        assert_eq!(read.select2, 0x13);
        assert_eq!(read.local_link_integrity, 0x1);
        assert_eq!(read.buffer_overruns, 0x4);
        assert_eq!(read.qp1_dropped, 0x1516);
        assert_eq!(read.vl15_dropped, 0x1718);
        assert_eq!(read.xmit_data, 0x191A_1B1C);
        assert_eq!(read.rcv_data, 0x1D1E_1F20);
        assert_eq!(read.xmit_packets, 0x2122_2324);
        assert_eq!(read.rcv_packets, 0x2526_2728);
        assert_eq!(read.xmit_wait, 0x292A_2B2C);
        let mut out = [0; PortCounters::LEN];
        read.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 44, have: 43 };
        assert_eq!(PortCounters::parse(&[0; 43]), Err(error));
    }
}
