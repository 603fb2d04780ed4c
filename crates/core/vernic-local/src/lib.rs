//! Processes of one host: how they connect, what memory they share, and how they end.

#![forbid(unsafe_code)]

mod connect;
mod cursor;
#[cfg(fuzzing)]
pub mod fuzzing;
mod hello;
mod page;
mod process;
mod ring;

pub use connect::{
    ConnectFailure, Connections, Event, LocalPeerCounters, MAX_PENDING_PEERS, PATIENCE,
};
pub use hello::MAX_PAYLOAD_BYTES;
pub use page::SleepFlag;
pub use process::{LocalPeerId, MAX_LOCAL_PEERS, PeerProcess};
pub use ring::{
    MAX_RING_BYTES, MIN_RING_BYTES, MessageHead, PacketBuffer, Record, RingBroken, RingReader,
    RingWriter, message_bytes, record_bytes, rx_packet,
};
