//! The model of a ring and its bell, checked over every interleaving and every value that the
//! memory model lets a thread see (loom).

use std::sync::atomic::Ordering;

use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
    fn full_fence() {
        fence(Ordering::SeqCst);
    }
}

/// Positions of the ring, one of which is kept for the mark behind the last: so few that the writer
/// must wait.
const PLACES: u64 = 3;
/// The first packet's value: not what is in a position that was never written.
const FIRST: u64 = 100;
/// Any mark.
const MARK: u64 = 7;
/// Packets that are sent.
const PACKETS: u64 = 4;

/// A model of an eventfd: what was rung is noticed later.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

struct Shared {
    head: AtomicU64,
    asleep: AtomicU64,
    bell: Bell,
    /// The mark at each position, and a word of the packet there, relaxed as in a ring: a reader
    /// that loads too early or too late sees another value.
    places: [[AtomicU64; 2]; PLACES as usize],
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            head: AtomicU64::new(0),
            asleep: AtomicU64::new(0),
            bell: Bell::default(),
            places: std::array::from_fn(|_| [AtomicU64::new(0), AtomicU64::new(0)]),
        })
    }

    /// Returns the mark at a position, and the word of its packet.
    fn at(&self, position: u64) -> &[AtomicU64; 2] {
        &self.places[(position % PLACES) as usize]
    }

    /// Writes a packet for which there is room.
    fn push(&self, cursor: &mut WriteCursor, packet: u64) {
        let [mark, word] = self.at(cursor.at());
        word.store(packet, Ordering::Relaxed);
        cursor.advance(1, MARK, mark, &self.at(cursor.at() + 1)[0]);
    }

    /// Publishes what was written. Returns true if the bell must be rung.
    fn publish(&self, cursor: &mut WriteCursor) -> bool {
        let first = &self.at(cursor.first())[0];
        cursor.publish(first, || self.asleep.load(Ordering::Relaxed))
    }

    fn has_news(&self, cursor: &ReadCursor) -> bool {
        cursor.mark(&self.at(cursor.at())[0]).is_some()
    }

    /// Writes as many of the packets from `next` on as there is room for. Returns the next one.
    fn write(&self, cursor: &mut WriteCursor, mut next: u64) -> u64 {
        while next < PACKETS && cursor.has_room(2, &self.head).unwrap() {
            self.push(cursor, FIRST + next);
            next += 1;
        }
        if cursor.has_unpublished() && self.publish(cursor) {
            self.bell.ring();
        }
        next
    }

    /// Reads the packets that are there. Returns the number of the next one.
    fn read(&self, cursor: &mut ReadCursor, mut next: u64) -> u64 {
        while self.has_news(cursor) {
            let value = self.at(cursor.at())[1].load(Ordering::Relaxed);
            assert_eq!(value, FIRST + next, "packets come whole, once and in order");
            cursor.advance(1).unwrap();
            next += 1;
        }
        if cursor.unreleased() != 0 {
            cursor.release(&self.head);
        }
        next
    }
}

#[test]
fn packets_cross_once_in_order_and_no_place_is_touched_by_both_ends() {
    loom::model(|| {
        let shared = Shared::new();
        let writer = shared.clone();
        let writing = thread::spawn(move || {
            let (mut cursor, mut next) = (WriteCursor::new(PLACES), 0);
            // Bounded: a writer that finds the ring full leaves.
            for _ in 0..2 {
                next = writer.write(&mut cursor, next);
            }
            next
        });
        let (mut cursor, mut next) = (ReadCursor::new(PLACES), 0);
        for _ in 0..2 {
            next = shared.read(&mut cursor, next);
        }
        let written = writing.join().unwrap();
        assert_eq!(shared.read(&mut cursor, next), written, "nothing is lost");
    });
}

#[test]
fn who_sleeps_is_woken_by_every_packet() {
    wakes_by_every_packet(0);
}

#[test]
fn who_sleeps_is_woken_though_the_bell_fails_at_first() {
    wakes_by_every_packet(1);
}

/// Checks the wake-up where ringing the bell fails so many times, and is tried again later.
fn wakes_by_every_packet(failures: u32) {
    loom::model(move || {
        let shared = Shared::new();
        let writer = shared.clone();
        let writing = thread::spawn(move || {
            let (mut cursor, mut failures, mut owed) = (WriteCursor::new(PLACES), failures, false);
            for _ in 1..PLACES {
                writer.push(&mut cursor, FIRST);
                if !writer.publish(&mut cursor) {
                    continue;
                }
                if failures == 0 {
                    writer.bell.ring();
                } else {
                    failures -= 1;
                    owed = true;
                    cursor.not_rung();
                }
            }
            if owed && cursor.must_ring(writer.asleep.load(Ordering::Relaxed)) {
                writer.bell.ring();
            }
        });
        let (mut cursor, mut number) = (ReadCursor::new(PLACES), 0);
        // Ends in a deadlock, which loom reports, if a packet comes and the bell is not rung.
        while cursor.at() != PLACES - 1 {
            if shared.has_news(&cursor) {
                cursor.advance(1).unwrap();
                continue;
            }
            number += 1;
            announce(&shared.asleep, number);
            if !shared.has_news(&cursor) {
                shared.bell.wait();
            }
            awake(&shared.asleep);
        }
        writing.join().unwrap();
    });
}
