//! Positions in a ring, and who must be woken: the part of it that several processes must agree on.
//!
//! A ring has one writer and one reader. Each keeps its own position and publishes it in a word of
//! its own; positions count bytes since the ring was made and never wrap in practice (2^64). Of the
//! other's word each keeps the last value it saw and looks again only when that is not enough, so the
//! two cache lines do not travel for every packet. A value that the other cannot have meant honestly is
//! [`Broken`].
//!
//! # No lost wake-up
//!
//! ```text
//!   writer                              who wants to sleep
//!   W1 write packets                    S1 asleep = n, another number each time
//!   W2 tail = t      (Release)          S2 fence(SeqCst)
//!   W3 fence(SeqCst)                    S3 tail of any ring moved? asleep = 0, no sleep
//!   W4 asleep != 0? ring the bell       S4 sleep until the bell rings; asleep = 0
//! ```
//!
//! Both fences are in one total order: if W3 comes first, S3 sees W2; if S2 comes first, W4 sees S1.
//! A bell that was rung stays rung until it is heard, so it does not matter whether S4 has begun, and
//! a writer rings once for each number that it sees: the bell is a system call. One that fails does not count:
//! W4 is done again after a while ([`WriteCursor::must_ring`]). Whoever sleeps with another number by then has
//! looked at the rings after W2.
//!
//! Generic over the words, so that the model checker runs this very code (`cursor/model.rs`).

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A word that two processes share.
pub(super) trait Word {
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

/// The other end has written a position that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// The writer's end.
#[derive(Debug)]
pub(super) struct WriteCursor {
    capacity: u64,
    tail: u64,
    published: u64,
    /// As last seen.
    head: u64,
    /// The number of the sleep that the bell was rung for last.
    rung: u64,
}

impl WriteCursor {
    pub(super) const fn new(capacity: u64) -> Self {
        Self { capacity, tail: 0, published: 0, head: 0, rung: 0 }
    }

    /// Where the next byte goes.
    #[inline]
    pub(super) const fn at(&self) -> u64 {
        self.tail
    }

    /// Whether `bytes` may be written.
    #[inline]
    pub(super) fn has_room(&mut self, bytes: u64, head: &impl Word) -> Result<bool, Broken> {
        if self.capacity - (self.tail - self.head) >= bytes {
            return Ok(true);
        }
        let now = head.load(Ordering::Acquire);
        // The reader reads what is published, and does not go back.
        if now.wrapping_sub(self.head) > self.published - self.head {
            return Err(Broken);
        }
        self.head = now;
        Ok(self.capacity - (self.tail - self.head) >= bytes)
    }

    /// So many bytes were written; there was room for them.
    #[inline]
    pub(super) fn advance(&mut self, bytes: u64) {
        self.tail += bytes;
    }

    /// Whether something was written that is not published.
    #[inline]
    pub(super) const fn has_unpublished(&self) -> bool {
        self.tail != self.published
    }

    /// Lets the reader see what was written; true if the bell must be rung.
    #[inline]
    #[must_use]
    pub(super) fn publish<W: Word>(&mut self, tail: &W, asleep: impl FnOnce() -> u64) -> bool {
        tail.store(self.tail, Ordering::Release);
        self.published = self.tail;
        W::full_fence();
        self.must_ring(asleep())
    }

    /// Whether the bell must be rung for the sleep with this number, 0 if nobody sleeps: counts as rung then.
    #[inline]
    #[must_use]
    pub(super) fn must_ring(&mut self, sleep: u64) -> bool {
        let must_ring = sleep != 0 && sleep != self.rung;
        if must_ring {
            self.rung = sleep;
        }
        must_ring
    }

