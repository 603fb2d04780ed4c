//! Variant CRC (VCRC): the last 2 bytes of every packet on an InfiniBand link (IBTA 7.8.2), and of
//! every flow-control packet (IBTA 7.9.4).
//!
//! Owns the computation, and the short way to it when a hop has changed nothing but the virtual
//! lane. Called by both ends of a link, per packet. No allocation, no state but [`Vcrc`]. Calls
//! `crc-fast` for all but short packets: it multiplies without carries, and takes 127 ns where the
//! tables take 5 us for 4 KiB.
//!
//! The CRC has 16 bits and the polynomial 0x100B. As in the ICRC, the low bit of a byte comes
//! first, start and end are inverted, and the low byte of the result is stored first. It covers
//! every byte before it as it is on the wire, so each hop makes it anew.
//!
//! ```text
//!  byte   0..7   8..                                    4 * PktLen     4 * PktLen + 1
//!       +------+--------------------------------------+----------------------------+
//!       | LRH  | GRH, BTH to pad and ICRC; or raw     | VCRC                       |
//!       +------+--------------------------------------+----------------------------+
//!       |<----------------- covered ----------------->|
//! ```

use core::fmt;

use crc_fast::{CrcAlgorithm, CrcKeysStorage, CrcParams};

/// Bytes of a VCRC.
pub const LEN: usize = 2;

/// The polynomial 0x100B with its bits in reverse order: the bit of the highest power is the
/// lowest.
const POLY: u16 = 0xD008;
/// Bytes from which on `crc-fast` is faster than the tables.
const LONG: usize = 64;
/// How many bytes one round of the computation by tables takes.
const STRIDE: usize = 16;
/// How many lengths the length field of a packet can tell apart.
const LENGTHS: usize = 1 << 11;

/// The polynomial for `crc-fast`. The keys are what its `CrcParams::new` computes, which needs more
/// than a constant can: powers of x modulo the polynomial, by which it folds.
static PARAMETERS: CrcParams = CrcParams {
    algorithm: CrcAlgorithm::CrcCustom,
    name: "VCRC",
    width: 16,
    poly: 0x100B,
    init: 0xFFFF,
    init_algorithm: 0xFFFF,
    refin: true,
    refout: true,
    // The state is inverted here, and not there.
    xorout: 0,
    check: 0,
    keys: CrcKeysStorage::KeysFold256([
        0,
        0x1_E9DE,
        0x1_F9EA,
        0x1_6C36,
        0x1_D730,
        0x1_E9DE,
        0x1_5864,
        0x1_B4B0_B111,
        0x1_A011,
        0x1_7D14,
        0xF9E8,
        0x52EC,
        0x2922,
        0x1_8B5E,
        0x1_A70A,
        0x64B0,
        0x09C2,
        0x1_F366,
        0x1_ED08,
        0x1_B7DC,
        0xA008,
        0x1_210A,
        0x846C,
    ]),
};

/// The state after one more bit, which is 0.
const fn shift(state: u16) -> u16 {
    state >> 1 ^ POLY & (state & 1).wrapping_neg()
}

/// What a byte adds to the state when so many bytes come behind it in the same round.
static ROWS: [[u16; 256]; STRIDE] = {
    let mut rows = [[0; 256]; STRIDE];
    let mut byte = 0;
    while byte < 256 {
        let mut state = byte as u16;
        let mut row = 0;
        while row < STRIDE {
            let mut bit = 0;
            while bit < 8 {
                state = shift(state);
                bit += 1;
            }
            rows[row][byte] = state;
            row += 1;
        }
        byte += 1;
    }
    rows
};

/// What the highest bit of the first byte adds to the state at the end of a packet, by the packet's
/// length in units of 4 bytes.
static FIRST_BYTE: [u16; LENGTHS] = {
    let mut shares = [0; LENGTHS];
    let mut state = 0x80;
    let mut length = 1;
    while length < LENGTHS {
        let mut bit = 0;
        while bit < 32 {
            state = shift(state);
            bit += 1;
        }
        shares[length] = state;
        length += 1;
    }
    shares
};

/// The state of a VCRC between bytes.
///
/// A value, not a machine: it can be kept, copied, and taken up again where the bytes go on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Vcrc(u16);

impl Vcrc {
    /// Before the first byte.
    pub const START: Self = Self(!0);

