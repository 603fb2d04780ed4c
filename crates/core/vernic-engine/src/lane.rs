//! The lane: receiving, sending, timers, acknowledgements, and QP1.

pub(crate) mod consent;
mod control;
pub(crate) mod core;
mod groups;
pub(crate) mod gsi;
pub(crate) mod neighbours;
pub(crate) mod pacer;
pub(crate) mod packets;
mod plan;
pub(crate) mod protocol;
mod routes;
pub(crate) mod rx;
pub(crate) mod silence;
pub(crate) mod streams;
mod turn;
pub(crate) mod tx;
pub(crate) mod watch;
