//! Paths that were asked for lately, and who waits for which.

use std::collections::BTreeMap;

use vernic_wire::Gid;
use vernic_wire::sa::PathRecord;

use super::params::{PathQuery, Ticket};
use crate::time::Time;

/// A question in the order of its numbers.
pub(super) type PathKey = ([u8; 16], [u8; 16], u16, Option<u64>, [Option<u8>; 2]);

pub(super) fn key_of(query: &PathQuery) -> PathKey {
    let (service_id, level) = (query.service_id, query.service_level);
    (
        query.dgid.0,
        query.sgid.0,
        query.pkey.0,
        service_id.map(|id| id.0),
        [level.map(|level| level.value()), query.traffic_class],
    )
}

#[derive(Debug, Default)]
pub(super) struct Paths {
    known: BTreeMap<PathKey, (PathRecord, Time)>,
    waiting: BTreeMap<PathKey, Vec<Ticket>>,
}

impl Paths {
    pub(super) fn find(&self, key: &PathKey, now: Time) -> Option<PathRecord> {
        let (record, until) = self.known.get(key)?;
        (now < *until).then_some(*record)
    }
    /// Notes who waits; returns whether the question is new.
    pub(super) fn wait(&mut self, key: PathKey, ticket: Ticket) -> bool {
        let tickets = self.waiting.entry(key).or_default();
        tickets.push(ticket);
        tickets.len() == 1
    }
    /// Tickets that have waited.
    pub(super) fn take_waiting(&mut self, key: &PathKey) -> Vec<Ticket> {
        self.waiting.remove(key).unwrap_or_default()
    }
    /// Keeps an answer. When there is no room, one that has ended makes room, or else any.
    pub(super) fn keep(
        &mut self,
        key: PathKey,
        record: PathRecord,
        until: Time,
        now: Time,
        max: usize,
    ) {
        self.known.remove(&key);
        if self.known.len() >= max {
            let ended = self.known.iter().find(|(_, (_, until))| *until <= now);
            let other = ended.or(self.known.first_key_value()).map(|(key, _)| *key);
            other.and_then(|key| self.known.remove(&key));
        }
        if max > 0 {
            self.known.insert(key, (record, until));
        }
    }
    pub(super) fn forget(&mut self, dgid: Gid) {
        self.known.retain(|key, _| key.0 != dgid.0);
    }
    pub(super) fn forget_all(&mut self) {
        self.known.clear();
    }
}