    /// Returns the VCRC of `bytes`, as it goes on the wire.
    #[inline]
    pub fn of(bytes: &[u8]) -> [u8; LEN] {
        Self::START.update(bytes).finish()
    }
    /// Returns the state after `bytes` too.
    #[must_use]
    pub fn update(self, bytes: &[u8]) -> Self {
        if bytes.len() < LONG {
            return self.update_short(bytes);
        }
        let parameters = CrcParams { init_algorithm: u64::from(self.0), ..PARAMETERS };
        Self(crc_fast::checksum_with_params(parameters, bytes) as u16)
    }
    fn update_short(self, mut bytes: &[u8]) -> Self {
        let mut state = self.0;
        while let Some((round, rest)) = bytes.split_first_chunk::<STRIDE>() {
            let [low, high] = state.to_le_bytes();
            state = ROWS[STRIDE - 1][usize::from(round[0] ^ low)]
                ^ ROWS[STRIDE - 2][usize::from(round[1] ^ high)];
            for (at, byte) in round.iter().enumerate().skip(2) {
                state ^= ROWS[STRIDE - 1 - at][usize::from(*byte)];
            }
            bytes = rest;
        }
        for byte in bytes {
            state = state >> 8 ^ ROWS[0][usize::from(state as u8 ^ byte)];
        }
        Self(state)
    }
    /// Returns the bytes of the VCRC field.
    #[inline]
    pub const fn finish(self) -> [u8; LEN] {
        (!self.0).to_le_bytes()
    }
}

impl Default for Vcrc {
    fn default() -> Self {
        Self::START
    }
}

impl fmt::Debug for Vcrc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vcrc({:#06x})", !self.0)
    }
}

/// Writes the VCRC of what is before them into the last 2 bytes of `packet`.
///
/// # Panics
/// If `packet` is shorter than 2 bytes: the caller's mistake.
#[inline]
pub fn stamp(packet: &mut [u8]) {
    let (covered, field) = packet.split_at_mut(packet.len() - LEN);
    field.copy_from_slice(&Vcrc::of(covered));
}

/// Returns whether the last 2 bytes of `packet` are the VCRC of what is before them.
#[inline]
pub fn check(packet: &[u8]) -> bool {
    packet.split_last_chunk().is_some_and(|(covered, field)| Vcrc::of(covered) == *field)
}

