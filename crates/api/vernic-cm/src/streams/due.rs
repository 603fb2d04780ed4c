//! The timers of start-ups: the cost of a wake-up depends on the timers that are due, not on all.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use vernic_proto::cm::ConnId;

/// The timers of start-ups, at most one each.
#[derive(Debug, Default)]
pub(super) struct Due {
    by_time: BTreeSet<(Instant, ConnId)>,
    of: HashMap<ConnId, Instant>,
}

impl Due {
    /// Sets the timer of a start-up, or clears it.
    pub(super) fn set(&mut self, conn: ConnId, at: Option<Instant>) {
        let before = match at {
            Some(at) => self.of.insert(conn, at),
            None => self.of.remove(&conn),
        };
        if let Some(before) = before {
            self.by_time.remove(&(before, conn));
        }
        self.by_time.extend(at.map(|at| (at, conn)));
    }

    /// Takes out a start-up whose timer is due.
    pub(super) fn take(&mut self, now: Instant) -> Option<ConnId> {
        let (_, conn) = self.by_time.first().copied().filter(|(at, _)| *at <= now)?;
        self.set(conn, None);
        Some(conn)
    }

    /// The time of the next timer.
    pub(super) fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.by_time.len(), self.of.len());
        self.of.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vernic_wire::cm::CommId;

    use super::*;

    #[test]
    fn those_that_are_due_come_in_the_order_of_their_times_and_no_others() {
        let (mut due, start) = (Due::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let conn = |n| ConnId(CommId(n), 0);
        for (n, ms) in [(1, 30), (2, 10), (3, 20), (4, 40), (2, 25)] {
            due.set(conn(n), Some(at(ms)));
        }
        due.set(conn(1), None);
        due.set(conn(9), None);
        assert_eq!((due.next(), due.take(at(19))), (Some(at(20)), None));
        let taken: Vec<_> = std::iter::from_fn(|| due.take(at(39))).collect();
        assert_eq!((taken, due.len()), (vec![conn(3), conn(2)], 1));
        assert_eq!(due.next(), Some(at(40)));
    }
}
