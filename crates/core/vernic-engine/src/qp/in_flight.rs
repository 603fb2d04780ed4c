//! A queue pair's packets in flight, as its destination window counts them.

use vernic_proto::congestion::Tally;

/// A queue pair's share of its destination window: the packets in flight that the window counts for
/// it. Protected by the queue pair's lock.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// The index of the destination window in which the packets are counted; `None` until the queue
    /// pair has sent on this path.
    window: Option<u8>,
    counted: u64,
    /// The events that the controller of the window has heard.
    heard: Tally,
}

impl InFlight {
    /// Returns the index of the destination window; `None` until the queue pair has sent on this
    /// path.
    #[inline]
    pub(crate) fn window(&self) -> Option<u8> {
        self.window
    }

    /// Returns the packets in flight that the destination window counts for the queue pair.
    #[inline]
    pub(crate) fn counted(&self) -> u64 {
        self.counted
    }

    /// Returns the index of the destination window. On a new path it is `window`, whose controller
    /// has nothing to do with the events so far: those that `tally` has.
    pub(crate) fn window_or(&mut self, window: impl FnOnce() -> u8, tally: Option<&Tally>) -> u8 {
        *self.window.get_or_insert_with(|| {
            self.heard = tally.copied().unwrap_or_default();
            window()
        })
    }

    /// Whether the window must be told of `in_flight` packets, or its controller of events.
    #[inline]
    pub(crate) fn has_news(&self, in_flight: u64, tally: &Tally) -> bool {
        in_flight != self.counted || tally.has_signs_since(&self.heard)
    }

    /// Notes that the window counts `in_flight` packets from now on. Returns the number that it
    /// counted before, and the events that its controller has heard, to be brought up to date.
    #[inline]
    pub(crate) fn count(&mut self, in_flight: u64) -> (u64, &mut Tally) {
        (std::mem::replace(&mut self.counted, in_flight), &mut self.heard)
    }

    /// Notes that the queue pair uses another path from now on.
    pub(crate) fn path_changed(&mut self) {
        // Packets in flight stay counted in the window of the old path until they are acknowledged.
        if self.counted == 0 {
            self.window = None;
        }
    }
}
