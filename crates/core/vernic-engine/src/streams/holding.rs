//! What connections hold whose message waits for a receive: up to a buffer each, for a second or as
//! long as the settings say. Of all together no more than [`MAX_HELD_BYTES`]: beyond, the oldest of
//! the peer that has most such connections waits no longer, and its stream ends for want of a
//! receive.

use vernic_proto::{Shares, Source};
use vernic_wire::Gid;

use super::{BUFFER_BYTES, Conn};

/// Bytes that wait, of all connections of a device: 128 buffers, 64 MiB; few in tests.
pub(super) const MAX_HELD_BYTES: usize =
    if cfg!(test) { BUFFER_BYTES / 4 } else { 128 * BUFFER_BYTES };

/// What a connection holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    source: Source,
    age: u64,
    bytes: usize,
}

/// What all hold.
#[derive(Debug, Default)]
pub(super) struct Holding {
    shares: Shares<u32>,
    bytes: usize,
    next_age: u64,
}

impl Holding {
    /// What a connection holds has changed.
    pub(super) fn update(&mut self, key: u32, conn: &mut Conn) {
        let before = conn.holds;
        self.forget(conn);
        let bytes = if conn.held && !conn.is_impatient { conn.rest.len() } else { 0 };
        if bytes == 0 {
            return;
        }
        // Where its peer cannot be told any more, its bytes are not worth waiting for either.
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

    /// A connection goes.
    pub(super) fn forget(&mut self, conn: &mut Conn) {
        if let Some(Held { source, age, bytes }) = conn.holds.take() {
            self.shares.remove(source, age);
            self.bytes -= bytes;
        }
    }

    /// The connection that has to wait no longer, if too much waits.
    pub(super) fn victim(&self) -> Option<u32> {
        self.shares.largest().filter(|_| self.bytes > MAX_HELD_BYTES)
    }
}
