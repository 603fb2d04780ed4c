//! Places that strangers take: what must go where all are taken is the oldest entry of the source
//! that has most, so that one source that asks for ever evicts itself and nobody else.
//!
//! A source that can forge any address is any number of sources; then the oldest goes. Owned by
//! whoever keeps the entries, which are named here by their age and something to find them by.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use vernic_wire::Gid;

/// Whom an entry counts for: an IPv4 address, or the network that a host's IPv6 addresses are of,
/// of which it may have as many as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(Gid);

impl Source {
    /// The source of what came from there.
    pub fn of(gid: Gid) -> Self {
        let is_shared = gid.to_ip().is_ipv4() || gid.0[..2] == [0xFE, 0x80];
        let mut network = gid;
        if !is_shared {
            network.0[8..].fill(0);
        }
        Self(network)
    }
}

/// Entries by source and age. Bounded by whoever adds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares<T> {
    by_source: BTreeMap<Source, BTreeMap<u64, T>>,
    /// How many each source has, the oldest age first among equals.
    by_size: BTreeSet<(usize, Reverse<u64>, Source)>,
    len: usize,
}

impl<T> Default for Shares<T> {
    fn default() -> Self {
        Self { by_source: BTreeMap::new(), by_size: BTreeSet::new(), len: 0 }
    }
}

impl<T: Copy> Shares<T> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an entry. No two have the same age.
    pub fn add(&mut self, source: Source, age: u64, entry: T) {
        self.change(source, |entries| entries.insert(age, entry));
    }

    /// Takes an entry out, if it is there.
    pub fn remove(&mut self, source: Source, age: u64) -> Option<T> {
        self.change(source, |entries| entries.remove(&age))
    }

    /// The entry that goes if one more of `source` comes and there is no room: the oldest of the
    /// source that has most then.
    pub fn victim(&self, source: Source) -> Option<T> {
        let (most, ..) = self.by_size.last()?;
        match self.by_source.get(&source).filter(|own| own.len() >= *most) {
            Some(own) => own.values().next().copied(),
            None => self.largest(),
        }
    }

    /// The same where entries are not to be dropped for those of others lightly: of a source that
    /// has more than `source` even then, if there is one.
    pub fn excess(&self, source: Source) -> Option<T> {
        let own = self.by_source.get(&source).map_or(0, BTreeMap::len);
        let (most, ..) = self.by_size.last()?;
        self.largest().filter(|_| *most > own + 1)
    }

    /// The oldest entry of the source that has most.
    pub fn largest(&self) -> Option<T> {
        let (_, _, source) = self.by_size.last()?;
        self.by_source.get(source)?.values().next().copied()
    }

    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = T> {
        self.by_source.values().flat_map(|entries| entries.values().copied())
    }

    fn change(
        &mut self,
        source: Source,
        f: impl FnOnce(&mut BTreeMap<u64, T>) -> Option<T>,
    ) -> Option<T> {
        let entries = self.by_source.entry(source).or_default();
        let place = |of: &BTreeMap<u64, T>| {
            of.first_key_value().map(|(age, _)| (of.len(), Reverse(*age), source))
        };
        let before = place(entries);
        let result = f(entries);
        let after = place(entries);
        if after.is_none() {
            self.by_source.remove(&source);
        }
        let size = |place: Option<(usize, Reverse<u64>, Source)>| place.map_or(0, |place| place.0);
        self.len = self.len + size(after) - size(before);
        if let Some(before) = before {
            self.by_size.remove(&before);
        }
        self.by_size.extend(after);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn source(ip: &str) -> Source {
        Source::of(Gid::from_ip(ip.parse::<IpAddr>().unwrap()))
    }

    #[test]
    fn the_oldest_of_the_source_with_most_goes() {
        let (mut shares, [a, b, c]) = (Shares::default(), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        let [a, b, c] = [a, b, c].map(source);
        for (age, source) in [(1, a), (2, b), (3, b), (4, b), (5, c)] {
            shares.add(source, age, age);
        }
        assert_eq!((shares.len(), shares.victim(a)), (5, Some(2)));
        assert_eq!((shares.largest(), shares.entries().count()), (Some(2), 5));
        assert_eq!(shares.victim(b), Some(2));
        assert_eq!([a, b, c].map(|source| shares.excess(source)), [Some(2), None, Some(2)]);
        shares.remove(b, 2);
        shares.remove(b, 3);
        assert_eq!(shares.excess(source("10.0.0.9")), None);
        // All have one: the oldest, but of whom has one more with the new one.
        assert_eq!(shares.victim(source("10.0.0.9")), Some(1));
        assert_eq!([shares.victim(b), shares.victim(c)], [Some(4), Some(5)]);
        assert_eq!(shares.remove(c, 4), None);
        for (source, age) in [(a, 1), (b, 4), (c, 5)] {
            assert_eq!(shares.remove(source, age), Some(age));
        }
        assert_eq!((shares.victim(a), shares.is_empty()), (None, true));
        assert_eq!(shares, Shares::default());
    }

    #[test]
    fn a_host_is_one_source_however_many_addresses_of_its_network_it_takes() {
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:2"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
        assert_ne!(source("fe80::1"), source("fe80::2"), "all links have that one");
    }
}
