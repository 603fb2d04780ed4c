//! What a queue pair has in flight, as the budget of its destination counts it.

/// What the lane knows of a queue pair's packets.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// Its budget, once it has sent on this path; what it has in flight counts there.
    pub(crate) place: Option<u8>,
    pub(crate) counted: u64,
    /// Signs of loss that were told.
    pub(crate) losses: u64,
    /// Its timer fired: it is let in.
    pub(crate) exempt: bool,
    /// It was destroyed: a post that comes late counts nowhere.
    pub(crate) gone: bool,
}

impl Flight {
    /// It has another path from now on.
    pub(crate) fn path_changed(&mut self) {
        // What is in flight still counts where it was counted.
        if self.counted == 0 {
            self.place = None;
        }
    }
}
