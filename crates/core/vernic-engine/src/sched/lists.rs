//! The lists of queue pairs that the scheduler keeps. All lists are linked through one array of
//! entries, so that a queue pair is on one list at most, and can be unlinked by a few stores.
//!
//! An entry is made when a queue pair is opened, and kept for its life; putting a queue pair on a
//! list allocates nothing.

use std::sync::Arc;

use vernic_proto::Time;

use super::standing::Standing;
use crate::qp::state::QpInner;

/// The index that means "no entry".
pub(crate) const NONE: u32 = u32::MAX;

/// The entry of one queue pair.
#[derive(Debug)]
pub(super) struct Entry {
    qp: Option<Arc<QpInner>>,
    standing: Standing,
    previous: u32,
    next: u32,
    /// The time since which the queue pair's requests wait for their destination window; `None` if
    /// they do not wait.
    pub(super) since: Option<Time>,
    /// Whether the queue pair may send requests in its next turn even if the window has no room.
    pub(super) pass: bool,
    /// The latest time at which a delayed ACK of the queue pair is sent.
    pub(super) due: Time,
    /// The number of the destination window that the queue pair's requests wait for, if they wait.
    pub(super) window: u8,
}

impl Entry {
    #[inline]
    pub(super) fn standing(&self) -> Standing {
        self.standing
    }
}

/// A list: the indexes of its first and last entry, and its length.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    first: u32,
    last: u32,
    len: usize,
}

impl List {
    pub(super) const EMPTY: Self = Self { first: NONE, last: NONE, len: 0 };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first == NONE
    }

    #[inline]
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// The entries of all queue pairs of the lane.
#[derive(Debug, Default)]
pub(super) struct Entries {
    all: Vec<Entry>,
    free: Vec<u32>,
}

impl Entries {
    /// Makes an entry for a queue pair that was opened.
    pub(super) fn add(&mut self, qp: Arc<QpInner>) -> u32 {
        let entry = Entry {
            qp: Some(qp),
            standing: Standing::Idle,
            previous: NONE,
            next: NONE,
            since: None,
            pass: false,
            due: Time(0),
            window: 0,
        };
        if let Some(index) = self.free.pop() {
            self.all[index as usize] = entry;
            return index;
        }
        self.all.push(entry);
        self.all.len() as u32 - 1
    }

    /// Removes the entry of a queue pair that is closed, and on no list.
    pub(super) fn remove(&mut self, index: u32) {
        if let Some(entry) = self.all.get_mut(index as usize) {
            entry.qp = None;
            self.free.push(index);
        }
    }

    #[inline]
    pub(super) fn get(&mut self, index: u32) -> Option<&mut Entry> {
        self.all.get_mut(index as usize)
    }

    #[inline]
    pub(super) fn standing(&self, index: u32) -> Standing {
        self.all.get(index as usize).map_or(Standing::Idle, |entry| entry.standing)
    }

    #[inline]
    pub(super) fn qp(&self, index: u32) -> Option<&Arc<QpInner>> {
        self.all.get(index as usize)?.qp.as_ref()
    }

    /// Notes that the requests of a queue pair no longer wait for a window.
    #[inline]
    pub(super) fn end_wait(&mut self, index: u32) {
        if let Some(entry) = self.all.get_mut(index as usize) {
            entry.since = None;
        }
    }

    #[inline]
    pub(super) fn since(&self, index: u32) -> Option<Time> {
        self.all.get(index as usize)?.since
    }

    #[inline]
    pub(super) fn next(&self, index: u32) -> u32 {
        self.all.get(index as usize).map_or(NONE, |entry| entry.next)
    }

    /// Puts a queue pair that is on no list at the end of `list`.
    #[inline]
    pub(super) fn push(&mut self, list: &mut List, index: u32, standing: Standing) {
        let last = list.last;
        let Some(entry) = self.all.get_mut(index as usize) else { return };
        (entry.standing, entry.previous, entry.next) = (standing, last, NONE);
        match self.all.get_mut(last as usize) {
            Some(before) => before.next = index,
            None => list.first = index,
        }
        list.last = index;
        list.len += 1;
    }

    /// Puts a queue pair that is on no list at the beginning of `list`.
    pub(super) fn push_first(&mut self, list: &mut List, index: u32, standing: Standing) {
        let first = list.first;
        let Some(entry) = self.all.get_mut(index as usize) else { return };
        (entry.standing, entry.previous, entry.next) = (standing, NONE, first);
        match self.all.get_mut(first as usize) {
            Some(behind) => behind.previous = index,
            None => list.last = index,
        }
        list.first = index;
        list.len += 1;
    }

    /// Takes a queue pair off `list`, on which it is.
    #[inline]
    pub(super) fn unlink(&mut self, list: &mut List, index: u32) {
        let Some(entry) = self.all.get_mut(index as usize) else { return };
        let (previous, next) = (entry.previous, entry.next);
        (entry.standing, entry.previous, entry.next) = (Standing::Idle, NONE, NONE);
        match self.all.get_mut(previous as usize) {
            Some(before) => before.next = next,
            None => list.first = next,
        }
        match self.all.get_mut(next as usize) {
            Some(behind) => behind.previous = previous,
            None => list.last = previous,
        }
        list.len -= 1;
    }

    /// Takes the first queue pair off a list.
    #[inline]
    pub(super) fn pop(&mut self, list: &mut List) -> Option<u32> {
        let index = list.first;
        if index == NONE {
            return None;
        }
        self.unlink(list, index);
        Some(index)
    }
}