    /// The bell that had to be rung was not.
    pub(super) fn not_rung(&mut self) {
        self.rung = 0;
    }
}

/// The reader's end.
#[derive(Debug)]
pub(super) struct ReadCursor {
    capacity: u64,
    head: u64,
    released: u64,
    /// As last seen.
    tail: u64,
}

impl ReadCursor {
    pub(super) const fn new(capacity: u64) -> Self {
        Self { capacity, head: 0, released: 0, tail: 0 }
    }

    /// Where the next byte comes from.
    #[inline]
    pub(super) const fn at(&self) -> u64 {
        self.head
    }

    /// Bytes that can be read; those seen before first, so it says 0 only if there are none.
    #[inline]
    pub(super) fn available(&mut self, tail: &impl Word) -> Result<u64, Broken> {
        if self.tail == self.head {
            let now = tail.load(Ordering::Acquire);
            // No more than the ring holds, since we released it; and it does not go back.
            let written = now.wrapping_sub(self.released);
            if written > self.capacity || written < self.tail - self.released {
                return Err(Broken);
            }
            self.tail = now;
        }
        Ok(self.tail - self.head)
    }

    /// So many bytes were read; they were available.
    #[inline]
    pub(super) fn advance(&mut self, bytes: u64) {
        self.head += bytes;
    }

    /// Bytes that were read and are not released.
    #[inline]
    pub(super) const fn unreleased(&self) -> u64 {
        self.head - self.released
    }

    /// Lets the writer overwrite what was read.
    #[inline]
    pub(super) fn release(&mut self, head: &impl Word) {
        self.released = self.head;
        head.store(self.head, Ordering::Release);
    }

    /// For who is about to sleep, after [`announce`]: whether there is something to read.
    pub(super) fn has_news(&self, tail: &impl Word) -> bool {
        tail.load(Ordering::Acquire) != self.head
    }
}

/// Says that its owner is about to sleep, for the `number`th time; to be followed by a look at every ring.
pub(super) fn announce<W: Word>(asleep: &W, number: u64) {
    asleep.store(number, Ordering::Relaxed);
    W::full_fence();
}

/// Takes [`announce`] back.
pub(super) fn awake(asleep: &impl Word) {
    asleep.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_releases_what_it_cannot_have_read_breaks_the_ring() {
        for head in [1, 65, 64 << 32, u64::MAX, u64::MAX - 63] {
            let mut writer = WriteCursor::new(256);
            writer.advance(256);
            let (tail, theirs) = (AtomicU64::new(0), AtomicU64::new(head));
            assert_eq!(writer.has_room(64, &theirs), Err(Broken), "nothing is published yet");
            let _ = writer.publish(&tail, || 0);
            let honest = head <= 256;
            assert_eq!(writer.has_room(64, &theirs).is_ok(), honest, "{head}");
        }
        let mut writer = WriteCursor::new(256);
        writer.advance(256);
        let _ = writer.publish(&AtomicU64::new(0), || 0);
        assert_eq!(writer.has_room(128, &AtomicU64::new(192)), Ok(true));
        assert_eq!(writer.has_room(256, &AtomicU64::new(128)), Err(Broken), "it goes back");
    }

    #[test]
    fn a_writer_that_publishes_more_than_the_ring_holds_breaks_it() {
        for (tail, expected) in
            [(256, Ok(256)), (257, Err(Broken)), (u64::MAX, Err(Broken)), (1 << 63, Err(Broken))]
        {
            assert_eq!(ReadCursor::new(256).available(&AtomicU64::new(tail)), expected);
        }
        let (mut reader, head) = (ReadCursor::new(256), AtomicU64::new(0));
        assert_eq!(reader.available(&AtomicU64::new(128)), Ok(128));
        reader.advance(128);
        // Not released, so still in the ring.
        assert_eq!(reader.available(&AtomicU64::new(257)), Err(Broken));
        assert_eq!(reader.available(&AtomicU64::new(64)), Err(Broken), "it goes back");
        reader.release(&head);
        assert_eq!(reader.available(&AtomicU64::new(384)), Ok(256));
    }
}
