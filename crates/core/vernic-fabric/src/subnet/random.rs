//! Numbers that are as good as random, and follow from a seed (splitmix64).

/// The state of a generator.
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }
    /// Returns how many trials come before the next that succeeds, if one in `1 / rate` does.
    pub(super) fn gap(&mut self, rate: f64) -> u64 {
        // 53 bits, and never 0.
        let uniform = ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        let gap = uniform.ln() / (-rate).ln_1p();
        // Beyond the range, the cast stops at the largest value.
        gap as u64
    }
}
