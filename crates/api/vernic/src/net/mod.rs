//! Connections whose operations are awaited (feature `tokio`): one `await` each.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), vernic::Error> {
//! use vernic::Access;
//! use vernic::net::{Connection, Listener};
//!
//! let mut listener = Listener::bind("127.0.0.1:0").await?;
//! let place = listener.local_addr();
//! let (server, client) = tokio::join!(listener.accept(), Connection::connect(place));
//! let (server, client) = (server?, client?);
//!
//! let counter = server.alloc_mr(8, Access::NONE.remote_atomic())?;
//! let at = counter.remote().at(0); // a message would take it to another process
//! assert_eq!(client.fetch_add(at, 41).await?, 0);
//! let (one, two) = tokio::join!(client.fetch_add(at, 1), client.fetch_add(at, 1));
//! assert_eq!((one?, two?), (41, 42));
//! client.disconnect().await?;
//! # Ok(()) }
//! ```
//!
//! # Operations
//!
//! Nothing happens before an operation is first polled. Then its request is posted and, if it is
//! not complete soon ([`Options::spin`]), the task sleeps. As many operations as [`Options::depth`]
//! says may be under way at once in each direction, and more wait in line: that is the
//! back-pressure. An error says which operation, which peer and why ([`OperationError`]).
//!
//! An operation whose future is dropped before it is complete goes on, and its completion is
//! discarded. Nobody can take back what is posted. The region that it uses stays registered until
//! then, also if the [`Mr`](crate::Mr) is dropped. Its bytes may be read or written until then, so
//! a program that uses the region for something else looks at what it finds there. A receive that
//! is dropped takes the next message with it.
//!
//! # Who may do what
//!
//! A peer may READ, WRITE and change atomically what regions grant it whose key it knows, and a
//! region grants nothing by default. [`Options`] narrow that.
//!
//! # Peers
//!
//! The peer may be any program that uses `rdma_cm`. One that ends the connection, or ends in an
//! orderly way, says so: operations that wait fail with [`OperationFailure::Disconnected`]. One
//! that is killed, or whose network is gone, says nothing. Whoever sends something learns of it by
//! the repetitions of the queue pair; whoever only receives learns of it with
//! [`Options::keep_alive`].
//!
//! # Names
//!
//! Everything here that waits is awaited, so names are plain. A type whose calls block has, of each
//! of them, a form with `_async` behind its name ([`cm`]).

mod connection;
mod ending;
mod in_flight;
mod listener;
mod names;
mod network;
mod operations;
mod region;
mod sockets;
mod stream;

pub use crate::error::{Operation, OperationError, OperationFailure, Peer};
pub use connection::{Connection, Unconnected};
pub use listener::Listener;
pub use network::Network;
pub use region::{Sink, Source};
pub use stream::{RdmaListener, RdmaStream};

use std::time::Duration;

use crate::{Access, cm};

/// What can be chosen for a [`Connection`]. The default suits most.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Operations that may be under way at once in each direction, 1 to 32,768; 64 if not said.
    /// Each has a place from the beginning, of some 100 bytes.
    pub depth: u32,
    /// Bytes of an [`Inline`](crate::Inline) send: 0 to 1024, 64 if not said.
    pub max_inline: u32,
    /// How long an operation looks for its completion before its task sleeps: 200 us if not said,
    /// about what a sleep adds. Other tasks run in between. While completions take longer, most
    /// operations sleep at once. Zero is for programs that must save processor time.
    pub spin: Duration,
    /// How long the connection may be idle before a sign of life is sent, which fails if the peer
    /// is gone: a WRITE of no bytes, for which the peer must grant WRITEs as the default does. None
    /// by default.
    pub keep_alive: Option<Duration>,
    /// What is agreed upon with the peer. By default as [`cm::Options`] with all remote rights, so
    /// that what the peer may do is decided by the regions.
    pub connection: cm::Options<'a>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        let remote_access = Access::NONE.remote_read().remote_write().remote_atomic();
        Self {
            depth: 64,
            max_inline: 64,
            spin: Duration::from_micros(200),
            keep_alive: None,
            connection: cm::Options { remote_access, ..cm::Options::default() },
        }
    }
}
