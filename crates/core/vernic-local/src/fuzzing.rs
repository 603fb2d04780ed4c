//! What a neighbour writes to memory that it shares, for the fuzz targets.
//!
//! Exists in builds with `--cfg fuzzing` only, which `cargo fuzz` sets; no part of the API.

/// Scribbles over a ring and reads it, as the steps say.
pub fn ring_records(steps: &[u8]) {
    crate::ring::scribbles::run(steps);
}
