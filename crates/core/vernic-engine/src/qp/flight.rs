//! What a queue pair has in flight, as its destination window counts it.

use vernic_proto::congestion::Tally;

/// The packets that a queue pair has in flight. Protected by the queue pair's lock.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// The destination window that counts the packets in flight; `None` until the queue pair has
    /// sent on this path.
    pub(crate) window: Option<u8>,
    pub(crate) counted: u64,
    /// The events that the controller of the window has heard.
    pub(crate) told: Tally,
}

impl Flight {
    /// Notes that the queue pair has another path from now on.
    pub(crate) fn path_changed(&mut self) {
        // Packets in flight still count in the window where they were counted.
        if self.counted == 0 {
            self.window = None;
        }
    }
}
