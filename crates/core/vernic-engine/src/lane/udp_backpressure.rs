//! UDP backpressure: when queue pairs of unreliable services may send to processes of this host.
//!
//! UC and UD have no flow control of their own, and a sender is faster than a receiver. Without
//! backpressure, packets would be lost in the receiver's socket where an adapter would have
//! delivered them. Before such a queue pair writes packets to the private port of another process
//! (or of this one), the lane asks the receiver page there ([`ReceiverPage`]) for room. If there is
//! none, the queue pair is [`Backpressured`](crate::sched::Standing): its turn is put off, and
//! others go on. The turn is tried again with the next call, and by the background thread every
//! [`RETRY_NANOS`].
//!
//! No receiver is waited for longer than [`PATIENCE_NANOS`]: a receiver that is stopped or killed
//! takes nothing, and packets to it may get lost. As long as such a receiver takes nothing, it is
//! not waited for again.
//!
//! Owned by the lane. Limits: [`MAX_RECEIVER_PAGES`](vernic_io::MAX_RECEIVER_PAGES) receivers.

use std::sync::Arc;

use vernic_io::host::ReceiverPage;
use vernic_io::host::SlotTable;
use vernic_io::{ReceiverPageId, TxPath};
use vernic_proto::Time;

use crate::counters::{Counted, Counters};

/// How soon a turn that was put off is tried again when no application calls, in nanoseconds. This
/// is a fraction of the time in which a receiver takes what its socket holds.
pub(crate) const RETRY_NANOS: u64 = 50_000;

/// How long a receiver may keep its senders waiting at a stretch, in nanoseconds. A hundred
/// milliseconds are some of the time slices of a busy machine; a process that runs takes its
/// packets within the take-over time.
const PATIENCE_NANOS: u64 = 100_000_000;

/// The room that is reserved at a time: for a turn of 64 packets, or of a full GSO run.
const TURN_COST: u64 = ReceiverPage::cost(0) * 64 + 64 * 1024;

/// One receiver, as the lane knows it.
#[derive(Debug)]
struct Receiver {
    receiver_page: Arc<ReceiverPage>,
    /// The time since which its senders wait without a pause.
    full_since: Option<Time>,
    /// What the receiver had received when its senders gave up waiting, if they did.
    given_up: Option<u64>,
}

/// Reserved room to send to one receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    to: Option<ReceiverPageId>,
    granted: u64,
    used: u64,
}

impl Reservation {
    /// Unlimited room, for paths without backpressure.
    const FREE: Self = Self { to: None, granted: u64::MAX, used: 0 };

    /// Whether the reserved room is enough for one more packet on `path`, of any size.
    #[inline]
    pub(crate) fn covers(&self, path: &TxPath) -> bool {
        self.to == path.receiver_page()
            && self.granted.saturating_sub(self.used) >= ReceiverPage::max_cost()
    }

    /// Counts a packet of `len` bytes that was written.
    #[inline]
    pub(crate) fn spend(&mut self, len: usize) {
        if self.to.is_some() {
            self.used += ReceiverPage::cost(len);
        }
    }
}

/// The UDP backpressure of a lane; see the module documentation.
#[derive(Debug)]
pub(crate) struct UdpBackpressure {
    on: bool,
    receivers: Vec<Receiver>,
    generation: u32,
    /// Reused when the list of receivers changes.
    list: Vec<Arc<ReceiverPage>>,
}

impl UdpBackpressure {
    pub(crate) fn new(on: bool) -> Self {
        Self { on, receivers: Vec::new(), generation: 0, list: Vec::new() }
    }

    /// Reserves room to send on `path` to its receiver. Returns `None` if too much is in flight to
    /// the receiver.
    #[inline]
    pub(crate) fn reserve(
        &mut self,
        path: &TxPath,
        slots: &SlotTable,
        counters: &Counters,
        now: Time,
    ) -> Option<Reservation> {
        let Some(to) = path.receiver_page().filter(|_| self.on) else {
            return Some(Reservation { to: path.receiver_page(), ..Reservation::FREE });
        };
        if slots.receiver_pages_generation() != self.generation {
            self.refresh(slots);
        }
        let Some(receiver) = self.receivers.get_mut(to.index()) else {
            return Some(Reservation { to: Some(to), ..Reservation::FREE });
        };
        match receiver.reserve(now) {
            Ok(granted) => Some(Reservation { to: Some(to), granted, used: 0 }),
            Err(Full { given_up: true }) => {
                counters.note(Counted::PaceTimeout);
                tracing::debug!(%path, "receiver takes nothing: UC and UD are sent regardless");
                Some(Reservation { to: Some(to), ..Reservation::FREE })
            }
            Err(Full { given_up: false }) => {
                counters.note(Counted::PacedTurn);
                None
            }
        }
    }

