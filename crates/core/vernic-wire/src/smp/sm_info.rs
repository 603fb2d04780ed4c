//! SMInfo: which subnet manager a node has, and what it does (IBTA 14.2.5.13): 21 bytes.
//!
//! ```text
//!  byte   0..7   8..15    16..19           20
//!       +------+--------+----------------+------------------+
//!       | GUID | SM_Key | activity count | priority4 state4 |
//!       +------+--------+----------------+------------------+
//! ```

use core::fmt;

use crate::error::head;
use crate::smp::{be32, be64};
use crate::{Guid, ParseError};

/// A subnet manager, as it says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SmInfo {
    /// GUID of the port that the manager is at.
    pub guid: Guid,
    /// Key that managers present to one another, or 0.
    pub sm_key: u64,
    /// Counter that grows as long as the manager works.
    pub activity_count: u32,
    /// Priority, 4 bits: the highest becomes master.
    pub priority: u8,
    /// State, 4 bits: 0 not active, 1 discovering, 2 standby, 3 master.
    pub state: u8,
}

impl SmInfo {
    /// Bytes on the wire.
    pub const LEN: usize = 21;

    /// Reads the attribute at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        head(bytes).map(Self::from_bytes)
    }
    /// Reads the attribute from its bytes.
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            guid: Guid(be64(b, 0)),
            sm_key: be64(b, 8),
            activity_count: be32(b, 16),
            priority: b[20] >> 4,
            state: b[20] & 15,
        }
    }
    /// Writes the attribute at the start of `buf`. Fields wider than theirs are cut.
    ///
    /// # Panics
    /// If `buf` is shorter than [`Self::LEN`].
    pub fn emit(&self, buf: &mut [u8]) {
        buf[..8].copy_from_slice(&self.guid.0.to_be_bytes());
        buf[8..16].copy_from_slice(&self.sm_key.to_be_bytes());
        buf[16..20].copy_from_slice(&self.activity_count.to_be_bytes());
        buf[20] = self.priority << 4 | self.state & 15;
    }
}

impl fmt::Display for SmInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (guid, priority, state) = (self.guid, self.priority, self.state);
        write!(f, "SMInfo guid={guid} priority={priority} state={state}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_picture_says() {
        let bytes: [u8; SmInfo::LEN] = core::array::from_fn(|i| i as u8 + 1);
        let read = SmInfo::parse(&bytes).unwrap();
        assert_eq!(read.guid, Guid(0x0102_0304_0506_0708));
        assert_eq!(read.sm_key, 0x090A_0B0C_0D0E_0F10);
        assert_eq!(read.activity_count, 0x1112_1314);
        assert_eq!(read.priority, 0x1);
        assert_eq!(read.state, 0x5);
        let mut out = [0; SmInfo::LEN];
        read.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_byte_less_is_truncated() {
        let error = ParseError::Truncated { need: 21, have: 20 };
        assert_eq!(SmInfo::parse(&[0; 20]), Err(error));
    }
}
