//! Basics that all other modules use: locks, queues with a descriptor, threads, the timer wheel.

pub(crate) mod events;
pub(crate) mod packets;
pub(crate) mod threads;
pub(crate) mod wheel;
