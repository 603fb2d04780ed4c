//! Connections by IP address, as `rdma_cm` makes them.
//!
//! A peer is named by IP address and port, as for sockets; device, GID and path follow from the
//! address, and everything that two queue pairs must know of each other is exchanged in messages of
//! InfiniBand's communication management (IBTA chapter 12). The peer may be any program that uses
//! `rdma_cm`: one of Vernic's, in Rust or C, or one on a machine with RDMA hardware.
//!
//! ```
//! use std::time::Duration;
//! use vernic::{Inline, Rc, WrId, cm};
//!
//! let manager = cm::Manager::open()?;
//! let listener = manager.listen::<Rc>("127.0.0.1:0".parse().unwrap())?;
//! let place = listener.local_addr();
//!
//! let server = std::thread::spawn(move || -> Result<(), vernic::Error> {
//!     let request = listener.next(None)?;
//!     assert_eq!(&request.private_data()[..5], b"hello");
//!     let (pd, cq) = (request.device().alloc_pd()?, request.device().create_cq(16)?);
//!     let qp = pd.qp().send_cq(&cq).recv_cq(&cq).create()?;
//!     let mut connection = request.prepare(qp)?.accept(&cm::Options::default())?;
//!     connection.wait_disconnected(None)?;
//!     Ok(())
//! });
//!
//! let route = manager.resolve::<Rc>(place)?;
//! let (pd, cq) = (route.device().alloc_pd()?, route.device().create_cq(16)?);
//! let qp = pd.qp().send_cq(&cq).recv_cq(&cq).create()?;
//! let options = cm::Options { private_data: b"hello", ..cm::Options::default() };
//! let connection = route.prepare(qp)?.connect(&options)?;
//! println!("connected to {}: {:?}", connection.peer_addr(), connection.qp());
//! connection.disconnect()?;
//! server.join().unwrap()?;
//! # Ok::<(), vernic::Error>(())
//! ```
//!
//! Each step is a type, and takes the one before: [`Route`] or [`Request`], then [`Outgoing`] or
//! [`Incoming`] with the queue pair in Init (so that receives can be posted before the peer sends),
//! then [`Connection`] with the queue pair in RTS. Dropping any of them tells the peer what is due.
//!
//! Datagram queue pairs are found by [`Manager::find`] where a [`DatagramListener`] answers.
//!
//! A connection and a listener have a descriptor each, on which they wait. With the feature `tokio`
//! each call that waits, but for [`load_alternate_path`](Connection::load_alternate_path), has a
//! form that is awaited, of the same name with `_async` behind it. Connections of which every
//! operation is awaited are in `vernic::net`.

#[cfg(feature = "tokio")]
mod asynchronous;
mod connection;
mod datagrams;
mod manager;
mod request;
mod route;
mod waiting;

pub use crate::error::cm::{CmError, RejReason};
pub use connection::Connection;
pub use datagrams::{DatagramListener, DatagramPeer, DatagramRequest};
pub use manager::{Listener, Manager};
pub use request::{Incoming, Request};
pub use route::{Outgoing, Route};
pub use vernic_cm::{Error, UDP_QKEY};

use std::net::IpAddr;
use std::time::Duration;

use crate::Access;

/// How long a peer may take to answer, if the caller does not say: what the messages themselves
/// take to be given up, with some room (15 repeats, 0.6 s apart).
const PATIENCE: Duration = Duration::from_secs(20);

/// What can be chosen for a connection. The default suits most.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Bytes for the peer's program: at most 56 to connect, 196 to accept.
    pub private_data: &'a [u8],
    /// A second path, from the first address to the second, which both queue pairs fall back on
    /// when theirs fails. Both devices must have a route for it; a peer that has none connects all
    /// the same, without. Only the connecting side's counts. See
    /// [`Connection::load_alternate_path`].
    pub alternate: Option<(IpAddr, IpAddr)>,
    /// What the peer may do with this side's memory at all: an upper bound of what regions grant.
    /// Nothing by default.
    pub remote_access: Access,
    /// READs and atomics of the peer that this side keeps for replay, 0 to 128; by default as many
    /// as the peer wants.
    pub responder_resources: Option<u8>,
    /// READs and atomics that this side has outstanding, 0 to 128; by default as many as the peer
    /// keeps.
    pub initiator_depth: Option<u8>,
    /// Repetitions after silence, 0 to 7. The connecting side's counts.
    pub retry_count: u8,
    /// Repetitions that the peer makes while this side has no receive posted, 0 to 6; 7 is for
    /// ever.
    pub rnr_retry: u8,
    /// How long to wait for the peer.
    pub timeout: Duration,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            private_data: &[],
            alternate: None,
            remote_access: Access::NONE,
            responder_resources: None,
            initiator_depth: None,
            retry_count: 7,
            rnr_retry: 7,
            timeout: PATIENCE,
        }
    }
}
