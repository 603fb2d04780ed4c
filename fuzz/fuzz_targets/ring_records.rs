//! The memory of a ring, which the process at its other end may write to as it likes: what is read
//! out of it is a packet, a message, or the end of the ring.
//!
//! Input: steps of two bytes and their data. `vernic_local` says what they are
//! (`ring/scribbles.rs`).
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|steps: &[u8]| vernic_local::fuzzing::ring_records(steps));
