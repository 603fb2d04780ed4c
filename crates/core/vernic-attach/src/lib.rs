//! How programs attach to a fabric process: where its socket is, what they say to each other, and a
//! client of each kind.
//!
//! Owns the path of the socket, the bytes of every message, and the programs' ends of the
//! connections. The fabric process (`vernic-fabricd`) has the other ends; those of interfaces are
//! at `vernic-ipoibd`. Called by the link of the engine (data), by `libibumad` (management
//! datagrams), by `rdma_cm` (questions, interfaces) and by `vernic fabric` (control).
//!
//! | module | owns |
//! |---|---|
//! | [`path`] | names of fabrics, the folder of their sockets |
//! | `door` | a socket that programs connect to |
//! | `connection` | one connection: messages in both directions, waiting |
//! | [`hello`] | the first message, refusals |
//! | [`report`] | what a program learns of an adapter and its ports |
//! | [`packets`] | batches of packets in one message |
//! | [`data`], `data_client` | packets of a program: messages, client |
//! | [`mad`], [`user_mad`], `mad_client` | management datagrams: messages, client |
//! | [`question`], `question_client` | paths, groups and services of a host: messages, clients |
//! | [`interface`], `interface_client` | interfaces of IP over InfiniBand: messages, clients |
//! | [`control`] | requests of `vernic fabric`, as text |
//!
//! Every connection is a Unix socket that keeps message boundaries (`SOCK_SEQPACKET`). A message
//! has at most [`MAX_MESSAGE`] bytes: a kind, then a body, numbers with the low byte first.
//!
//! ```text
//!  byte   0      1..3   4..
//!       +------+------+------------------+
//!       | kind | zero | body             |
//!       +------+------+------------------+
//! ```
//!
//! Whatever comes in is checked before it is used. A message that nobody defined is `None` of its
//! `parse`; its sender is no client of this version, and the connection ends.
#![forbid(unsafe_code)]

mod bytes;
mod connection;
pub mod control;
pub mod data;
mod data_client;
mod door;
mod error;
pub mod hello;
pub mod interface;
mod interface_client;
pub mod mad;
mod mad_client;
pub mod packets;
pub mod path;
pub mod question;
mod question_client;
pub mod report;
pub mod user_mad;

pub use connection::Connection;
pub use control::ControlClient;
pub use data_client::{DataClient, DataEvent};
pub use door::Door;
pub use error::AttachError;
pub use hello::{Refusal, RefusalKind};
pub use interface::IpInterface;
pub use interface_client::{AddressQuestion, interfaces, interfaces_in};
pub use mad::{AgentId, Registration};
pub use mad_client::{MadClient, MadPort};
pub use packets::{PacketBatch, Packets};
pub use question::PathAsked;
pub use question_client::{GroupJoin, Notices, PathQuestion, ServiceClaim};
pub use report::{AdapterReport, PortReport};
pub use user_mad::UserMad;

/// Bytes of the longest message.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// Bytes before the body of a message.
pub(crate) const HEAD: usize = 4;

/// Bits of a QPN that number the queue pairs of one program. Those above are the program's slot.
pub const QPN_INDEX_BITS: u32 = 14;

/// The last slot that a program may have. Slot 0 has the QPNs of management.
pub const LAST_SLOT: u16 = (1 << (24 - QPN_INDEX_BITS)) - 2;
