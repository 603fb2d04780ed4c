//! The lane: receiving, sending, timers, acknowledgements, and QP1.

mod control;
pub(crate) mod core;
mod drop_log;
pub(crate) mod grant_requests;
mod groups;
pub(crate) mod gsi;
pub(crate) mod local_peers;
pub(crate) mod packets;
mod plan;
pub(crate) mod protocol;
pub(crate) mod rx;
pub(crate) mod silence;
mod sinks;
pub(crate) mod streams;
mod to_ring;
mod turn;
pub(crate) mod tx;
pub(crate) mod udp_backpressure;
mod unreliable;
pub(crate) mod watch;
