//! Selective repeat of an RC requester: what the peer misses, where it tells what it keeps.
//!
//! ```text
//!   una            top                    next, high
//!   | hole  | kept | kept | hole | kept | in flight  |
//! ```
//! A peer that keeps what comes ahead of a gap shows it when the requester goes back: it
//! acknowledges what was not sent again. From then on requests ask for a [`KeptMap`] with each NAK
//! ([`Bth::asks_kept`]), and so do those of other queue pairs to the same device once it has sent a
//! map. What a map leaves out before the newest kept packet is a *hole*: that
//! alone is sent again, while new packets go on. Peers that have not shown it, hardware and rxe
//! among them, never see the question, and the requester goes back.
//!
//! A hole need not be a loss. Where the network changes the order of packets it closes by itself,
//! so the requester waits before it repeats and tells congestion control, for as long as holes took
//! to close by themselves before: first not at all, a round trip at most.
//!
//! A READ response that is missing while later ones come is a hole too, with any peer: the rest of
//! its READ is asked for again. The peer has the request, so maps say nothing of it.
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
/// A peer may have no core for so many nanoseconds.
const PEER_WAITS: u64 = 1_000_000;
/// Before a round trip is measured, a repeated packet is waited for so many nanoseconds.
const UNMEASURED: u64 = 1_000_000;

/// A packet that the peer misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hole {
    seq: u64,
    /// Sequence numbers that it takes.
    packets: u32,
    /// When it was missed first.
    seen: Time,
    state: State,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The peer misses the packet.
    Request,
    /// A response of the peer is missing, and with it the rest of its READ.
    Response,
    /// What is left of a READ that was asked for again, and that has begun to come.
    Rest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits whether it closes by itself.
    Seen,
    /// To be sent again, for the time after so many.
    Queued(u32),
    /// Was sent again for the last of so many times, when `high` was one past the newest. A
    /// response that was sent after the missing one came at `missed`.
    Sent { at: Time, high: u64, times: u32, missed: Option<Time> },
}

impl Hole {
    /// What is missing of it when everything before `una` is there. The rest of a READ that was not
    /// sent again is on its way.
    fn after(self, una: u64, now: Time) -> Option<Self> {
        let packets =
            (self.seq + u64::from(self.packets)).checked_sub(una).filter(|left| *left > 0)?;
        let state = match self.state {
            State::Seen | State::Queued(0) => return None,
            State::Sent { at, high, times, .. } => State::Sent { at, high, times, missed: None },
            State::Queued(times) => State::Sent { at: now, high: u64::MAX, times, missed: None },
        };
        Some(Self { seq: una, packets: packets as u32, seen: now, state, kind: Kind::Rest })
    }
}

/// Nanoseconds that a packet which was sent again so many times is waited for, if nothing is heard
/// that was sent later: three halves of a round trip, then three, and so on. A short round trip is
/// no measure of what a peer without a core takes: up to four of it then.
fn silence(round_trip: u64, times: u32) -> u64 {
    let first = (round_trip / 2 * 3).max(PEER_WAITS.min(round_trip * 4));
    first << (times - 1).min(MOST_DOUBLINGS)
}

