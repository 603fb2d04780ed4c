//! Local peers: processes of this host that share memory with this process, and that memory.
//!
//! | file | what |
//! |---|---|
//! | `route.rs` | the route of a queue pair's packets: by the wire or through a ring |
//! | `rings.rs` `stage.rs` | rings for packets |
//! | `messages.rs` `tickets.rs` | requests for grants to access a key, and their answers |
//! | `guest.rs` `guests.rs` | local peers: their access to our memory, and ours to theirs |
//! | `pull.rs` | SENDs: the receiver copies the payload out of the sender's memory |
//! | `control.rs` `watch.rs` | what threads share: local peers to connect to, processes to watch |

pub(crate) mod control;
pub(crate) mod guest;
pub(crate) mod guests;
pub(crate) mod messages;
pub(crate) mod pull;
pub(crate) mod rings;
pub(crate) mod route;
pub(crate) mod stage;
pub(crate) mod tickets;
pub(crate) mod watch;
