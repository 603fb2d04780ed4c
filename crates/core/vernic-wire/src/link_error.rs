//! Why the receiver of an InfiniBand link discards a packet (IBTA 7.3, 7.9.4).
//!
//! Each variant is the sender's or the cable's fault, never the caller's.

use core::fmt;

use crate::VirtualLane;
use crate::error::saturate;

/// Why the receiver of an InfiniBand link discards a packet. Values are as found on the wire;
/// lengths are bytes, and stop at 65,535.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LinkError {
    /// The CRC of the link is wrong: the VCRC, or the LPCRC of a flow-control packet. Nothing else
    /// that is in the packet means anything.
    Crc,
    /// Fewer bytes than the packet's headers and CRCs take.
    Truncated {
        /// Bytes that they take.
        need: u16,
        /// Bytes there are.
        have: u16,
    },
    /// More bytes than the longest packet has.
    TooLong {
        /// Bytes of the longest packet.
        limit: u16,
        /// Bytes there are.
        have: u16,
    },
    /// A link version other than 0.
    Version(u8),
    /// A length field that differs from the number of bytes there are.
    Length {
        /// The field, in units of 4 bytes and without the VCRC.
        words: u16,
        /// Bytes there are, VCRC included.
        have: u16,
    },
    /// A virtual lane that is not in operation.
    Lane(VirtualLane),
}

impl LinkError {
    pub(crate) const fn truncated(need: usize, have: usize) -> Self {
        Self::Truncated { need: saturate(need), have: saturate(have) }
    }
    pub(crate) const fn too_long(limit: usize, have: usize) -> Self {
        Self::TooLong { limit: saturate(limit), have: saturate(have) }
    }
    /// Returns whether the bits were damaged on the way. If not, the sender made a packet that the
    /// link does not take. Performance management counts the two apart (PortRcvErrorDetails, IBTA
    /// 16.1.4).
    pub const fn is_physical(self) -> bool {
        matches!(self, Self::Crc)
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Crc => f.write_str("wrong CRC of the link"),
            Self::Truncated { need, have } => {
                write!(f, "truncated: headers and CRCs take {need} bytes, packet has {have}")
            }
            Self::TooLong { limit, have } => {
                write!(f, "too long: at most {limit} bytes, packet has {have}")
            }
            Self::Version(version) => write!(f, "link version {version}, only 0 is defined"),
            Self::Length { words, have } => {
                write!(f, "packet length is {words} words, packet has {have} bytes")
            }
            Self::Lane(lane) => write!(f, "virtual lane {} is not in operation", lane.value()),
        }
    }
}

impl core::error::Error for LinkError {}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn errors_say_what_was_found() {
        let text = |error: LinkError| error.to_string();
        assert_eq!(text(LinkError::Version(2)), "link version 2, only 0 is defined");
        let length = LinkError::Length { words: 7, have: 58 };
        assert_eq!(text(length), "packet length is 7 words, packet has 58 bytes");
        let lane = LinkError::Lane(VirtualLane::new(3));
        assert_eq!(text(lane), "virtual lane 3 is not in operation");
        let truncated = "truncated: headers and CRCs take 26 bytes, packet has 25";
        assert_eq!(text(LinkError::truncated(26, 25)), truncated);
        let too_long = "too long: at most 4222 bytes, packet has 65535";
        assert_eq!(text(LinkError::too_long(4222, usize::MAX)), too_long);
        assert_eq!(text(LinkError::Crc), "wrong CRC of the link");
    }

    #[test]
    fn a_wrong_crc_alone_is_physical() {
        assert!(LinkError::Crc.is_physical());
        assert!(!LinkError::Version(1).is_physical());
        assert!(!LinkError::truncated(2, 1).is_physical());
    }
}
