//! Event channels: where programs wait for the events of their ids.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use crate::error::Error;
use crate::id::Event;
use crate::id::Id;
use crate::id::Shared;
use crate::registry::{Entry, EntryContent, Position, Queue, Unacked};

/// An event channel. Its descriptor is readable while an event waits. The descriptor's
/// `O_NONBLOCK`, which a program may set and clear, decides whether [`wait`](Self::wait) blocks.
#[derive(Debug)]
pub struct EventChannel {
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: Arc<Queue>,
}

impl EventChannel {
    pub(crate) fn new(shared: &Arc<Shared>) -> Result<Arc<Self>, Error> {
        // The ids are the limit: each has a few events waiting at most.
        let queue = Queue::with_limit(usize::MAX)
            .map_err(|source| Error::Os { what: "make an eventfd for an event channel", source })?;
        Ok(Arc::new(Self { shared: shared.clone(), queue: Arc::new(queue) }))
    }

    /// Whether the channel was made before this process was forked. Such a channel is unusable
    /// here.
    pub fn is_orphan(&self) -> bool {
        !self.shared.origin.is_here()
    }

    /// Waits for the next event; on a blocking descriptor, for ever.
    ///
    /// # Errors
    /// `WouldBlock` if the program made the descriptor non-blocking and there is no event,
    /// `Interrupted` if a signal came, EIO in a child of the process that made the channel.
    pub fn wait(self: &Arc<Self>) -> io::Result<Event> {
        if self.is_orphan() {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        // Each iteration takes an entry, and few entries are no events.
        loop {
            let taken = self.queue.wait(|entry| self.take(entry))?;
            if let Some(event) = self.apply(taken, |_| ()) {
                return Ok(event);
            }
        }
    }

    /// Takes the next event if there is one. Never blocks.
    pub fn try_next(self: &Arc<Self>) -> Option<Event> {
        self.try_next_after(|_| ())
    }

    /// Takes the next event as [`try_next`](Self::try_next) does, and runs `before` with the id of
    /// the event before the event changes the id.
    pub fn try_next_after(self: &Arc<Self>, before: impl Fn(&Arc<Id>)) -> Option<Event> {
        if self.is_orphan() {
            return None;
        }
        loop {
            let taken = self.queue.try_next(|entry| self.take(entry))?;
            if let Some(event) = self.apply(taken, &before) {
                return Some(event);
            }
        }
    }

    /// Under the lock of the queue: counts the event, and makes the id of a request, so that a
    /// thread that takes the following event finds that id.
    fn take(self: &Arc<Self>, entry: Entry) -> TakenEntry {
        let (unacked, position) = Unacked::new(&entry.events);
        let id = self.shared.id(entry.events.key);
        let new = match (&entry.what, &id) {
            (EntryContent::Request(request), Some(id)) => Some(Id::of_request(self, id, request)),
            _ => None,
        };
        TakenEntry { entry, unacked, position, id, new }
    }

    /// Does the work that belongs to the entry, and makes the program's event of it; `None` if the
    /// id is gone or the event does not matter to it.
    fn apply(&self, taken: TakenEntry, before: impl Fn(&Arc<Id>)) -> Option<Event> {
        let TakenEntry { entry, unacked, position, id, new } = taken;
        let _turn = position.wait();
        match (entry.what, id, new) {
            (EntryContent::Request(request), Some(id), Some(new)) => {
                Some(new.apply_request(id, *request, unacked))
            }
            (what, Some(id), _) => {
                before(&id);
                id.apply(what, unacked)
            }
            // The id is being dropped.
            (what, None, _) => {
                self.shared.refuse(vec![Entry { events: entry.events, what }]);
                None
            }
        }
    }
}

/// An entry that was taken out of the queue.
struct TakenEntry {
    entry: Entry,
    unacked: Unacked,
    position: Position,
    id: Option<Arc<Id>>,
    /// The id that a request has become.
    new: Option<Arc<Id>>,
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        if self.is_orphan() {
            // A thread of the parent may have held a lock of it when it forked.
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

#[cfg(test)]
mod tests {
    use vernic_proto::cm::EventKind as CmEvent;

    use crate::event::EventKind;
    use crate::testing::Lab;
    use crate::tests::{disconnect_request, reply};

    #[test]
    fn events_of_an_id_that_two_threads_take_have_their_effect_in_order() {
        let lab = Lab::new();
        let id = lab.connecting();
        lab.tell(1, reply(9));
        lab.tell(1, disconnect_request());
        lab.tell(1, CmEvent::TimewaitExit);
        let channel = &lab.channel;
        let mut taken =
            (0..3).map(|_| channel.queue.try_next(|entry| channel.take(entry)).unwrap());
        let (first, second, third) =
            (taken.next().unwrap(), taken.next().unwrap(), taken.next().unwrap());
        let kinds = std::thread::scope(|scope| {
            let late = [third, second]
                .map(|taken| scope.spawn(|| channel.apply(taken, |_| ()).unwrap().kind));
            // Gives the threads time to apply their events too early.
            std::thread::sleep(std::time::Duration::from_millis(20));
            let kind = channel.apply(first, |_| ()).unwrap().kind;
            let [third, second] = late.map(|thread| thread.join().unwrap());
            [kind, second, third]
        });
        let expected =
            [EventKind::ConnectResponse, EventKind::Disconnected, EventKind::TimewaitExit];
        assert_eq!(kinds, expected);
        assert_eq!(id.state(), crate::State::Disconnect);
        // In another order, the reply would have set another phase than over.
        assert!(id.establish().is_err());
    }
}
