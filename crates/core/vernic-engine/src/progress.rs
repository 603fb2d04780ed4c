//! Progress: which thread holds the lane and moves packets, and when.

pub(crate) mod background;
pub(crate) mod engine;
mod local_peers;
mod peers;