    /// Whether nothing is in flight to the receiver at `path`, as far as that is known.
    pub(crate) fn is_idle(&mut self, path: &TxPath, slots: &SlotTable) -> bool {
        let Some(to) = path.receiver_page().filter(|_| self.on) else { return true };
        if slots.receiver_pages_generation() != self.generation {
            self.refresh(slots);
        }
        self.receivers.get(to.index()).is_none_or(|receiver| receiver.receiver_page.is_idle())
    }

    /// Ends a reservation: gives back what was not used.
    #[inline]
    pub(crate) fn settle(&mut self, reservation: Reservation) {
        if reservation.granted == u64::MAX {
            return;
        }
        if let Some(receiver) = reservation.to.and_then(|to| self.receivers.get(to.index())) {
            receiver.receiver_page.give_back(reservation.granted.saturating_sub(reservation.used));
        }
    }

    /// Takes over the list of receivers, which has changed since processes were found.
    #[cold]
    fn refresh(&mut self, slots: &SlotTable) {
        self.generation = slots.receiver_pages_generation();
        slots.copy_receiver_pages(&mut self.list);
        for (at, receiver_page) in self.list.drain(..).enumerate() {
            match self.receivers.get_mut(at) {
                Some(known) if Arc::ptr_eq(&known.receiver_page, &receiver_page) => {}
                Some(known) => *known = Receiver::new(receiver_page),
                None => self.receivers.push(Receiver::new(receiver_page)),
            }
        }
    }
}

/// The error that a receiver has no room.
#[derive(Debug, PartialEq, Eq)]
struct Full {
    /// Whether there will be no room soon either.
    given_up: bool,
}

impl Receiver {
    fn new(receiver_page: Arc<ReceiverPage>) -> Self {
        Self { receiver_page, full_since: None, given_up: None }
    }

    #[inline]
    fn reserve(&mut self, now: Time) -> Result<u64, Full> {
        if let Some(received) = self.given_up {
            if self.receiver_page.received() == received {
                return Ok(u64::MAX);
            }
            self.given_up = None;
        }
        if let Some(granted) = self.receiver_page.reserve(TURN_COST) {
            self.full_since = None;
            return Ok(granted);
        }
        let since = *self.full_since.get_or_insert(now);
        if now.since(since) < PATIENCE_NANOS {
            return Err(Full { given_up: false });
        }
        self.full_since = None;
        self.given_up = Some(self.receiver_page.forgive());
        Err(Full { given_up: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver() -> (Arc<SlotTable>, Receiver) {
        let table = SlotTable::with_scope(&format!("vp{}", std::process::id())).unwrap();
        let receiver_page = table.receiver_page().unwrap().clone();
        (table, Receiver::new(receiver_page))
    }

    /// Reserves until the receiver has no room.
    fn fill(receiver: &mut Receiver, now: Time) {
        for _ in 0..1000 {
            match receiver.reserve(now) {
                Ok(granted) => assert_ne!(granted, u64::MAX, "it is waited for"),
                Err(full) => return assert_eq!(full, Full { given_up: false }),
            }
        }
        panic!("never full");
    }

    #[test]
    fn a_receiver_that_takes_nothing_is_waited_for_once() {
        let (_table, mut receiver) = receiver();
        receiver.receiver_page.set_capacity(1 << 20);
        let start = Time(5);
        fill(&mut receiver, start);
        assert_eq!(receiver.reserve(start + (PATIENCE_NANOS - 1)), Err(Full { given_up: false }));
        let late = start + PATIENCE_NANOS;
        assert_eq!(receiver.reserve(late), Err(Full { given_up: true }));
        for _ in 0..1000 {
            assert_eq!(receiver.reserve(late), Ok(u64::MAX));
        }
        // The receiver was asleep, and takes what had come.
        receiver.receiver_page.reserve(TURN_COST).unwrap();
        receiver.receiver_page.take(1);
        fill(&mut receiver, late);
    }

    #[test]
    fn each_pause_in_which_there_is_room_starts_the_wait_anew() {
        let (_table, mut receiver) = receiver();
        receiver.receiver_page.set_capacity(1 << 20);
        let mut now = Time(0);
        for _ in 0..10 {
            fill(&mut receiver, now);
            now = now + (PATIENCE_NANOS - 1);
            assert_eq!(receiver.reserve(now), Err(Full { given_up: false }));
            receiver.receiver_page.take(TURN_COST);
        }
    }

    #[test]
    fn a_receiver_that_does_not_say_what_it_holds_is_not_waited_for() {
        let (_table, mut receiver) = receiver();
        for _ in 0..1000 {
            assert_eq!(receiver.reserve(Time(0)), Ok(TURN_COST));
        }
    }
}
