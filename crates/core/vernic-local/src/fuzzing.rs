//! What a neighbour writes to memory that it shares, for the fuzz targets.
//!
//! Exists in builds with `--cfg fuzzing` only, which `cargo fuzz` sets; no part of the API.

use crate::grant_message::GrantMessage;
use crate::rendezvous::RendezvousRecord;

/// Scribbles over a ring and reads it, as the steps say.
pub fn ring_records(steps: &[u8]) {
    crate::ring::scribbles::run(steps);
}

/// Parses a message about grants between local peers, and emits it again.
pub fn grant_message(bytes: &[u8]) -> Option<Vec<u8>> {
    GrantMessage::parse(bytes).map(|message| message.emit())
}

/// Parses a rendezvous record, and emits it again.
pub fn rendezvous_record(bytes: &[u8]) -> Option<Vec<u8>> {
    let record = RendezvousRecord::parse(bytes)?;
    let mut emitted = vec![0; bytes.len()];
    let len = record.emit(&mut emitted)?;
    emitted.truncate(len);
    Some(emitted)
}
