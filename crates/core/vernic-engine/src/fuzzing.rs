//! Parsers of what other processes of the host send, for the fuzz targets.
//!
//! Exists in builds with `--cfg fuzzing` only, which `cargo fuzz` sets; no part of the API.

use crate::local::messages::Told;

/// What neighbours tell each other about tickets: what was understood, put into bytes again.
pub fn ticket_message(bytes: &[u8]) -> Option<Vec<u8>> {
    Told::parse(bytes).map(|told| told.emit())
}
