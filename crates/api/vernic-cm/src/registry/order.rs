//! The events of an id that were taken: their order, and how many are not dropped.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::key::IdKey;
use crate::sync::lock;

/// What an id's events have of it.
#[derive(Debug)]
pub(crate) struct IdEvents {
    pub(crate) key: IdKey,
    taken: Mutex<Count>,
    acked: Condvar,
    applied: Condvar,
}

/// How many events of an id were taken.
#[derive(Debug, Default)]
struct Count {
    /// And are not dropped.
    unacked: u64,
    /// In all.
    all: u64,
    /// Of all, how many have had their effect.
    applied: u64,
}

impl IdEvents {
    pub(super) fn new(key: IdKey) -> Arc<Self> {
        let (taken, acked, applied) = Default::default();
        Arc::new(Self { key, taken, acked, applied })
    }

    /// Waits until every event of the id that was taken is dropped.
    pub(crate) fn wait_acked(&self) {
        let mut taken = lock(&self.taken);
        // Each turn sleeps until an event was dropped.
        while taken.unacked != 0 {
            taken = self.acked.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Counts a taken event, as long as it lives.
#[derive(Debug)]
pub(crate) struct Unacked(Arc<IdEvents>);

impl Unacked {
    /// Takes an event; to be called in the order of the events. Returns the event's place in it.
    pub(crate) fn new(events: &Arc<IdEvents>) -> (Self, Position) {
        let mut taken = lock(&events.taken);
        taken.unacked += 1;
        taken.all += 1;
        (Self(events.clone()), Position { events: events.clone(), number: taken.all - 1 })
    }
}

/// The place of a taken event among those of its id, which have their effect in that order,
/// whichever threads took them.
#[derive(Debug)]
pub(crate) struct Position {
    events: Arc<IdEvents>,
    number: u64,
}

impl Position {
    /// Waits until those before have had their effect; those behind wait until the turn is dropped.
    pub(crate) fn wait(self) -> Turn {
        let mut taken = lock(&self.events.taken);
        // Each turn sleeps until one more had its effect.
        while taken.applied != self.number {
            taken = self.events.applied.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        drop(taken);
        Turn(self.events)
    }
}

/// The turn of an event to have its effect.
#[derive(Debug)]
pub(crate) struct Turn(Arc<IdEvents>);

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.0.taken).applied += 1;
        self.0.applied.notify_all();
    }
}

impl Drop for Unacked {
    fn drop(&mut self) {
        let mut taken = lock(&self.0.taken);
        taken.unacked -= 1;
        if taken.unacked == 0 {
            self.0.acked.notify_all();
        }
    }
}
