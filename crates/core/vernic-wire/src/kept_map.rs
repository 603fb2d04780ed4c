//! Map of kept packets: up to 512 bytes behind the AETH of a NAK "PSN sequence error", and a path
//! MTU at most. It says which packets behind the missing one the responder has and keeps.
//!
//! ```text
//!  byte      0                   1                          len - 1
//!          +-------------------+-------------------+      +---------+
//!          | PSN + 8 .. PSN + 1 | + 16 ..    + 9   | .... |         |    1: kept, 0: missing, or
//!          +-------------------+-------------------+      +---------+       not there yet
//!            bit 7      bit 0
//! ```
//! The PSN is that of the NAK: of the packet that is missing. The length is a multiple of 4. This
//! is not of the IBTA: it is sent to requesters that ask for it ([`Bth::asks_kept`]), which Vernic
//! alone does, and only of responders that have shown that they keep packets.
//!
//! [`Bth::asks_kept`]: crate::Bth::asks_kept

use core::fmt;

/// Map of kept packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptMap([u64; Self::BITS as usize / 64]);

impl Default for KeptMap {
    fn default() -> Self {
        Self([0; Self::BITS as usize / 64])
    }
}

impl KeptMap {
    /// Packets that it can tell of.
    pub const BITS: u32 = 4096;
    /// Bytes on the wire, at most.
    pub const MAX_LEN: usize = Self::BITS as usize / 8;

    /// Says that the packet `distance` numbers behind the missing one is kept. One that is too far
    /// away is left out.
    pub const fn set(&mut self, distance: u32) {
        if 0 < distance && distance <= Self::BITS {
            self.0[(distance - 1) as usize / 64] |= 1 << ((distance - 1) % 64);
        }
    }
    /// Whether the packet `distance` numbers behind the missing one is kept.
    #[inline]
    pub const fn has(&self, distance: u32) -> bool {
        0 < distance
            && distance <= Self::BITS
            && self.0[(distance - 1) as usize / 64] >> ((distance - 1) % 64) & 1 == 1
    }
    /// Packets that are kept.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
    /// Distance of the newest packet that is kept; 0 if none is.
    pub fn newest(&self) -> u32 {
        let last = self.0.iter().enumerate().rev().find(|(_, word)| **word != 0);
        last.map_or(0, |(at, word)| at as u32 * 64 + 64 - word.leading_zeros())
    }
    /// Bytes on the wire.
    pub fn len(&self) -> usize {
        (self.newest() as usize).div_ceil(32) * 4
    }
    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.newest() == 0
    }
    /// Reads a map of whatever length; bits behind the last that it can have are ignored.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut words = [0; Self::BITS as usize / 64];
        for (word, part) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut le = [0; 8];
            le[..part.len()].copy_from_slice(part);
            *word = u64::from_le_bytes(le);
        }
        Self(words)
    }
    /// Writes the map at the start of `buf` and returns its length.
    ///
    /// # Panics
    /// If `buf` is shorter than [`len`](Self::len).
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let len = self.len();
        for (word, part) in self.0.iter().zip(buf[..len].chunks_mut(8)) {
            part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
        }
        len
    }
}

impl fmt::Display for KeptMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kept={} of {}", self.count(), self.newest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_the_picture_says_and_only_as_many_bytes_as_needed_leave() {
        let mut map = KeptMap::default();
        assert!(map.is_empty());
        map.set(2);
        map.set(34);
        let mut buf = [0xEE; 12];
        assert_eq!(map.emit(&mut buf), 8);
        assert_eq!(buf, [2, 0, 0, 0, 2, 0, 0, 0, 0xEE, 0xEE, 0xEE, 0xEE]);
        assert_eq!(KeptMap::parse(&buf[..8]), map);
        assert_eq!((map.count(), map.newest()), (2, 34));
        assert!(map.has(34) && !map.has(33) && !map.has(0));
    }

    #[test]
    fn the_farthest_packet_has_its_bit_and_what_is_farther_none() {
        let mut map = KeptMap::default();
        for distance in [0, KeptMap::BITS, KeptMap::BITS + 1, u32::MAX] {
            map.set(distance);
        }
        assert_eq!((map.count(), map.newest()), (1, KeptMap::BITS));
        let mut buf = [0; KeptMap::MAX_LEN];
        assert_eq!(map.emit(&mut buf), KeptMap::MAX_LEN);
        assert_eq!(KeptMap::parse(&buf), map);
        assert_eq!(KeptMap::parse(&[buf, buf].concat()), map);
    }
}
