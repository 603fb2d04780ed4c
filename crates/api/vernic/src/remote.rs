//! Memory of the peer, as it told us.

use crate::{EndpointError, Rkey};

/// A region of the peer: what [`Mr::remote`](crate::Mr::remote) gives there, and what READ, WRITE
/// and atomics name here.
///
/// ```
/// use vernic::{RemoteMr, Rkey};
/// let region = RemoteMr { addr: 0x7000, rkey: Rkey(0x1234), len: 64 };
/// assert_eq!(RemoteMr::from_bytes(&region.to_bytes())?, region);
/// assert_eq!(region.at(16).addr(), 0x7010);
/// # Ok::<(), vernic::EndpointError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteMr {
    /// Address of the first byte, as the peer counts.
    pub addr: u64,
    /// The key that opens it.
    pub rkey: Rkey,
    /// Bytes.
    pub len: u64,
}

impl RemoteMr {
    /// Bytes of [`RemoteMr::to_bytes`].
    pub const LEN: usize = 20;

    /// Address (8 bytes), key (4 bytes), length (8 bytes), big-endian.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.value().to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Reads what [`RemoteMr::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`EndpointError::Length`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EndpointError> {
        let wrong = |_| EndpointError::Length {
            what: "a remote region",
            len: bytes.len(),
            expected: Self::LEN,
        };
        let b: &[u8; Self::LEN] = bytes.try_into().map_err(wrong)?;
        let be = |part: &[u8]| part.iter().fold(0u64, |n, &byte| n << 8 | u64::from(byte));
        Ok(Self { addr: be(&b[..8]), rkey: Rkey(be(&b[8..12]) as u32), len: be(&b[12..]) })
    }

    /// The place `offset` bytes into the region. Whether the operation fits from there on is
    /// checked when it is posted, so a place beyond the end is an error there and not a NAK later.
    pub const fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr {
            addr: self.addr.wrapping_add(offset),
            rkey: self.rkey,
            room: self.len.saturating_sub(offset),
        }
    }
}

/// A place in memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteAddr {
    addr: u64,
    rkey: Rkey,
    room: u64,
}

impl RemoteAddr {
    /// A place whose surroundings are unknown here: only the peer checks the bounds.
    pub const fn new(addr: u64, rkey: Rkey) -> Self {
        Self { addr, rkey, room: u64::MAX }
    }
    /// The address, as the peer counts.
    pub const fn addr(self) -> u64 {
        self.addr
    }
    /// The key.
    pub const fn rkey(self) -> Rkey {
        self.rkey
    }
    /// Bytes from here to the end of the region; [`u64::MAX`] where that is unknown.
    pub const fn room(self) -> u64 {
        self.room
    }
}
