//! CMA header: 36 bytes, first of the private data of a REQ and a SIDR_REQ of rdma_cm (IBTA annex
//! A11, "RDMA IP CM service"). It says from which IP address and port, and to which IP address.
//!
//! ```text
//!  byte   0             1               2..3        4..19          20..35
//!       +-------------+---------------+-----------+--------------+-------------------+
//!       | major minor | IP vers resv4 | src port  | src address  | dst address       |
//!       +-------------+---------------+-----------+--------------+-------------------+
//!          4     4        4      4                  an IPv4 address is the last 4 of 16
//! ```

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ParseError;
use crate::error::head;

/// Addresses of a connection by IP address. The destination's port is in the service id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmaHeader {
    /// Major and minor version of this format, 4 bits each; 0.
    pub version: u8,
    /// Reserved, 4 bits.
    pub reserved4: u8,
    /// Port of the active side.
    pub port: u16,
    /// Address of the active side.
    pub src: IpAddr,
    /// Address of the passive side.
    pub dst: IpAddr,
    /// The 12 bytes before the IPv4 source address, and the 12 before the destination; not for
    /// IPv6.
    pub padding: [[u8; 12]; 2],
}

impl CmaHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 36;

    /// A header of version 0.
    pub const fn new(port: u16, src: IpAddr, dst: IpAddr) -> Self {
        Self { version: 0, reserved4: 0, port, src, dst, padding: [[0; 12]; 2] }
    }
    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`]; [`ParseError::Field`] for an IP version other than 4 and 6.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head(bytes)?;
        let address = |at| -> [u8; 16] { core::array::from_fn(|i| b[at + i]) };
        let (src, dst) = (address(4), address(20));
        let v4 = |a: [u8; 16]| IpAddr::V4(Ipv4Addr::new(a[12], a[13], a[14], a[15]));
        let pad = |a: [u8; 16]| core::array::from_fn(|i| a[i]);
        let (src, dst, padding) = match b[1] >> 4 {
            4 => (v4(src), v4(dst), [pad(src), pad(dst)]),
            6 => (Ipv6Addr::from(src).into(), Ipv6Addr::from(dst).into(), [[0; 12]; 2]),
            version => {
                let field = "IP version of the CMA header";
                return Err(ParseError::Field { field, value: u16::from(version) });
            }
        };
        let port = u16::from_be_bytes([b[2], b[3]]);
        Ok(Self { version: b[0], reserved4: b[1] & 15, port, src, dst, padding })
    }
    /// Writes the header at the start of `buf`. If only one address is IPv6, the other one is
    /// written as IPv4-mapped.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        let v4 = self.src.is_ipv4() && self.dst.is_ipv4();
        buf[0] = self.version;
        buf[1] = if v4 { 4 << 4 } else { 6 << 4 } | self.reserved4 & 15;
        buf[2..4].copy_from_slice(&self.port.to_be_bytes());
        for (at, ip, padding) in [(4, self.src, self.padding[0]), (20, self.dst, self.padding[1])] {
            let field = &mut buf[at..at + 16];
            match ip {
                IpAddr::V4(ip) if v4 => {
                    field[..12].copy_from_slice(&padding);
                    field[12..].copy_from_slice(&ip.octets());
                }
                IpAddr::V4(ip) => field.copy_from_slice(&ip.to_ipv6_mapped().octets()),
                IpAddr::V6(ip) => field.copy_from_slice(&ip.octets()),
            }
        }
    }
}

impl fmt::Display for CmaHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {} -> {}", self.src, self.port, self.dst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emitted(header: CmaHeader) -> [u8; CmaHeader::LEN] {
        let mut out = [0; CmaHeader::LEN];
        header.emit(&mut out);
        out
    }

    #[test]
    fn every_field_is_where_the_picture_says() {
        let mut bytes: [u8; CmaHeader::LEN] = core::array::from_fn(|i| i as u8 + 1);
        bytes[1] = 0x4C;
        let header = CmaHeader::parse(&bytes).unwrap();
        assert_eq!((header.version, header.reserved4, header.port), (1, 12, 0x0304));
        assert_eq!(header.src, IpAddr::from([17, 18, 19, 20]));
        assert_eq!(header.dst, IpAddr::from([33, 34, 35, 36]));
        assert_eq!(emitted(header), bytes);
        bytes[1] = 0x60;
        let header = CmaHeader::parse(&bytes).unwrap();
        let octets: [u8; 16] = core::array::from_fn(|i| i as u8 + 5);
        assert_eq!(header.src, IpAddr::from(octets));
        assert_eq!(emitted(header), bytes);
    }

    #[test]
    fn mixed_families_become_ipv6() {
        let v6: IpAddr = "fe80::2".parse().unwrap();
        let header = CmaHeader::new(7, IpAddr::from([1, 2, 3, 4]), v6);
        let read = CmaHeader::parse(&emitted(header)).unwrap();
        assert_eq!(read.src, "::ffff:1.2.3.4".parse::<IpAddr>().unwrap());
        assert_eq!((read.dst, read.port), (v6, 7));
    }

    #[test]
    fn other_ip_versions_and_thirty_five_bytes_are_errors() {
        let mut bytes = [0; CmaHeader::LEN];
        bytes[1] = 0x50;
        let field = "IP version of the CMA header";
        assert_eq!(CmaHeader::parse(&bytes), Err(ParseError::Field { field, value: 5 }));
        let error = ParseError::Truncated { need: 36, have: 35 };
        assert_eq!(CmaHeader::parse(&bytes[..35]), Err(error));
    }
}
