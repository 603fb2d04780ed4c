//! DDP untagged buffer header: 18 bytes, names a queue and a message of it (RFC 5041, 4.3; RFC
//! 5040, 4.1).
//!
//! ```text
//!  byte   0..1      2..5              6..9           10..13   14..17
//!       +---------+-----------------+--------------+--------+----------------+
//!       | control | invalidate STag | queue number | MSN    | message offset |
//!       +---------+-----------------+--------------+--------+----------------+
//!         16        32                32             32       32 bits
//!                   (to DDP: RsvdULP, bits 8 to 39)
//! ```

use core::fmt;

use crate::error::head;
use crate::{ParseError, Rkey};

use super::control::Control;
use super::queue::QueueNumber;

/// Message sequence number of a queue: "The initial value for MSN MUST be one. The MSN value MUST
/// wrap to 0 after a value of 0xFFFFFFFF" (RFC 5041, 4.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Msn(pub u32);

impl Msn {
    /// Of a queue's first message.
    pub const FIRST: Self = Self(1);

    /// The successor.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

impl Default for Msn {
    fn default() -> Self {
        Self::FIRST
    }
}

impl fmt::Display for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// DDP header of every message but RDMA WRITE and READ response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Untagged {
    /// DDP and RDMAP control fields; the T bit is taken from here.
    pub control: Control,
    /// The key that a SEND with invalidate ends; else 0 when sent, ignored when received.
    pub invalidate: Rkey,
    /// Queue that the message is for.
    pub queue: QueueNumber,
    /// Number of the message in its queue.
    pub msn: Msn,
    /// Message Offset: where in the message the payload of this segment begins.
    pub offset: u32,
}

impl Untagged {
    /// Bytes on the wire.
    pub const LEN: usize = 18;

    /// Reads the header at the start of `bytes`, whatever its T bit is.
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
            control: Control::from_bytes(&[b[0], b[1]]),
            invalidate: Rkey(u32::from_be_bytes([b[2], b[3], b[4], b[5]])),
            queue: QueueNumber(u32::from_be_bytes([b[6], b[7], b[8], b[9]])),
            msn: Msn(u32::from_be_bytes([b[10], b[11], b[12], b[13]])),
            offset: u32::from_be_bytes([b[14], b[15], b[16], b[17]]),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        self.control.emit(buf);
        buf[2..6].copy_from_slice(&self.invalidate.0.to_be_bytes());
        buf[6..10].copy_from_slice(&self.queue.0.to_be_bytes());
        buf[10..14].copy_from_slice(&self.msn.0.to_be_bytes());
        buf[14..Self::LEN].copy_from_slice(&self.offset.to_be_bytes());
    }
}

impl fmt::Display for Untagged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { control, invalidate, queue, msn, offset } = self;
        write!(f, "{control} qn={queue} msn={msn} mo={offset}")?;
        if control.opcode.info().is_some_and(|info| info.invalidates) {
            write!(f, " inv={invalidate}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::RdmapOpcode;

    const BYTES: [u8; Untagged::LEN] =
        [0x01, 0x44, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17];

    #[test]
    fn every_field_is_where_the_picture_says() {
        let header = Untagged::parse(&BYTES).unwrap();
        assert_eq!(header.control, Control::new(RdmapOpcode::SEND_INV, false));
        assert_eq!(header.invalidate, Rkey(0x0203_0405));
        assert_eq!(header.queue, QueueNumber(0x0607_0809));
        assert_eq!((header.msn, header.offset), (Msn(0x0A0B_0C0D), 0x0E0F_1011));
        let mut out = [0; Untagged::LEN];
        header.emit(&mut out);
        assert_eq!(out, BYTES);
    }

    #[test]
    fn seventeen_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 18, have: 17 };
        assert_eq!(Untagged::parse(&BYTES[..17]), Err(error));
    }

    #[test]
    fn message_numbers_start_at_one_and_wrap_to_zero() {
        assert_eq!((Msn::default(), Msn::FIRST.next()), (Msn(1), Msn(2)));
        assert_eq!(Msn(u32::MAX).next(), Msn(0));
    }
}
