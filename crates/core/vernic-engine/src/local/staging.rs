//! A staging buffer: private memory where the packets of one turn are built before they are copied
//! to a ring.
//!
//! A packet is written in pieces of a few bytes, and copied a moment later in bigger pieces. A
//! processor delays a load that covers several recent stores until all earlier stores are done.
//! Stores to a ring wait for cache lines that the reader used last, and each such wait takes as
//! long as a whole message. So no load may follow closely on a store to a ring: all packets of a
//! turn are built here first, and copied to the ring together.

use vernic_io::TxPath;
use vernic_io::batch::MAX_TRANSPORT_BYTES;
use vernic_io::local::{RingWriter, record_bytes};

/// Bytes in the buffer above which they are copied to the ring. This is a list of small messages,
/// or one large packet, which is then still in the first-level cache.
const FLUSH_BYTES: usize = 2048;
/// Alignment of packets in the buffer, in bytes.
const ALIGN: usize = 16;
/// Bytes of space for one more packet of the largest size, rounded up to a multiple of [`ALIGN`].
const ROOM_BYTES: usize = MAX_TRANSPORT_BYTES.next_multiple_of(ALIGN);
/// Largest number of packets in the buffer: each takes at least [`ALIGN`] bytes.
const MAX_PACKETS: usize = FLUSH_BYTES / ALIGN + 1;

/// A buffer in which one turn's packets are built; see the head of this module.
pub(super) struct StagingBuffer {
    bytes: Box<[u8; FLUSH_BYTES + ROOM_BYTES]>,
    used: usize,
    /// For each packet: its path, its length, and whether it is a rendezvous record.
    packets: Vec<(TxPath, usize, bool)>,
    /// Bytes that the packets will take in the ring.
    record_bytes: usize,
}

impl std::fmt::Debug for StagingBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StagingBuffer({} packets)", self.packets.len())
    }
}

impl StagingBuffer {
    pub(super) fn new() -> Self {
        let packets = Vec::with_capacity(MAX_PACKETS);
        Self { bytes: Box::new([0; _]), used: 0, packets, record_bytes: 0 }
    }

    /// Returns how many bytes of the ring the packets in the buffer will take.
    #[inline]
    pub(super) const fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Returns space for one more packet, of any size.
    #[inline]
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.used..]
    }

    /// Adds the packet that was written to the space of [`room`](Self::room). Returns true if the
    /// caller must [`flush`](Self::flush) before it asks for space again.
    #[inline]
    pub(super) fn push(&mut self, path: &TxPath, len: usize, is_run: bool) -> bool {
        self.packets.push((*path, len, is_run));
        self.record_bytes += record_bytes(len);
        self.used += len.next_multiple_of(ALIGN);
        self.used > FLUSH_BYTES
    }

    /// Copies all packets to the ring, which must have room for them, and empties the buffer.
    /// Without a `writer` the packets are lost.
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
