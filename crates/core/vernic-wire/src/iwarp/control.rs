//! DDP and RDMAP control fields: 2 bytes, first of every DDP segment (RFC 5041, 4.1; RFC 5040,
//! 4.1).
//!
//! ```text
//!  byte   0                           1
//!       +---+---+----------+--------+--------+--------+----------+
//!       | T | L | reserved | DV     | RV     | resvd  | opcode   |
//!       +---+---+----------+--------+--------+--------+----------+
//!         1   1   4          2        2        2        4 bits
//!         DDP                         RDMAP (to DDP: RsvdULP, bits 0 to 7)
//! ```

use core::fmt;

use crate::ParseError;
use crate::error::head;

use super::opcode::RdmapOpcode;

/// DDP and RDMAP control fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control {
    /// The segment is for a tagged buffer.
    pub tagged: bool,
    /// Last segment of its message.
    pub last: bool,
    /// DDP's reserved bits, 4 of them: 0 when sent, "not checked on receive" (RFC 5041, 4.1).
    pub ddp_reserved: u8,
    /// DDP version, 2 bits.
    pub ddp_version: u8,
    /// RDMAP version, 2 bits.
    pub rdmap_version: u8,
    /// RDMAP's reserved bits, 2 of them: 0 when sent, ignored when received (RFC 5040, 4.1).
    pub rdmap_reserved: u8,
    /// What the message is.
    pub opcode: RdmapOpcode,
}

impl Control {
    /// Bytes on the wire.
    pub const LEN: usize = 2;
    /// Version of both protocols: DV "MUST be set to one" (RFC 5041, 4.1), RV "01b for an RNIC that
    /// complies with this RDMA protocol specification" (RFC 5040, 4.1).
    pub const VERSION: u8 = 1;

    /// Of a message with this opcode; the table says whether it is tagged. Reserved opcodes are
    /// taken as untagged.
    pub fn new(opcode: RdmapOpcode, last: bool) -> Self {
        Self {
            tagged: opcode.info().is_some_and(|info| info.is_tagged()),
            last,
            ddp_reserved: 0,
            ddp_version: Self::VERSION,
            rdmap_version: Self::VERSION,
            rdmap_reserved: 0,
            opcode,
        }
    }
    /// Reads the fields at the start of `bytes`.
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
    /// Reads the fields from their bytes.
    #[inline]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            tagged: b[0] & 0x80 != 0,
            last: b[0] & 0x40 != 0,
            ddp_reserved: b[0] >> 2 & 0x0F,
            ddp_version: b[0] & 3,
            rdmap_version: b[1] >> 6,
            rdmap_reserved: b[1] >> 4 & 3,
            opcode: RdmapOpcode(b[1] & 0x0F),
        }
    }
    /// Writes the fields at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        buf[0] = u8::from(self.tagged) << 7
            | u8::from(self.last) << 6
            | (self.ddp_reserved & 0x0F) << 2
            | self.ddp_version & 3;
        buf[1] = self.rdmap_version << 6 | (self.rdmap_reserved & 3) << 4 | self.opcode.0 & 0x0F;
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.opcode, if self.last { " last" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let control = Control::parse(&[0b1010_1101, 0b1001_0110]).unwrap();
        assert_eq!((control.tagged, control.last), (true, false));
        assert_eq!((control.ddp_reserved, control.ddp_version), (0b1011, 1));
        assert_eq!((control.rdmap_version, control.rdmap_reserved), (2, 1));
        assert_eq!(control.opcode, RdmapOpcode::SEND_SE_INV);
        let mut out = [0; 2];
        control.emit(&mut out);
        assert_eq!(out, [0b1010_1101, 0b1001_0110]);
    }

    #[test]
    fn one_byte_is_truncated() {
        assert_eq!(Control::parse(&[0]), Err(ParseError::Truncated { need: 2, have: 1 }));
    }

    #[test]
    fn a_new_one_is_tagged_as_its_opcode_says() {
        let mut out = [0; 2];
        // RFC 5044, figure 5: "DDP Control Field, Send with Last flag set".
        Control::new(RdmapOpcode::SEND, true).emit(&mut out);
        assert_eq!(out, [0x41, 0x43]);
        Control::new(RdmapOpcode::WRITE, false).emit(&mut out);
        assert_eq!(out, [0x81, 0x40]);
    }
}
