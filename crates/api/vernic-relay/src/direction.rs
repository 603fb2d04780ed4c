//! Frames on their way in one direction: a queue, a line with a rate, a delay.
//!
//! Owns the frames that were taken and have not left, and when each of them leaves. Knows no clock
//! and no socket: its owner says what time it is. A frame is moved through, and its buffer is used
//! for a later one.
//!
//! ```text
//!   handle -> lost? -> queue full? marked? -> the line -> damaged? -> delay -> poll
//! ```
//!
//! Limits: [`MAX_HELD`] bytes of frames; [`MAX_SPARE`] buffers without one.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::impairment::Impairment;
use crate::ip;

/// Nanoseconds from any moment on that the owner chooses.
pub type Nanos = u64;

/// Most bytes of frames that are on their way: half a second of 10 Gb/s.
const MAX_HELD: usize = 640 << 20;

/// Most buffers that are kept for later frames.
const MAX_SPARE: usize = 1024;

/// Bytes of a frame on the line that nobody sees: preamble, checksum, gap.
const LINE_BYTES: u64 = 24;

/// Nanoseconds by which a frame that is held up is late, at least and at most.
const HELD_UP: (Nanos, Nanos) = (200_000, 1_000_000);

/// What has happened to the frames of a direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that came.
    pub received: u64,
    /// Frames that left, copies among them.
    pub sent: u64,
    /// Frames that were lost on purpose.
    pub lost: u64,
    /// Frames that found the queue full.
    pub dropped: u64,
    /// Frames that were marked (ECN).
    pub marked: u64,
    /// Frames that were sent twice.
    pub doubled: u64,
    /// Frames of which a bit was flipped.
    pub corrupted: u64,
    /// Frames that were held up.
    pub held_up: u64,
    /// Frames for which there was no memory: see the head of `direction.rs`.
    pub overflowed: u64,
    /// The most bytes that have waited for the line.
    pub longest_queue: u64,
}

/// A frame on its way.
#[derive(Debug)]
struct Held {
    at: Nanos,
    /// The how-manieth it is: frames of one time leave in their order.
    number: u64,
    bytes: Vec<u8>,
}

