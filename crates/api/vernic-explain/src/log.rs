//! A bounded list of what one end sent, for diagrams.
//!
//! Owns which events are kept: the first ones, and those around what went wrong. Packets of one
//! kind that follow each other are one event with a count. The end of the list has the last events.

use std::collections::VecDeque;

use vernic_wire::{NakCode, Opcode, Psn, RnrTimer};

/// What an event is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// A packet that is none of the below.
    Packet(Opcode),
    /// An RNR NAK.
    Rnr(RnrTimer),
    /// Another NAK.
    Nak(NakCode),
    /// Packets that left this end and were not seen to arrive.
    Lost,
}

/// How a packet stands to those before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// Next in the order of PSNs.
    New,
    /// Later in the order than is next: packets are missing.
    Ahead,
    /// Sent before.
    Resent,
    /// Missing before, and sent again.
    Repaired,
    /// Missing for a moment: overtaken by others.
    Overtaken,
}

/// Packets of one kind that follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// Time of the first, in nanoseconds since 1970.
    pub(crate) time_ns: u64,
    pub(crate) what: What,
    pub(crate) fate: Fate,
    /// Whether a switch marked them.
    pub(crate) is_marked: bool,
    pub(crate) first: Psn,
    pub(crate) last: Psn,
    pub(crate) count: u64,
    /// Payload.
    pub(crate) bytes: u64,
}

impl Event {
    /// Whether a diagram is not complete without it.
    fn is_notable(&self) -> bool {
        matches!(self.what, What::Rnr(_) | What::Nak(_) | What::Lost)
            || !matches!(self.fate, Fate::New)
    }

    /// Takes in an event that goes on with this one; false if it does not.
    fn absorb(&mut self, next: &Self) -> bool {
        let step = next.first.distance_from(self.last);
        // ACKs and READs skip PSNs.
        let farthest = if self.what == What::Lost { 1 } else { Psn::HALF - 1 };
        let is_same = self.what == next.what
            && self.fate == next.fate
            && self.is_marked == next.is_marked
            && (1..=farthest).contains(&step);
        if is_same {
            self.last = next.last;
            self.count += next.count;
            self.bytes += next.bytes;
        }
        is_same
    }
}

/// An element of the list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    /// An event.
    Event(Event),
    /// So many packets that are left out, from this time on.
    Skipped { time_ns: u64, packets: u64 },
}

impl Entry {
    pub(crate) fn time_ns(&self) -> u64 {
        match self {
            Self::Event(event) => event.time_ns,
            Self::Skipped { time_ns, .. } => *time_ns,
        }
    }
}

/// How many events a log keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// From the beginning.
    first: usize,
    /// Before and after what went wrong, and at the end.
    around: usize,
    /// In all, but for those at the end.
    all: usize,
}

impl Limits {
    /// For a capture of few streams.
    pub(crate) const WIDE: Self = Self { first: 48, around: 6, all: 256 };
    /// For each of thousands.
    pub(crate) const NARROW: Self = Self { first: 8, around: 2, all: 24 };
}

/// The list.
#[derive(Debug)]
pub(crate) struct Log {
    limits: Limits,
    kept: Vec<Entry>,
    /// The latest, which are kept if something goes wrong now.
    recent: VecDeque<Event>,
    skipped: u64,
    skipped_since_ns: u64,
    /// So many of the next ones are kept.
    ahead: usize,
    /// Number of the latest event among all streams' events.
    latest: u64,
}

