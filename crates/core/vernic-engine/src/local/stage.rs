//! Packets of one turn on their way into a ring.
//!
//! A packet is stored in pieces of some bytes, and copied in bigger ones a moment later. A
//! processor has such a load wait for all stores before it; stores to a ring wait for cache lines
//! that the reader had last, each for as long as a message takes. So nothing is loaded between
//! stores to a ring: packets are built here, in private memory, and go to the ring together.

use vernic_io::TxPath;
use vernic_io::batch::MAX_TRANSPORT_BYTES;
use vernic_io::neighbour::{RingWriter, record_bytes};

/// Bytes of packets after which they go to the ring: a list of small messages, or one large packet,
/// which is copied while it is in the first-level cache.
const FLUSH_BYTES: usize = 2048;
/// Packets begin at multiples of this.
const ALIGN: usize = 16;
/// So many bytes of the largest packet that it ends at one.
const ROOM_BYTES: usize = MAX_TRANSPORT_BYTES.next_multiple_of(ALIGN);
/// Most packets: each takes [`ALIGN`] bytes at least.
const MAX_PACKETS: usize = FLUSH_BYTES / ALIGN + 1;

/// See the module's head.
pub(super) struct Stage {
    bytes: Box<[u8; FLUSH_BYTES + ROOM_BYTES]>,
    used: usize,
    /// Length, and whether it is a run.
    packets: Vec<(TxPath, usize, bool)>,
    /// Bytes that they take in the ring.
    record_bytes: usize,
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stage({} packets)", self.packets.len())
    }
}

impl Stage {
    pub(super) fn new() -> Self {
        let packets = Vec::with_capacity(MAX_PACKETS);
        Self { bytes: Box::new([0; _]), used: 0, packets, record_bytes: 0 }
    }

    /// Bytes of the ring that its packets take.
    #[inline]
    pub(super) const fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Space for one more packet, of any size.
    #[inline]
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.used..]
    }

    /// The packet in that space is sent; true if it is time to [`flush`](Self::flush), before there
    /// is room again.
    #[inline]
    pub(super) fn push(&mut self, path: &TxPath, len: usize, is_run: bool) -> bool {
        self.packets.push((*path, len, is_run));
        self.record_bytes += record_bytes(len);
        self.used += len.next_multiple_of(ALIGN);
        self.used > FLUSH_BYTES
    }

    /// Writes all packets to the ring, where there is room for them; without one they are gone.
    #[inline]
    pub(super) fn flush(&mut self, writer: Option<&mut RingWriter>) {
        if let Some(writer) = writer {
            if self.packets.len() > 1 {
                writer.prefetch(self.record_bytes);
            }
            let mut at = 0;
            for (path, len, is_run) in &self.packets {
                writer.push(path, &self.bytes[at..at + len], *is_run);
                at += len.next_multiple_of(ALIGN);
            }
        }
        self.packets.clear();
        (self.used, self.record_bytes) = (0, 0);
    }
}
