//! Ethernet II header: 14 bytes.
//!
//! ```text
//!  byte   0..5          6..11    12..13
//!       +-------------+--------+-----------+
//!       | destination | source | EtherType |
//!       +-------------+--------+-----------+
//!         48            48       16 bits
//! ```

use core::fmt;

use crate::ParseError;
use crate::error::head;

/// Address of an Ethernet station.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MacAddr(pub [u8; 6]);

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}
impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What an Ethernet frame carries. Any value is data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// Address resolution of IPv4.
    pub const ARP: Self = Self(0x0806);
    /// IPv6.
    pub const IPV6: Self = Self(0x86DD);
    /// RoCEv1: a GRH follows (IBTA A16).
    pub const ROCE_V1: Self = Self(0x8915);
}

/// Ethernet header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ethernet {
    /// Receiver.
    pub dst: MacAddr,
    /// Sender.
    pub src: MacAddr,
    /// What follows.
    pub ethertype: EtherType,
}

impl Ethernet {
    /// Bytes on the wire.
    pub const LEN: usize = 14;

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
            dst: MacAddr([b[0], b[1], b[2], b[3], b[4], b[5]]),
            src: MacAddr([b[6], b[7], b[8], b[9], b[10], b[11]]),
            ethertype: EtherType(u16::from_be_bytes([b[12], b[13]])),
        }
    }
    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..6].copy_from_slice(&self.dst.0);
        buf[6..12].copy_from_slice(&self.src.0);
        buf[12..Self::LEN].copy_from_slice(&self.ethertype.0.to_be_bytes());
    }
}

impl fmt::Display for Ethernet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {} type={:#06x}", self.src, self.dst, self.ethertype.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x89, 0x15];
        let ethernet = Ethernet::parse(&bytes).unwrap();
        assert_eq!(ethernet.dst, MacAddr([1, 2, 3, 4, 5, 6]));
        assert_eq!(ethernet.src, MacAddr([7, 8, 9, 10, 11, 12]));
        assert_eq!(ethernet.ethertype, EtherType::ROCE_V1);
        let mut out = [0; Ethernet::LEN];
        ethernet.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn thirteen_bytes_are_truncated() {
        let error = ParseError::Truncated { need: 14, have: 13 };
        assert_eq!(Ethernet::parse(&[0; 13]), Err(error));
    }
}
