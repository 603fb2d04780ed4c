//! Which lane sends next: the two arbitration tables of a port (IBTA 7.6.9).
//!
//! Both tables are gone through in turn. The lane of an entry sends until it has sent the entry's
//! weight. What the last packet takes beyond the weight is taken off the entry's next turn, so that
//! shares are those of the weights for packets of any length. Lanes of high priority go first,
//! until they have sent their limit while one of low priority waits.

use vernic_wire::VirtualLane;

use crate::attributes::{ArbitrationEntry, PortTables};

/// The most entries of a table that count.
const ENTRIES: usize = 64;
/// Bytes of a unit of weight.
const WEIGHT_BYTES: u16 = 64;
/// Bytes of a unit of the limit of high priority.
const LIMIT_BYTES: u32 = 4096;
/// The limit that is none.
const UNLIMITED: u8 = 255;

/// Whether a lane has a packet that may leave: one bit for each lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LaneSet(u16);

impl LaneSet {
    /// Adds a lane.
    pub(crate) fn insert(&mut self, lane: VirtualLane) {
        self.0 |= 1 << lane.value();
    }
    /// Takes a lane out.
    pub(crate) fn remove(&mut self, lane: VirtualLane) {
        self.0 &= !(1 << lane.value());
    }
    /// Returns the lanes in order.
    pub(crate) fn iter(self) -> impl Iterator<Item = VirtualLane> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let lane = (rest != 0).then(|| VirtualLane::new(rest.trailing_zeros() as u8));
            rest &= rest.wrapping_sub(1);
            lane
        })
    }
    /// Returns whether a lane is among them.
    pub(crate) const fn contains(self, lane: VirtualLane) -> bool {
        self.0 >> lane.value() & 1 != 0
    }
    /// Returns whether there is none.
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// A walk through one table.
#[derive(Clone, Debug)]
struct Walk {
    /// The entry whose turn it is.
    at: usize,
    /// What each entry may send yet, in units of 64 bytes; below 0, what it sent too much.
    rest: [i32; ENTRIES],
}

impl Walk {
    const fn new() -> Self {
        Self { at: 0, rest: [0; ENTRIES] }
    }
    /// Chooses the entry that sends next, if any has a packet.
    fn choose(&mut self, table: &[ArbitrationEntry], ready: LaneSet) -> Option<VirtualLane> {
        let table = &table[..table.len().min(ENTRIES)];
        let sends = |entry: &ArbitrationEntry| entry.weight != 0 && ready.contains(entry.lane);
        if let Some(entry) = table.get(self.at).filter(|entry| sends(entry))
            && self.rest[self.at] > 0
        {
            return Some(entry.lane);
        }
        if !table.iter().any(sends) {
            return None;
        }
        if self.at >= table.len() {
            self.at = 0;
        }
        self.go_round(table, sends);
        table.get(self.at).map(|entry| entry.lane)
    }
    /// Goes on to the next entry that may send. As many whole rounds as bring the first of them
    /// above 0 are taken at once; one more, at most, is walked.
    fn go_round(&mut self, table: &[ArbitrationEntry], sends: impl Fn(&ArbitrationEntry) -> bool) {
        let entries = || table.iter().zip(self.rest).filter(|(entry, _)| sends(entry));
        // Rounds until an entry has something to send: at least one, from a rest of 0.
        let rounds = entries().map(|(entry, rest)| -rest.min(0) / i32::from(entry.weight)).min();
        let skipped = rounds.unwrap_or(0);
        for (entry, rest) in table.iter().zip(&mut self.rest) {
            *rest = rest.saturating_add(skipped * i32::from(entry.weight)).min(0);
        }
        for _ in 0..table.len() {
            self.at = (self.at + 1) % table.len();
            let (entry, rest) = (&table[self.at], &mut self.rest[self.at]);
            *rest += i32::from(entry.weight);
            if *rest > 0 && sends(entry) {
                return;
            }
            *rest = (*rest).min(0);
        }
    }
    fn charge(&mut self, bytes: u16) {
        self.rest[self.at] -= i32::from(bytes.div_ceil(WEIGHT_BYTES));
    }
}

/// The arbiter of a port.
#[derive(Clone, Debug)]
pub(crate) struct Arbiter {
    high: Walk,
    low: Walk,
    /// Bytes of high priority sent since one of low priority last had its turn.
    high_bytes: u32,
}

/// A lane that may send, and whom to charge for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    /// The lane.
    pub(crate) lane: VirtualLane,
    level: Level,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    /// Above both tables: the lane of management, and the only lane of a port.
    None,
    High,
    Low,
}

