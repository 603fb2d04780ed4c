//! TCP connections, which carry iWARP.
//!
//! Owns the sockets, and knows nothing of the bytes that go over them. Called by the engine, under
//! its lane; nothing here waits. A child of `fork` keeps none of the descriptors (`vernic-sys`).
//!
//! ```text
//!   Bound --listen--> Listener --accept--> Connection   one per peer: recv, send, shutdown, reset
//!     |                                      ^   |
//!     +---------------connect----------------+   |
//!   Readiness <-----------watch------------------+      one descriptor to sleep on for all of them
//! ```
//!
//! | file | what |
//! |---|---|
//! | `bound.rs` | sockets with an address of this machine, and those that take connections |
//! | `connection.rs` | a connection: bytes, and whether the peer is there |
//! | `readiness.rs` | which of many sockets can be received from or sent to |

use vernic_sys as sys;

mod bound;
mod connection;
mod readiness;

pub use bound::{Bound, Listener};
pub use connection::{Connecting, Connection, MAX_PIECES, Received, Sent, Vitals};
pub use readiness::{Interest, Readiness, Ready};

/// Returns how many descriptors this process may have open: the soft limit, as `ulimit -n` shows
/// it. The limit is not raised: a program that waits with select(2) breaks over descriptors from
/// 1024 on.
pub fn descriptor_limit() -> u64 {
    sys::descriptor_limit()
}

#[cfg(test)]
mod tests;
