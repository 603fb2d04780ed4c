//! Selective repeat of an RC requester: what the peer misses, where it tells what it keeps.
//!
//! ```text
//!   una            top                    next, high
//!   | hole  | kept | kept | hole | kept | in flight  |
//! ```
//! A peer that keeps what comes ahead of a gap shows it when the requester goes back: it
//! acknowledges what was not sent again. From then on requests ask for a [`KeptMap`] with each NAK
//! ([`Bth::asks_kept`]). What a map leaves out before the newest kept packet is a *hole*: that
//! alone is sent again, while new packets go on. Peers that have not shown it, hardware and rxe
//! among them, never see the question, and the requester goes back.
//!
//! A hole need not be a loss. Where the network changes the order of packets it closes by itself,
//! so the requester waits before it repeats and tells congestion control, for as long as holes took
//! to close by themselves before: first not at all, a round trip at most.
//!
//! Owned by the completer, which tells it of maps and progress; the requester asks it what to
//! repeat.
//!
//! [`Bth::asks_kept`]: vernic_wire::Bth::asks_kept

use vernic_wire::KeptMap;

use super::reads::Reads;
use crate::sq::SendQueue;
use crate::time::Time;

/// Doublings of the wait for a repeated packet of which nothing was heard.
const MOST_DOUBLINGS: u32 = 6;
/// Before a round trip is measured, a repeated packet is waited for so many nanoseconds.
const UNMEASURED: u64 = 1_000_000;

/// A packet that the peer misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hole {
    seq: u64,
    /// Sequence numbers that it takes.
    packets: u32,
    /// When a map left it out first.
    seen: Time,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits whether it closes by itself.
    Seen,
    /// To be sent again, for the time after so many.
    Queued(u32),
    /// Was sent again for the last of so many times, when `high` was one past the newest.
    Sent { at: Time, high: u64, times: u32 },
}

/// What is to follow from the time that has passed, and from a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// A packet counts as lost.
    pub(crate) lost: bool,
    /// The oldest one does.
    pub(crate) oldest: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Repair {
    /// Oldest first.
    holes: Vec<Hole>,
    /// The memory of the list before.
    spare: Vec<Hole>,
    /// The oldest missing packet of the newest map, and how many packets it said are kept.
    told: (u64, u32),
    /// One past the newest packet that is kept.
    top: u64,
    una: u64,
    /// Holes to be sent again.
    queued: u32,
    due: Option<Time>,
    /// Nanoseconds that a hole may take to close by itself.
    tolerance: u64,
    /// The shortest round trip, which grows slowly, and the smoothed one; 0 before one is measured.
    shortest: u64,
    smoothed: u64,
    /// Since no repeated packet was awaited: whether one proved needless, and whether one was
    /// needed.
    needless: bool,
    needed: bool,
    /// All that was repeated proves needless, and the completer has not asked yet.
    is_needless: bool,
}

impl Repair {
    /// Forgets what the peer misses: everything is sent again. What was learnt of the path stays.
    pub(crate) fn clear(&mut self) {
        self.holes.clear();
        (self.queued, self.due, self.top, self.told) = (0, None, 0, (0, 0));
        (self.needless, self.needed, self.is_needless) = (false, false, false);
    }

    /// A packet that was sent once was answered after so many nanoseconds.
    pub(crate) fn on_round_trip(&mut self, nanos: u64) {
        if self.smoothed == 0 {
            (self.shortest, self.smoothed) = (nanos, nanos);
        }
        self.shortest = nanos.min(self.shortest + self.shortest / 32);
        self.smoothed = self.smoothed - self.smoothed / 8 + nanos / 8;
    }

