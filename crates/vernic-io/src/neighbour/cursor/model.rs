//! The model of a ring and its bell, checked over every interleaving and every value that the memory
//! model lets a thread see (loom).

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

/// Places of the ring: so few that the writer must wait.
const PLACES: u64 = 2;
/// The first packet: not what is in a place that nobody wrote.
const FIRST: u64 = 100;
/// Packets that are sent.
const PACKETS: u64 = 3;

/// An eventfd: what was rung is heard later.
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
    tail: AtomicU64,
    head: AtomicU64,
    asleep: AtomicU64,
    bell: Bell,
    /// Words of packets, relaxed as in a ring: who looks too early or too late sees another value.
    places: [AtomicU64; PLACES as usize],
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            tail: AtomicU64::new(0),
            head: AtomicU64::new(0),
            asleep: AtomicU64::new(0),
            bell: Bell::default(),
            places: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    /// Writes as many of the packets from `next` on as there is room for; returns the next.
    fn write(&self, cursor: &mut WriteCursor, mut next: u64) -> u64 {
        while next < PACKETS && cursor.has_room(1, &self.head).unwrap() {
            let place = &self.places[(cursor.at() % PLACES) as usize];
            place.store(FIRST + next, Ordering::Relaxed);
            cursor.advance(1);
            next += 1;
        }
        if cursor.has_unpublished()
            && cursor.publish(&self.tail, || self.asleep.load(Ordering::Relaxed))
        {
            self.bell.ring();
        }
        next
    }

    /// Reads what is there; returns what comes next.
    fn read(&self, cursor: &mut ReadCursor, mut next: u64) -> u64 {
        while cursor.available(&self.tail).unwrap() != 0 {
            let place = &self.places[(cursor.at() % PLACES) as usize];
            let value = place.load(Ordering::Relaxed);
            assert_eq!(value, FIRST + next, "packets come whole, once and in order");
            cursor.advance(1);
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

/// So many times ringing the bell fails, and is tried again later.
fn wakes_by_every_packet(failures: u32) {
    loom::model(move || {
        let shared = Shared::new();
        let writer = shared.clone();
        let writing = thread::spawn(move || {
            let (mut cursor, mut failures, mut owed) = (WriteCursor::new(PLACES), failures, false);
            for _ in 0..PLACES {
                cursor.advance(1);
                if !cursor.publish(&writer.tail, || writer.asleep.load(Ordering::Relaxed)) {
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
        while cursor.at() != PLACES {
            let available = cursor.available(&shared.tail).unwrap();
            if available != 0 {
                cursor.advance(available);
                continue;
            }
            number += 1;
            announce(&shared.asleep, number);
            if !cursor.has_news(&shared.tail) {
                shared.bell.wait();
            }
            awake(&shared.asleep);
        }
        writing.join().unwrap();
    });
}
