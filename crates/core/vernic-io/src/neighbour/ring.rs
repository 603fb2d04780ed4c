//! A ring: packets from one process to another, through memory that both have mapped.
//!
//! ```text
//!  byte  0        128      256      384      ...  4096                       4096 + capacity
//!       +--------+--------+--------+--------+----+--------------------------+
//!       |        | head   | waits  | inside |    | records                  |
//!       +--------+--------+--------+--------+----+--------------------------+
//!                 reader   both     writer        records begin at multiples of 64
//!
//!  record, words in the order of bytes of this machine
//!  byte  0..2     2    3    4..8       8..24     24..40        40..40+len
//!       +--------+----+----+----------+---------+-------------+----------------------+
//!       | len    | TC | HL | scope id | source  | destination | BTH to padded payload|
//!       +--------+----+----+----------+---------+-------------+----------------------+
//!        the mark: not 0, since no packet is empty
//! ```
//! The top bit of `len` says that the packet is a run: it stands for several, and its payload says
//! where their bytes are. The rest of `len` is the packet's length all the same, and to the ring it
//! is a packet as any other.
//!
//! A record stands for a UDP packet: instead of the headers of IP and UDP it has addresses, traffic
//! class and hop limit, and no ICRC, since memory does not flip bits on the way. The mark, the word
//! `head` and the bell are `cursor.rs`'s. `waits` is the position of a writer that found the ring
//! full, else 0; the reader that makes room rings back. That is a help, not a promise: the word may
//! be missed, so a writer looks again by itself after a while. `inside` is for whoever reads or
//! writes the other's memory directly ([`Neighbour`](super::Neighbour)).
//!
//! The other end may write anything anywhere at any time. So a record's header is copied out before
//! it is looked at, and the packet before it is parsed; positions and lengths are checked against
//! what the ring holds; what breaks the rules is [`RingBroken`], after which the ring is not used
//! any more.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vernic_wire::Gid;

use super::cursor::{Broken, ReadCursor, WriteCursor};
use super::hello::RING_BYTES;
use super::page::PeerPage;
use crate::address::Address;
use crate::batch::{Door, Icrc, MAX_PACKET_BYTES, MAX_TRANSPORT_BYTES, RxMeta, RxPacket};
use crate::circle::Circle;
use crate::path::TxPath;
use crate::sys::{self, ClosableFd, SharedMemory};

/// Bytes before the records.
const HEAD_BYTES: usize = 4096;
const HEAD: usize = 16;
const WAITS: usize = 32;
const INSIDE: usize = 48;

/// Records begin at multiples of this: a cache line.
const ALIGN: usize = 64;
/// Bytes of a record's header.
const RECORD_HEAD: usize = 40;
/// Largest record.
const MAX_RECORD: u64 = (RECORD_HEAD + MAX_TRANSPORT_BYTES).next_multiple_of(ALIGN) as u64;
/// Room for any record, and for the mark behind it.
const ANY_ROOM: u64 = MAX_RECORD + ALIGN as u64;

/// The bit of a record's length that marks a run.
const RUN: u16 = 1 << 15;
const _: () = assert!(MAX_TRANSPORT_BYTES < RUN as usize);

/// Bytes of a ring that a packet of `len` bytes takes.
#[inline]
pub const fn record_bytes(len: usize) -> usize {
    (RECORD_HEAD + len).next_multiple_of(ALIGN)
}

/// Least capacity of a ring: some of the largest packets.
pub const MIN_RING_BYTES: u32 = 64 * 1024;
/// Largest capacity of a ring.
pub const MAX_RING_BYTES: u32 = 16 << 20;

/// The other process has written to a ring what no process means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingBroken {
    /// A position that cannot be, or more packets than it has room for.
    #[error("its ring has a position that cannot be")]
    Position,
    /// A packet without a byte, or longer than packets are.
    #[error("its ring has a packet of {0} bytes")]
    Length(u64),
}

impl From<Broken> for RingBroken {
    fn from(_: Broken) -> Self {
        Self::Position
    }
}

/// The memory of a ring.
#[derive(Debug)]
pub(super) struct RingMemory {
    memory: SharedMemory,
    /// Words of records: a power of two.
    words: usize,
}

impl RingMemory {
    /// Whether a ring may have this capacity.
    pub(super) const fn is_capacity(bytes: u32) -> bool {
        bytes.is_power_of_two() && bytes >= MIN_RING_BYTES && bytes <= MAX_RING_BYTES
    }

    /// Bytes of a ring's file.
    pub(super) const fn file_bytes(capacity: u32) -> usize {
        HEAD_BYTES + capacity as usize
    }

    pub(super) const fn new(memory: SharedMemory, capacity: u32) -> Self {
        Self { memory, words: capacity as usize / 8 }
    }

