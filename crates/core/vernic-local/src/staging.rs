//! A staging buffer: private memory where the packets and messages of one turn are built before
//! they are copied to a ring.
//!
//! A packet is written in pieces of a few bytes, and copied a moment later in bigger pieces. A
//! processor delays a load that covers several recent stores until all earlier stores are done.
//! Stores to a ring wait for cache lines that the reader used last, and each such wait takes as
//! long as a whole message. So no load may follow closely on a store to a ring: all that a
//! turn writes is built here first, and copied to the ring together.

use crate::ring::{MessageHead, RingWriter, message_bytes, record_bytes};
use vernic_io::TxPath;
use vernic_io::batch::MAX_TRANSPORT_BYTES;

/// Bytes in the buffer above which they are copied to the ring. This is a list of small messages,
/// or one large packet, which is then still in the first-level cache.
const FLUSH_BYTES: usize = 2048;
/// Alignment of packets and payloads in the buffer, in bytes.
const ALIGN: usize = 16;
/// Bytes of space for one more packet of the largest size, rounded up to a multiple of [`ALIGN`].
const ROOM_BYTES: usize = MAX_TRANSPORT_BYTES.next_multiple_of(ALIGN);
/// Largest number of records in the buffer: each takes at least [`ALIGN`] bytes.
const MAX_RECORDS: usize = FLUSH_BYTES / ALIGN + 1;

/// What a record will begin with.
enum Head {
    Packet(TxPath),
    Message(MessageHead),
}

/// A buffer in which one turn's packets and messages are built; see the head of this module.
pub(crate) struct StagingBuffer {
    bytes: Box<[u8; FLUSH_BYTES + ROOM_BYTES]>,
    used: usize,
    /// For each record: how it begins, and the length of what follows.
    records: Vec<(Head, usize)>,
    /// Bytes that the records will take in the ring.
    record_bytes: usize,
}

impl std::fmt::Debug for StagingBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StagingBuffer({} records)", self.records.len())
    }
}

impl StagingBuffer {
    pub(crate) fn new() -> Self {
        let records = Vec::with_capacity(MAX_RECORDS);
        Self { bytes: Box::new([0; _]), used: 0, records, record_bytes: 0 }
    }

    /// Returns how many bytes of the ring the records in the buffer will take.
    #[inline]
    pub(crate) const fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Returns space for one more packet or payload: [`MAX_TRANSPORT_BYTES`], and not one more, for
    /// a longer record breaks the ring.
    #[inline]
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.used..][..MAX_TRANSPORT_BYTES]
    }

    /// Adds the packet that was written to the space of [`room`](Self::room). Returns true if the
    /// caller must [`flush`](Self::flush) before it asks for space again.
    #[inline]
    pub(crate) fn push(&mut self, path: &TxPath, len: usize) -> bool {
        self.records.push((Head::Packet(*path), len));
        self.record_bytes += record_bytes(len);
        self.advance(len)
    }

    /// Adds the message whose payload was written to the space of [`room`](Self::room), as
    /// [`push`](Self::push) does a packet.
    #[inline]
    pub(crate) fn push_message(&mut self, head: MessageHead, len: usize) -> bool {
        self.records.push((Head::Message(head), len));
        self.record_bytes += message_bytes(len);
        self.advance(len)
    }

    #[inline]
    fn advance(&mut self, len: usize) -> bool {
        self.used += space(len);
        self.used > FLUSH_BYTES
    }

    /// Copies all records to the ring, which must have room for them, and empties the buffer.
    /// Without a `writer` the records are lost.
    #[inline]
    pub(crate) fn flush(&mut self, writer: Option<&mut RingWriter>) {
        if let Some(writer) = writer {
            if self.records.len() > 1 {
                writer.prefetch(self.record_bytes);
            }
            let mut at = 0;
            for (head, len) in &self.records {
                let bytes = &self.bytes[at..at + len];
                match head {
                    Head::Packet(path) => writer.push(path, bytes),
                    Head::Message(head) => writer.push_message(*head, bytes),
                }
                at += space(*len);
            }
        }
        self.records.clear();
        (self.used, self.record_bytes) = (0, 0);
    }
}

/// Bytes of the buffer that a packet or payload of `len` bytes takes.
#[inline]
const fn space(len: usize) -> usize {
    if len == 0 { ALIGN } else { len.next_multiple_of(ALIGN) }
}
