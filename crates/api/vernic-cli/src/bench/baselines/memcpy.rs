//! Copies between two buffers of one process: the ceiling for anything that copies once.

use crate::bench::end::{Extent, Reading, throughput};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Copies `size` bytes again and again.
pub(crate) fn measure(size: u64, extent: Extent) -> Reading {
    let size_bytes = usize::try_from(size).unwrap_or(usize::MAX);
    let source = vec![0x5a_u8; size_bytes];
    let mut target = vec![0_u8; size_bytes];
    let (limit, count) = match extent {
        Extent::For(span) => (span, u64::MAX),
        Extent::Iterations(count) => (Duration::MAX, count),
    };
    let batch = ((1 << 20) / size.max(1)).clamp(1, 1024);
    let mut copies = 0;
    let began = Instant::now();
    loop {
        for _ in 0..batch {
            target.copy_from_slice(black_box(&source));
            black_box(&mut target);
        }
        copies += batch;
        let elapsed = began.elapsed();
        if elapsed >= limit || copies >= count {
            return throughput(size, copies, elapsed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_a_speed() {
        let reading = measure(4096, Extent::Iterations(100));
        assert!(reading.headline().is_finite() && reading.headline() > 0.0, "{reading:?}");
    }
}
