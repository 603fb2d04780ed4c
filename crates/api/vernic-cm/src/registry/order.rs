//! The events of an id that were taken: their order, and how many are not dropped.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::key::IdKey;
use crate::sync::lock;

/// What an id's events have of it.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) key: IdKey,
    taken: Mutex<Count>,
    returned: Condvar,
    told: Condvar,
}

/// How many events of an id were taken.
#[derive(Debug, Default)]
struct Count {
    /// And are not dropped.
    out: u64,
    /// In all.
    all: u64,
    /// Of all, how many have had their effect.
    told: u64,
}

impl Cell {
    pub(super) fn new(key: IdKey) -> Arc<Self> {
        let (taken, returned, told) = Default::default();
        Arc::new(Self { key, taken, returned, told })
    }

    /// Waits until every event of the id that was taken is dropped.
    pub(crate) fn wait_returned(&self) {
        let mut taken = lock(&self.taken);
        // Each turn sleeps until an event was dropped.
        while taken.out != 0 {
            taken = self.returned.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Counts a taken event, as long as it lives.
#[derive(Debug)]
pub(crate) struct Taken(Arc<Cell>);

impl Taken {
    /// Takes an event; to be called in the order of the events. Returns the event's place in it.
    pub(crate) fn new(cell: &Arc<Cell>) -> (Self, Place) {
        let mut taken = lock(&cell.taken);
        taken.out += 1;
        taken.all += 1;
        (Self(cell.clone()), Place { cell: cell.clone(), number: taken.all - 1 })
    }
}

/// The place of a taken event among those of its id, which have their effect in that order,
/// whichever threads took them.
#[derive(Debug)]
pub(crate) struct Place {
    cell: Arc<Cell>,
    number: u64,
}

impl Place {
    /// Waits until those before have had their effect; those behind wait until the turn is dropped.
    pub(crate) fn wait(self) -> Turn {
        let mut taken = lock(&self.cell.taken);
        // Each turn sleeps until one more had its effect.
        while taken.told != self.number {
            taken = self.cell.told.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        drop(taken);
        Turn(self.cell)
    }
}

/// The turn of an event to have its effect.
#[derive(Debug)]
pub(crate) struct Turn(Arc<Cell>);

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.0.taken).told += 1;
        self.0.told.notify_all();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut taken = lock(&self.0.taken);
        taken.out -= 1;
        if taken.out == 0 {
            self.0.returned.notify_all();
        }
    }
}
