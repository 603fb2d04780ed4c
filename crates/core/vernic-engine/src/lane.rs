//! The lane: receiving, sending, timers, acknowledgements, and QP1.

pub(crate) mod consent;
mod control;
pub(crate) mod core;
mod groups;
pub(crate) mod gsi;
pub(crate) mod neighbours;
pub(crate) mod packets;
mod plan;
pub(crate) mod protocol;
pub(crate) mod rx;
pub(crate) mod silence;
mod sinks;
pub(crate) mod streams;
mod turn;
pub(crate) mod tx;
pub(crate) mod udp_backpressure;
pub(crate) mod watch;
