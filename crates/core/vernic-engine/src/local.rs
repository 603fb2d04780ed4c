//! Local peers: processes of this host that share memory with this process, and that memory.
//!
//! | file | what |
//! |---|---|
//! | `route.rs` | the route of a queue pair's packets: by the wire or through a ring |
//! | `rings.rs` `staging.rs` | rings for packets |
//! | `messages.rs` `grants.rs` | requests for grants to access a key, and their answers |
//! | `direct_peer.rs` `direct_peers.rs` | local peers: access to our memory, and to theirs |
//! | `kernel_access.rs` | whether a local peer may copy where the kernel copies |
//! | `rendezvous.rs` | SENDs: the receiver copies the payload out of the sender's memory |
//! | `control.rs` `watch.rs` | what threads share: local peers to connect to, processes to watch |

pub(crate) mod control;
pub(crate) mod direct_peer;
pub(crate) mod direct_peers;
pub(crate) mod grants;
pub(crate) mod kernel_access;
pub(crate) mod message_head;
pub(crate) mod messages;
pub(crate) mod rendezvous;
pub(crate) mod rings;
pub(crate) mod route;
pub(crate) mod staging;
pub(crate) mod watch;
