//! Header of a datagram between UD queue pairs: 8 bytes for IPv4, 24 for IPv6.
//!
//! ```text
//!  byte   0         1        2..4   4..8                 8..24
//!       +---------+--------+------+--------------------+---------+
//!       | version | length | port | address            |         |  version 4
//!       | version | length | port | flow information   | address |  version 6
//!       +---------+--------+------+--------------------+---------+
//! ```
//!
//! It says who sent the datagram: the address and port of the sender's UDP socket. All is
//! big-endian.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::{WireError, field, head};

const WHAT: &str = "an rsockets datagram header";

/// Version and length of either form.
const V4: (u8, u8) = (4, 8);
const V6: (u8, u8) = (6, 24);

/// Who sent a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// Address and port of the sender's socket. The scope of an IPv6 address does not travel.
    pub source: SocketAddr,
}

impl DatagramHeader {
    /// Bytes of the longer form.
    pub const MAX_LEN: usize = V6.1 as usize;

    /// Bytes on the wire.
    pub const fn len(&self) -> usize {
        match self.source {
            SocketAddr::V4(_) => V4.1 as usize,
            SocketAddr::V6(_) => V6.1 as usize,
        }
    }

    /// Never.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let [version, length, ..]: [u8; 8] = head(WHAT, bytes)?;
        let port = u16::from_be_bytes(field(bytes, 2));
        let source = match (version, length) {
            V4 => SocketAddrV4::new(Ipv4Addr::from(field::<4>(bytes, 4)), port).into(),
            V6 => {
                let bytes: [u8; V6.1 as usize] = head(WHAT, bytes)?;
                let flow = u32::from_be_bytes(field(&bytes, 4));
                SocketAddrV6::new(Ipv6Addr::from(field::<16>(&bytes, 8)), port, flow, 0).into()
            }
            (4 | 6, length) => {
                let (field, value) = ("length", u32::from(length));
                return Err(WireError::Field { what: WHAT, field, value });
            }
            (version, _) => return Err(WireError::Version { what: WHAT, version }),
        };
        Ok(Self { source })
    }

    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::len`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[2..4].copy_from_slice(&self.source.port().to_be_bytes());
        match self.source {
            SocketAddr::V4(source) => {
                (buf[0], buf[1]) = V4;
                buf[4..8].copy_from_slice(&source.ip().octets());
            }
            SocketAddr::V6(source) => {
                (buf[0], buf[1]) = V6;
                buf[4..8].copy_from_slice(&source.flowinfo().to_be_bytes());
                buf[8..24].copy_from_slice(&source.ip().octets());
            }
        }
    }
}

impl fmt::Display for DatagramHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {}", self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let v4 = [4, 8, 0x1c, 0x06, 192, 0, 2, 7];
        let header = DatagramHeader::parse(&v4).unwrap();
        assert_eq!(header.source, "192.0.2.7:7174".parse().unwrap());
        let mut out = [0; 8];
        header.emit(&mut out);
        assert_eq!((out, header.len()), (v4, 8));

        let mut v6 = [0; 24];
        (v6[0], v6[1], v6[7], v6[8], v6[23]) = (6, 24, 9, 0xfe, 1);
        let header = DatagramHeader::parse(&v6).unwrap();
        let SocketAddr::V6(source) = header.source else { panic!("{header}") };
        assert_eq!((source.flowinfo(), source.ip().segments()[0]), (9, 0xfe00));
        let mut out = [0; 24];
        header.emit(&mut out);
        assert_eq!((out, header.len()), (v6, 24));
    }

    #[test]
    fn other_versions_lengths_and_short_ones_are_refused() {
        assert!(DatagramHeader::parse(&[4, 8, 0, 1, 127, 0, 0]).is_err());
        assert!(DatagramHeader::parse(&[4, 9, 0, 1, 127, 0, 0, 1]).is_err());
        assert!(DatagramHeader::parse(&[5, 8, 0, 1, 127, 0, 0, 1]).is_err());
        assert!(DatagramHeader::parse(&[6, 24, 0, 1, 0, 0, 0, 0, 1]).is_err());
    }
}
