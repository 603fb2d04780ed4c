//! A ring: packets and messages from one process to another, through memory that both have mapped.
//!
//! ```text
//!  byte  0        128      256      384      ...  4096                       4096 + capacity
//!       +--------+--------+--------+--------+----+--------------------------+
//!       |        | head   | waits  | inside |    | records                  |
//!       +--------+--------+--------+--------+----+--------------------------+
//!                 reader   both     writer        records begin at multiples of 64
//!
//!  record of a packet, words in the order of bytes of this machine
//!  byte  0..2     2    3    4..8       8..24     24..40        40..40+len
//!       +--------+----+----+----------+---------+-------------+----------------------+
//!       | len    | TC | HL | scope id | source  | destination | BTH to padded payload|
//!       +--------+----+----+----------+---------+-------------+----------------------+
//!        the mark: not 0, since no packet is empty
//!
//!  record of a message
//!  byte  0..2     2..4    4..8     8..12    12..16   16..16+len
//!       +--------+-------+--------+--------+--------+----------------------+
//!       | len, M | flags | word 0 | word 1 | word 2 | payload              |
//!       +--------+-------+--------+--------+--------+----------------------+
//!        the mark: not 0, since M is the top bit of `len`
//! ```
//! A packet's record stands for a UDP packet. Instead of the headers of IP and UDP it has
//! addresses, traffic class and hop limit. It has no ICRC, since memory does not flip bits on the
//! way. What the [`MessageHead`] of a message means is the affair of the layer above; up to 48
//! bytes of payload share its cache line. The mark, the word `head` and the bell are described in
//! `cursor.rs`.
//!
//! `waits` is the position of a writer that found the ring full, else 0; a reader that makes room
//! rings the writer's bell. That is a help, not a promise: the reader may miss the word, so a
//! writer polls again by itself after a while. `inside` is for a process that accesses the other's
//! memory directly ([`PeerProcess`](super::PeerProcess)).
//!
//! The other end may write anything anywhere at any time. So a record's header is copied out before
//! it is checked, and a packet before it is parsed. Positions and lengths are checked against what
//! the ring holds. A broken rule is reported as [`RingBroken`], after which the ring is not used
//! any more.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vernic_io::Address;
use vernic_io::TxPath;
use vernic_io::batch::{Door, Icrc, MAX_PACKET_BYTES, MAX_TRANSPORT_BYTES, RxMeta, RxPacket};
use vernic_sys::Circle;
use vernic_sys::{self as sys, ClosableFd, SharedMemory};
use vernic_wire::{Gid, LocalRoute};

use crate::cursor::{Broken, ReadCursor, WriteCursor};
use crate::hello::RING_BYTES;
use crate::page::PeerPage;

/// Bytes before the records.
const HEAD_BYTES: usize = 4096;
const HEAD: usize = 16;
const WAITS: usize = 32;
const INSIDE: usize = 48;

/// Records begin at multiples of this: a cache line.
const ALIGN: usize = 64;
/// Bytes of the header of a packet's record.
const RECORD_HEAD: usize = 40;
/// Bytes of the header of a message's record.
const MESSAGE_HEAD: usize = 16;
/// Bytes of the largest record.
const MAX_RECORD: u64 = (RECORD_HEAD + MAX_TRANSPORT_BYTES).next_multiple_of(ALIGN) as u64;
/// Room for any record, and for the mark behind the record.
const ANY_ROOM: u64 = MAX_RECORD + ALIGN as u64;

/// The bit of a record's length that marks the record of a message.
const MESSAGE: u16 = 1 << 15;
const _: () = assert!(MAX_TRANSPORT_BYTES < MESSAGE as usize);

/// Returns the bytes of a ring that a packet of `len` bytes takes.
#[inline]
pub const fn record_bytes(len: usize) -> usize {
    (RECORD_HEAD + len).next_multiple_of(ALIGN)
}

/// Returns the bytes of a ring that a message with `len` bytes of payload takes.
#[inline]
pub const fn message_bytes(len: usize) -> usize {
    (MESSAGE_HEAD + len).next_multiple_of(ALIGN)
}

/// The header of a message, for the layer above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageHead {
    /// Bits.
    pub flags: u16,
    /// Numbers.
    pub words: [u32; 3],
}

