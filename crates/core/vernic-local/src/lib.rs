//! Processes of one host: how they connect, what memory they share, and how they end.
//!
//! A process of this host is one [`LocalPeer`]: the process, the rings to and from it, and the
//! grants. `vernic-engine` calls this crate: the background thread serves the [`Connections`], the
//! lane has the [`LocalPeers`].
//!
//! | file | what |
//! |---|---|
//! | `peers.rs`, `peer.rs` | all local peers of a lane, and one |
//! | `process.rs`, `process/access.rs` | a local peer's process: its connection, and access to its memory and ours |
//! | `connect.rs`, `connect/` | discovery, credentials, and what is passed in a connect |
//! | `hello.rs` | the messages of the connection as bytes |
//! | `ring.rs`, `cursor.rs`, `page.rs` | the ring, its positions (model-checked), what was received, and which process sleeps |
//! | `ring_out.rs`, `staging.rs` | a ring while a turn is written to it |
//! | `message_head.rs`, `rendezvous.rs` | parts of SENDs in a ring, and SENDs that the receiver copies |
//! | `grants.rs`, `qp_grants.rs`, `grant_message.rs` | grants as the lane keeps them, as a queue pair keeps them, and as bytes |
//! | `kernel_access.rs`, `rules.rs` | who may copy where the kernel copies, and what the user permits |
//! | `route.rs` | the route of a queue pair's packets: by the wire or through a ring |
//!
//! Memory of processes is accessed by `vernic-mem`, system calls are made by `vernic-sys`.

#![forbid(unsafe_code)]

mod connect;
mod cursor;
#[cfg(fuzzing)]
pub mod fuzzing;
mod grant_message;
mod grants;
mod hello;
mod kernel_access;
mod message_head;
mod page;
mod peer;
mod peers;
mod process;
mod qp_grants;
mod rendezvous;
mod ring;
mod ring_out;
mod route;
mod rules;
mod staging;

pub use connect::{
    ConnectFailure, Connections, Event, LocalPeerCounters, MAX_PENDING_PEERS, PATIENCE,
};
pub use grant_message::{Denial, GrantMessage, GrantOffer};
pub use grants::{GrantAnswer, Grants};
pub use hello::MAX_PAYLOAD_BYTES;
pub use message_head::{PartRecord, head_of, part_of, put_tail};
pub use page::{Receipts, SleepFlag};
pub use peer::{LocalPeer, RingSource};
pub use peers::LocalPeers;
pub use process::{LocalPeerId, MAX_LOCAL_PEERS, PeerProcess};
pub use qp_grants::{GrantState, PeerGrant, QpGrants};
pub use rendezvous::{
    BYTES_PER_POLL, LIMITS, MAX_PIECES, Rendezvous, RendezvousRecord, SenderMemory,
};
pub use ring::{
    MAX_RING_BYTES, MIN_RING_BYTES, MessageHead, PacketBuffer, Record, RingBroken, RingReader,
    RingWriter, message_bytes, record_bytes, rx_packet,
};
pub use ring_out::{RingOut, Written};
pub use route::{DatagramRoute, QpRoute, RequestRoute};
pub use rules::{AccessRules, DirectAccess, Refusal, RevocationCounts};
