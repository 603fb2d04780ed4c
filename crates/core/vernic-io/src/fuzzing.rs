//! What other processes of the host send, for the fuzz targets.
//!
//! Exists in builds with `--cfg fuzzing` only, which `cargo fuzz` sets; no part of the API. Each
//! parser of messages returns what was parsed, as bytes again.

use crate::host::handoff::{HEAD_BYTES, Head};

/// Parses a question or answer about process slots.
pub fn slot_message(bytes: &[u8]) -> Option<Vec<u8>> {
    crate::host::slots::parse_and_emit(bytes)
}

/// Parses the head of packets that are handed over.
pub fn handoff_head(bytes: &[u8]) -> Option<Vec<u8>> {
    let head: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
    Head::parse(head).map(|head| head.emit().to_vec())
}
