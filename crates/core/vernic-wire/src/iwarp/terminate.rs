//! RDMAP Terminate header: 4 to 52 bytes, why a stream ends and over which segment (RFC 5040, 4.8).
//!
//! ```text
//!  byte   0               1      2                3
//!       +-------+-------+------+-------+--------+----------+
//!       | layer | type  | code | M D R | reserved          |     M: the segment length is valid
//!       +-------+-------+------+-------+--------+----------+     D: the DDP header follows
//!         4       4       8      3       13 bits                 R: the READ request follows
//!       +----------------+------------+--------------+
//!       | segment length | DDP header | READ request |
//!       +----------------+------------+--------------+
//!         16 bits if M or  14 or 18     28 bytes if R
//!         D is set         bytes if D
//! ```

use core::fmt;

use crate::ParseError;

use super::ddp::DdpHeader;
use super::read_request::ReadRequest;
use super::term_code::TermCode;

/// RDMAP Terminate header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terminate {
    /// Why.
    pub code: TermCode,
    /// M: whether the length below means something. It "MUST be valid if the M bit is set. It MUST
    /// be present when the D bit is set" (RFC 5040, 4.8).
    pub length_valid: bool,
    /// Reserved, 13 bits, 0 when sent; larger values are masked.
    pub reserved: u16,
    /// Bytes of the segment that caused it, if M or D is set; else 0 and not on the wire.
    pub segment_len: u16,
    /// Its DDP header.
    pub ddp: Option<DdpHeader>,
    /// The READ request that it was, or what was left of it.
    pub read: Option<ReadRequest>,
}

impl Terminate {
    /// Bytes before what is optional.
    pub const MIN_LEN: usize = 4;
    /// Bytes with everything: the largest.
    pub const MAX_LEN: usize = Self::MIN_LEN + 2 + DdpHeader::MAX_LEN + ReadRequest::LEN;

    /// One that says only why.
    pub const fn new(code: TermCode) -> Self {
        Self { code, length_valid: false, reserved: 0, segment_len: 0, ddp: None, read: None }
    }
    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let truncated = |need| ParseError::truncated(need, bytes.len());
        let b: &[u8; 4] = bytes.first_chunk().ok_or(truncated(Self::MIN_LEN))?;
        let code = TermCode::new(b[0] >> 4, b[0], b[1]);
        let has = |bit: u8| b[2] & bit != 0;
        let (length_valid, with_ddp, with_read) = (has(0x80), has(0x40), has(0x20));
        let reserved = u16::from_be_bytes([b[2], b[3]]) & 0x1FFF;
        let mut at = Self::MIN_LEN;
        let mut segment_len = 0;
        if length_valid || with_ddp {
            let length: &[u8; 2] = bytes[at..].first_chunk().ok_or(truncated(at + 2))?;
            segment_len = u16::from_be_bytes(*length);
            at += 2;
        }
        let mut ddp = None;
        if with_ddp {
            let header =
                DdpHeader::parse(&bytes[at..]).map_err(|_| truncated(at + DdpHeader::MAX_LEN))?;
            at += header.len();
            ddp = Some(header);
        }
        let mut read = None;
        if with_read {
            let header =
                ReadRequest::parse(&bytes[at..]).map_err(|_| truncated(at + ReadRequest::LEN))?;
            read = Some(header);
        }
        Ok(Self { code, length_valid, reserved, segment_len, ddp, read })
    }
    /// Bytes on the wire.
    pub fn len(&self) -> usize {
        let length = if self.length_valid || self.ddp.is_some() { 2 } else { 0 };
        let ddp = self.ddp.map_or(0, |header| header.len());
        Self::MIN_LEN + length + ddp + self.read.map_or(0, |_| ReadRequest::LEN)
    }
    /// Never: it says why at least.
    pub const fn is_empty(&self) -> bool {
        false
    }
    /// Writes the header at the start of `buf` and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::len`].
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        buf[0] = self.code.layer << 4 | self.code.error_type & 15;
        buf[1] = self.code.code;
        let bits = u16::from(self.length_valid) << 15
            | u16::from(self.ddp.is_some()) << 14
            | u16::from(self.read.is_some()) << 13;
        buf[2..4].copy_from_slice(&(bits | self.reserved & 0x1FFF).to_be_bytes());
        let mut at = Self::MIN_LEN;
        if self.length_valid || self.ddp.is_some() {
            buf[at..at + 2].copy_from_slice(&self.segment_len.to_be_bytes());
            at += 2;
        }
        if let Some(header) = &self.ddp {
            at += header.emit(&mut buf[at..]);
        }
        if let Some(header) = &self.read {
            header.emit(&mut buf[at..]);
            at += ReadRequest::LEN;
        }
        at
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "terminate {}", self.code)?;
        if let Some(ddp) = &self.ddp {
            write!(f, " over {ddp} len={}", self.segment_len)?;
        }
        match &self.read {
            Some(read) => write!(f, " {read}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rkey;
    use crate::iwarp::{Control, Msn, QueueNumber, RdmapOpcode, Untagged};

    fn of_read() -> Terminate {
        let control = Control::new(RdmapOpcode::READ_REQUEST, true);
        let (queue, msn) = (QueueNumber::READ_REQUEST, Msn(7));
        Terminate {
            code: TermCode::RDMAP_BOUNDS,
            length_valid: true,
            reserved: 0,
            segment_len: 46,
            ddp: Some(DdpHeader::Untagged(Untagged {
                control,
                invalidate: Rkey(0),
                queue,
                msn,
                offset: 0,
            })),
            read: Some(ReadRequest { size: 9, source_stag: Rkey(5), ..ReadRequest::default() }),
        }
    }

    #[test]
    fn every_field_is_where_the_picture_says() {
        let mut out = [0; Terminate::MAX_LEN];
        assert_eq!(of_read().emit(&mut out), 52);
        assert_eq!(out[..8], [0x01, 0x01, 0xE0, 0, 0, 46, 0x41, 0x41]);
        assert_eq!(out[24..28], [0; 4]);
        assert_eq!(out[24 + 12..24 + 16], [0, 0, 0, 9]);
        assert_eq!(Terminate::parse(&out), Ok(of_read()));
        let bytes = [0x25, 0x02, 0x1A, 0x0B];
        let other = Terminate::parse(&bytes).unwrap();
        assert_eq!((other.code, other.reserved), (TermCode::new(2, 5, 2), 0x1A0B));
        assert_eq!((other.ddp, other.read, other.length_valid), (None, None, false));
        assert_eq!(other.emit(&mut out), 4);
        assert_eq!(out[..4], bytes);
    }

    #[test]
    fn all_combinations_of_the_three_bits_come_back_as_they_were() {
        for bits in 0..8 {
            let mut terminate = of_read();
            terminate.length_valid = bits & 4 != 0;
            if bits & 2 == 0 {
                terminate.ddp = None;
            }
            if bits & 1 == 0 {
                terminate.read = None;
            }
            if bits & 6 == 0 {
                terminate.segment_len = 0;
            }
            let mut out = [0; Terminate::MAX_LEN];
            let len = terminate.emit(&mut out);
            assert_eq!(len, terminate.len());
            assert_eq!(Terminate::parse(&out[..len]), Ok(terminate));
            for short in 0..len {
                let error = Terminate::parse(&out[..short]);
                assert!(
                    matches!(error, Err(ParseError::Truncated { need, .. }) if usize::from(need) > short),
                    "{bits:#b} {short}"
                );
            }
        }
    }
}
