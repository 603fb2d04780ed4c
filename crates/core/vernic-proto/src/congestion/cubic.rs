//! The cubic function of time by which a window grows (RFC 9438): fast until it is near the size
//! at which something was lost, slow there, and fast again beyond.
//!
//! ```text
//!  size |                                    .
//!       |                                   .
//!  peak | - - - - - - . . . . . - - - - - .
//!       |         .                 ^
//!       |      .                    knee
//!       |    .
//!       +---+------------------------------------> time
//!         begun
//! ```
//! In whole milliseconds and packets, so that every machine computes the same.

use crate::time::Time;

/// One over the constant C of RFC 9438, 0.4 packets per second cubed: in milliseconds cubed per
/// packet.
const INVERSE_C: u64 = 2_500_000_000;
/// The farthest from the knee that is computed with, in milliseconds: more than any window needs.
const FARTHEST: i64 = 100_000;

/// The curve since the last loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cubic {
    begun: Time,
    /// The size in packets at which something was lost.
    peak: u32,
    /// Milliseconds from the beginning to the peak.
    knee: u32,
}

impl Cubic {
    /// The curve that begins at `size` packets, below or at a `peak`.
    pub(super) fn from(size: u32, peak: u32, now: Time) -> Self {
        let missing = u64::from(peak.saturating_sub(size));
        Self { begun: now, peak, knee: cube_root(missing * INVERSE_C) }
    }

    /// Returns the size at a time.
    pub(super) fn at(&self, now: Time) -> u32 {
        let elapsed = (now.since(self.begun) / 1_000_000).min(FARTHEST as u64) as i64;
        let from_knee = (elapsed - i64::from(self.knee)).clamp(-FARTHEST, FARTHEST);
        let gained = from_knee.pow(3) / INVERSE_C as i64;
        (i64::from(self.peak) + gained).clamp(1, u32::MAX.into()) as u32
    }
}

/// Returns the largest whole number whose cube is at most `cube`.
const fn cube_root(cube: u64) -> u32 {
    let (mut root, mut bit) = (0u64, 1u64 << 20);
    while bit != 0 {
        let tried = root | bit;
        // 2^63 at most: the bits of `tried` are below the 21st.
        if tried * tried * tried <= cube {
            root = tried;
        }
        bit >>= 1;
    }
    root as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn roots_are_whole() {
        for (cube, root) in [(0, 0), (1, 1), (7, 1), (8, 2), (26, 2), (27, 3), (u64::MAX, 2097151)]
        {
            assert_eq!(cube_root(cube), root, "{cube}");
        }
    }

    #[test]
    fn the_curve_is_that_of_the_rfc() {
        // K = cbrt(300 / 0.4) = 9.086 s.
        let curve = Cubic::from(700, 1000, Time(SECOND));
        assert_eq!(curve.knee, 9085);
        let at = |seconds: u64| curve.at(Time((1 + seconds) * SECOND));
        assert_eq!((at(0), at(3), at(9), at(19)), (701, 910, 1000, 1389));
        assert!(curve.at(Time(1_000_000 * SECOND)) > 100_000);
    }

    #[test]
    fn a_curve_from_its_peak_begins_flat() {
        let curve = Cubic::from(100, 100, Time(0));
        assert_eq!([0, 1, 2, 10].map(|s| curve.at(Time(s * SECOND))), [100, 100, 103, 500]);
        assert_eq!(Cubic::from(200, 100, Time(0)).at(Time(0)), 100);
    }
}
