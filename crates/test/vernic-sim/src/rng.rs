//! The only source of chance: xoshiro256** (Blackman and Vigna, 2018), seeded by SplitMix64.
//!
//! Owns nothing but its four words. Everything random in a run is drawn from generators that
//! descend from the seed through [`Rng::fork`], so a run depends on its seed and on nothing else.
//! Not for cryptography.

/// A small, fast, reproducible generator. Period 2^256 - 1.
#[derive(Clone, Debug)]
pub(crate) struct Rng([u64; 4]);

/// One step of SplitMix64: a bijection of 64-bit words that mixes well.
pub(crate) const fn mix(word: u64) -> u64 {
    let z = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Rng {
    /// A generator for `seed`; any value is good.
    pub(crate) const fn new(seed: u64) -> Self {
        let a = mix(seed);
        let b = mix(a);
        let c = mix(b);
        Self([a, b, c, mix(c)])
    }

    /// An independent generator: drawing from one does not move the other.
    #[must_use]
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.word())
    }

    /// 64 random bits.
    pub(crate) fn word(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// 0 to `n - 1`; 0 if `n` is 0. The bias is below `n / 2^64`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(n)) >> 64) as u64
    }

    /// `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// Whether an event of probability `ppm` / 1,000,000 happens. Draws even when it cannot.
    pub(crate) fn ppm(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }

    /// Whether an event of probability `percent` / 100 happens.
    pub(crate) fn percent(&mut self, percent: u32) -> bool {
        self.below(100) < u64::from(percent)
    }

    /// A number from 0 to below 1, one of 2^53.
    pub(crate) fn unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.word() >> 11) as f64 * STEP
    }

    /// One of `items`, which must not be empty.
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_words() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert!((0..100).all(|_| a.word() == b.word()));
        assert_ne!(Rng::new(7).word(), Rng::new(8).word());
    }

    #[test]
    fn ranges_reach_both_ends_and_no_further() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[rng.range(3, 7) as usize - 3] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(rng.below(0), 0);
    }
}