impl MessageHead {
    /// Returns the two words of a record that begins with it.
    #[inline]
    fn emit(self, len: usize) -> [u64; MESSAGE_HEAD / 8] {
        let [a, b] = (len as u16 | MESSAGE).to_ne_bytes();
        let [c, d] = self.flags.to_ne_bytes();
        let [first, second, third] = self.words.map(u32::to_ne_bytes);
        let pair = |[e, f, g, h]: [u8; 4], [i, j, k, l]: [u8; 4]| {
            u64::from_ne_bytes([e, f, g, h, i, j, k, l])
        };
        [pair([a, b, c, d], first), pair(second, third)]
    }

    #[inline]
    fn parse(mark: u64, word: u64) -> Self {
        let [_, _, c, d, first @ ..] = mark.to_ne_bytes();
        let [e, f, g, h, third @ ..] = word.to_ne_bytes();
        let words = [first, [e, f, g, h], third].map(u32::from_ne_bytes);
        Self { flags: u16::from_ne_bytes([c, d]), words }
    }
}

/// A record that was read; its bytes are at the start of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A packet of so many bytes without the ICRC, which a ring does not carry.
    Packet(usize),
    /// A message with so many bytes of payload.
    Message(MessageHead, usize),
}

/// Least capacity of a ring: enough for some of the largest packets.
pub const MIN_RING_BYTES: u32 = 64 * 1024;
/// Largest capacity of a ring.
pub const MAX_RING_BYTES: u32 = 16 << 20;

/// An error: the other process has written to a ring what no honest process writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingBroken {
    /// An impossible position, or more packets than the ring has room for.
    #[error("its ring has a position that cannot be")]
    Position,
    /// A packet of 0 bytes, or a record that is longer than packets may be.
    #[error("its ring has a record of {0} bytes")]
    Length(u64),
}

impl From<Broken> for RingBroken {
    fn from(_: Broken) -> Self {
        Self::Position
    }
}

/// The memory of a ring.
#[derive(Debug)]
pub(crate) struct RingMemory {
    memory: SharedMemory,
    /// Words for records: a power of two.
    words: usize,
}

impl RingMemory {
    /// Whether a ring may have this capacity.
    pub(crate) const fn is_capacity(bytes: u32) -> bool {
        bytes.is_power_of_two() && bytes >= MIN_RING_BYTES && bytes <= MAX_RING_BYTES
    }

    /// Returns the bytes of a ring's file.
    pub(crate) const fn file_bytes(capacity: u32) -> usize {
        HEAD_BYTES + capacity as usize
    }

    pub(crate) const fn new(memory: SharedMemory, capacity: u32) -> Self {
        Self { memory, words: capacity as usize / 8 }
    }

    const fn capacity(&self) -> u64 {
        self.words as u64 * 8
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.memory.words()[index]
    }

    /// Returns the writer's word that says where in the reader's memory the writer copies.
    #[inline]
    pub(crate) fn inside(&self) -> &AtomicU64 {
        self.word(INSIDE)
    }

    /// Returns the words of the record's header that begins at a position: never over the end of
    /// the ring.
    #[inline]
    fn head(&self, at: u64) -> &[AtomicU64; RECORD_HEAD / 8] {
        let (words, _) = self.records().from(at & !(ALIGN as u64 - 1));
        words.first_chunk().expect("a line of the ring, whose length is a multiple of them")
    }

    /// Returns the first word of a record.
    #[inline]
    fn mark(&self, at: u64) -> &AtomicU64 {
        &self.head(at)[0]
    }

    #[inline]
    fn records(&self) -> Circle<'_> {
        Circle(&self.memory.words()[HEAD_BYTES / 8..])
    }
}

/// A bell: wakes the process at the other end with a message over the connection. (An event
/// descriptor would not do: writing to one that the other process passed could be made to block.)
#[derive(Debug)]
pub(crate) struct Bell {
    pub(crate) page: PeerPage,
    pub(crate) connection: Arc<ClosableFd>,
}

impl Bell {
    /// Sends the message. Returns false if the other process sleeps on, and must be woken by
    /// another try: the system has no memory for the message, say.
    #[cold]
    #[must_use]
    fn ring(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, WouldBlock};
        let Some(fd) = self.connection.get() else { return true };
        let Err(error) = sys::send(fd.as_fd(), &RING_BYTES) else { return true };
        // If there is no room, there is something to read, which wakes the process as well. A
        // process that is gone needs no waking.
        let is_rung =
            matches!(error.kind(), WouldBlock | BrokenPipe | ConnectionReset | NotConnected);
        if !is_rung {
            tracing::debug!(%error, "a process of this host cannot be woken: tried again");
        }
        is_rung
    }

    #[inline]
    fn ring_if_asleep(&self) {
        if self.page.asleep() != 0 {
            // A failure does no harm: a writer that waits for room polls by itself after a while.
            let _ = self.ring();
        }
    }
}

