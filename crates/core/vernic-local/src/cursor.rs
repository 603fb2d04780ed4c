//! Positions in a ring, and waking the other end: the part of a ring that several processes must
//! agree on.
//!
//! A ring has one writer and one reader. Each keeps its own position; positions count bytes since
//! the ring was made and never wrap in practice (2^64). A record begins with a word that is not 0,
//! its *mark*, and the word behind the last record is 0. The reader looks at the word where its
//! next record would begin. So one cache line says that there is a record and brings the record, or
//! its start.
//!
//! The reader publishes its position in a word. The writer loads that word only when the room that
//! it knows of is not enough. A value that the other end cannot have written honestly is
//! [`Broken`].
//!
//! ```text
//!   writer                                   reader
//!   P1 mark behind the record = 0            R1 mark of its position (Acquire); 0: no record
//!   P2 the record but its mark               R2 the record
//!   P3 more records, with their marks        R3 head = behind the record (Release)
//!   P4 mark of the first (Release)
//! ```
//!
//! A reader that sees P4 sees P1 to P3, so of records that are published together it sees all or
//! none. The reader never takes bytes of an older record for a mark: they are overwritten (P1)
//! before the reader can come there.
//!
//! # No lost wake-up
//!
//! ```text
//!   writer                              thread that is about to sleep
//!   W1 write packets                    S1 asleep = n, another number each time
//!   W2 mark of the first (Release)      S2 fence(SeqCst)
//!   W3 fence(SeqCst)                    S3 is there a mark in any ring? asleep = 0, no sleep
//!   W4 asleep != 0? ring the bell       S4 sleep until the bell rings; asleep = 0
//! ```
//!
//! Both fences are in one total order: if W3 comes first, S3 sees W2; if S2 comes first, W4 sees
//! S1. A bell that was rung stays rung until it is handled, so it does not matter whether S4 has
//! begun. The bell is a system call, so a writer rings once for each number that it sees.
//!
//! A ring of the bell that fails does not count: W4 is done again after a while
//! ([`WriteCursor::must_ring`]). A thread that sleeps with another number by then has looked at the
//! rings after W2.
//!
//! The cursors are generic over the words, so that the model checker runs this very code
//! (`cursor/model.rs`).

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A word that two processes share.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// A fence of order `SeqCst`.
    fn full_fence();
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
    #[inline]
    fn full_fence() {
        fence(Ordering::SeqCst);
    }
}

/// An error: the other end has written an impossible position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// The writer's position in a ring.
#[derive(Debug)]
pub(crate) struct WriteCursor {
    capacity: u64,
    tail: u64,
    published: u64,
    /// The mark of the first record that is not published.
    mark: u64,
    /// The reader's position as last seen.
    head: u64,
    /// The number of the sleep that the bell was rung for last.
    rung: u64,
}

impl WriteCursor {
    pub(crate) const fn new(capacity: u64) -> Self {
        Self { capacity, tail: 0, published: 0, mark: 0, head: 0, rung: 0 }
    }

    /// Returns the position of the next byte.
    #[inline]
    pub(crate) const fn at(&self) -> u64 {
        self.tail
    }

    /// Returns the position where the records that are published next begin.
    #[inline]
    pub(crate) const fn first(&self) -> u64 {
        self.published
    }

    /// Whether `bytes` may be written. The caller counts the mark behind them, too.
    #[inline]
    pub(crate) fn has_room(&mut self, bytes: u64, head: &impl Word) -> Result<bool, Broken> {
        if self.capacity - (self.tail - self.head) >= bytes {
            return Ok(true);
        }
        let now = head.load(Ordering::Acquire);
        // The reader cannot pass what is published, and does not go back.
        if now.wrapping_sub(self.head) > self.published - self.head {
            return Err(Broken);
        }
        self.head = now;
        Ok(self.capacity - (self.tail - self.head) >= bytes)
    }

    /// Notes that a record of so many bytes was written but for its mark. The mark is not 0 and
    /// goes to the word `here`; the word `next` follows the record. There was room for both.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: u64, mark: u64, here: &impl Word, next: &impl Word) {
        next.store(0, Ordering::Relaxed);
        if self.has_unpublished() {
            here.store(mark, Ordering::Relaxed);
        } else {
            self.mark = mark;
        }
        self.tail += bytes;
    }

    /// Whether something was written that is not published.
    #[inline]
    pub(crate) const fn has_unpublished(&self) -> bool {
        self.tail != self.published
    }

    /// Lets the reader see what was written, whose first word is `first`. Returns true if the bell
    /// must be rung.
    #[inline]
    #[must_use]
    pub(crate) fn publish<W: Word>(&mut self, first: &W, asleep: impl FnOnce() -> u64) -> bool {
        first.store(self.mark, Ordering::Release);
        self.published = self.tail;
        W::full_fence();
        self.must_ring(asleep())
    }

    /// Whether the bell must be rung for the sleep with this number, 0 if the other end is awake.
    /// The sleep counts as rung for from then on.
    #[inline]
    #[must_use]
    pub(crate) fn must_ring(&mut self, sleep: u64) -> bool {
        let must_ring = sleep != 0 && sleep != self.rung;
        if must_ring {
            self.rung = sleep;
        }
        must_ring
    }

    /// Notes that the bell that had to be rung was not.
    pub(crate) fn not_rung(&mut self) {
        self.rung = 0;
    }
}

