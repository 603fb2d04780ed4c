//! Processes of this host: what is known of them, and memory that is shared with them.
//!
//! | file | what |
//! |---|---|
//! | `way.rs` | which way the packets of a queue pair go |
//! | `rings.rs` `stage.rs` | rings for packets |
//! | `messages.rs` `tickets.rs` | asking for access to a key, and what was answered |
//! | `guest.rs` `guests.rs` | a neighbour that accesses our memory, and whose we access |
//! | `pull.rs` | SENDs whose bytes the receiver copies |
//! | `control.rs` `watch.rs` | what threads share: neighbours to meet, processes to look after |

pub(crate) mod control;
pub(crate) mod guest;
pub(crate) mod guests;
pub(crate) mod messages;
pub(crate) mod pull;
pub(crate) mod rings;
pub(crate) mod stage;
pub(crate) mod tickets;
pub(crate) mod watch;
pub(crate) mod way;