/// The writer's end of a ring.
#[derive(Debug)]
pub struct RingWriter {
    memory: Arc<RingMemory>,
    cursor: WriteCursor,
    bell: Arc<Bell>,
    /// Whether the bell must be rung again, because ringing it failed.
    owes_bell: bool,
}

impl RingWriter {
    pub(crate) fn new(memory: Arc<RingMemory>, bell: Arc<Bell>) -> Self {
        let cursor = WriteCursor::new(memory.capacity());
        Self { memory, cursor, bell, owes_bell: false }
    }

    /// Whether a packet of any size may be pushed, after some whose records take `ahead` bytes. If
    /// not, the reader wakes this process when it has made room; the caller polls again after a
    /// while all the same.
    ///
    /// # Errors
    /// [`RingBroken`].
    #[inline]
    pub fn has_room(&mut self, ahead: usize) -> Result<bool, RingBroken> {
        let Self { memory, cursor, .. } = self;
        let (head, bytes) = (memory.word(HEAD), ANY_ROOM + ahead as u64);
        if cursor.has_room(bytes, head)? {
            return Ok(true);
        }
        memory.word(WAITS).store(cursor.at(), Ordering::SeqCst);
        let has_room = cursor.has_room(bytes, head)?;
        if has_room {
            memory.word(WAITS).store(0, Ordering::Relaxed);
        }
        Ok(has_room)
    }

    /// Writes one packet, BTH to the end of the padded payload. There must be room for it
    /// ([`has_room`](Self::has_room)). The reader sees the packet after
    /// [`publish`](Self::publish).
    #[inline]
    pub fn push(&mut self, path: &TxPath, transport: &[u8]) {
        debug_assert!(!transport.is_empty() && transport.len() <= MAX_TRANSPORT_BYTES);
        let Self { memory, cursor, .. } = self;
        let at = cursor.at();
        // The packet is copied first. The copy loads bytes that were stored a moment ago in smaller
        // pieces, so it waits for all stores before it. The stores of the header wait for the cache
        // line.
        memory.records().copy_in(at + RECORD_HEAD as u64, transport);
        let [mark, rest @ ..] = RecordHead::new(path, transport.len()).words();
        let [here, words @ ..] = memory.head(at);
        words.iter().zip(rest).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        let bytes = record_bytes(transport.len()) as u64;
        cursor.advance(bytes, mark, here, memory.mark(at + bytes));
    }

    /// Writes one message, as [`push`](Self::push) does a packet. Its payload is at most as long as
    /// a packet.
    #[inline]
    pub fn push_message(&mut self, head: MessageHead, payload: &[u8]) {
        debug_assert!(payload.len() <= MAX_TRANSPORT_BYTES);
        let Self { memory, cursor, .. } = self;
        let at = cursor.at();
        memory.records().copy_in(at + MESSAGE_HEAD as u64, payload);
        let [mark, word] = head.emit(payload.len());
        let [here, second, ..] = memory.head(at);
        second.store(word, Ordering::Relaxed);
        let bytes = message_bytes(payload.len()) as u64;
        cursor.advance(bytes, mark, here, memory.mark(at + bytes));
    }

    /// Prefetches the cache lines of the packets that are pushed next, whose records take so many
    /// bytes in all. The reader had those lines last, and fetching each takes as long as some
    /// messages. Stores would wait for them one by one.
    #[inline]
    pub fn prefetch(&self, bytes: usize) {
        let first = self.cursor.at();
        for at in (first..first + bytes as u64).step_by(ALIGN) {
            sys::prefetch_for_write(self.memory.mark(at));
        }
    }