impl Log {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            kept: Vec::new(),
            recent: VecDeque::new(),
            skipped: 0,
            skipped_since_ns: 0,
            ahead: limits.first,
            latest: 0,
        }
    }

    /// Number of the latest event.
    pub(crate) fn latest(&self) -> u64 {
        self.latest
    }

    /// Adds an event. `number` counts the events of all streams; `others` is the latest of the
    /// opposite direction: what came in between is not folded over.
    pub(crate) fn push(&mut self, event: Event, number: u64, others: u64) {
        let is_interrupted = others > self.latest;
        self.latest = number;
        if !is_interrupted && self.last().is_some_and(|last| last.absorb(&event)) {
            return;
        }
        if event.is_notable() {
            self.keep_recent();
            self.ahead = self.ahead.max(self.limits.around + 1);
        }
        if self.ahead > 0 && self.kept.len() < self.limits.all {
            self.ahead -= 1;
            self.keep_recent();
            self.kept.push(Entry::Event(event));
            return;
        }
        self.recent.push_back(event);
        if self.recent.len() > self.limits.around
            && let Some(oldest) = self.recent.pop_front()
        {
            self.skip(&oldest);
        }
    }

    /// The list, at the end.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let mut entries = self.kept.clone();
        entries.extend(self.gap());
        entries.extend(self.recent.iter().copied().map(Entry::Event));
        entries
    }

    fn last(&mut self) -> Option<&mut Event> {
        match self.recent.back_mut() {
            Some(event) => Some(event),
            // Behind what was skipped nothing goes on.
            None if self.skipped != 0 => None,
            None => match self.kept.last_mut() {
                Some(Entry::Event(event)) => Some(event),
                _ => None,
            },
        }
    }

    fn gap(&self) -> Option<Entry> {
        let (time_ns, packets) = (self.skipped_since_ns, self.skipped);
        (packets != 0).then_some(Entry::Skipped { time_ns, packets })
    }

    fn skip(&mut self, event: &Event) {
        if self.skipped == 0 {
            self.skipped_since_ns = event.time_ns;
        }
        self.skipped += event.count;
    }

    /// Keeps what came just before, as far as there is room.
    fn keep_recent(&mut self) {
        if self.recent.is_empty() || self.kept.len() >= self.limits.all {
            return;
        }
        self.kept.extend(self.gap());
        self.skipped = 0;
        self.kept.extend(self.recent.drain(..).map(Entry::Event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(psn: u32, fate: Fate) -> Event {
        let psn = Psn::new(psn);
        let what = What::Packet(Opcode::RC_WRITE_MIDDLE);
        Event {
            time_ns: 0,
            what,
            fate,
            is_marked: false,
            first: psn,
            last: psn,
            count: 1,
            bytes: 9,
        }
    }

    fn shown(log: &Log) -> Vec<String> {
        let show = |entry: &Entry| match entry {
            Entry::Event(e) => format!("{}..{} x{} {:?}", e.first, e.last, e.count, e.fate),
            Entry::Skipped { packets, .. } => format!("skipped {packets}"),
        };
        log.entries().iter().map(show).collect()
    }

    #[test]
    fn like_packets_fold_unless_the_other_end_spoke() {
        let mut log = Log::new(Limits::NARROW);
        for psn in 5..8 {
            log.push(event(psn, Fate::New), u64::from(psn), 0);
        }
        log.push(event(8, Fate::New), 20, 15);
        log.push(event(8, Fate::Resent), 21, 15);
        assert_eq!(shown(&log), ["5..7 x3 New", "8..8 x1 New", "8..8 x1 Resent"]);
    }

    #[test]
    fn what_went_wrong_is_kept_with_what_is_around_it_and_the_list_stays_short() {
        let mut log = Log::new(Limits::NARROW);
        for number in 1..1000_u32 {
            // Steps back, so that nothing folds.
            let fate = if number == 500 { Fate::Resent } else { Fate::New };
            log.push(event(10_000 - number, fate), u64::from(number), 0);
        }
        let shown = shown(&log);
        assert_eq!(shown.len(), 8 + 1 + 2 + 3 + 1 + 2, "{shown:?}");
        assert_eq!(shown[8], "skipped 489");
        assert_eq!(shown[11], "9500..9500 x1 Resent");
        assert_eq!(shown[14], "skipped 495");
        for number in 1000..5000_u32 {
            log.push(event(10_000 - number, Fate::Resent), u64::from(number), 0);
        }
        assert!(log.entries().len() <= Limits::NARROW.all + Limits::NARROW.around + 4);
    }
}
