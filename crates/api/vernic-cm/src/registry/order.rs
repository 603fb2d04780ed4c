//! The order of an id's taken events, and the number that are not dropped yet.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::key::IdKey;
use crate::sync::lock;

/// The counter of an id's taken events.
#[derive(Debug)]
pub(crate) struct IdEvents {
    pub(crate) key: IdKey,
    taken: Mutex<Count>,
    acked: Condvar,
    applied: Condvar,
}

/// Numbers of taken events of an id.
#[derive(Debug, Default)]
struct Count {
    /// Events that are not dropped.
    unacked: u64,
    /// All events.
    all: u64,
    /// Events that have been applied to the id.
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
        // Each iteration sleeps until an event is dropped.
        while taken.unacked != 0 {
            taken = self.acked.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Counts a taken event as not acknowledged, until it is dropped.
#[derive(Debug)]
pub(crate) struct Unacked(Arc<IdEvents>);

impl Unacked {
    /// Counts a taken event, and returns its position; must be called in the order of the events.
    pub(crate) fn new(events: &Arc<IdEvents>) -> (Self, Position) {
        let mut taken = lock(&events.taken);
        taken.unacked += 1;
        taken.all += 1;
        (Self(events.clone()), Position { events: events.clone(), number: taken.all - 1 })
    }
}

/// The position of a taken event among those of its id, which are applied in this order whichever
/// threads take them.
#[derive(Debug)]
pub(crate) struct Position {
    events: Arc<IdEvents>,
    number: u64,
}

impl Position {
    /// Waits until the events before have been applied; those behind wait until the turn is
    /// dropped.
    pub(crate) fn wait(self) -> EventTurn {
        let mut taken = lock(&self.events.taken);
        // Each iteration sleeps until another event has been applied.
        while taken.applied != self.number {
            taken = self.events.applied.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        drop(taken);
        EventTurn(self.events)
    }
}

/// The turn of an event to be applied.
#[derive(Debug)]
pub(crate) struct EventTurn(Arc<IdEvents>);

impl Drop for EventTurn {
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