    /// Lets the reader see what was written, and wakes the reader if it sleeps. Does nothing if
    /// nothing was written. Returns false if the reader sleeps and could not be woken: the caller
    /// must then call [`wake_again`](Self::wake_again) after a while.
    #[inline]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        if self.cursor.has_unpublished() {
            let Self { memory, cursor, bell, .. } = self;
            let written = cursor.at() - cursor.first();
            let must_ring = cursor.publish(memory.mark(cursor.first()), || bell.page.asleep());
            // The lines of a record that follows, which is as long as this one, and of the mark
            // behind it. The reader polls the line before them, which stays with the reader; so
            // would a line more that is not written.
            sys::prefetch_for_write(memory.mark(cursor.at() + ALIGN as u64));
            sys::prefetch_for_write(memory.mark(cursor.at() + written.min(2 * ALIGN as u64)));
            if must_ring {
                return self.ring();
            }
        }
        true
    }

    #[cold]
    fn ring(&mut self) -> bool {
        let is_rung = self.bell.ring();
        if !is_rung {
            self.cursor.not_rung();
        }
        self.owes_bell = !is_rung;
        is_rung
    }

    /// Wakes the reader if it could not be woken before and still sleeps. Returns false if it
    /// cannot be woken now either.
    pub fn wake_again(&mut self) -> bool {
        let must_ring = self.owes_bell && self.cursor.must_ring(self.bell.page.asleep());
        if must_ring {
            return self.ring();
        }
        self.owes_bell = false;
        true
    }
}

/// A buffer that a packet is copied to before anything of it is checked: as long as the longest
/// packet with its ICRC.
pub type PacketBuffer = [u8; MAX_PACKET_BYTES];

/// The reader's end of a ring.
#[derive(Debug)]
pub struct RingReader {
    memory: Arc<RingMemory>,
    cursor: ReadCursor,
    bell: Arc<Bell>,
    /// The origin of the last packet: most packets have the same as the one before them.
    last: Origin,
}

/// The origin of a packet: the words of its record's header without the length, and what they mean.
#[derive(Debug)]
struct Origin {
    words: [u64; RECORD_HEAD / 8],
    meta: RxMeta,
}

impl Origin {
    fn new(words: [u64; RECORD_HEAD / 8]) -> Self {
        Self { words, meta: RecordHead::from_words(words).meta() }
    }

    /// Whether the origin has these words. Compares word by word: a comparison of memory would load
    /// in other pieces what was stored a moment ago.
    #[inline]
    fn has(&self, words: [u64; RECORD_HEAD / 8]) -> bool {
        self.words.iter().zip(words).fold(0, |differ, (known, word)| differ | (known ^ word)) == 0
    }
}

impl RingReader {
    /// Returns the page of the process that writes to the ring.
    pub(crate) fn page(&self) -> &PeerPage {
        &self.bell.page
    }

    pub(crate) fn new(memory: Arc<RingMemory>, bell: Arc<Bell>) -> Self {
        let cursor = ReadCursor::new(memory.capacity());
        Self { memory, cursor, bell, last: Origin::new([0; _]) }
    }

    /// Returns the mark of the next record.
    #[inline]
    fn mark(&self) -> Option<u64> {
        self.cursor.mark(self.memory.mark(self.cursor.at()))
    }

    /// Whether there is something to read. A thread that is about to sleep calls this, too, after
    /// [`SleepFlag::announce`](super::SleepFlag::announce).
    #[inline]
    pub fn has_news(&self) -> bool {
        self.mark().is_some()
    }

    /// Copies the next packet, or the payload of the next message, to `buffer`.
    /// [`origin`](Self::origin) says how a packet came.
    ///
    /// # Errors
    /// [`RingBroken`]: the ring must not be read any more.
    #[inline]
    pub fn next(&mut self, buffer: &mut PacketBuffer) -> Result<Option<Record>, RingBroken> {
        let Some(mark) = self.mark() else { return Ok(None) };
        let Self { memory, cursor, last, .. } = self;
        let at = cursor.at();
        let (len, unnamed) = RecordHead::cut_len(mark);
        let [_, second, rest @ ..] = memory.head(at);
        let second = second.load(Ordering::Relaxed);
        if len & MESSAGE != 0 {
            let len = usize::from(len & !MESSAGE);
            let payload = buffer.get_mut(..len).filter(|_| len <= MAX_TRANSPORT_BYTES);
            let Some(payload) = payload else { return Err(RingBroken::Length(len as u64)) };
            memory.records().copy_out(at + MESSAGE_HEAD as u64, payload);
            cursor.advance(message_bytes(len) as u64)?;
            return Ok(Some(Record::Message(MessageHead::parse(mark, second), len)));
        }
        let [b, c, d] = rest.each_ref().map(|word| word.load(Ordering::Relaxed));
        let (len, words) = (usize::from(len), [unnamed, second, b, c, d]);
        let packet = buffer.get_mut(..len).filter(|_| (1..=MAX_TRANSPORT_BYTES).contains(&len));
        let Some(packet) = packet else { return Err(RingBroken::Length(len as u64)) };
        memory.records().copy_out(at + RECORD_HEAD as u64, packet);
        cursor.advance(record_bytes(len) as u64)?;
        if !last.has(words) {
            *last = Origin::new(words);
        }
        Ok(Some(Record::Packet(len)))
    }