impl Arbiter {
    /// Begins at the first entries.
    pub(crate) const fn new() -> Self {
        Self { high: Walk::new(), low: Walk::new(), high_bytes: 0 }
    }
    /// Chooses among the lanes that have a packet which may leave. With a single data lane the
    /// tables do not count (IBTA 7.6.9). A lane in neither table never sends.
    pub(crate) fn choose(
        &mut self,
        tables: &PortTables,
        data_lanes: u8,
        ready: LaneSet,
    ) -> Option<Choice> {
        if ready.is_empty() {
            return None;
        }
        let single = [VirtualLane::MANAGEMENT, VirtualLane::new(0)];
        let count = if data_lanes <= 1 { 2 } else { 1 };
        if let Some(lane) = single[..count].iter().find(|lane| ready.contains(**lane)) {
            return Some(Choice { lane: *lane, level: Level::None });
        }
        // A limit of 0 is one packet.
        let limit = (u32::from(tables.high_limit) * LIMIT_BYTES).max(1);
        let spent = tables.high_limit != UNLIMITED && self.high_bytes >= limit;
        let high = |walk: &mut Walk| {
            let lane = walk.choose(&tables.high, ready)?;
            Some(Choice { lane, level: Level::High })
        };
        let low = |walk: &mut Walk| {
            let lane = walk.choose(&tables.low, ready)?;
            Some(Choice { lane, level: Level::Low })
        };
        if spent {
            low(&mut self.low).or_else(|| high(&mut self.high))
        } else {
            high(&mut self.high).or_else(|| low(&mut self.low))
        }
    }
    /// Charges what the chosen lane sends.
    pub(crate) fn charge(&mut self, choice: Choice, bytes: u16) {
        match choice.level {
            Level::None => {}
            Level::High => {
                self.high.charge(bytes);
                self.high_bytes = self.high_bytes.saturating_add(u32::from(bytes));
            }
            Level::Low => {
                self.low.charge(bytes);
                self.high_bytes = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: &[(u8, u8)]) -> Vec<ArbitrationEntry> {
        let entry = |&(lane, weight)| ArbitrationEntry { lane: VirtualLane::new(lane), weight };
        entries.iter().map(entry).collect()
    }

    fn tables(high: &[(u8, u8)], low: &[(u8, u8)], high_limit: u8) -> PortTables {
        let (high, low) = (table(high), table(low));
        PortTables { pkeys: Vec::new(), lanes: Vec::new(), low, high, high_limit }
    }

    fn lanes(lanes: &[u8]) -> LaneSet {
        let mut set = LaneSet::default();
        lanes.iter().for_each(|lane| set.insert(VirtualLane::new(*lane)));
        set
    }

    /// Sends packets of so many bytes, and counts those of each lane.
    fn share(tables: &PortTables, ready: &[u8], bytes: u16, packets: usize) -> [usize; 16] {
        let (mut arbiter, mut counts) = (Arbiter::new(), [0; 16]);
        for _ in 0..packets {
            let choice = arbiter.choose(tables, 8, lanes(ready)).unwrap();
            arbiter.charge(choice, bytes);
            counts[usize::from(choice.lane.value())] += 1;
        }
        counts
    }

    #[test]
    fn weights_below_a_packet_still_share_as_they_say() {
        let tables = tables(&[], &[(0, 1), (1, 3)], 0);
        for bytes in [64, 282, 2074, 4222] {
            let counts = share(&tables, &[0, 1], bytes, 4000);
            assert!(counts[0].abs_diff(1000) < 10, "{bytes} bytes: {counts:?}");
        }
    }

    #[test]
    fn an_entry_whose_lane_has_nothing_is_passed_over() {
        let tables = tables(&[], &[(0, 10), (1, 0), (2, 20)], 0);
        assert_eq!(share(&tables, &[1, 2], 64, 50)[2], 50);
        let mut arbiter = Arbiter::new();
        assert_eq!(arbiter.choose(&tables, 8, lanes(&[1, 3])), None);
        assert_eq!(arbiter.choose(&tables, 8, LaneSet::default()), None);
    }

    #[test]
    fn management_goes_before_all() {
        let tables = tables(&[(1, 255)], &[(0, 255)], 255);
        assert_eq!(share(&tables, &[0, 1, 15], 256, 20)[15], 20);
    }

    #[test]
    fn a_single_lane_needs_no_table() {
        let tables = tables(&[], &[], 0);
        let choice = Arbiter::new().choose(&tables, 1, lanes(&[0])).unwrap();
        assert_eq!(choice.lane.value(), 0);
    }

    #[test]
    fn high_priority_without_limit_starves_low_priority() {
        let tables = tables(&[(1, 4)], &[(0, 4)], 255);
        assert_eq!(share(&tables, &[0, 1], 2074, 100)[0], 0);
    }

    #[test]
    fn the_limit_of_high_priority_lets_a_packet_of_low_priority_by() {
        // Limit 0: one packet each. Limit 2: 8,192 bytes are 4 packets of 2,074 bytes.
        let one = tables(&[(1, 4)], &[(0, 4)], 0);
        assert_eq!(share(&one, &[0, 1], 2074, 100)[0], 50);
        let two = tables(&[(1, 4)], &[(0, 4)], 2);
        assert_eq!(share(&two, &[0, 1], 2074, 100)[0], 20);
        // Nothing of low priority waits: the limit does not hold anything up.
        assert_eq!(share(&one, &[1], 2074, 100)[1], 100);
    }
}