    const fn capacity(&self) -> u64 {
        self.words as u64 * 8
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.memory.words()[index]
    }

    /// The word of the writer that says where in the reader's memory it is.
    #[inline]
    pub(super) fn inside(&self) -> &AtomicU64 {
        self.word(INSIDE)
    }

    /// The words of the record's header that begins at a position: never over the end of the ring.
    #[inline]
    fn head(&self, at: u64) -> &[AtomicU64; RECORD_HEAD / 8] {
        let (words, _) = self.records().from(at & !(ALIGN as u64 - 1));
        words.first_chunk().expect("a line of the ring, whose length is a multiple of them")
    }

    /// The first word of a record.
    #[inline]
    fn mark(&self, at: u64) -> &AtomicU64 {
        &self.head(at)[0]
    }

    #[inline]
    fn records(&self) -> Circle<'_> {
        Circle(&self.memory.words()[HEAD_BYTES / 8..])
    }
}

/// What wakes the process at the other end: a message over the connection. (Not an event descriptor
/// of its own: writing to one that it passed could be made to block.)
#[derive(Debug)]
pub(super) struct Bell {
    pub(super) page: PeerPage,
    pub(super) connection: Arc<ClosableFd>,
}

impl Bell {
    /// False if the other process sleeps on, and must be woken by another try: the system has no
    /// memory for the message, say.
    #[cold]
    #[must_use]
    fn ring(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, WouldBlock};
        let Some(fd) = self.connection.get() else { return true };
        let Err(error) = sys::send(fd.as_fd(), &RING_BYTES) else { return true };
        // Where there is no room, there is something to read, which wakes as well; who is gone
        // sleeps no more.
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
            // A writer that waits for room looks by itself after a while.
            let _ = self.ring();
        }
    }
}

/// The end of a ring that packets are written to.
#[derive(Debug)]
pub struct RingWriter {
    memory: Arc<RingMemory>,
    cursor: WriteCursor,
    bell: Arc<Bell>,
    /// The bell could not be rung.
    owes_bell: bool,
}

impl RingWriter {
    pub(super) fn new(memory: Arc<RingMemory>, bell: Arc<Bell>) -> Self {
        let cursor = WriteCursor::new(memory.capacity());
        Self { memory, cursor, bell, owes_bell: false }
    }

    /// Whether a packet of any size may be pushed, after some whose records take `ahead` bytes. If
    /// not, the reader wakes this process when it has made room; look again after a while all the
    /// same.
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

    /// Writes one packet, BTH to the end of the padded payload, for which there is room
    /// ([`has_room`](Self::has_room)); its reader sees it after [`publish`](Self::publish), and
    /// that it `is_run`.
    #[inline]
    pub fn push(&mut self, path: &TxPath, transport: &[u8], is_run: bool) {
        debug_assert!(!transport.is_empty() && transport.len() <= MAX_TRANSPORT_BYTES);
        let Self { memory, cursor, .. } = self;
        let at = cursor.at();
        // First: it loads what was stored a moment ago in smaller pieces, which waits for all
        // stores before it, and those of the header wait for the cache line.
        memory.records().copy_in(at + RECORD_HEAD as u64, transport);
        let [mark, rest @ ..] = RecordHead::new(path, transport.len(), is_run).words();
        let [here, words @ ..] = memory.head(at);
        words.iter().zip(rest).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        let bytes = record_bytes(transport.len()) as u64;
        cursor.advance(bytes, mark, here, memory.mark(at + bytes));
    }

    /// Asks for the cache lines of packets that are pushed next, whose records take so many bytes
    /// in all: the reader had them last, and each takes as long as some messages. Stores would wait
    /// for them one by one.
    #[inline]
    pub fn prefetch(&self, bytes: usize) {
        let first = self.cursor.at();
        for at in (first..first + bytes as u64).step_by(ALIGN) {
            sys::prefetch_for_write(self.memory.mark(at));
        }
    }

