//! Local peers: other processes of this host, network namespace and user, and this process itself,
//! to which packets go through memory instead of UDP.
//!
//! This module owns how two engines connect, the memory and the socket connection that they share
//! from then on, and the end of the connection. The engine calls it. The module knows packets as
//! bytes with addresses, and nothing of queue pairs.
//!
//! ```text
//!      caller                                          called
//!   socket(SOCK_SEQPACKET), connect  ---------->  \0vernic/<slot>/neighbour
//!   hello   {engine, slots} + ring, page  ----->  checks the caller's user and the files
//!   checks both too  <---------- welcome {engine, slots} + ring, page
//!   ready  ------------------------------------>  may write from now on
//!            ... slots, bell, messages, bye; a hang-up: the peer is gone ...
//! ```
//!
//! - Each side passes the ring that the other is to write to (`ring.rs`), and a page that
//!   only its owner can write (`page.rs`).
//! - There is one connection per pair of engines. If both call at once, the call of the engine with
//!   the lower random number stays.
//! - The kernel names the process at the other end (`SO_PEERCRED`); a process of another user is
//!   refused. If a process ends, is killed or replaces itself by exec, its connection hangs up; a
//!   process that closes in order says so before.
//! - An engine is its own local peer, too, over a connection within the process: it needs no
//!   special case.
//!
//! # Hostile local peers
//!
//! A process of our user may do anything with the memory that it shares with us, so:
//! - Sizes of files are sealed before they are mapped, and what is read is a private copy.
//! - A local peer that breaks a rule is disconnected ([`Connections::expel`]), and one that does
//!   not answer for [`PATIENCE`] is given up.
//! - At most [`MAX_PENDING_PEERS`] connections that have not said hello yet are kept.
//! - Ringing the bell cannot block.
//! - A local peer can claim any slot: the engine believes it only if the slot's own socket named
//!   the same process.
//!
//! | file | what |
//! |---|---|
//! | `connect/connections.rs` | all local peers of a device |
//! | `connect/connecting.rs` | what is made, passed and checked in a connect |
//! | `connect/connected_peer.rs` | one connected local peer |
//! | `connect/failure.rs` | failed connects, why they failed, and when they are tried again |
//! | `connect/warning.rs` | warnings to users about failed connects |
//!
//! Limits: [`MAX_LOCAL_PEERS`](crate::MAX_LOCAL_PEERS) at a time; two rings, a page and a
//! descriptor each.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use vernic_io::host::Slot;

use crate::process::{LocalPeerId, PeerProcess};
use crate::ring::{RingReader, RingWriter};

mod connected_peer;
mod connecting;
mod connections;
mod failure;
mod warning;

pub use connections::Connections;
pub use failure::ConnectFailure;

/// Connections at a time that have not said hello yet. Beyond that the oldest is closed.
pub const MAX_PENDING_PEERS: usize = 64;

/// How long a process waits for an answer: far longer than a running process takes.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// An event of the local peers.
#[derive(Debug)]
pub enum Event {
    /// A process was connected to: the packets that it sends come out of the ring. The first event
    /// of a local peer.
    Connected {
        /// The process of the local peer.
        process: Arc<PeerProcess>,
        /// The ring that the local peer writes to.
        reader: RingReader,
    },
    /// From now on the local peer reads what is sent to it. Comes once per local peer.
    Ready {
        /// The local peer.
        from: LocalPeerId,
        /// The ring to the local peer.
        writer: RingWriter,
    },
    /// The slots that the local peer says it has now.
    Slots {
        /// The local peer.
        from: LocalPeerId,
        /// All of them.
        slots: Vec<Slot>,
    },
    /// A message that [`PeerProcess::send`] sent.
    Message {
        /// The local peer that sent the message.
        from: LocalPeerId,
        /// The bytes of the message.
        bytes: Vec<u8>,
        /// The file that came with the message.
        file: Option<OwnedFd>,
    },
    /// The local peer is gone. The memory shared with it goes once its ends of rings are dropped.
    /// The last event of a local peer.
    Gone {
        /// The local peer.
        from: LocalPeerId,
        /// Whether the local peer closed its device in order; else it was killed, or was
        /// disconnected.
        in_order: bool,
    },
}

/// Counters of the local peers since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalPeerCounters {
    /// Local peers that were connected to.
    pub met: u64,
    /// Local peers that are gone again.
    pub gone: u64,
    /// Callers that were refused or given up: of another user or version, with wrong files, silent,
    /// or too many.
    pub refused: u64,
    /// Times that this process had no descriptor left, or the system no memory. What failed was a
    /// connect, which is tried again, or receiving a file that a local peer sent.
    pub short: u64,
    /// Local peers that broke the rules and were disconnected; also counted in `gone`.
    pub expelled: u64,
    /// Times that a local peer's further messages had to wait for a millisecond.
    pub muted: u64,
}

vernic_io::sum_fields! { LocalPeerCounters: met, gone, refused, short, expelled, muted }

#[cfg(test)]
mod tests;
