//! The lane: receiving, sending, timers, acknowledgements, and QP1.

pub(crate) mod budget;
pub(crate) mod consent;
pub(crate) mod core;
pub(crate) mod gsi;
pub(crate) mod neighbours;
pub(crate) mod owing;
pub(crate) mod pacer;
pub(crate) mod rx;
pub(crate) mod silence;
pub(crate) mod streams;
pub(crate) mod tx;
pub(crate) mod watch;