    /// Lets the reader see what was written, and wakes it if it sleeps. Does nothing if nothing was
    /// written. False if it sleeps and could not be woken: [`wake_again`](Self::wake_again) is to
    /// be called after a while.
    #[inline]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        if self.cursor.has_unpublished() {
            let Self { memory, cursor, bell, .. } = self;
            if cursor.publish(memory.mark(cursor.first()), || bell.page.asleep()) {
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

    /// Wakes the reader if it could not be woken before and sleeps still. False if it cannot be
    /// woken now either.
    pub fn wake_again(&mut self) -> bool {
        let must_ring = self.owes_bell && self.cursor.must_ring(self.bell.page.asleep());
        if must_ring {
            return self.ring();
        }
        self.owes_bell = false;
        true
    }
}

/// Where a packet is copied to before anything of it is looked at: as long as the longest, with its
/// ICRC.
pub type PacketBuffer = [u8; MAX_PACKET_BYTES];

/// The end of a ring that packets are read from.
#[derive(Debug)]
pub struct RingReader {
    memory: Arc<RingMemory>,
    cursor: ReadCursor,
    bell: Arc<Bell>,
    /// Most packets come as the one before them.
    last: Origin,
    last_is_run: bool,
}

/// How a packet came: the words of its record's header without the length, and what they mean.
#[derive(Debug)]
struct Origin {
    words: [u64; RECORD_HEAD / 8],
    meta: RxMeta,
}

impl Origin {
    fn new(words: [u64; RECORD_HEAD / 8]) -> Self {
        Self { words, meta: RecordHead::from_words(words).meta() }
    }

    /// Word by word: a comparison of memory would load in other pieces what was stored a moment
    /// ago.
    #[inline]
    fn has(&self, words: [u64; RECORD_HEAD / 8]) -> bool {
        self.words.iter().zip(words).fold(0, |differ, (known, word)| differ | (known ^ word)) == 0
    }
}

impl RingReader {
    pub(super) fn new(memory: Arc<RingMemory>, bell: Arc<Bell>) -> Self {
        let cursor = ReadCursor::new(memory.capacity());
        Self { memory, cursor, bell, last: Origin::new([0; _]), last_is_run: false }
    }

    /// The mark of the next record.
    #[inline]
    fn mark(&self) -> Option<u64> {
        self.cursor.mark(self.memory.mark(self.cursor.at()))
    }

    /// Whether there is something to read. Also for who is about to sleep, after
    /// [`Alarm::announce`](super::Alarm::announce).
    #[inline]
    pub fn has_news(&self) -> bool {
        self.mark().is_some()
    }

    /// Copies the next packet to `buffer`; returns its length without the ICRC, of which there are
    /// no bytes. [`origin`](Self::origin) says how it came.
    ///
    /// # Errors
    /// [`RingBroken`]: nothing may be read from it any more.
    #[inline]
    pub fn next(&mut self, buffer: &mut PacketBuffer) -> Result<Option<usize>, RingBroken> {
        let Some(mark) = self.mark() else { return Ok(None) };
        let Self { memory, cursor, last, last_is_run, .. } = self;
        let at = cursor.at();
        let [_, words @ ..] = memory.head(at);
        let [a, b, c, d] = words.each_ref().map(|word| word.load(Ordering::Relaxed));
        let (len, unnamed) = RecordHead::cut_len(mark);
        *last_is_run = len & RUN != 0;
        let (len, words) = (usize::from(len & !RUN), [unnamed, a, b, c, d]);
        let packet = buffer.get_mut(..len).filter(|_| (1..=MAX_TRANSPORT_BYTES).contains(&len));
        let Some(packet) = packet else { return Err(RingBroken::Length(len as u64)) };
        memory.records().copy_out(at + RECORD_HEAD as u64, packet);
        cursor.advance(record_bytes(len) as u64)?;
        if !last.has(words) {
            *last = Origin::new(words);
        }
        Ok(Some(len))
    }

    /// How the last packet came.
    #[inline]
    pub fn origin(&self) -> &RxMeta {
        &self.last.meta
    }

    /// Whether the last packet is a run.
    #[inline]
    pub fn is_run(&self) -> bool {
        self.last_is_run
    }

    /// Lets the writer overwrite what was read, and wakes it if it waits for that and enough is
    /// free. Does nothing if nothing was read.
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

    /// Bytes read and not released.
    #[inline]
    pub fn unreleased(&self) -> u64 {
        self.cursor.unreleased()
    }
}

/// A packet of a ring as packets of a link are: of it, `len` bytes at the begin of `buffer`.
#[inline]
pub fn rx_packet<'a>(buffer: &'a PacketBuffer, len: usize, meta: &'a RxMeta) -> RxPacket<'a> {
    // What follows stands for the ICRC, which nobody looks at.
    let end = (len + crate::batch::ICRC_BYTES).min(buffer.len());
    RxPacket { bytes: &buffer[..end], meta, segment: 0 }
}

/// What a record says of its packet.
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
    fn new(path: &TxPath, len: usize, is_run: bool) -> Self {
        let (src, dst) = path.gid_bits();
        Self {
            len: len as u16 | u16::from(is_run) << 15,
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

    /// The length that a mark has, and the mark with 0 in its place.
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

    /// How the packet came, as its sender says.
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
            icrc: Icrc::Good,
            handed_over: false,
        }
    }
}

#[cfg(test)]
mod tests;