    /// Returns the origin of the last packet.
    #[inline]
    pub fn origin(&self) -> &RxMeta {
        &self.last.meta
    }

    /// Lets the writer overwrite what was read, and wakes the writer if it waits for room and half
    /// of the ring is free. Does nothing if nothing was read.
    #[inline]
    pub fn release(&mut self) {
        if self.cursor.unreleased() == 0 {
            return;
        }
        self.cursor.release(self.memory.word(HEAD));
        let waits = self.memory.word(WAITS);
        let tail = waits.load(Ordering::Relaxed);
        let is_half_empty = || tail.wrapping_sub(self.cursor.at()) <= self.memory.capacity() / 2;
        if tail != 0 && is_half_empty() {
            waits.store(0, Ordering::Relaxed);
            self.bell.ring_if_asleep();
        }
    }

    /// Returns the bytes that were read and not released.
    #[inline]
    pub fn unreleased(&self) -> u64 {
        self.cursor.unreleased()
    }
}

/// Turns a packet of a ring, `len` bytes at the start of `buffer`, into the form of a link's
/// packets.
#[inline]
pub fn rx_packet<'a>(buffer: &'a PacketBuffer, len: usize, meta: &'a RxMeta) -> RxPacket<'a> {
    // The bytes that follow stand for the ICRC, which is not checked.
    let end = (len + vernic_io::batch::ICRC_BYTES).min(buffer.len());
    RxPacket { bytes: &buffer[..end], meta, segment: 0 }
}

/// The header of a packet's record.
struct RecordHead {
    len: u16,
    traffic_class: u8,
    hop_limit: u8,
    netdev: u32,
    src: u128,
    dst: u128,
}

impl RecordHead {
    #[inline]
    fn new(path: &TxPath, len: usize) -> Self {
        let (src, dst) = path.gid_bits();
        Self {
            len: len as u16,
            traffic_class: path.traffic_class(),
            hop_limit: path.hop_limit(),
            netdev: path.id().0,
            src,
            dst,
        }
    }

    #[inline]
    fn words(&self) -> [u64; RECORD_HEAD / 8] {
        let ([a, b], [c, d], [e, f, g, h]) = (
            self.len.to_ne_bytes(),
            [self.traffic_class, self.hop_limit],
            self.netdev.to_ne_bytes(),
        );
        let mark = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        let [src, dst] = [self.src, self.dst].map(|bits| [bits as u64, (bits >> 64) as u64]);
        [mark, src[0], src[1], dst[0], dst[1]]
    }

    /// Splits a mark into its length, and the mark with 0 in place of the length.
    #[inline]
    fn cut_len(mark: u64) -> (u16, u64) {
        let [a, b, rest @ ..] = mark.to_ne_bytes();
        let [c, d, e, f, g, h] = rest;
        (u16::from_ne_bytes([a, b]), u64::from_ne_bytes([0, 0, c, d, e, f, g, h]))
    }

    fn from_words([mark, words @ ..]: [u64; RECORD_HEAD / 8]) -> Self {
        let [a, b, traffic_class, hop_limit, e, f, g, h] = mark.to_ne_bytes();
        let [src, dst] = [0, 2].map(|at| u128::from(words[at]) | u128::from(words[at + 1]) << 64);
        Self {
            len: u16::from_ne_bytes([a, b]),
            traffic_class,
            hop_limit,
            netdev: u32::from_ne_bytes([e, f, g, h]),
            src,
            dst,
        }
    }

    /// Returns how the packet came, as its sender says.
    fn meta(&self) -> RxMeta {
        let gid = |bits: u128| Address::Gid(Gid(bits.to_be_bytes()));
        RxMeta {
            src: gid(self.src),
            dst: gid(self.dst),
            flow: 0,
            door: Door::Shared,
            netdev: self.netdev,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: 0,
            route: LocalRoute::NONE,
            icrc: Icrc::Good,
            handed_over: false,
        }
    }
}

#[cfg(fuzzing)]
pub(crate) mod scribbles;
#[cfg(test)]
mod tests;