impl Held {
    const fn key(&self) -> (Nanos, u64) {
        (self.at, self.number)
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// The frames of one direction.
#[derive(Debug)]
pub struct Direction {
    impairment: Impairment,
    random: fastrand::Rng,
    held: BinaryHeap<Reverse<Held>>,
    /// Bytes of the buffers of these frames.
    held_bytes: usize,
    spare: Vec<Vec<u8>>,
    next_number: u64,
    /// When the line has sent all that waits for it.
    line_free_at: Nanos,
    counts: Counts,
}

/// What happens to a frame. All of it is drawn for each frame, so that the fate of one does not
/// depend on the setting of another.
#[derive(Clone, Copy, Debug)]
struct Fate {
    is_lost: bool,
    is_doubled: bool,
    is_corrupted: bool,
    is_held_up: bool,
    /// A share of the jitter, from -1 to 1.
    jitter: f64,
    choice: u64,
}

impl Fate {
    fn draw(impairment: &Impairment, random: &mut fastrand::Rng) -> Self {
        let mut hits = |share: f64| random.f64() < share;
        let (is_lost, is_doubled) = (hits(impairment.loss), hits(impairment.dup));
        let (is_corrupted, is_held_up) = (hits(impairment.corrupt), hits(impairment.reorder));
        let (jitter, choice) = (random.f64() * 2.0 - 1.0, random.u64(..));
        Self { is_lost, is_doubled, is_corrupted, is_held_up, jitter, choice }
    }
}

impl Direction {
    /// Returns a direction without frames. `salt` tells the directions of a seed apart.
    pub fn new(impairment: Impairment, salt: u64) -> Self {
        let seed = impairment.seed.wrapping_mul(2).wrapping_add(salt);
        Self {
            impairment,
            random: fastrand::Rng::with_seed(seed),
            held: BinaryHeap::new(),
            held_bytes: 0,
            spare: Vec::new(),
            next_number: 0,
            line_free_at: 0,
            counts: Counts::default(),
        }
    }
    /// Returns what has been counted.
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }
    /// Returns a buffer for a frame that comes; it has any content.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }
    /// Takes the buffer of a frame that nobody needs any more.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < MAX_SPARE {
            self.spare.push(buffer);
        }
    }
    /// Takes a frame.
    pub fn handle(&mut self, mut frame: Vec<u8>, now: Nanos) {
        self.counts.received += 1;
        let is_ip = ip::is_ip(&frame);
        let fate = is_ip.then(|| Fate::draw(&self.impairment, &mut self.random));
        if fate.is_some_and(|fate| fate.is_lost) {
            self.counts.lost += 1;
            return self.recycle(frame);
        }
        let waiting = self.waiting_bytes(now);
        if self.impairment.rate_bits_per_s.is_some() {
            let queue = waiting + frame.len() as u64;
            if waiting > 0 && queue > self.impairment.queue_bytes {
                self.counts.dropped += 1;
                return self.recycle(frame);
            }
            self.counts.longest_queue = self.counts.longest_queue.max(queue);
        }
        let copies = if fate.is_some_and(|fate| fate.is_doubled) { 2 } else { 1 };
        if self.held_bytes + copies * frame.capacity() > MAX_HELD {
            self.counts.overflowed += 1;
            return self.recycle(frame);
        }
        if self.impairment.ecn_bytes.is_some_and(|from| waiting >= from) && ip::mark(&mut frame) {
            self.counts.marked += 1;
        }
        let mut at = self.transmit(frame.len(), now);
        if let Some(fate) = fate {
            at = self.arrival(&fate, at);
            if fate.is_corrupted {
                self.counts.corrupted += 1;
                ip::corrupt(&mut frame, fate.choice);
            }
        } else {
            at += nanos(self.impairment.delay);
        }
        if copies == 2 {
            self.counts.doubled += 1;
            self.hold(at, frame.clone());
        }
        self.hold(at, frame);
    }
    /// Returns the next frame that has arrived at the other end.
    pub fn poll(&mut self, now: Nanos) -> Option<Vec<u8>> {
        let Reverse(first) = self.held.peek()?;
        if first.at > now {
            return None;
        }
        let Reverse(frame) = self.held.pop()?;
        self.held_bytes -= frame.bytes.capacity();
        self.counts.sent += 1;
        Some(frame.bytes)
    }
    /// Returns when [`poll`](Self::poll) has something.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.held.peek().map(|Reverse(frame)| frame.at)
    }
    /// Bytes that wait for the line.
    fn waiting_bytes(&self, now: Nanos) -> u64 {
        let Some(rate) = self.impairment.rate_bits_per_s else { return 0 };
        let left = u128::from(self.line_free_at.saturating_sub(now));
        (left * u128::from(rate) / 8_000_000_000) as u64
    }
    /// Puts a frame on the line. Returns when its last bit has left.
    fn transmit(&mut self, len: usize, now: Nanos) -> Nanos {
        let Some(rate) = self.impairment.rate_bits_per_s else { return now };
        let bits = u128::from(len as u64 + LINE_BYTES) * 8;
        let takes = (bits * 1_000_000_000).div_ceil(u128::from(rate)) as Nanos;
        self.line_free_at = self.line_free_at.max(now) + takes;
        self.line_free_at
    }
    /// Returns when a frame arrives that has left the line at `at`.
    fn arrival(&mut self, fate: &Fate, at: Nanos) -> Nanos {
        let delay = self.impairment.delay.as_nanos() as f64;
        let jitter = self.impairment.jitter.as_nanos() as f64 * fate.jitter;
        let mut arrival = at + (delay + jitter).max(0.0) as Nanos;
        if fate.is_held_up {
            self.counts.held_up += 1;
            let (least, most) = HELD_UP;
            arrival += least + fate.choice % (most - least);
        }
        arrival
    }
    fn hold(&mut self, at: Nanos, bytes: Vec<u8>) {
        self.held_bytes += bytes.capacity();
        self.held.push(Reverse(Held { at, number: self.next_number, bytes }));
        self.next_number += 1;
    }
}

