//! DDP segment: a header of either model, then RDMAP header and payload (RFC 5041, 4.4).
//!
//! ```text
//!   +-------------------------------+------------------------------+
//!   | Tagged (14) or Untagged (18)  | RDMAP header, payload        |
//!   +-------------------------------+------------------------------+
//! ```

use core::fmt;

use crate::ParseError;

use super::control::Control;
use super::tagged::Tagged;
use super::untagged::Untagged;

/// A DDP header of either model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DdpHeader {
    /// For a tagged buffer.
    Tagged(Tagged),
    /// For an untagged buffer.
    Untagged(Untagged),
}

impl DdpHeader {
    /// Bytes of the longer of both.
    pub const MAX_LEN: usize = Untagged::LEN;

    /// Reads the header at the start of `bytes`; its T bit says which it is.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    #[inline]
    pub const fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let control = match Control::parse(bytes) {
            Ok(control) => control,
            Err(error) => return Err(error),
        };
        if control.tagged {
            match Tagged::parse(bytes) {
                Ok(header) => Ok(Self::Tagged(header)),
                Err(error) => Err(error),
            }
        } else {
            match Untagged::parse(bytes) {
                Ok(header) => Ok(Self::Untagged(header)),
                Err(error) => Err(error),
            }
        }
    }
    /// Bytes on the wire: 14 or 18.
    #[inline]
    pub const fn len(&self) -> usize {
        match self {
            Self::Tagged(_) => Tagged::LEN,
            Self::Untagged(_) => Untagged::LEN,
        }
    }
    /// Never: a header is not empty.
    pub const fn is_empty(&self) -> bool {
        false
    }
    /// Its control fields.
    #[inline]
    pub const fn control(&self) -> &Control {
        match self {
            Self::Tagged(header) => &header.control,
            Self::Untagged(header) => &header.control,
        }
    }
    /// Writes the header at the start of `buf` and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::len`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        match self {
            Self::Tagged(header) => header.emit(buf),
            Self::Untagged(header) => header.emit(buf),
        }
        self.len()
    }
}

impl fmt::Display for DdpHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tagged(header) => header.fmt(f),
            Self::Untagged(header) => header.fmt(f),
        }
    }
}

/// A DDP segment: what an FPDU carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment<'a> {
    /// Its DDP header.
    pub header: DdpHeader,
    /// What follows: RDMAP header and payload.
    pub body: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Reads a segment, which `bytes` is whole.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let header = DdpHeader::parse(bytes)?;
        Ok(Self { header, body: &bytes[header.len()..] })
    }
}

impl fmt::Display for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} len={}", self.header, self.body.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::RdmapOpcode;

    #[test]
    fn the_tagged_bit_decides_between_the_headers() {
        let mut bytes = [0; 20];
        Control::new(RdmapOpcode::WRITE, true).emit(&mut bytes);
        let segment = Segment::parse(&bytes).unwrap();
        assert!(matches!(segment.header, DdpHeader::Tagged(_)));
        assert_eq!(segment.body.len(), 6);
        Control::new(RdmapOpcode::SEND, true).emit(&mut bytes);
        let segment = Segment::parse(&bytes).unwrap();
        assert!(matches!(segment.header, DdpHeader::Untagged(_)));
        assert_eq!(segment.body.len(), 2);
        let mut out = [0; DdpHeader::MAX_LEN];
        assert_eq!(segment.header.emit(&mut out), 18);
        assert_eq!(out, bytes[..18]);
    }

    #[test]
    fn fourteen_bytes_are_enough_for_one_and_not_for_the_other() {
        let mut bytes = [0; 14];
        assert_eq!(DdpHeader::parse(&bytes), Err(ParseError::Truncated { need: 18, have: 14 }));
        bytes[0] = 0x80;
        assert!(DdpHeader::parse(&bytes).is_ok());
        assert_eq!(
            DdpHeader::parse(&bytes[..13]),
            Err(ParseError::Truncated { need: 14, have: 13 })
        );
    }
}
