//! Progress: which thread runs the lane, and when.

pub(crate) mod background;
pub(crate) mod engine;
mod neighbours;
mod peers;
