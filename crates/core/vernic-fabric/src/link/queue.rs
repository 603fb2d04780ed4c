//! Packets that wait to leave by a port, a queue for each lane, and those that wait too long (IBTA
//! 18.2.5.4).

use std::collections::VecDeque;

use vernic_wire::VirtualLane;

use super::arbiter::LaneSet;
use super::frame::Header;
use super::store::PacketId;
use crate::Time;

/// Returns the nanoseconds of a code of 5 bits; codes from 20 on are for ever.
fn life_ns(code: u8) -> Option<u64> {
    (code < 20).then(|| 4096 << code)
}

/// How long packets may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lifetimes {
    /// Nanoseconds at the head of a data lane's queue.
    head_ns: Option<u64>,
    /// Nanoseconds since the packet arrived.
    total_ns: Option<u64>,
    /// So many discards at the head in a row stall the lane; 0: never.
    stall_count: u8,
}

impl Lifetimes {
    /// Lifetimes of a channel adapter: packets wait for as long as it takes.
    pub(crate) const FOR_EVER: Self = Self { head_ns: None, total_ns: None, stall_count: 0 };

    /// Makes lifetimes of the codes HOQLife, SwitchLifeTime and of VLStallCount.
    pub(crate) fn of_codes(head: u8, total: u8, stall_count: u8) -> Self {
        Self { head_ns: life_ns(head), total_ns: life_ns(total), stall_count }
    }
}

/// A packet in a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Queued {
    /// Where its bytes are.
    pub(crate) packet: PacketId,
    /// The header, with the lane that the packet leaves by.
    pub(crate) header: Header,
    /// When it arrived.
    pub(crate) since: Time,
}

/// The queue of one lane.
#[derive(Clone, Debug, Default)]
struct Lane {
    packets: VecDeque<Queued>,
    blocks: u32,
    /// When the first packet became the first.
    head_since: Time,
    /// Discards at the head since a packet last left.
    discards: u8,
    /// Until when the lane discards all.
    stalled_until: Option<Time>,
}

impl Lane {
    fn push(&mut self, queued: Queued, now: Time) {
        if self.packets.is_empty() {
            self.head_since = now;
        }
        self.blocks += u32::from(queued.header.blocks());
        self.packets.push_back(queued);
    }
    fn pop(&mut self, now: Time) -> Option<Queued> {
        let queued = self.packets.pop_front()?;
        self.blocks -= u32::from(queued.header.blocks());
        self.head_since = now;
        Some(queued)
    }
    /// Returns when the first packet has waited too long. All packets of a stalled lane have.
    fn expiry(&self, lifetimes: &Lifetimes) -> Option<Time> {
        let first = self.packets.front()?;
        if self.stalled_until.is_some() {
            return Some(Time(0));
        }
        let data = !first.header.lane.is_management();
        let head = lifetimes.head_ns.filter(|_| data).map(|nanos| self.head_since + nanos);
        let total = lifetimes.total_ns.map(|nanos| first.since + nanos);
        [head, total].into_iter().flatten().min()
    }
    /// Takes the first packet if it has waited too long.
    fn expire(&mut self, lifetimes: &Lifetimes, now: Time) -> Option<Queued> {
        self.stalled_until = self.stalled_until.filter(|until| now < *until);
        if self.expiry(lifetimes)? > now {
            return None;
        }
        let at_head = lifetimes.head_ns.filter(|nanos| now >= self.head_since + *nanos);
        if let Some(nanos) = at_head
            && self.stalled_until.is_none()
        {
            self.discards = self.discards.saturating_add(1);
            if self.discards == lifetimes.stall_count {
                self.stalled_until = Some(now + nanos.saturating_mul(8));
                self.discards = 0;
            }
        }
        self.pop(now)
    }
}

/// The queues of a port. Their length is bounded by what their packets take of buffers elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues {
    lanes: [Lane; VirtualLane::COUNT],
    /// The lanes that have packets: most have none, and are not looked at.
    occupied: LaneSet,
}

