//! Events on their way: which channel an id's events go to, and how many of them are taken.
//!
//! Owns the seats of the ids, each with the queue of the channel that its id is on. Whoever has an
//! event for an id pushes it here, from any thread and under any lock but this one: an entry is
//! plain data, and nothing that is dropped here calls anything. Lock order: registry, queue.
//!
//! Events are taken from the queues without the registry's lock; each is counted on its id's
//! [`Cell`] while the queue is locked, so whoever takes the untaken out of the queue and then waits for
//! the taken misses none.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use vernic_engine::EventQueue;
use vernic_wire::Gid;

use crate::event::{EventKind, Param};
use crate::id::Id;

/// A number that names an id within its process for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IdKey(pub(crate) u64);

/// Locks, also after another thread panicked: what is behind each lock is valid between statements.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What an id's events have of it.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) key: IdKey,
    /// The id, from when it is made.
    pub(crate) id: OnceLock<Weak<Id>>,
    taken: Mutex<u64>,
    returned: Condvar,
}

impl Cell {
    fn new(key: IdKey) -> Arc<Self> {
        let (taken, returned) = (Mutex::new(0), Condvar::new());
        Arc::new(Self { key, id: OnceLock::new(), taken, returned })
    }

    /// The id, if it is there still.
    pub(crate) fn id(&self) -> Option<Arc<Id>> {
        self.id.get()?.upgrade()
    }

    /// Waits until every event of the id that was taken is dropped.
    pub(crate) fn wait_returned(&self) {
        let mut taken = lock(&self.taken);
        // Each turn sleeps until an event was dropped.
        while *taken != 0 {
            taken = self.returned.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Counts a taken event, as long as it lives.
#[derive(Debug)]
pub(crate) struct Taken(Arc<Cell>);

impl Taken {
    pub(crate) fn new(cell: &Arc<Cell>) -> Self {
        *lock(&cell.taken) += 1;
        Self(cell.clone())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut taken = lock(&self.0.taken);
        *taken -= 1;
        if *taken == 0 {
            self.0.returned.notify_all();
        }
    }
}

/// An event before it is taken.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The id that it counts on.
    pub(crate) cell: Arc<Cell>,
    pub(crate) what: What,
}

/// What an entry says.
#[derive(Debug)]
pub(crate) enum What {
    /// Something that is decided already.
    Told { kind: EventKind, status: i32, param: Param },
    /// A multicast group is joined.
    Joined { gid: Gid },
}

/// The queue of a channel.
pub(crate) type Queue = EventQueue<Entry>;

#[derive(Debug)]
struct Seat {
    cell: Arc<Cell>,
    queue: Arc<Queue>,
}

#[derive(Debug, Default)]
struct State {
    seats: HashMap<IdKey, Seat>,
}

/// The seats of the ids of a process.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    next: AtomicU64,
    state: Mutex<State>,
}

impl Registry {
    /// A seat for a new id, whose events go to `queue`.
    pub(crate) fn seat(&self, queue: &Arc<Queue>) -> Arc<Cell> {
        let cell = Cell::new(IdKey(self.next.fetch_add(1, Ordering::Relaxed)));
        let seat = Seat { cell: cell.clone(), queue: queue.clone() };
        lock(&self.state).seats.insert(cell.key, seat);
        cell
    }

    /// An event for an id; lost if the id is gone.
    pub(crate) fn push(&self, key: IdKey, what: What) {
        let state = lock(&self.state);
        if let Some(seat) = state.seats.get(&key) {
            seat.queue.push(Entry { cell: seat.cell.clone(), what });
        }
    }

    /// From now on the id's events go to `queue`, those that wait already included.
    pub(crate) fn migrate(&self, key: IdKey, queue: &Arc<Queue>) {
        let mut state = lock(&self.state);
        let Some(seat) = state.seats.get_mut(&key) else { return };
        let from = std::mem::replace(&mut seat.queue, queue.clone());
        for entry in from.extract(|entry| entry.cell.key == key) {
            queue.push(entry);
        }
    }

    /// Takes back events of an id that nobody has taken.
    pub(crate) fn withdraw(&self, key: IdKey, which: impl Fn(&What) -> bool) {
        let state = lock(&self.state);
        if let Some(seat) = state.seats.get(&key) {
            seat.queue.purge(|entry| entry.cell.key != key || !which(&entry.what));
        }
    }

    /// Gives the seat up and returns the events that nobody took. There will be no further one.
    pub(crate) fn leave(&self, key: IdKey) -> Vec<Entry> {
        let Some(seat) = lock(&self.state).seats.remove(&key) else { return Vec::new() };
        seat.queue.extract(|entry| entry.cell.key == key)
    }
}
