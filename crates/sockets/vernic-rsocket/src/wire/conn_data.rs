//! Connection data: 40 bytes, private data of the CM messages that make a connection.
//!
//! ```text
//!  byte   0         1       2..4      4..7       7              8..24         24..40
//!       +---------+-------+---------+----------+--------------+-------------+-------------+
//!       | version | flags | credits | reserved | mapping size | target list | data buffer |
//!       +---------+-------+---------+----------+--------------+-------------+-------------+
//!         8         8       16        24         8              RemoteSge     RemoteSge
//! ```
//!
//! All numbers are big-endian. Each side tells the other how many messages it has receives for,
//! where its target list is (the list that says where data may be written to the *other* side; so
//! the peer writes into it), and its first receive buffer. Behind the target list's entries in the
//! same region is the table of mapped buffers ([`IomapEntry`](super::IomapEntry)), if the flags
//! announce one.

use std::fmt;

use super::{ByteOrder, IomapScale, RemoteSge, WireError, field, head};

const WHAT: &str = "rsockets connection data";

/// The host that sent it is big-endian, and so are the entries it expects in its memory.
const FLAG_BIG_ENDIAN: u8 = 1;
/// The field of the mapping size is meant.
const FLAG_IOMAP: u8 = 1 << 1;

/// What each side of a stream tells the other when they connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnData {
    /// Flags as found; the two that are known have methods.
    pub flags: u8,
    /// Messages that the sender of this has receives for.
    pub credits: u16,
    /// Reserved bytes, 0 when sent.
    pub reserved: [u8; 3],
    /// Entries of the table of mapped buffers.
    pub iomap_size: IomapScale,
    /// The target list: address, key, and its number of entries as length.
    pub target_list: RemoteSge,
    /// The first receive buffer.
    pub data_buffer: RemoteSge,
}

impl ConnData {
    /// Bytes on the wire.
    pub const LEN: usize = 40;
    /// The version of the protocol.
    pub const VERSION: u8 = 1;

    /// What this host says.
    pub fn new(
        credits: u16,
        iomap_size: IomapScale,
        target_list: RemoteSge,
        data_buffer: RemoteSge,
    ) -> Self {
        let order = match ByteOrder::HOST {
            ByteOrder::Big => FLAG_BIG_ENDIAN,
            ByteOrder::Little => 0,
        };
        let flags = FLAG_IOMAP | order;
        Self { flags, credits, reserved: [0; 3], iomap_size, target_list, data_buffer }
    }

    /// The order of the bytes that the sender of this expects in its memory.
    pub const fn byte_order(&self) -> ByteOrder {
        match self.flags & FLAG_BIG_ENDIAN {
            0 => ByteOrder::Little,
            _ => ByteOrder::Big,
        }
    }

    /// Entries of the sender's table of mapped buffers.
    pub const fn iomap_entries(&self) -> u16 {
        match self.flags & FLAG_IOMAP {
            0 => 0,
            _ => self.iomap_size.entries(),
        }
    }

    /// Reads the data at the start of `bytes`. Private data is padded, so there may be more.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Version`].
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let bytes: [u8; Self::LEN] = head(WHAT, bytes)?;
        if bytes[0] != Self::VERSION {
            return Err(WireError::Version { what: WHAT, version: bytes[0] });
        }
        Ok(Self {
            flags: bytes[1],
            credits: u16::from_be_bytes(field(&bytes, 2)),
            reserved: field(&bytes, 4),
            iomap_size: IomapScale(bytes[7]),
            target_list: RemoteSge::from_bytes(&field(&bytes, 8), ByteOrder::Big),
            data_buffer: RemoteSge::from_bytes(&field(&bytes, 24), ByteOrder::Big),
        })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = Self::VERSION;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[4..7].copy_from_slice(&self.reserved);
        bytes[7] = self.iomap_size.0;
        bytes[8..24].copy_from_slice(&self.target_list.to_bytes(ByteOrder::Big));
        bytes[24..].copy_from_slice(&self.data_buffer.to_bytes(ByteOrder::Big));
        bytes
    }
}

impl fmt::Display for ConnData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "credits={} order={:?} iomap={} targets=({}) data=({})",
            self.credits,
            self.byte_order(),
            self.iomap_entries(),
            self.target_list,
            self.data_buffer
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vernic_wire::Rkey;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let mut bytes: [u8; 60] = std::array::from_fn(|i| i as u8);
        (bytes[0], bytes[1]) = (1, 2);
        let data = ConnData::parse(&bytes).unwrap();
        assert_eq!((data.credits, data.reserved), (0x0203, [4, 5, 6]));
        assert_eq!((data.byte_order(), data.iomap_entries()), (ByteOrder::Little, 7));
        assert_eq!(data.target_list.addr, 0x0809_0a0b_0c0d_0e0f);
        assert_eq!(data.target_list.rkey, Rkey(0x1011_1213));
        assert_eq!(data.data_buffer.length, 0x2425_2627);
        assert_eq!(data.to_bytes(), bytes[..ConnData::LEN]);
    }

    #[test]
    fn flags_tell_the_byte_order_and_whether_there_is_a_table() {
        let sge = RemoteSge::default();
        let data = ConnData { flags: 1, ..ConnData::new(1, IomapScale(7), sge, sge) };
        assert_eq!((data.byte_order(), data.iomap_entries()), (ByteOrder::Big, 0));
        let own = ConnData::new(1, IomapScale(7), sge, sge);
        assert_eq!((own.byte_order(), own.iomap_entries()), (ByteOrder::HOST, 7));
    }

    #[test]
    fn another_version_and_short_data_are_refused() {
        let error = WireError::Version { what: WHAT, version: 2 };
        assert_eq!(ConnData::parse(&[2; 56]), Err(error));
        let error = WireError::Truncated { what: WHAT, need: 40, have: 39 };
        assert_eq!(ConnData::parse(&[1; 39]), Err(error));
    }
}
