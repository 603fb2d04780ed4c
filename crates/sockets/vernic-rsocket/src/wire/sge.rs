//! A piece of the peer's memory: 16 bytes.
//!
//! ```text
//!  byte   0..8      8..12   12..16
//!       +---------+-------+--------+
//!       | address | R_Key | length |
//!       +---------+-------+--------+
//!         64        32      32
//! ```
//!
//! Big-endian in private data. In a target list it has the byte order of the host that holds the
//! list, which the one that writes it knows from the private data ([`ConnData`](super::ConnData)).

use std::fmt;

use vernic_wire::Rkey;

use super::{WireError, field, head};

/// Order of the bytes of a number in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl ByteOrder {
    /// That of this host.
    pub const HOST: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };

    pub(super) fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    pub(super) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    pub(super) fn bytes_of_u64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    pub(super) fn bytes_of_u32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}

/// A piece of the peer's memory that may be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteSge {
    /// First byte, as the peer's region counts.
    pub addr: u64,
    /// Key of the peer's region.
    pub rkey: Rkey,
    /// Bytes; entries in [`ConnData::target_list`](super::ConnData::target_list).
    pub length: u32,
}

impl RemoteSge {
    /// Bytes in memory and on the wire.
    pub const LEN: usize = 16;

    /// Reads the entry at the start of `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn parse(bytes: &[u8], order: ByteOrder) -> Result<Self, WireError> {
        let bytes: [u8; Self::LEN] = head("an entry of a target list", bytes)?;
        Ok(Self::from_bytes(&bytes, order))
    }

    /// Reads the entry from its bytes.
    pub fn from_bytes(bytes: &[u8; Self::LEN], order: ByteOrder) -> Self {
        Self {
            addr: order.u64(field(bytes, 0)),
            rkey: Rkey(order.u32(field(bytes, 8))),
            length: order.u32(field(bytes, 12)),
        }
    }

    /// Its bytes.
    pub fn to_bytes(&self, order: ByteOrder) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&order.bytes_of_u64(self.addr));
        bytes[8..12].copy_from_slice(&order.bytes_of_u32(self.rkey.value()));
        bytes[12..].copy_from_slice(&order.bytes_of_u32(self.length));
        bytes
    }
}

impl fmt::Display for RemoteSge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x} rkey={:#010x}", self.length, self.addr, self.rkey.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says_in_either_order() {
        let bytes = std::array::from_fn(|i| i as u8 + 1);
        let big = RemoteSge::from_bytes(&bytes, ByteOrder::Big);
        assert_eq!(big.addr, 0x0102_0304_0506_0708);
        assert_eq!((big.rkey, big.length), (Rkey(0x090a_0b0c), 0x0d0e_0f10));
        assert_eq!(big.to_bytes(ByteOrder::Big), bytes);
        let little = RemoteSge::from_bytes(&bytes, ByteOrder::Little);
        assert_eq!(little.addr, 0x0807_0605_0403_0201);
        assert_eq!((little.rkey, little.length), (Rkey(0x0c0b_0a09), 0x100f_0e0d));
        assert_eq!(little.to_bytes(ByteOrder::Little), bytes);
    }

    #[test]
    fn fifteen_bytes_are_truncated() {
        let error = RemoteSge::parse(&[0; 15], ByteOrder::Big).unwrap_err();
        assert!(matches!(error, WireError::Truncated { need: 16, have: 15, .. }));
    }
}