    /// When [`judge`](Self::judge) is to be called.
    #[inline]
    pub(crate) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Whether a packet is to be sent again.
    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        self.queued > 0
    }

    /// Whether the oldest missing packet is to be sent again: it need not wait for the window.
    pub(crate) fn is_oldest_queued(&self) -> bool {
        matches!(self.holes.first(), Some(Hole { state: State::Queued(_), .. }))
    }

    /// Sequence numbers before the newest that are not in the network: the peer has them, or they
    /// are lost and not yet sent again.
    pub(crate) fn gone(&self) -> u32 {
        let span = self.top.saturating_sub(self.una) as u32;
        let holes: u32 = self.holes.iter().map(|hole| hole.packets).sum();
        let lost = self.holes.iter().filter(|hole| matches!(hole.state, State::Queued(_)));
        span.saturating_sub(holes) + lost.map(|hole| hole.packets).sum::<u32>()
    }

    /// The peer misses `una`, and keeps what the map says. Returns whether that is news: maps may
    /// come in another order than they were sent.
    pub(crate) fn on_map(
        &mut self,
        sq: &SendQueue,
        reads: &Reads,
        map: &KeptMap,
        now: Time,
    ) -> bool {
        let (una, count) = (sq.una(), map.count());
        if self.told.0 == una && count <= self.told.1 {
            return false;
        }
        self.told = (una, count);
        self.una = una;
        self.top = (una + u64::from(map.newest()) + 1).min(sq.high());
        let old = std::mem::replace(&mut self.holes, std::mem::take(&mut self.spare));
        let mut known = old.iter().peekable();
        let mut seq = una;
        // Bounded: a map has so many bits.
        while seq < self.top {
            if map.has((seq - una) as u32) {
                seq += 1;
                continue;
            }
            // A READ, an atomic and the like take as many numbers as their responses.
            let end = reads.end_of(seq).map_or(seq + 1, |end| end.max(seq + 1));
            let is_request = reads.piece_of(seq).is_none_or(|piece| piece.start == seq);
            while let Some(&&gone) = known.peek()
                && gone.seq < seq
            {
                self.closed(gone, now);
                known.next();
            }
            let before = known.next_if(|hole| hole.seq == seq);
            if is_request {
                let packets = (end - seq) as u32;
                let new = Hole { seq, packets, seen: now, state: State::Seen };
                self.holes.push(before.copied().unwrap_or(new));
            }
            seq = end;
        }
        known.for_each(|gone| self.closed(*gone, now));
        self.spare = old;
        self.spare.clear();
        self.conclude();
        true
    }

    /// The response with the number `una` is missing, and the rest of its READ takes so many
    /// numbers. Returns whether that is news.
    pub(crate) fn on_missing(&mut self, una: u64, packets: u32, now: Time) -> bool {
        let known = self.misses(una);
        if !known {
            self.una = una;
            self.holes.insert(0, Hole { seq: una, packets, seen: now, state: State::Seen });
        }
        !known
    }

    /// Whether the oldest of all, `una`, is known to be missing.
    #[inline]
    pub(crate) fn misses(&self, una: u64) -> bool {
        self.holes.first().is_some_and(|hole| hole.seq == una)
    }

    /// Everything before `una` is acknowledged.
    pub(crate) fn on_progress(&mut self, una: u64, now: Time) {
        self.una = una;
        let left = self.holes.partition_point(|hole| hole.seq < una);
        for index in 0..left {
            self.closed(self.holes[index], now);
        }
        self.holes.drain(..left);
        self.count_queued();
        if self.holes.is_empty() {
            self.due = None;
        }
        self.conclude();
    }

    /// The requester went back at `at` to a packet that is acknowledged now.
    pub(crate) fn on_gone_back(&mut self, at: Time, now: Time) {
        let packets = 1;
        let state = State::Sent { at, high: 0, times: 1 };
        self.closed(Hole { seq: 0, packets, seen: at, state }, now);
        self.conclude();
    }

    /// Whether all that was repeated proves needless: nothing was lost. Said once.
    pub(crate) fn take_needless(&mut self) -> bool {
        std::mem::take(&mut self.is_needless)
    }

    /// Once nothing that was repeated is awaited, it is known whether any of it was needed.
    fn conclude(&mut self) {
        let is_awaited = |hole: &Hole| matches!(hole.state, State::Sent { .. });
        if !self.holes.iter().any(is_awaited) {
            self.is_needless |= self.needless && !self.needed;
            (self.needless, self.needed) = (false, false);
        }
    }

    /// A hole has closed. If that was the first copy, the next ones are given as long.
    fn closed(&mut self, hole: Hole, now: Time) {
        let by_itself = match hole.state {
            State::Seen | State::Queued(0) => true,
            State::Sent { at, times: 1, .. } => now.since(at) < self.shortest / 4 * 3,
            _ => false,
        };
        if by_itself {
            let took = now.since(hole.seen);
            self.tolerance = self.tolerance.max(took + took / 4).min(self.smoothed);
            self.needless |= matches!(hole.state, State::Sent { .. });
        } else if self.shortest > 0 {
            self.needed = true;
            self.tolerance -= self.tolerance / 16;
        }
    }

    fn count_queued(&mut self) {
        let queued = self.holes.iter().filter(|hole| matches!(hole.state, State::Queued(_)));
        self.queued = queued.count() as u32;
    }

    /// Decides which holes are losses by now. A packet that was sent again is lost again if the
    /// peer has one that was sent later, or has said nothing for long.
    pub(crate) fn judge(&mut self, now: Time) -> Verdict {
        let round_trip = if self.smoothed == 0 { UNMEASURED } else { self.smoothed };
        let (mut verdict, mut due) = (Verdict::default(), None::<Time>);
        for hole in &mut self.holes {
            let (at, times, is_sign) = match hole.state {
                State::Queued(_) => continue,
                State::Seen => (hole.seen + self.tolerance, 0, true),
                State::Sent { at, high, times } if self.top > high => {
                    (at + (round_trip + self.tolerance), times, true)
                }
                State::Sent { at, times, .. } => {
                    let silence = round_trip * 2 + self.tolerance;
                    (at + (silence << times.min(MOST_DOUBLINGS)), times, false)
                }
            };
            if now < at {
                due = Some(due.map_or(at, |due| due.min(at)));
                continue;
            }
            hole.state = State::Queued(times);
            verdict.lost |= is_sign;
            verdict.oldest |= is_sign && hole.seq == self.una;
        }
        self.due = due;
        self.count_queued();
        verdict
    }

    /// Takes the oldest packet that is to be sent again now: its number, and how many it takes.
    pub(crate) fn take(&mut self, high: u64, now: Time) -> Option<(u64, u32)> {
        let queued = |hole: &&mut Hole| matches!(hole.state, State::Queued(_));
        let hole = self.holes.iter_mut().find(queued)?;
        let State::Queued(times) = hole.state else { return None };
        hole.state = State::Sent { at: now, high, times: times + 1 };
        let taken = (hole.seq, hole.packets);
        self.queued -= 1;
        // No later than the wait for silence; a map may make it sooner.
        let round_trip = if self.smoothed == 0 { UNMEASURED } else { self.smoothed };
        let at = now + ((round_trip * 2 + self.tolerance) << (times + 1).min(MOST_DOUBLINGS));
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wqe::{Remote, SendFlags, SendOp, SendWqe};

    const MS: u64 = 1_000_000;

    /// A queue with one WRITE of 100 packets, all sent; the extended number of the first.
    fn sent() -> (SendQueue, u64) {
        let mut sq = SendQueue::new(4);
        send(&mut sq, 100);
        let una = sq.una();
        (sq, una)
    }

    /// Sends one more WRITE of so many packets.
    fn send(sq: &mut SendQueue, packets: u32) {
        let (op, flags, length) =
            (SendOp::Write(Remote::default()), SendFlags::empty(), packets * 256);
        sq.push(SendWqe { wr_id: 1, op, flags, length, dest: None, srqn: None });
        sq.start(packets);
        sq.advance(packets);
    }

    fn map(kept: impl IntoIterator<Item = u32>) -> KeptMap {
        let mut map = KeptMap::default();
        kept.into_iter().for_each(|distance| map.set(distance));
        map
    }

    /// All that is to be sent again at `now`, as distances from `una`.
    fn taken(repair: &mut Repair, sq: &SendQueue, now: Time) -> Vec<u64> {
        repair.judge(now);
        let una = sq.una();
        std::iter::from_fn(|| repair.take(sq.high(), now)).map(|(seq, _)| seq - una).collect()
    }

    #[test]
    fn what_a_map_leaves_out_is_sent_again_once_and_does_not_fill_the_window() {
        let (sq, _) = sent();
        let (mut repair, reads) = (Repair::default(), Reads::default());
        repair.on_round_trip(10 * MS);
        assert!(repair.on_map(&sq, &reads, &map([1, 2, 4]), Time(0)));
        assert_eq!(repair.judge(Time(0)), Verdict { lost: true, oldest: true });
        // Three are kept, and two lost.
        assert_eq!(repair.gone(), 5);
        assert_eq!(taken(&mut repair, &sq, Time(0)), [0, 3]);
        assert_eq!(repair.gone(), 3);
        // A map that says less is older.
        assert!(!repair.on_map(&sq, &reads, &map([1, 2]), Time(MS)));
        assert!(repair.on_map(&sq, &reads, &map([1, 2, 4, 6]), Time(MS)));
        assert_eq!(taken(&mut repair, &sq, Time(MS)), [5]);
    }

    #[test]
    fn a_repeated_packet_is_lost_again_if_a_later_one_is_there_or_after_long_silence() {
        let (mut sq, _) = sent();
        let (mut repair, reads) = (Repair::default(), Reads::default());
        repair.on_round_trip(10 * MS);
        repair.on_map(&sq, &reads, &map(1..100), Time(0));
        assert_eq!(taken(&mut repair, &sq, Time(0)), [0]);
        send(&mut sq, 1);
        assert!(repair.on_map(&sq, &reads, &map(1..101), Time(12 * MS)));
        assert_eq!(taken(&mut repair, &sq, Time(12 * MS)), [0]);
        // Nothing was sent behind that: four round trips, then eight.
        let due = repair.due().unwrap();
        assert_eq!(due, Time(12 * MS) + 80 * MS);
        assert_eq!(repair.judge(due), Verdict::default());
        assert!(repair.is_oldest_queued());
    }

    #[test]
    fn holes_that_close_by_themselves_are_given_the_time_that_they_took() {
        let (mut sq, una) = sent();
        let (mut repair, reads) = (Repair::default(), Reads::default());
        repair.on_round_trip(40 * MS);
        repair.on_map(&sq, &reads, &map([1]), Time(0));
        assert_eq!(taken(&mut repair, &sq, Time(0)), [0]);
        // Too soon for the second copy.
        sq.acknowledge(una + 2);
        repair.on_progress(una + 2, Time(8 * MS));
        assert!(repair.take_needless() && !repair.take_needless());
        repair.on_map(&sq, &reads, &map([1]), Time(10 * MS));
        assert_eq!(repair.judge(Time(10 * MS)), Verdict::default());
        assert_eq!(repair.due(), Some(Time(20 * MS)));
        assert_eq!(repair.gone(), 1);
        assert_eq!(taken(&mut repair, &sq, Time(20 * MS)), [0]);
        // A round trip after the second copy left: it was needed.
        sq.acknowledge(una + 4);
        repair.on_progress(una + 4, Time(61 * MS));
        assert!(!repair.take_needless());
        assert_eq!(repair.due(), None);
    }
}
