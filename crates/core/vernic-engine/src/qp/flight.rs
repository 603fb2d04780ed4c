//! What a queue pair has in flight, as the window of its destination counts it.

/// See the module's head. Under its queue pair's lock.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// The window of its destination, once it has sent on this path; what it has in flight counts
    /// there.
    pub(crate) window: Option<u8>,
    pub(crate) counted: u64,
    /// Signs of loss that were counted.
    pub(crate) losses: u64,
}

impl Flight {
    /// Notes that the queue pair has another path from now on.
    pub(crate) fn path_changed(&mut self) {
        // What is in flight still counts where it was counted.
        if self.counted == 0 {
            self.window = None;
        }
    }
}
