//! When something is due, by key: one time for each, the earliest first.

use std::collections::{BTreeMap, BTreeSet};

use crate::Time;

/// Times by key.
#[derive(Debug)]
pub(crate) struct Timers<K> {
    by_time: BTreeSet<(Time, K)>,
    by_key: BTreeMap<K, Time>,
}

impl<K: Copy + Ord> Timers<K> {
    pub(crate) const fn new() -> Self {
        Self { by_time: BTreeSet::new(), by_key: BTreeMap::new() }
    }
    /// Sets the time of a key, in place of the one that it had.
    pub(crate) fn set(&mut self, key: K, at: Time) {
        self.cancel(key);
        self.by_time.insert((at, key));
        self.by_key.insert(key, at);
    }
    pub(crate) fn cancel(&mut self, key: K) {
        if let Some(at) = self.by_key.remove(&key) {
            self.by_time.remove(&(at, key));
        }
    }
    pub(crate) fn next(&self) -> Option<Time> {
        self.by_time.first().map(|(at, _)| *at)
    }
    /// Takes out a key that is due.
    pub(crate) fn pop(&mut self, now: Time) -> Option<K> {
        let (at, key) = *self.by_time.first()?;
        (at <= now).then(|| self.cancel(key))?;
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_out_in_the_order_of_their_last_times() {
        let mut timers = Timers::new();
        timers.set('a', Time(5));
        timers.set('b', Time(3));
        timers.set('c', Time(4));
        timers.set('b', Time(9));
        timers.cancel('c');
        assert_eq!(timers.next(), Some(Time(5)));
        assert_eq!(timers.pop(Time(4)), None);
        assert_eq!([timers.pop(Time(9)), timers.pop(Time(9))], [Some('a'), Some('b')]);
        assert_eq!((timers.pop(Time(u64::MAX)), timers.next()), (None, None));
    }
}
