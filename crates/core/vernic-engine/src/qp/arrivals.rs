//! Completions of receives on their way to the thread that polls for them: that thread has the
//! lane, so they need not go through the completion queue and its lock.
//!
//! Owned by the lane, for one call. The queue polled must have been found empty, and takes part
//! only while it is: so each queue pair's completions keep their order. A queue with a channel
//! takes no part, because another thread may be waiting for its event.

use std::sync::Arc;

use crate::qp::completions::{CqRing, Wc};
use crate::support::events::CqId;

/// Completions that one call keeps at most: as many as programs usually poll for.
const MOST: usize = 16;

/// Completions for the thread that runs the lane; see the head of this module.
#[derive(Debug)]
pub(crate) struct Arrivals {
    /// The completion queue that the thread polls.
    polled: Option<CqId>,
    /// Completions that the thread has asked for.
    room: usize,
    list: Vec<Wc>,
}

impl Arrivals {
    pub(crate) fn new() -> Self {
        Self { polled: None, room: 0, list: Vec::with_capacity(MOST) }
    }

    /// Notes that the thread which has taken the lane polls a queue for up to `room` completions.
    #[inline]
    pub(crate) fn begin(&mut self, cq: &CqRing, room: usize) {
        // Left over only if the last call has panicked. They are not this queue's.
        self.list.clear();
        self.polled = (!cq.has_channel()).then(|| cq.id());
        self.room = room.min(MOST);
    }

    /// Adds completions of a queue pair's receives to their queue, or keeps them for the thread
    /// that polls it. Returns false if one was lost because the queue is full.
    #[inline]
    pub(super) fn push(&mut self, cq: Option<&Arc<CqRing>>, wcs: &[Wc]) -> bool {
        let Some(cq) = cq else { return true };
        let is_polled = self.polled == Some(cq.id()) && cq.waiting() == 0;
        if is_polled && self.list.len() + wcs.len() <= self.room {
            self.list.extend_from_slice(wcs);
            return true;
        }
        cq.push_all(wcs)
    }

    /// Ends the call: the completions that were kept go to `out`, which has room for them. Returns
    /// how many.
    #[inline]
    pub(crate) fn take<T: From<Wc>>(&mut self, out: &mut [T]) -> usize {
        self.polled = None;
        let count = self.list.len();
        if count == 0 {
            return 0;
        }
        for (place, wc) in out.iter_mut().zip(self.list.drain(..)) {
            *place = wc.into();
        }
        count
    }
}
