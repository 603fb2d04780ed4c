//! Bounds what connections hold while their messages wait for a receive.
//!
//! A connection holds up to a buffer, for a second or as long as the settings say. All connections
//! together hold at most [`MAX_HELD_BYTES`]. Beyond that, the peer with most such connections is
//! found, and its oldest waits no longer. The stream of that connection ends for want of a receive.

use vernic_proto::{Shares, Source};
use vernic_wire::Gid;

use super::{BUFFER_BYTES, Conn};

/// Bytes that may wait in all connections of a device: 128 buffers, which is 64 MiB; less in tests.
pub(super) const MAX_HELD_BYTES: usize =
    if cfg!(test) { BUFFER_BYTES / 4 } else { 128 * BUFFER_BYTES };

/// The bytes that one connection holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    source: Source,
    age: u64,
    bytes: usize,
}

/// The bytes that all connections hold, by source.
#[derive(Debug, Default)]
pub(super) struct Holding {
    shares: Shares<u32>,
    bytes: usize,
    next_age: u64,
}

impl Holding {
    /// Updates the record of what a connection holds.
    pub(super) fn update(&mut self, key: u32, conn: &mut Conn) {
        let before = conn.holds;
        self.forget(conn);
        let bytes = if conn.held && !conn.is_impatient { conn.rest.len() } else { 0 };
        if bytes == 0 {
            return;
        }
        // If the peer's address can no longer be read, its bytes are not worth waiting for either.
        let source = match (before, conn.connection.peer_addr()) {
            (Some(before), _) => before.source,
            (None, Ok(peer)) => Source::of(Gid::from_ip(peer.ip())),
            (None, Err(_)) => return conn.is_impatient = true,
        };
        self.next_age += u64::from(before.is_none());
        let age = before.map_or(self.next_age, |before| before.age);
        self.shares.add(source, age, key);
        self.bytes += bytes;
        conn.holds = Some(Held { source, age, bytes });
    }

    /// Removes a connection from the record.
    pub(super) fn forget(&mut self, conn: &mut Conn) {
        if let Some(Held { source, age, bytes }) = conn.holds.take() {
            self.shares.remove(source, age);
            self.bytes -= bytes;
        }
    }

    /// Returns the connection that must stop waiting, if too many bytes wait.
    pub(super) fn victim(&self) -> Option<u32> {
        self.shares.largest().filter(|_| self.bytes > MAX_HELD_BYTES)
    }
}