/// The reader's position in a ring.
#[derive(Debug)]
pub(crate) struct ReadCursor {
    capacity: u64,
    head: u64,
    released: u64,
}

impl ReadCursor {
    pub(crate) const fn new(capacity: u64) -> Self {
        Self { capacity, head: 0, released: 0 }
    }

    /// Returns the position where the next record begins.
    #[inline]
    pub(crate) const fn at(&self) -> u64 {
        self.head
    }

    /// Returns the mark of the record that begins with the word `here`; `None` if there is none
    /// yet.
    #[inline]
    pub(crate) fn mark(&self, here: &impl Word) -> Option<u64> {
        Some(here.load(Ordering::Acquire)).filter(|&mark| mark != 0)
    }

    /// Moves behind a record of so many bytes. Fails if the record is longer than fits beside what
    /// is not released: such a record was never written.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: u64) -> Result<(), Broken> {
        if self.unreleased() + bytes > self.capacity {
            return Err(Broken);
        }
        self.head += bytes;
        Ok(())
    }

    /// Returns the bytes that were read and are not released.
    #[inline]
    pub(crate) const fn unreleased(&self) -> u64 {
        self.head - self.released
    }

    /// Lets the writer overwrite what was read.
    #[inline]
    pub(crate) fn release(&mut self, head: &impl Word) {
        self.released = self.head;
        head.store(self.head, Ordering::Release);
    }
}

/// Says that the word's owner is about to sleep, for the `number`th time. The owner must then look
/// at every ring.
pub(crate) fn announce<W: Word>(asleep: &W, number: u64) {
    asleep.store(number, Ordering::Relaxed);
    W::full_fence();
}

/// Takes [`announce`] back.
pub(crate) fn awake(asleep: &impl Word) {
    asleep.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes and publishes a record of so many bytes.
    fn write(writer: &mut WriteCursor, bytes: u64) {
        let words = [AtomicU64::new(0), AtomicU64::new(7)];
        writer.advance(bytes, 5, &words[0], &words[1]);
        assert_eq!(words[0].load(Ordering::Relaxed), 0, "not before it is published");
        assert_eq!(words[1].load(Ordering::Relaxed), 0);
        assert!(!writer.publish(&words[0], || 0));
        assert_eq!(words[0].load(Ordering::Relaxed), 5);
    }

    #[test]
    fn a_reader_that_releases_what_it_cannot_have_read_breaks_the_ring() {
        for head in [1, 65, 64 << 32, u64::MAX, u64::MAX - 63] {
            let mut writer = WriteCursor::new(256);
            let theirs = AtomicU64::new(head);
            assert_eq!(writer.has_room(257, &theirs), Err(Broken), "nothing is published yet");
            write(&mut writer, 256);
            let honest = head <= 256;
            assert_eq!(writer.has_room(64, &theirs).is_ok(), honest, "{head}");
        }
        let mut writer = WriteCursor::new(256);
        write(&mut writer, 256);
        assert_eq!(writer.has_room(128, &AtomicU64::new(192)), Ok(true));
        assert_eq!(writer.has_room(256, &AtomicU64::new(128)), Err(Broken), "it goes back");
    }

    #[test]
    fn what_is_written_together_is_seen_together() {
        let words: [AtomicU64; 3] = Default::default();
        let (mut writer, reader) = (WriteCursor::new(256), ReadCursor::new(256));
        writer.advance(64, 5, &words[0], &words[1]);
        writer.advance(64, 6, &words[1], &words[2]);
        assert_eq!((writer.first(), writer.at()), (0, 128));
        assert_eq!(reader.mark(&words[0]), None);
        let _ = writer.publish(&words[0], || 0);
        assert_eq!([0, 1, 2].map(|n| reader.mark(&words[n])), [Some(5), Some(6), None]);
        assert_eq!(writer.first(), 128);
    }

    #[test]
    fn a_writer_that_publishes_more_than_the_ring_holds_breaks_it() {
        for (bytes, expected) in [(256, Ok(())), (257, Err(Broken)), (1 << 63, Err(Broken))] {
            assert_eq!(ReadCursor::new(256).advance(bytes), expected);
        }
        let (mut reader, head) = (ReadCursor::new(256), AtomicU64::new(0));
        assert_eq!(reader.advance(128), Ok(()));
        // The first record is not released, so it is still in the ring.
        assert_eq!(reader.advance(129), Err(Broken));
        reader.release(&head);
        assert_eq!((reader.advance(256), reader.at()), (Ok(()), 384));
    }
}
