//! A queue pair's packets in flight, as its destination window counts them.

use vernic_proto::congestion::Tally;

/// A queue pair's share of its destination window: the packets in flight that the window counts for
/// it. Protected by the queue pair's lock.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// The index of the destination window in which the packets are counted; `None` until the queue
    /// pair has sent on this path.
    pub(crate) window: Option<u8>,
    pub(crate) counted: u64,
    /// The events that the controller of the window has heard.
    pub(crate) told: Tally,
}

impl Flight {
    /// Notes that the queue pair uses another path from now on.
    pub(crate) fn path_changed(&mut self) {
        // Packets in flight stay counted in the window of the old path until they are acknowledged.
        if self.counted == 0 {
            self.window = None;
        }
    }
}
