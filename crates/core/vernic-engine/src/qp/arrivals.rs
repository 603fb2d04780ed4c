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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::without_background;
    use crate::{Cq, EMPTY_WC};

    /// Completions that are told apart by their ids.
    fn wcs(ids: std::ops::Range<u64>) -> Vec<Wc> {
        ids.map(|id| {
            let mut wc = EMPTY_WC;
            wc.completion.wr_id = id;
            wc
        })
        .collect()
    }

    /// Polls as `Engine::poll_inline` does; `lists` are what arrives meanwhile.
    fn poll(arrivals: &mut Arrivals, cq: &Cq, room: usize, lists: &[Vec<Wc>]) -> Vec<u64> {
        let mut out = vec![EMPTY_WC; room];
        arrivals.begin(cq.ring(), room);
        assert!(lists.iter().all(|list| arrivals.push(Some(cq.ring()), list)));
        let taken = arrivals.take(&mut out);
        let taken = taken + cq.ring().take(&mut out[taken..]);
        out[..taken].iter().map(|wc| wc.wr_id).collect()
    }

    #[test]
    fn completions_keep_their_order_whether_there_is_room_for_all_or_not() {
        let context = without_background();
        let (cq, mut arrivals) = (context.create_cq(64, None).unwrap(), Arrivals::new());
        // The second list does not fit, so the third goes behind it into the queue.
        let lists = [wcs(0..3), wcs(3..6), wcs(6..7)];
        assert_eq!(poll(&mut arrivals, &cq, 4, &lists), [0, 1, 2, 3]);
        assert_eq!(poll(&mut arrivals, &cq, 4, &[wcs(7..8)]), [4, 5, 6, 7]);
        assert!(poll(&mut arrivals, &cq, 4, &[]).is_empty());
    }

    #[test]
    fn completions_go_to_no_other_queue_than_their_own() {
        let context = without_background();
        let new = || context.create_cq(64, None).unwrap();
        let (cq, other, mut arrivals) = (new(), new(), Arrivals::new());
        // What a call has left that panicked.
        arrivals.begin(cq.ring(), 4);
        assert!(arrivals.push(Some(cq.ring()), &wcs(0..2)));
        assert_eq!(poll(&mut arrivals, &other, 4, &[wcs(5..6)]), [5]);
        // Of a queue that is not polled.
        arrivals.begin(other.ring(), 4);
        assert!(arrivals.push(Some(cq.ring()), &wcs(7..8)));
        assert_eq!((arrivals.take(&mut [EMPTY_WC; 4]), cq.ring().waiting()), (0, 1));
    }
}
