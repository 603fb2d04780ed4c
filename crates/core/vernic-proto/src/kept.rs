//! Packets that came ahead of a gap in the sequence, kept until the gap closes.
//!
//! Owns their bytes, in the order of their numbers, and the place that they take of two bounds: a
//! number of packets for each queue pair, and bytes that all queue pairs of the owner share
//! ([`KeepBudget`]). Nothing is allocated before a packet is ahead of a gap.
//!
//! A kept packet has changed nothing yet. It is handled as if it had come when its turn comes, so
//! rights, keys and lengths are checked then, and order and exactly-once are those of the sequence.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vernic_wire::{KeptMap, Psn};

/// Bytes that queue pairs may keep together.
#[derive(Debug)]
pub struct KeepBudget(AtomicUsize);

impl KeepBudget {
    /// A budget of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(AtomicUsize::new(bytes))
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes `bytes` off what is left. `None` if less is left.
    fn take(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        let less = |left: usize| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        Some(Share { of: Arc::clone(self), bytes })
    }
}

/// Bytes of a budget, which come back to it with the end of this value.
#[derive(Debug)]
struct Share {
    of: Arc<KeepBudget>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// How much a queue pair may keep of what comes ahead of a gap.
#[derive(Clone, Debug)]
pub struct Keeping {
    /// Packets: those whose numbers are at most so far behind the missing one.
    pub packets: u32,
    /// Bytes, of all queue pairs that have the same budget.
    pub budget: Arc<KeepBudget>,
}

/// A packet that was kept, and whose turn has come.
#[derive(Debug)]
pub struct KeptPacket {
    psn: Psn,
    bytes: Box<[u8]>,
    _share: Share,
}

impl KeptPacket {
    /// The packet, from the BTH to the pad.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// What became of a packet that is ahead of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// Kept now.
    Kept,
    /// Kept before: a packet with this number.
    Known,
    /// Too far ahead, or there is no room.
    NoRoom,
    /// Nothing is kept here.
    Off,
}

/// The packets of one queue pair and one direction that came ahead of a gap.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    keeping: Option<Keeping>,
    /// In the order of their numbers, each once.
    ring: VecDeque<KeptPacket>,
}

impl Kept {
    /// Keeps from now on within these bounds, or nothing.
    pub(crate) fn set(&mut self, keeping: Option<Keeping>) {
        self.ring = VecDeque::new();
        self.keeping = keeping;
    }

    /// Packets that are kept.
    pub(crate) fn len(&self) -> u32 {
        self.ring.len() as u32
    }

    /// Whether anything would be kept.
    pub(crate) fn is_on(&self) -> bool {
        self.keeping.is_some()
    }

    /// Forgets what was kept.
    pub(crate) fn clear(&mut self) {
        self.ring.clear();
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Keeps a packet with number `psn` while `expected` is missing. The first one of a number
    /// counts, as it would in order.
    pub(crate) fn put(&mut self, expected: Psn, psn: Psn, bytes: &[u8]) -> Put {
        let Some(keeping) = &self.keeping else { return Put::Off };
        let distance = psn.offset_from(expected);
        if distance < 1 || distance as u32 > keeping.packets {
            return Put::NoRoom;
        }
        let place = |kept: &KeptPacket| kept.psn.offset_from(expected) < distance;
        // Mostly behind all others: most packets come in order.
        let at = match self.ring.back() {
            Some(last) if !place(last) => self.ring.partition_point(place),
            _ => self.ring.len(),
        };
        if self.ring.get(at).is_some_and(|kept| kept.psn == psn) {
            return Put::Known;
        }
        let Some(share) = keeping.budget.take(bytes.len()) else { return Put::NoRoom };
        self.ring.insert(at, KeptPacket { psn, bytes: bytes.into(), _share: share });
        Put::Kept
    }

    /// Whether the packet with the number `expected` is kept, and is the next.
    pub(crate) fn has(&self, expected: Psn) -> bool {
        self.ring.front().is_some_and(|kept| kept.psn == expected)
    }

    /// Takes the packet with the number `expected`. What is before it was never in its place: a
    /// READ request ahead has taken its number.
    pub(crate) fn take(&mut self, expected: Psn) -> Option<KeptPacket> {
        while self.ring.front()?.psn.is_before(expected) {
            self.ring.pop_front();
        }
        if self.ring.front()?.psn == expected { self.ring.pop_front() } else { None }
    }

    /// Whether the packet with the number `psn` is the newest, and the one before it is missing.
    pub(crate) fn opens_gap(&self, psn: Psn) -> bool {
        let mut newest = self.ring.iter().rev().map(|kept| kept.psn);
        newest.next() == Some(psn) && newest.next().is_some_and(|other| other.next() != psn)
    }

    /// Which packets behind the missing `expected` are kept, as far as a map of so many bytes can
    /// tell.
    pub(crate) fn map(&self, expected: Psn, bytes: u32) -> KeptMap {
        let mut map = KeptMap::default();
        let distances = self.ring.iter().map(|kept| kept.psn.distance_from(expected));
        distances
            .take_while(|distance| *distance <= bytes * 8)
            .for_each(|distance| map.set(distance));
        map
    }
}
