//! The order in which communication ids are given out: all of them in turn, so that none comes back
//! soon, and in an order that only the holder of the key can tell.
//!
//! An id is half of what a forger must know of a connection. Were they counted, one connection of
//! his own would tell him those made before and after it. So the count goes through a permutation:
//! a Feistel network over as many bits as there are, whose round function is SipHash-2-4 (Aumasson
//! and Bernstein, 2012). It costs 200 ns or so, once per connection.

/// Rounds: four make a permutation that cannot be told from a random one by few samples (Luby and
/// Rackoff); twice as many, as its halves are small.
const ROUNDS: u64 = 8;

/// A permutation of the numbers of some bits.
#[derive(Clone, Copy)]
pub(super) struct Permutation {
    key: [u64; 2],
    /// Bits of the upper and of the lower half.
    halves: [u32; 2],
}

impl std::fmt::Debug for Permutation {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Permutation({} bits)", self.halves[0] + self.halves[1])
    }
}

impl Permutation {
    /// The one of this key, of `bits` bits, 2 to 32.
    pub(super) const fn new(key: u128, bits: u32) -> Self {
        Self { key: [key as u64, (key >> 64) as u64], halves: [bits / 2, bits - bits / 2] }
    }

    /// Where a number of that many bits goes.
    pub(super) fn apply(&self, number: u32) -> u32 {
        let [upper, lower] = self.halves;
        let (mut high, mut low) = (u64::from(number) >> lower, u64::from(number) & mask(lower));
        for round in 0..ROUNDS {
            if round % 2 == 0 {
                high ^= sip(self.key, round << 32 | low) & mask(upper);
            } else {
                low ^= sip(self.key, round << 32 | high) & mask(lower);
            }
        }
        (high << lower | low) as u32
    }
}

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// SipHash-2-4 of the 8 bytes of a little-endian number.
fn sip(key: [u64; 2], message: u64) -> u64 {
    let mut v = [
        key[0] ^ 0x736F_6D65_7073_6575,
        key[1] ^ 0x646F_7261_6E64_6F6D,
        key[0] ^ 0x6C79_6765_6E65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    // The message, and a block that has its length only.
    for block in [message, 8 << 56] {
        v[3] ^= block;
        (0..2).for_each(|_| sip_round(&mut v));
        v[0] ^= block;
    }
    v[2] ^= 0xFF;
    (0..4).for_each(|_| sip_round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_hash_is_that_of_its_authors() {
        let key = [0x0706_0504_0302_0100, 0x0F0E_0D0C_0B0A_0908];
        assert_eq!(sip(key, 0x0706_0504_0302_0100), 0x93F5_F579_9A93_2462);
    }

    #[test]
    fn every_number_has_one_place() {
        for bits in if cfg!(miri) { 8..=9 } else { 8..=15 } {
            let permutation = Permutation::new(u128::from(bits) << 70 | 5, bits);
            let mut seen = vec![false; 1 << bits];
            for number in 0..1 << bits {
                seen[permutation.apply(number) as usize] = true;
            }
            assert!(seen.into_iter().all(|seen| seen), "{bits} bits");
        }
    }

    #[test]
    fn one_place_tells_nothing_of_the_next() {
        let places = |key| {
            let permutation = Permutation::new(key, 22);
            (0..1000).map(move |number| permutation.apply(number))
        };
        let steps: BTreeSet<_> =
            places(7).zip(places(7).skip(1)).map(|(a, b)| b.wrapping_sub(a)).collect();
        assert!(steps.len() > 990, "{} different steps", steps.len());
        // One bit of the key, at either end, makes another order.
        for other in [6, 7 | 1 << 127] {
            assert!(places(7).zip(places(other)).filter(|(a, b)| a == b).count() < 5);
        }
    }
}
