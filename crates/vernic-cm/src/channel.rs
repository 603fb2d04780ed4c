//! Event channels: where programs wait for the events of their ids.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use crate::error::Error;
use crate::event::Event;
use crate::manager::Shared;
use crate::registry::{Entry, Queue, Taken};

/// An event channel. Its descriptor is readable while an event waits; whether [`wait`](Self::wait)
/// waits is decided by the descriptor's `O_NONBLOCK`, which a program may set and clear.
#[derive(Debug)]
pub struct EventChannel {
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: Arc<Queue>,
}

impl EventChannel {
    pub(crate) fn new(shared: &Arc<Shared>) -> Result<Arc<Self>, Error> {
        // Bounded by the ids: each has a few events waiting at most.
        let queue = Queue::with_limit(usize::MAX)
            .map_err(|source| Error::Os { what: "make an eventfd for an event channel", source })?;
        Ok(Arc::new(Self { shared: shared.clone(), queue: Arc::new(queue) }))
    }

    /// Whether it was made before this process was forked. Such a channel is unusable here.
    pub fn is_orphan(&self) -> bool {
        !self.shared.origin.is_here()
    }

    /// Waits for the next event; for ever on a blocking descriptor.
    ///
    /// # Errors
    /// `WouldBlock` if the program made the descriptor non-blocking and there is no event,
    /// `Interrupted` if a signal came, EIO in a child of the process that made the channel.
    pub fn wait(&self) -> io::Result<Event> {
        if self.is_orphan() {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        // Each turn takes an entry, and few of them are no events.
        loop {
            let (entry, taken) = self.queue.wait(Self::take)?;
            if let Some(event) = self.tell(entry, taken) {
                return Ok(event);
            }
        }
    }

    /// Takes the next event if there is one; never waits.
    pub fn try_next(&self) -> Option<Event> {
        if self.is_orphan() {
            return None;
        }
        loop {
            let (entry, taken) = self.queue.try_next(Self::take)?;
            if let Some(event) = self.tell(entry, taken) {
                return Some(event);
            }
        }
    }

    /// Under the lock of the queue.
    fn take(entry: Entry) -> (Entry, Taken) {
        let taken = Taken::new(&entry.cell);
        (entry, taken)
    }

    /// Does the event's share of the work and makes it what the program gets; `None` if its id is
    /// gone or the event is of no interest to it.
    fn tell(&self, entry: Entry, taken: Taken) -> Option<Event> {
        entry.cell.id()?.tell(entry.what, taken)
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        if self.is_orphan() {
            // A thread of the parent may have been at work on it.
            std::mem::forget((self.queue.clone(), self.shared.clone()));
        }
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.queue.fd().as_raw_fd()
    }
}
