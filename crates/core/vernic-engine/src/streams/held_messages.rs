//! The bound on the bytes of messages that wait for the application to post a receive.
//!
//! A message without a receive waits for a second, or as long as the settings say, and holds up to
//! a buffer of bytes. All waiting messages of a device hold at most [`MAX_HELD_BYTES`]. Beyond
//! that, the peer address with the most such connections is found, and the oldest of these
//! connections stops waiting: its stream ends with the error that there was no receive.

use vernic_proto::{Shares, Source};
use vernic_wire::Gid;

use super::{BUFFER_BYTES, Conn};

/// Bytes that the waiting messages of a device may hold: 128 buffers, which is 64 MiB; less in
/// tests.
pub(super) const MAX_HELD_BYTES: usize =
    if cfg!(test) { BUFFER_BYTES / 4 } else { 128 * BUFFER_BYTES };

/// The bytes of one connection's waiting message, with the peer's address and the order of arrival.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldMessage {
    source: Source,
    age: u64,
    bytes: usize,
}

/// The bytes that all waiting messages of a device hold, by the peer's address.
#[derive(Debug, Default)]
pub(super) struct HeldMessages {
    shares: Shares<u32>,
    bytes: usize,
    next_age: u64,
}

impl HeldMessages {
    /// Updates the record of a connection after its waiting bytes have changed.
    pub(super) fn update(&mut self, key: u32, conn: &mut Conn) {
        let before = conn.holds;
        self.forget(conn);
        let bytes = if conn.held && !conn.is_impatient { conn.rest.len() } else { 0 };
        if bytes == 0 {
            return;
        }
        // The peer's address can no longer be read, so the connection is lost and need not wait.
        let source = match (before, conn.connection.peer_addr()) {
            (Some(before), _) => before.source,
            (None, Ok(peer)) => Source::of(Gid::from_ip(peer.ip())),
            (None, Err(_)) => return conn.is_impatient = true,
        };
        self.next_age += u64::from(before.is_none());
        let age = before.map_or(self.next_age, |before| before.age);
        self.shares.add(source, age, key);
        self.bytes += bytes;
        conn.holds = Some(HeldMessage { source, age, bytes });
    }

    /// Removes a connection from the record.
    pub(super) fn forget(&mut self, conn: &mut Conn) {
        if let Some(HeldMessage { source, age, bytes }) = conn.holds.take() {
            self.shares.remove(source, age);
            self.bytes -= bytes;
        }
    }

    /// Returns the connection that must stop waiting; `None` if the bytes are within the bound.
    pub(super) fn victim(&self) -> Option<u32> {
        self.shares.largest().filter(|_| self.bytes > MAX_HELD_BYTES)
    }
}