/// Returns the VCRC after the bits `change` of the first byte of a packet were inverted, given the
/// one before. `words` is the packet's length without the VCRC in units of 4 bytes, at most 2,047;
/// `None` beyond.
///
/// A CRC is linear, so the difference does not depend on what is in the packet. A packet that was
/// damaged before the change is as damaged after it, which computing the VCRC anew would hide.
pub(crate) fn after_change_of_first_byte(
    vcrc: [u8; LEN],
    change: u8,
    words: usize,
) -> Option<[u8; LEN]> {
    let share = *FIRST_BYTE.get(words)?;
    // The lowest bit comes first on the wire, and so is of the highest power.
    let difference = (0..8).fold(0, |difference, bit| {
        shift(difference) ^ share & u16::from(change >> bit & 1).wrapping_neg()
    });
    Some((u16::from_le_bytes(vcrc) ^ difference).to_le_bytes())
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    /// The definition: bit by bit.
    fn reference(bytes: &[u8]) -> [u8; LEN] {
        let mut state = !0_u16;
        for byte in bytes {
            for bit in 0..8 {
                let feedback = (state ^ u16::from(byte >> bit)) & 1 != 0;
                state = state >> 1 ^ if feedback { 0xD008 } else { 0 };
            }
        }
        (!state).to_le_bytes()
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 37 + at / 7) as u8).collect()
    }

    #[test]
    fn the_example_packet_of_the_infiniband_specification_has_its_vcrc() {
        // IBTA 7.8, table 29: a local RDMA WRITE ONLY of 14 bytes with its ICRC. The VCRC is what
        // the packet generator of a vendor's driver computes with its table of 256 entries, whose
        // entry 1 is 0x1BA1.
        const PACKET: [u8; 58] = [
            0x70, 0x12, 0x37, 0x5C, 0x00, 0x0E, 0x17, 0xD2, 0x0A, 0x20, 0x24, 0x87, 0x00, 0x87,
            0xB1, 0xB3, 0x00, 0x0D, 0xEC, 0x2A, 0x01, 0x71, 0x0A, 0x1C, 0x01, 0x5D, 0x40, 0x02,
            0x38, 0xF2, 0x7A, 0x05, 0x00, 0x00, 0x00, 0x0E, 0xBB, 0x88, 0x4D, 0x85, 0xFD, 0x5C,
            0xFB, 0xA4, 0x72, 0x8B, 0xC0, 0x69, 0x0E, 0xD4, 0x00, 0x00, 0x96, 0x25, 0xB7, 0x5A,
            0x45, 0xFA,
        ];
        assert_eq!((ROWS[0][1], ROWS[0][0x80]), (0x1BA1, 0xD008));
        assert!(check(&PACKET));
    }

    #[test]
    fn every_length_has_the_vcrc_of_the_definition() {
        for len in (0..100).chain([1024, 4222]) {
            let bytes = bytes(len);
            assert_eq!(Vcrc::of(&bytes), reference(&bytes), "{len}");
        }
    }

    #[test]
    fn both_ways_agree() {
        for len in (LONG..LONG + 300).chain([1024, 4222]) {
            let bytes = bytes(len);
            for state in [Vcrc::START, Vcrc(0), Vcrc(0x1234)] {
                assert_eq!(state.update(&bytes), state.update_short(&bytes), "{len} {state:?}");
            }
        }
    }

    #[test]
    fn bytes_in_pieces_have_the_vcrc_of_the_whole() {
        let bytes = bytes(200);
        for at in 0..=200 {
            let (head, tail) = bytes.split_at(at);
            assert_eq!(Vcrc::START.update(head).update(tail).finish(), Vcrc::of(&bytes), "{at}");
        }
    }

    #[test]
    fn every_burst_of_up_to_16_bits_is_found() {
        let mut packet = bytes(26);
        stamp(&mut packet);
        assert!(check(&packet));
        let bits = packet.len() * 8;
        let step = if cfg!(miri) { 4097 } else { 17 };
        for first in 0..bits {
            // A burst begins and ends with a wrong bit; those between are any.
            let all = first == 0 && !cfg!(miri);
            for burst in (1..1_u32 << 16).step_by(if all { 2 } else { step * 2 }) {
                if first + 32 - burst.leading_zeros() as usize > bits {
                    break;
                }
                let flip = |packet: &mut [u8]| {
                    for bit in (0..16).filter(|bit| burst >> bit & 1 != 0) {
                        packet[(first + bit) / 8] ^= 1 << ((first + bit) % 8);
                    }
                };
                flip(&mut packet);
                assert!(!check(&packet), "bit {first}, burst {burst:#x}");
                flip(&mut packet);
            }
        }
    }

    #[test]
    fn any_two_wrong_bits_are_found() {
        let mut packet = bytes(26);
        stamp(&mut packet);
        let step = if cfg!(miri) { 19 } else { 1 };
        for first in (0..packet.len() * 8).step_by(step) {
            packet[first / 8] ^= 1 << (first % 8);
            for second in (0..first).step_by(step) {
                packet[second / 8] ^= 1 << (second % 8);
                assert!(!check(&packet), "bits {first} and {second}");
                packet[second / 8] ^= 1 << (second % 8);
            }
            packet[first / 8] ^= 1 << (first % 8);
        }
    }

    #[test]
    fn a_change_of_the_first_byte_leads_to_the_vcrc_of_the_changed_packet() {
        // Miri takes half a minute for the long ones.
        let longest = if cfg!(miri) { 72 } else { 2047 };
        for words in [1, 2, 6, 72, 1055, 2047].into_iter().filter(|&words| words <= longest) {
            let mut packet = bytes(words * 4);
            let before = Vcrc::of(&packet);
            for change in [0x10, 0x20, 0x80, 0xF0, 0x01, 0xFF, 0] {
                packet[0] ^= change;
                let after = after_change_of_first_byte(before, change, words);
                assert_eq!(after, Some(Vcrc::of(&packet)), "{words} {change:#x}");
                packet[0] ^= change;
            }
        }
        assert_eq!(after_change_of_first_byte([0; 2], 1, 2048), None);
    }

    #[test]
    fn a_byte_alone_has_no_vcrc() {
        assert!(!check(&[]));
        assert!(!check(&[0]));
        assert!(check(&Vcrc::of(&[])));
    }
}
