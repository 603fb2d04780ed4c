//! The state of the CRC between bytes, and what single bytes add to it.
//!
//! A CRC is linear: exclusive-or of the data is exclusive-or of the states. So a byte's share in a
//! later state does not depend on the other bytes, only on how many follow it, and can be looked
//! up.

use crc32fast::Hasher;

use super::algebra::{POLY, divide_by_x};

/// State of the CRC: its register, not inverted.
#[derive(Clone, Copy, Debug)]
pub(super) struct State(u32);

impl State {
    /// Before the first byte.
    pub(super) const START: Self = Self(!0);

    /// After `bytes`.
    #[inline]
    pub(super) fn update(self, bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new_with_initial(!self.0);
        hasher.update(bytes);
        Self(!hasher.finalize())
    }
    /// With the share of some byte added.
    #[inline]
    pub(super) const fn add(self, share: u32) -> Self {
        Self(self.0 ^ share)
    }
    /// The CRC after `transport` (BTH to pad) as if BTH byte 4 were all ones.
    #[inline]
    pub(super) fn finish(self, transport: &[u8]) -> u32 {
        let mask = transport.get(4).map_or(0, |byte| MASKS[usize::from(!byte)]);
        !self.add(mask).update(transport).0
    }
}

/// What the bytes of one 16-bit field add to the state where the transport begins.
pub(super) struct FieldRows {
    high: [u32; 256],
    low: [u32; 256],
}

impl FieldRows {
    /// The field whose first byte has `distance` bytes from itself to the transport, itself
    /// counted.
    pub(super) const fn at(distance: usize) -> Self {
        Self { high: row(distance), low: row(distance - 1) }
    }
    /// The share of the field with this value, which is big-endian in the packet.
    #[inline]
    pub(super) fn of(&self, value: u16) -> u32 {
        let [high, low] = value.to_be_bytes();
        self.high[usize::from(high)] ^ self.low[usize::from(low)]
    }
}

/// The state, from 0, after a byte and `distance - 1` zero bytes, for every byte.
const fn row(distance: usize) -> [u32; 256] {
    let mut row = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut state = byte as u32;
        let mut bit = 0;
        while bit < 8 * distance {
            state = state >> 1 ^ POLY & (state & 1).wrapping_neg();
            bit += 1;
        }
        row[byte] = state;
        byte += 1;
    }
    row
}

/// What to add to the state before a packet so that it counts as if its byte 4 had been changed by
/// this much: the change, taken back over the 4 bytes before it.
static MASKS: [u32; 256] = {
    let mut row = [0; 256];
    let mut change = 0;
    while change < 256 {
        let mut state = change as u32;
        let mut bit = 0;
        while bit < 32 {
            state = divide_by_x(state);
            bit += 1;
        }
        row[change] = state;
        change += 1;
    }
    row
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_bytes_add_up_to_the_state_of_all() {
        let at_once = State::START.update(&[0xAA, 0x12, 0x34, 0, 0]);
        let added = State::START.update(&[0xAA, 0, 0, 0, 0]).add(FieldRows::at(4).of(0x1234));
        assert_eq!(at_once.0, added.0);
    }

    #[test]
    fn byte_four_counts_as_ones_whatever_it_is() {
        let ones = !State::START.update(&[1, 2, 3, 4, 0xFF, 6, 7]).0;
        for byte in 0..=255 {
            assert_eq!(State::START.finish(&[1, 2, 3, 4, byte, 6, 7]), ones);
        }
    }
}
