//! ServiceRecord: 176 bytes, a service that a port offers (IBTA 15.2.5.14).
//!
//! ```text
//!  byte   0..7         8..23   24..25   26..27     28..31   32..47   48..111   112..175
//!       +------------+-------+--------+----------+--------+--------+---------+--------------+
//!       | service id | GID   | P_Key  | reserved | lease  | key    | name    | data         |
//!       +------------+-------+--------+----------+--------+--------+---------+--------------+
//! ```
//! The data are 16 numbers of 8 bits, 8 of 16, 4 of 32 and 2 of 64, in this order.

use core::fmt;

use super::{be16, be32, be64, part};
use crate::cm::ServiceId;
use crate::error::head;
use crate::{Gid, ParseError, Pkey};

bitflags::bitflags! {
    /// Components of a [`ServiceRecord`], as a component mask says which of them count.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct ServiceComponents: u64 {
        /// [`ServiceRecord::service_id`].
        const SERVICE_ID = 1 << 0;
        /// [`ServiceRecord::gid`].
        const GID = 1 << 1;
        /// [`ServiceRecord::pkey`].
        const PKEY = 1 << 2;
        /// [`ServiceRecord::lease_s`].
        const LEASE = 1 << 4;
        /// [`ServiceRecord::key`].
        const KEY = 1 << 5;
        /// [`ServiceRecord::name`].
        const NAME = 1 << 6;
        /// All of [`ServiceRecord::data8`]; the lowest of the bits is its first number.
        const DATA8 = 0xFFFF << 7;
        /// All of [`ServiceRecord::data16`]; the lowest of the bits is its first number.
        const DATA16 = 0xFF << 23;
        /// All of [`ServiceRecord::data32`]; the lowest of the bits is its first number.
        const DATA32 = 0xF << 31;
        /// All of [`ServiceRecord::data64`]; the lowest of the bits is its first number.
        const DATA64 = 3 << 35;
    }
}

/// A service that a port offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServiceRecord {
    /// The service.
    pub service_id: ServiceId,
    /// The port.
    pub gid: Gid,
    /// The partition that it is offered in.
    pub pkey: Pkey,
    /// Reserved, 0 when sent.
    pub reserved26: u16,
    /// Seconds until the record ends; all ones: never.
    pub lease_s: u32,
    /// A request that changes the record must have this key.
    pub key: [u8; 16],
    /// UTF-8, with zeros behind.
    pub name: [u8; 64],
    /// The service's own.
    pub data8: [u8; 16],
    /// The service's own.
    pub data16: [u16; 8],
    /// The service's own.
    pub data32: [u32; 4],
    /// The service's own.
    pub data64: [u64; 2],
}

impl ServiceRecord {
    /// Bytes on the wire.
    pub const LEN: usize = 176;
    /// The lease that does not end.
    pub const LEASE_FOREVER: u32 = u32::MAX;

    /// Reads the record at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the record from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            service_id: ServiceId(be64(b, 0)),
            gid: Gid(part(b, 8)),
            pkey: Pkey(be16(b, 24)),
            reserved26: be16(b, 26),
            lease_s: be32(b, 28),
            key: part(b, 32),
            name: part(b, 48),
            data8: part(b, 112),
            data16: core::array::from_fn(|i| be16(b, 128 + 2 * i)),
            data32: core::array::from_fn(|i| be32(b, 144 + 4 * i)),
            data64: core::array::from_fn(|i| be64(b, 160 + 8 * i)),
        }
    }
    /// Writes the record at the start of `buf`.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..8].copy_from_slice(&self.service_id.0.to_be_bytes());
        buf[8..24].copy_from_slice(&self.gid.0);
        buf[24..26].copy_from_slice(&self.pkey.0.to_be_bytes());
        buf[26..28].copy_from_slice(&self.reserved26.to_be_bytes());
        buf[28..32].copy_from_slice(&self.lease_s.to_be_bytes());
        buf[32..48].copy_from_slice(&self.key);
        buf[48..112].copy_from_slice(&self.name);
        buf[112..128].copy_from_slice(&self.data8);
        for (i, number) in self.data16.iter().enumerate() {
            buf[128 + 2 * i..130 + 2 * i].copy_from_slice(&number.to_be_bytes());
        }
        for (i, number) in self.data32.iter().enumerate() {
            buf[144 + 4 * i..148 + 4 * i].copy_from_slice(&number.to_be_bytes());
        }
        for (i, number) in self.data64.iter().enumerate() {
            buf[160 + 8 * i..168 + 8 * i].copy_from_slice(&number.to_be_bytes());
        }
    }
}

impl Default for ServiceRecord {
    fn default() -> Self {
        Self::from_bytes(&[0; Self::LEN])
    }
}

impl fmt::Display for ServiceRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service {:#x} at {} lease={}s", self.service_id.0, self.gid, self.lease_s)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; ServiceRecord::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let record = ServiceRecord::parse(&bytes).unwrap();
        assert_eq!(record.service_id, ServiceId(0x0102_0304_0506_0708));
        assert_eq!((record.gid.0[0], record.gid.0[15]), (9, 24));
        assert_eq!((record.pkey, record.reserved26), (Pkey(0x191A), 0x1B1C));
        assert_eq!(record.lease_s, 0x1D1E_1F20);
        assert_eq!((record.key[0], record.key[15]), (33, 48));
        assert_eq!((record.name[0], record.name[63]), (49, 112));
        assert_eq!((record.data8[0], record.data8[15]), (113, 128));
        assert_eq!((record.data16[0], record.data16[7]), (0x8182, 0x8F90));
        assert_eq!((record.data32[0], record.data32[3]), (0x9192_9394, 0x9D9E_9FA0));
        assert_eq!(record.data64, [0xA1A2_A3A4_A5A6_A7A8, 0xA9AA_ABAC_ADAE_AFB0]);
        let mut out = [0; ServiceRecord::LEN];
        record.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 176, have: 175 };
        assert_eq!(ServiceRecord::parse(&[0; 175]), Err(error));
    }

    #[test]
    fn components_of_numbers_follow_each_other() {
        use ServiceComponents as Components;
        let numbers =
            [Components::DATA8, Components::DATA16, Components::DATA32, Components::DATA64];
        let first = numbers.map(|numbers| numbers.bits().trailing_zeros());
        assert_eq!((first, Components::all().bits().ilog2()), ([7, 23, 31, 35], 36));
        assert_eq!(numbers.map(|numbers| numbers.bits().count_ones()), [16, 8, 4, 2]);
    }

    #[test]
    fn a_service_reads_as_a_trace() {
        let service = ServiceRecord { service_id: ServiceId(0x1234), ..ServiceRecord::default() };
        assert_eq!(service.to_string(), "service 0x1234 at :: lease=0s");
    }
}