/// What is to follow from the time that has passed, and from a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// A packet counts as lost.
    pub(crate) lost: bool,
    /// The oldest one does, and to send it again is a retry.
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

    /// A packet was answered after so many nanoseconds. If it was sent twice, the answer may be to
    /// the second copy, for which half of that is left.
    pub(crate) fn on_round_trip(&mut self, nanos: u64, is_doubtful: bool) {
        let least = if is_doubtful { nanos / 2 } else { nanos };
        if self.smoothed == 0 {
            (self.shortest, self.smoothed) = (least, nanos);
        }
        self.shortest = least.min(self.shortest + self.shortest / 32);
        self.smoothed = self.smoothed - self.smoothed / 8 + nanos / 8;
    }

    /// The smoothed round trip in nanoseconds; `None` before one is measured.
    pub(crate) fn round_trip(&self) -> Option<u64> {
        (self.smoothed != 0).then_some(self.smoothed)
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

    /// Sequence numbers before the newest that are not in the network: the peer has kept them, or
    /// they are lost and not yet sent again.
    pub(crate) fn gone(&self) -> u32 {
        let requests = || self.holes.iter().filter(|hole| hole.kind == Kind::Request);
        let span = requests().next().map_or(0, |oldest| self.top.saturating_sub(oldest.seq) as u32);
        let missed: u32 = requests().map(|hole| hole.packets).sum();
        let lost = self.holes.iter().filter(|hole| matches!(hole.state, State::Queued(_)));
        span.saturating_sub(missed) + lost.map(|hole| hole.packets).sum::<u32>()
    }

    /// The peer misses `missing`, and keeps what the map says. Returns whether that is news: maps
    /// may come in another order than they were sent. Responses before it may be on their way.
    pub(crate) fn on_map(
        &mut self,
        sq: &SendQueue,
        reads: &Reads,
        (missing, map): (u64, &KeptMap),
        now: Time,
    ) -> bool {
        let count = map.count();
        let is_answered = |hole: &&Hole| {
            hole.kind != Kind::Request && hole.seq + u64::from(hole.packets) > missing
        };
        let is_old =
            (missing, count) <= self.told || self.holes.iter().any(|hole| is_answered(&hole));
        if is_old {
            return false;
        }
        self.told = (missing, count);
        self.una = sq.una();
        self.top = (missing + u64::from(map.newest()) + 1).min(sq.high());
        let old = std::mem::replace(&mut self.holes, std::mem::take(&mut self.spare));
        let mut known = old.iter().peekable();
        while let Some(hole) = known.next_if(|hole| hole.kind != Kind::Request) {
            self.holes.push(*hole);
        }
        let mut seq = missing;
        // Bounded: a map has so many bits.
        while seq < self.top {
            if map.has((seq - missing) as u32) {
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
                let (state, kind) = (State::Seen, Kind::Request);
                let new = Hole { seq, packets, seen: now, state, kind };
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

    /// The response with the number `una` is missing, the rest of its READ takes so many numbers,
    /// and the response `heard` came, if it was one that showed it. Returns whether that is news.
    pub(crate) fn on_missing(
        &mut self,
        (una, packets): (u64, u32),
        heard: Option<u64>,
        now: Time,
    ) -> bool {
        self.una = una;
        // Nothing is known of when it may be answered before a round trip is measured.
        let soonest = if self.shortest == 0 { u64::MAX } else { self.shortest / 4 * 3 };
        match self.holes.first_mut() {
            Some(hole) if hole.seq == una => {
                let State::Sent { at, high, missed, .. } = &mut hole.state else { return false };
                // Sent after the missing one: by the same repetition, or asked for later.
                let end = una + u64::from(hole.packets);
                let is_later = heard.is_some_and(|seq| seq < end || seq >= *high);
                let is_sign = is_later && missed.is_none() && now.since(*at) >= soonest;
                if is_sign {
                    *missed = Some(now);
                }
                is_sign
            }
            _ => {
                let (state, kind) = (State::Seen, Kind::Response);
                self.holes.insert(0, Hole { seq: una, packets, seen: now, state, kind });
                true
            }
        }
    }

    /// Whether the oldest of all, `una`, is known to be missing.
    pub(crate) fn misses(&self, una: u64) -> bool {
        self.holes.first().is_some_and(|hole| hole.seq == una)
    }

    /// Everything before `una` is acknowledged.
    pub(crate) fn on_progress(&mut self, una: u64, now: Time) {
        self.una = una;
        let left = self.holes.partition_point(|hole| hole.seq < una);
        let rest = left.checked_sub(1).and_then(|last| self.holes[last].after(una, now));
        for index in 0..left {
            self.closed(self.holes[index], now);
        }
        self.holes.splice(..left, rest);
        self.count_queued();
        if self.holes.is_empty() {
            self.due = None;
        }
        self.conclude();
    }

    /// The requester went back at `at` to a packet that is acknowledged now.
    pub(crate) fn on_gone_back(&mut self, at: Time, now: Time) {
        let state = State::Sent { at, high: 0, times: 1, missed: None };
        self.closed(Hole { seq: 0, packets: 1, seen: at, state, kind: Kind::Request }, now);
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
        if hole.kind == Kind::Rest {
            return;
        }
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
    /// peer has one that was sent later, or has said nothing for long. Where a later response came
    /// that may have been asked for before, this is no retry: the peer may be slow.
    pub(crate) fn judge(&mut self, now: Time) -> Verdict {
        let round_trip = if self.smoothed == 0 { UNMEASURED } else { self.smoothed };
        let (mut verdict, mut due) = (Verdict::default(), None::<Time>);
        for hole in &mut self.holes {
            let (at, times, is_loss, is_retry) = match hole.state {
                State::Queued(_) => continue,
                State::Seen => (hole.seen + self.tolerance, 0, true, true),
                State::Sent { at, times, missed: Some(missed), .. } => {
                    ((missed + self.tolerance).max(at + round_trip), times, true, false)
                }
                State::Sent { at, high, times, .. } if self.top > high => {
                    (at + (round_trip + self.tolerance), times, true, true)
                }
                State::Sent { at, times, .. } => {
                    (at + (silence(round_trip, times) + self.tolerance), times, false, false)
                }
            };
            if now < at {
                due = Some(due.map_or(at, |due| due.min(at)));
                continue;
            }
            hole.state = State::Queued(times);
            verdict.lost |= is_loss;
            verdict.oldest |= is_retry && hole.seq == self.una;
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
        hole.state = State::Sent { at: now, high, times: times + 1, missed: None };
        let taken = (hole.seq, hole.packets);
        self.queued -= 1;
        // No later than the wait for silence; a map may make it sooner.
        let round_trip = if self.smoothed == 0 { UNMEASURED } else { self.smoothed };
        let at = now + (silence(round_trip, times + 1) + self.tolerance);
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
    fn a_first_round_trip_that_may_be_of_a_second_copy_makes_no_loss_needless() {
        for (is_doubtful, needless) in [(true, false), (false, true)] {
            let mut repair = Repair::default();
            // Lost, told after 10 ms, repeated then, and answered 10 ms later.
            repair.on_round_trip(20 * MS, is_doubtful);
            repair.on_gone_back(Time(10 * MS), Time(20 * MS));
            assert_eq!((repair.take_needless(), repair.tolerance > 0), (needless, needless));
        }
    }

    #[test]
    fn what_a_map_leaves_out_is_sent_again_once_and_does_not_fill_the_window() {
        let (sq, _) = sent();
        let (mut repair, reads) = (Repair::default(), Reads::default());
        repair.on_round_trip(10 * MS, false);
        assert!(repair.on_map(&sq, &reads, (sq.una(), &map([1, 2, 4])), Time(0)));
        assert_eq!(repair.judge(Time(0)), Verdict { lost: true, oldest: true });
        // Three are kept, and two lost.
        assert_eq!(repair.gone(), 5);
        assert_eq!(taken(&mut repair, &sq, Time(0)), [0, 3]);
        assert_eq!(repair.gone(), 3);
        // A map that says less is older.
        assert!(!repair.on_map(&sq, &reads, (sq.una(), &map([1, 2])), Time(MS)));
        assert!(repair.on_map(&sq, &reads, (sq.una(), &map([1, 2, 4, 6])), Time(MS)));
        assert_eq!(taken(&mut repair, &sq, Time(MS)), [5]);
    }

    #[test]
    fn a_repeated_packet_is_lost_again_if_a_later_one_is_there_or_after_long_silence() {
        let (mut sq, _) = sent();
        let (mut repair, reads) = (Repair::default(), Reads::default());
        repair.on_round_trip(10 * MS, false);
        repair.on_map(&sq, &reads, (sq.una(), &map(1..100)), Time(0));
        assert_eq!(taken(&mut repair, &sq, Time(0)), [0]);
        send(&mut sq, 1);
        assert!(repair.on_map(&sq, &reads, (sq.una(), &map(1..101)), Time(12 * MS)));
        assert_eq!(taken(&mut repair, &sq, Time(12 * MS)), [0]);
        // Nothing was sent behind that: three round trips, since it was the second time.
        let due = repair.due().unwrap();
        assert_eq!(due, Time(12 * MS) + 30 * MS);
        assert_eq!(repair.judge(due), Verdict::default());
        assert!(repair.is_oldest_queued());
    }

    #[test]
    fn holes_that_close_by_themselves_are_given_the_time_that_they_took() {
        let (mut sq, una) = sent();
        let (mut repair, reads) = (Repair::default(), Reads::default());
        repair.on_round_trip(40 * MS, false);
        repair.on_map(&sq, &reads, (sq.una(), &map([1])), Time(0));
        assert_eq!(taken(&mut repair, &sq, Time(0)), [0]);
        // Too soon for the second copy.
        sq.acknowledge(una + 2);
        repair.on_progress(una + 2, Time(8 * MS));
        assert!(repair.take_needless() && !repair.take_needless());
        repair.on_map(&sq, &reads, (sq.una(), &map([1])), Time(10 * MS));
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

    #[test]
    fn the_rest_of_a_read_is_awaited_while_it_comes_and_asked_for_if_it_has_a_gap() {
        let (mut sq, una) = sent();
        let mut repair = Repair::default();
        repair.on_round_trip(10 * MS, false);
        assert!(repair.on_missing((una, 8), Some(una + 8), Time(0)));
        assert_eq!(repair.judge(Time(0)), Verdict { lost: true, oldest: true });
        assert_eq!(repair.take(sq.high(), Time(0)), Some((una, 8)));
        // What was asked for at first still comes.
        assert!(!repair.on_missing((una, 8), Some(una + 9), Time(MS)));
        sq.acknowledge(una + 3);
        repair.on_progress(una + 3, Time(10 * MS));
        assert!(!repair.on_missing((una + 3, 5), None, Time(10 * MS)));
        assert_eq!(repair.judge(Time(10 * MS)), Verdict::default());
        assert!(repair.on_missing((una + 3, 5), Some(una + 4), Time(10 * MS)));
        assert_eq!(repair.judge(Time(10 * MS)), Verdict { lost: true, oldest: false });
        assert_eq!(repair.take(sq.high(), Time(10 * MS)), Some((una + 3, 5)));
        sq.acknowledge(una + 8);
        repair.on_progress(una + 8, Time(20 * MS));
        assert_eq!((repair.due(), repair.gone()), (None, 0));
    }

    #[test]
    fn before_a_round_trip_is_known_no_response_shows_that_a_repetition_was_lost() {
        let mut repair = Repair::default();
        let (sq, una) = sent();
        assert!(repair.on_missing((una, 8), Some(una + 8), Time(0)));
        repair.judge(Time(0));
        assert_eq!(repair.take(sq.high(), Time(0)), Some((una, 8)));
        for seq in 1..20 {
            assert!(!repair.on_missing((una, 8), Some(una + seq), Time(MS * seq)));
        }
    }
}
