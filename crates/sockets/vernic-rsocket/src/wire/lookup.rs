//! Header of a datagram of the UDP socket: 16 bytes for IPv4, 28 for IPv6.
//!
//! ```text
//!  byte   0..4   4         5    6        7          8..12              12..16 or 12..28
//!       +------+---------+----+--------+----------+------------------+------------------+
//!       | mark | version | op | length | reserved | queue pair       | sender's address |
//!       +------+---------+----+--------+----------+------------------+------------------+
//! ```
//!
//! A socket that does not know the queue pair behind an address sends its datagram by UDP, behind
//! this header; the other answers with one that carries no data, and both have learned the other's
//! queue pair. All is big-endian; the upper 8 bits of the queue pair are reserved.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use vernic_wire::Qpn;

use super::{WireError, field, head};

const WHAT: &str = "an rsockets UDP header";

/// What the header starts with, so that a stray datagram is not taken for one.
const MARK: u32 = 0x5555_5555;

/// Version and length of either form.
const V4: (u8, u8) = (4, 16);
const V6: (u8, u8) = (6, 28);

/// What follows, and what is asked for. Others are data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupOp(pub u8);

impl LookupOp {
    /// The user's bytes follow; answer with [`CONTROL`](Self::CONTROL).
    pub const DATA: Self = Self(0);
    /// Nothing follows: an answer.
    pub const CONTROL: Self = Self(7);
}

/// Who sent a datagram of the UDP socket, and from which queue pair the next ones will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupHeader {
    /// What follows.
    pub op: LookupOp,
    /// The queue pair of the sender.
    pub qpn: Qpn,
    /// The address of the sender's queue pair.
    pub address: IpAddr,
}

impl LookupHeader {
    /// Bytes of the longer form.
    pub const MAX_LEN: usize = V6.1 as usize;

    /// Bytes on the wire.
    pub const fn len(&self) -> usize {
        match self.address {
            IpAddr::V4(_) => V4.1 as usize,
            IpAddr::V6(_) => V6.1 as usize,
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
        let start: [u8; V4.1 as usize] = head(WHAT, bytes)?;
        let mark = u32::from_be_bytes(field(&start, 0));
        if mark != MARK {
            return Err(WireError::Field { what: WHAT, field: "mark", value: mark });
        }
        let address = match (start[4], start[6]) {
            V4 => Ipv4Addr::from(field::<4>(&start, 12)).into(),
            V6 => {
                let bytes: [u8; V6.1 as usize] = head(WHAT, bytes)?;
                Ipv6Addr::from(field::<16>(&bytes, 12)).into()
            }
            (4 | 6, length) => {
                let (field, value) = ("length", u32::from(length));
                return Err(WireError::Field { what: WHAT, field, value });
            }
            (version, _) => return Err(WireError::Version { what: WHAT, version }),
        };
        let qpn = Qpn::new(u32::from_be_bytes(field(&start, 8)) & 0x00ff_ffff);
        Ok(Self { op: LookupOp(start[5]), qpn, address })
    }

    /// Writes the header at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::len`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..4].copy_from_slice(&MARK.to_be_bytes());
        (buf[5], buf[7]) = (self.op.0, 0);
        buf[8..12].copy_from_slice(&self.qpn.value().to_be_bytes());
        match self.address {
            IpAddr::V4(address) => {
                (buf[4], buf[6]) = V4;
                buf[12..16].copy_from_slice(&address.octets());
            }
            IpAddr::V6(address) => {
                (buf[4], buf[6]) = V6;
                buf[12..28].copy_from_slice(&address.octets());
            }
        }
    }
}

impl fmt::Display for LookupHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            LookupOp::DATA => "DATA".to_owned(),
            LookupOp::CONTROL => "CONTROL".to_owned(),
            LookupOp(op) => format!("op {op:#x}"),
        };
        write!(f, "{op} from {} qp={}", self.address, self.qpn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let v4 = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 1, 2, 3, 192, 0, 2, 7];
        let header = LookupHeader::parse(&v4).unwrap();
        assert_eq!((header.op, header.qpn), (LookupOp::DATA, Qpn::new(0x01_0203)));
        assert_eq!(header.address, IpAddr::from([192, 0, 2, 7]));
        let mut out = [0; 16];
        header.emit(&mut out);
        assert_eq!((out, header.len()), (v4, 16));

        let mut v6 = [0; 28];
        v6[..8].copy_from_slice(&[0x55, 0x55, 0x55, 0x55, 6, 7, 28, 0]);
        (v6[12], v6[27]) = (0xfe, 1);
        let header = LookupHeader::parse(&v6).unwrap();
        assert_eq!((header.op, header.address), (LookupOp::CONTROL, "fe00::1".parse().unwrap()));
        let mut out = [0; 28];
        header.emit(&mut out);
        assert_eq!((out, header.len()), (v6, 28));
    }

    #[test]
    fn the_reserved_byte_of_the_queue_pair_is_not_looked_at() {
        let bytes = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0xff, 0, 0, 5, 192, 0, 2, 7];
        assert_eq!(LookupHeader::parse(&bytes).unwrap().qpn, Qpn::new(5));
    }

    #[test]
    fn what_is_not_marked_or_too_short_is_refused() {
        let good = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0, 0, 5, 192, 0, 2, 7];
        assert!(LookupHeader::parse(&good[..15]).is_err());
        for (at, value) in [(0, 0x54), (4, 5), (4, 6), (6, 15)] {
            let mut bytes = good;
            bytes[at] = value;
            assert!(LookupHeader::parse(&bytes).is_err(), "{at}");
        }
    }
}
