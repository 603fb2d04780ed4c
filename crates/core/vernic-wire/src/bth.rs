//! Base Transport Header (BTH): 12 bytes, first of every IB transport packet (IBTA 9.2).
//!
//! ```text
//!  byte   0        1               2..3    4               5..7      8          9..11
//!       +--------+---------------+-------+---------------+---------+----------+-------+
//!       | opcode | SE M Pad TVer | P_Key | F B reserved6 | DestQPN | A resv7  |  PSN  |
//!       +--------+---------------+-------+---------------+---------+----------+-------+
//!         8        1  1  2   4     16      1 1    6         24        1   7      24 bits
//! ```

use core::fmt;

use crate::error::head;
use crate::opcode::{self, Opcode};
use crate::{ParseError, Pkey, Psn, Qpn};

/// Base transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// What the packet is and which headers follow.
    pub opcode: Opcode,
    /// SE: the responder shall raise a solicited event with the completion of this message.
    pub solicited: bool,
    /// MigReq: state of automatic path migration. Hardware sends 1, Linux rxe 0.
    pub migreq: bool,
    /// Bytes, 0 to 3, that fill the payload up to a multiple of 4; larger values are masked.
    pub pad: u8,
    /// Transport header version, 0 to 15; only 0 is defined.
    pub version: u8,
    /// Partition.
    pub pkey: Pkey,
    /// FECN: congestion was met on the way here. Masked out of the ICRC in RoCEv2.
    pub fecn: bool,
    /// BECN: congestion was met by packets of the other direction.
    pub becn: bool,
    /// Six reserved bits, 0 when sent.
    pub reserved6: u8,
    /// Queue pair that the packet is for.
    pub dest_qpn: Qpn,
    /// AckReq: the responder shall acknowledge now.
    pub ack_req: bool,
    /// Seven reserved bits, 0 when sent, but for [`ASKS_KEPT`](Self::ASKS_KEPT).
    pub reserved7: u8,
    /// Place of the packet in its flow.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = opcode::BTH_LEN;
    /// Bit of `reserved7` in a request: its sender can read a [`KeptMap`](crate::KeptMap). Ours,
    /// and ignored by all others (IBTA 9.2: reserved bits are ignored on receive).
    pub const ASKS_KEPT: u8 = 1;

    /// Whether the sender of this request can read a [`KeptMap`](crate::KeptMap).
    #[inline]
    pub const fn asks_kept(&self) -> bool {
        self.reserved7 & Self::ASKS_KEPT != 0
    }

    /// A header with the default partition, MigReq set, and every other flag clear.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migreq: true,
            pad: 0,
            version: 0,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            reserved6: 0,
            dest_qpn,
            ack_req: false,
            reserved7: 0,
            psn,
        }
    }
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
            opcode: Opcode(b[0]),
            solicited: b[1] & 0x80 != 0,
            migreq: b[1] & 0x40 != 0,
            pad: b[1] >> 4 & 3,
            version: b[1] & 0x0F,
            pkey: Pkey(u16::from_be_bytes([b[2], b[3]])),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            reserved6: b[4] & 0x3F,
            dest_qpn: Qpn::new(u32::from_be_bytes([0, b[5], b[6], b[7]])),
            ack_req: b[8] & 0x80 != 0,
            reserved7: b[8] & 0x7F,
            psn: Psn::new(u32::from_be_bytes([0, b[9], b[10], b[11]])),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..Self::LEN].copy_from_slice(&self.to_bytes());
    }
    /// The header as bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        let flags = (self.solicited as u8) << 7
            | (self.migreq as u8) << 6
            | (self.pad & 3) << 4
            | (self.version & 0x0F);
        let congestion = (self.fecn as u8) << 7 | (self.becn as u8) << 6 | (self.reserved6 & 0x3F);
        let ack = (self.ack_req as u8) << 7 | (self.reserved7 & 0x7F);
        let pkey = self.pkey.0.to_be_bytes();
        let qpn = self.dest_qpn.value().to_be_bytes();
        let psn = self.psn.value().to_be_bytes();
        [
            self.opcode.0,
            flags,
            pkey[0],
            pkey[1],
            congestion,
            qpn[1],
            qpn[2],
            qpn[3],
            ack,
            psn[1],
            psn[2],
            psn[3],
        ]
    }
}

impl fmt::Display for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} qp={} psn={}", self.opcode, self.dest_qpn, self.psn)?;
        for (flag, name) in [
            (self.solicited, " solicited"),
            (self.ack_req, " ack_req"),
            (self.fecn, " fecn"),
            (self.becn, " becn"),
        ] {
            if flag {
                f.write_str(name)?;
            }
        }
        if self.pad != 0 {
            write!(f, " pad={}", self.pad)?;
        }
        if self.pkey != Pkey::DEFAULT {
            write!(f, " pkey={}", self.pkey)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; Bth::LEN] =
        [0x17, 0xF5, 0x7F, 0xFE, 0xEA, 0x12, 0x34, 0x56, 0x81, 0xAB, 0xCD, 0xEF];

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bth = Bth::parse(&BYTES).unwrap();
        assert_eq!(bth.opcode, Opcode::RC_SEND_ONLY_INV);
        assert!(bth.solicited && bth.migreq && bth.fecn && bth.becn && bth.ack_req);
        assert_eq!((bth.pad, bth.version), (3, 5));
        assert_eq!(bth.pkey, Pkey(0x7FFE));
        assert_eq!((bth.reserved6, bth.reserved7), (0x2A, 1));
        assert_eq!(bth.dest_qpn, Qpn::new(0x12_3456));
        assert_eq!(bth.psn, Psn::new(0xAB_CDEF));
        assert_eq!(bth.to_bytes(), BYTES);
    }

    #[test]
    fn every_single_bit_survives_parse_and_emit() {
        for bit in 0..Bth::LEN * 8 {
            let mut bytes = [0; Bth::LEN];
            bytes[bit / 8] = 1 << (bit % 8);
            let mut out = [0xFF; Bth::LEN];
            Bth::parse(&bytes).unwrap().emit(&mut out);
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn eleven_bytes_are_truncated() {
        assert_eq!(Bth::parse(&BYTES[..11]), Err(ParseError::Truncated { need: 12, have: 11 }));
    }

    #[test]
    fn oversized_fields_do_not_spill_into_their_neighbours() {
        let mut bth = Bth::new(Opcode::RC_ACK, Qpn::new(1), Psn::new(2));
        (bth.pad, bth.version, bth.reserved6, bth.reserved7) = (0xFF, 0xFF, 0xFF, 0xFF);
        let back = Bth::from_bytes(&bth.to_bytes());
        assert!(!back.solicited && !back.fecn && !back.becn && !back.ack_req);
        assert_eq!((back.pad, back.version), (3, 15));
    }
}
