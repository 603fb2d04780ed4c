//! Parsers of what other processes of the host send, for the fuzz targets.
//!
//! Exists in builds with `--cfg fuzzing` only, which `cargo fuzz` sets; no part of the API.

use crate::local::messages::GrantMessage;

/// Parses a message about grants between local peers, and emits it again.
pub fn grant_message(bytes: &[u8]) -> Option<Vec<u8>> {
    GrantMessage::parse(bytes).map(|message| message.emit())
}
