//! Processes of this host: packets and one-sided operations through memory.

pub(crate) mod consent;
pub(crate) mod direct;
pub(crate) mod near;
pub(crate) mod tickets;
pub(crate) mod watch;
