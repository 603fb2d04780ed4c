//! Sockets over RDMA: rsockets, so that programs written for TCP and UDP run over RDMA.
//!
//! Owns the protocol (what travels, the machine of a stream) and the sockets over it: listening and
//! connecting by IP address, bytes through registered rings, datagrams, `poll` and `epoll`. Called
//! by `librdmacm.so.1` and by `vernic::net`; calls `vernic-cm` for connections and `vernic-engine`
//! for queue pairs. Wire-compatible with rdma-core's rsockets.
//!
//! Start with [`Runtime::new`] and [`Runtime::socket`].
//!
//! | module | what |
//! |---|---|
//! | [`wire`] | the bytes |
//! | [`stream`] | the machine of a stream: no memory, queue pair, clock or thread |
//! | `connection` | a connected stream: the machine, its rings, its queue pair |
//! | `stream_socket` `listener` | from nothing to a connection |
//! | `datagram` | datagrams |
//! | `socket` `options` `readiness` `poll` `epoll` `watch` `table` | what users call |
//! | `shared` `service` `wake` `patience` | what the sockets of a process share; the thread behind them; who sleeps, and when |
//! | `memory` `sys` | `unsafe`: registering memory, descriptors that are only numbers |
//!
//! Limits: those of [`stream::Limits`] per connection, some 300 KiB of address space with the
//! defaults, of which pages are touched as data comes; two descriptors per connection.
#![deny(unsafe_code)]

mod connection;
mod datagram;
mod epoll;
mod error;
mod family;
mod listener;
mod memory;
mod options;
mod patience;
mod pieces;
mod poll;
mod readiness;
mod service;
mod settings;
mod shared;
mod socket;
pub mod stream;
mod stream_socket;
mod sys;
mod table;
mod wake;
mod watch;
pub mod wire;

pub use epoll::{Epoll, EpollReport, EpollTarget};
pub use error::{Error, Failure};
pub use family::Family;
pub use options::{
    RDMA_DROPPED, RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, RDMA_UNREAD,
    RDMA_UNSENT, SOL_RDMA,
};
pub use poll::{PollItem, Polled, poll};
pub use readiness::Readiness;
pub use settings::Settings;
pub use shared::Runtime;
pub use socket::{MsgFlags, Received, Socket, SocketKind};
pub use stream::Shutdown;
pub use table::{Numbered, Table};
pub use watch::Watch;