impl Queues {
    /// Returns whether no packet waits.
    pub(crate) const fn is_empty(&self) -> bool {
        self.occupied.is_empty()
    }
    /// Returns the blocks that wait in a lane.
    pub(crate) fn blocks(&self, lane: VirtualLane) -> u32 {
        self.lanes[usize::from(lane.value())].blocks
    }
    /// Appends a packet to the queue of its lane.
    pub(crate) fn push(&mut self, queued: Queued, now: Time) {
        self.lanes[usize::from(queued.header.lane.value())].push(queued, now);
        self.occupied.insert(queued.header.lane);
    }
    /// Returns the first packet of each lane that has one.
    pub(crate) fn heads(&self) -> impl Iterator<Item = &Queued> {
        self.occupied().filter_map(|lane| lane.packets.front())
    }
    /// Takes the first packet of a lane, which leaves.
    pub(crate) fn pop(&mut self, lane: VirtualLane, now: Time) -> Option<Queued> {
        let found = &mut self.lanes[usize::from(lane.value())];
        found.discards = 0;
        let queued = found.pop(now);
        self.note(lane);
        queued
    }
    /// Takes a packet that has waited too long.
    pub(crate) fn expire(&mut self, lifetimes: &Lifetimes, now: Time) -> Option<Queued> {
        let queued = self.occupied.iter().find_map(|lane| {
            self.lanes[usize::from(lane.value())]
                .expire(lifetimes, now)
                .map(|queued| (lane, queued))
        });
        let (lane, queued) = queued?;
        self.note(lane);
        Some(queued)
    }
    /// Takes a packet of a lane that must not send.
    pub(crate) fn evict(
        &mut self,
        may_send: impl Fn(VirtualLane) -> bool,
        now: Time,
    ) -> Option<Queued> {
        let lane = self.heads().map(|queued| queued.header.lane).find(|lane| !may_send(*lane))?;
        self.pop(lane, now)
    }
    /// Returns when the next packet has waited too long.
    pub(crate) fn expiry(&self, lifetimes: &Lifetimes) -> Option<Time> {
        self.occupied().filter_map(|lane| lane.expiry(lifetimes)).min()
    }
    fn occupied(&self) -> impl Iterator<Item = &Lane> {
        self.occupied.iter().map(|lane| &self.lanes[usize::from(lane.value())])
    }
    /// Notes that a lane may have no packet left.
    fn note(&mut self, lane: VirtualLane) {
        if self.lanes[usize::from(lane.value())].packets.is_empty() {
            self.occupied.remove(lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::frame::tests::header;

    fn queued(lane: u8, at: u64) -> Queued {
        let packet = PacketId::of_test(at as u32);
        Queued { packet, header: header(lane, 1, 64), since: Time(at) }
    }

    fn push(queues: &mut Queues, lane: u8, at: u64) {
        queues.push(queued(lane, at), Time(at));
    }

    fn expired(queues: &mut Queues, lifetimes: &Lifetimes, now: u64) -> Vec<u64> {
        std::iter::from_fn(|| queues.expire(lifetimes, Time(now))).map(|q| q.since.0).collect()
    }

    #[test]
    fn a_lane_is_a_queue_and_counts_its_blocks() {
        let mut queues = Queues::default();
        push(&mut queues, 0, 1);
        push(&mut queues, 0, 2);
        push(&mut queues, 3, 3);
        let lane = VirtualLane::new(0);
        assert_eq!((queues.blocks(lane), queues.heads().count()), (4, 2));
        assert_eq!(queues.pop(lane, Time(9)).unwrap().since, Time(1));
        assert_eq!(queues.pop(lane, Time(9)).unwrap().since, Time(2));
        assert_eq!((queues.pop(lane, Time(9)), queues.blocks(lane)), (None, 0));
        assert_eq!(queues.evict(|lane| lane.value() != 3, Time(9)).unwrap().since, Time(3));
        assert!(queues.is_empty());
    }

    #[test]
    fn time_at_the_head_begins_when_the_packet_becomes_the_first() {
        let (mut queues, lifetimes) = (Queues::default(), Lifetimes::of_codes(0, 20, 0));
        push(&mut queues, 0, 0);
        push(&mut queues, 0, 1);
        assert_eq!(queues.expiry(&lifetimes), Some(Time(4096)));
        assert_eq!(expired(&mut queues, &lifetimes, 4095), []);
        assert_eq!(expired(&mut queues, &lifetimes, 4096), [0]);
        assert_eq!(queues.expiry(&lifetimes), Some(Time(2 * 4096)));
    }

    #[test]
    fn time_in_the_switch_begins_on_arrival_and_ends_packets_of_management_too() {
        let (mut queues, lifetimes) = (Queues::default(), Lifetimes::of_codes(20, 1, 7));
        push(&mut queues, 0, 0);
        push(&mut queues, 0, 1);
        push(&mut queues, 15, 2);
        assert_eq!(expired(&mut queues, &lifetimes, 8192 + 1), [0, 1]);
        assert_eq!(expired(&mut queues, &lifetimes, 8192 + 2), [2]);
        assert_eq!(queues.expiry(&lifetimes), None);
    }

    #[test]
    fn a_row_of_discards_stalls_the_lane_for_eight_lifetimes() {
        let (mut queues, lifetimes) = (Queues::default(), Lifetimes::of_codes(0, 20, 2));
        for at in 0..4 {
            push(&mut queues, 0, at);
        }
        assert_eq!(expired(&mut queues, &lifetimes, 4096), [0]);
        assert_eq!(expired(&mut queues, &lifetimes, 8192), [1, 2, 3]);
        let end = 8192 + 8 * 4096;
        push(&mut queues, 0, end - 1);
        assert_eq!(expired(&mut queues, &lifetimes, end - 1), [end - 1]);
        push(&mut queues, 0, end);
        assert_eq!(expired(&mut queues, &lifetimes, end), []);
    }

    #[test]
    fn a_packet_that_leaves_begins_the_row_anew() {
        let (mut queues, lifetimes) = (Queues::default(), Lifetimes::of_codes(0, 20, 2));
        for at in 0..4 {
            push(&mut queues, 0, at);
        }
        assert_eq!(expired(&mut queues, &lifetimes, 4096), [0]);
        queues.pop(VirtualLane::new(0), Time(4097));
        assert_eq!(expired(&mut queues, &lifetimes, 4097 + 4096), [2]);
    }

    #[test]
    fn without_lifetimes_packets_wait_for_ever() {
        let mut queues = Queues::default();
        push(&mut queues, 0, 0);
        assert_eq!(queues.expiry(&Lifetimes::FOR_EVER), None);
        assert_eq!(expired(&mut queues, &Lifetimes::FOR_EVER, u64::MAX), []);
    }
}