fn nanos(duration: std::time::Duration) -> Nanos {
    duration.as_nanos() as Nanos
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::tests::frame;

    const MS: Nanos = 1_000_000;

    fn direction(words: &str) -> Direction {
        Direction::new(Impairment::parse(words.split_whitespace()).unwrap(), 0)
    }

    /// Frames of IP that are told apart by their last bytes.
    fn numbered(number: u32, len: usize) -> Vec<u8> {
        let mut frame = frame(true, 2, len);
        let at = frame.len() - 4;
        frame[at..].copy_from_slice(&number.to_be_bytes());
        frame
    }

    fn number_of(frame: &[u8]) -> u32 {
        u32::from_be_bytes(frame[frame.len() - 4..].try_into().unwrap())
    }

    /// Takes all that arrives, with the time.
    fn drain(direction: &mut Direction) -> Vec<(Nanos, u32)> {
        let mut all = Vec::new();
        while let Some(at) = direction.next_deadline() {
            assert!(at == 0 || direction.poll(at - 1).is_none(), "not before its time");
            all.push((at, number_of(&direction.poll(at).unwrap())));
        }
        assert_eq!(direction.held_bytes, 0);
        all
    }

    #[test]
    fn without_impairments_frames_pass_at_once_and_in_order() {
        let mut direction = direction("");
        for number in 0..100 {
            direction.handle(numbered(number, 100), u64::from(number));
        }
        let expected: Vec<_> = (0..100).map(|number| (u64::from(number), number)).collect();
        assert_eq!(drain(&mut direction), expected);
        assert_eq!(*direction.counts(), Counts { received: 100, sent: 100, ..Counts::default() });
    }

    #[test]
    fn the_line_has_its_rate_and_its_queue_a_bound() {
        // A frame of 976 bytes takes a millisecond at 8 Mb/s.
        let mut direction = direction("rate=8m queue=3000 delay=5ms");
        for number in 0..5 {
            direction.handle(numbered(number, 976), 0);
        }
        let arrived = drain(&mut direction);
        assert_eq!(arrived, [(6 * MS, 0), (7 * MS, 1), (8 * MS, 2)]);
        let counts = direction.counts();
        assert_eq!((counts.dropped, counts.longest_queue), (2, 2976));
        // A line that is free takes any frame, however short the queue is.
        let mut short = self::direction("rate=8m queue=1");
        short.handle(numbered(7, 976), 0);
        short.handle(numbered(8, 976), 0);
        short.handle(numbered(9, 976), MS);
        assert_eq!(drain(&mut short), [(MS, 7), (2 * MS, 9)]);
    }

    #[test]
    fn frames_that_wait_behind_many_bytes_are_marked() {
        let mut direction = direction("rate=8m ecn=1500");
        for number in 0..4 {
            direction.handle(numbered(number, 976), 0);
        }
        assert_eq!(direction.counts().marked, 2);
        let ecn = |frame: &[u8]| frame[ip::ETHERNET + 1] & 3;
        let marks: Vec<_> = std::iter::from_fn(|| direction.poll(Nanos::MAX)).collect();
        assert_eq!(marks.iter().map(|frame| ecn(frame)).collect::<Vec<_>>(), [2, 2, 3, 3]);
    }

    #[test]
    fn shares_are_met_and_other_frames_than_of_ip_are_spared() {
        let mut direction = direction("loss=10% dup=20% corrupt=30% delay=1ms jitter=1ms seed=3");
        let mut arp = numbered(0, 100);
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        for _ in 0..1000 {
            direction.handle(arp.clone(), 0);
        }
        assert!(drain(&mut direction).iter().all(|(at, _)| *at == MS));
        assert_eq!(direction.counts().sent, 1000);
        for number in 0..10_000 {
            direction.handle(numbered(number, 100), 0);
        }
        let arrived = drain(&mut direction);
        let counts = *direction.counts();
        let near = |value: u64, expected: u64| value.abs_diff(expected) < expected / 10;
        assert!(near(counts.lost, 1000) && near(counts.doubled, 1800), "{counts:?}");
        assert!(near(counts.corrupted, 2700), "{counts:?}");
        assert_eq!(counts.sent, 1000 + 10_000 - counts.lost + counts.doubled);
        assert!(arrived.iter().all(|(at, _)| *at <= 2 * MS));
        assert!(arrived.windows(2).any(|pair| pair[0].1 > pair[1].1), "jitter reorders");
    }

    #[test]
    fn a_frame_that_is_held_up_is_overtaken() {
        let mut direction = direction("reorder=5% seed=1");
        for number in 0..1000 {
            direction.handle(numbered(number, 100), u64::from(number) * 10_000);
        }
        let arrived = drain(&mut direction);
        let held_up = direction.counts().held_up;
        assert!((20..100).contains(&held_up), "{held_up}");
        let late = |(at, number): &&(Nanos, u32)| at - u64::from(*number) * 10_000 >= HELD_UP.0;
        assert_eq!(arrived.iter().filter(late).count() as u64, held_up);
    }

    #[test]
    fn the_same_seed_loses_the_same_frames_whenever_they_come() {
        let fates = |seed: u64, apart: Nanos, salt: u64| {
            let words = format!("loss=50% seed={seed}");
            let impairment = Impairment::parse(words.split(' ')).unwrap();
            let mut direction = Direction::new(impairment, salt);
            for number in 0..64 {
                direction.handle(numbered(number, 100), u64::from(number) * apart);
            }
            drain(&mut direction).into_iter().map(|(_, number)| number).collect::<Vec<_>>()
        };
        assert_eq!(fates(1, 0, 0), fates(1, 1000, 0));
        assert_ne!(fates(1, 0, 0), fates(2, 0, 0));
        assert_ne!(fates(1, 0, 0), fates(1, 0, 1), "the other direction");
    }

    #[test]
    fn buffers_are_used_again() {
        let mut direction = direction("loss=100%");
        direction.handle(numbered(0, 1000), 0);
        assert!(direction.buffer().capacity() >= 1000, "that of the frame that was lost");
        assert_eq!(direction.buffer().capacity(), 0);
        for _ in 0..MAX_SPARE + 1 {
            direction.recycle(vec![0; 10]);
        }
        assert_eq!(direction.spare.len(), MAX_SPARE);
    }

    #[test]
    fn memory_is_bounded() {
        let mut direction = direction("delay=10s dup=100%");
        let frame = numbered(0, 9000);
        let most = MAX_HELD / 18_000;
        for _ in 0..most + 10 {
            direction.handle(frame.clone(), 0);
        }
        assert_eq!(direction.counts().overflowed, 10);
        assert!(direction.held_bytes <= MAX_HELD);
    }
}
