//! The scheduler of a lane: which queue pair has its turn next, and when the lane must be polled. A
//! turn is what a queue pair writes before the next ready one may write.
//!
//! The state of a queue pair in the scheduler is its [`Standing`], which also says on which list
//! the queue pair is, if any. In addition, queue pairs with a timer have an entry in the timer
//! wheel. The handling of every event of a queue pair ends with a call of [`Scheduler::after`],
//! which gives the queue pair the standing that follows by the rules of `standing.rs`.
//!
//! ```text
//!                  post, packets, timer
//!      Idle --------------------------------> Ready --- turn ---> after --+
//!       ^  ^                                    ^                         |
//!       |  |   its ACK is due, or another turn  |                         |
//!       |  +---------- AckDelayed --------------+ <-----------------------+
//!       |                                       |
//!       |   room in the window, or 20 ms        |
//!       +------------- WaitsForWindow ----------+
//!                                               |
//!                 with the next call            |
//!                      Backpressured -----------+
//! ```
//!
//! A thread that does not have the lane leaves a queue pair in the doorbells
//! (`progress/engine.rs`). A queue pair is *attended* while it is in the doorbells, ready or
//! backpressured. Then a turn is sure to come that reads its send queue, so another post need not
//! ring the doorbell again ([`Mark`](crate::qp::state::Mark)).
//!
//! | file | what |
//! |---|---|
//! | `standing.rs` | the standing of a queue pair, and what follows an event |
//! | `lists.rs` | the lists |
//! | `windows.rs` | destination windows |
//! | `control.rs` `destination_aimd.rs` | their congestion controllers |
//! | `timers.rs` | the timer wheel |
//!
//! Owned by the lane. Limits: a queue pair waits for the window of its destination for 20 ms, or
//! for 40 ms if it left the waiting list for a turn meanwhile. An ACK waits for the time that
//! `qp/ack_delay.rs` says. The scheduler allocates only when queue pairs are opened.

use std::sync::Arc;

use vernic_proto::congestion::Congestion;
use vernic_proto::{QpState, Time};
use vernic_wire::{Qpn, Service};

use crate::device::opened::Device;
use crate::qp::machine::Machine;
use crate::qp::state::{QpCore, QpInner};
use crate::support::events::lock;

mod control;
mod destination_aimd;
mod lists;
mod standing;
mod timers;
mod windows;

use lists::{Entries, List, NONE};
use standing::Wants;
pub(crate) use standing::{Event, Standing, TurnResult};
use timers::Timers;
use windows::{PATIENCE_NANOS, Windows, window_of};

/// The number of packets received by the lane after which all delayed ACKs are sent: half of the
/// first congestion window of a requester.
const ACK_DELAY_PACKETS: usize = 64;

impl Wants for Machine {
    #[inline]
    fn requests(&self) -> bool {
        self.wants_requests()
    }
    #[inline]
    fn responses(&self) -> bool {
        self.wants_responses()
    }
}

/// The scheduler of a lane; see the module documentation.
#[derive(Debug)]
pub(crate) struct Scheduler {
    entries: Entries,
    ready: List,
    backpressured: List,
    delayed: List,
    windows: Windows,
    timers: Timers,
    /// The time at which the first of the delayed ACKs is due.
    ack_due: Option<Time>,
    /// The number of packets received since all delayed ACKs were last sent.
    packets: usize,
}

impl Scheduler {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            entries: Entries::default(),
            ready: List::EMPTY,
            backpressured: List::EMPTY,
            delayed: List::EMPTY,
            windows: Windows::default(),
            timers: Timers::new(now),
            ack_due: None,
            packets: 0,
        }
    }

    /// Gives each destination window a congestion controller of the owner's.
    pub(crate) fn set_destination_control(&mut self, make: impl Fn() -> Box<dyn Congestion>) {
        self.windows.set_control(make);
    }

    /// Adds a queue pair that was opened.
    pub(crate) fn add(&mut self, qp: &Arc<QpInner>) {
        qp.mark.set_index(self.entries.add(qp.clone()));
    }

    /// Removes a queue pair that is closed, so that it gets no more turns.
    pub(crate) fn remove(&mut self, qp: &Arc<QpInner>) {
        let index = qp.mark.index();
        self.unlink(index);
        self.entries.remove(index);
        qp.mark.set_index(NONE);
        let flight = std::mem::take(&mut lock(&qp.core).side.in_flight);
        if let Some(window) = flight.window() {
            self.windows.forget(window, flight.counted());
        }
    }

    /// Makes a queue pair ready, unless a turn is sure to come anyway.
    #[inline]
    pub(crate) fn make_ready(&mut self, qp: &Arc<QpInner>) {
        if qp.mark.attend() {
            self.put(qp.mark.index(), Standing::Ready);
        }
    }

    /// Makes a queue pair ready that was left in the doorbells. Returns false if it is closed.
    pub(crate) fn answer(&mut self, qp: &Arc<QpInner>) -> bool {
        let index = qp.mark.index();
        let is_open = self.entries.qp(index).is_some_and(|open| Arc::ptr_eq(open, qp));
        if is_open && self.entries.standing(index) != Standing::Ready {
            self.put(index, Standing::Ready);
        }
        is_open
    }

    /// Takes the next ready queue pair, for its turn.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Arc<QpInner>> {
        let index = self.entries.pop(&mut self.ready)?;
        let qp = self.entries.qp(index)?.clone();
        // The mark is cleared before the turn reads the send queue, so a later post rings the
        // doorbell again.
        qp.mark.leave();
        Some(qp)
    }

    /// Whether any queue pair is ready.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the number of ready queue pairs.
    pub(crate) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// Whether any queue pair waits because its receiver has no room.
    #[inline]
    pub(crate) fn has_backpressured(&self) -> bool {
        !self.backpressured.is_empty()
    }

    /// Makes all queue pairs ready that wait because their receivers have no room.
    #[inline]
    pub(crate) fn retry_backpressured(&mut self) {
        // Their marks need no change: backpressured queue pairs are attended, too.
        while let Some(index) = self.entries.pop(&mut self.backpressured) {
            self.entries.push(&mut self.ready, index, Standing::Ready);
        }
    }

    /// Returns the number of packets of requests that a queue pair may send in the turn that it is
    /// about to have. At 0 its requests wait for the window of their destination.
    #[inline]
    pub(crate) fn admits(&mut self, qp: &Arc<QpInner>, core: &mut QpCore, now: Time) -> u32 {
        let flight = &core.side.in_flight;
        let packets = match flight.window() {
            // Packets through a ring need no window: the ring itself says when it is full.
            _ if core.side.peer.route().is_ring() => u32::MAX,
            Some(window) => self.windows.of(window).turn(flight.counted(), now),
            None => 0,
        };
        if packets == 0 {
            return self.admits_one(qp, core, now);
        }
        self.entries.end_wait(qp.mark.index());
        packets
    }

    /// Does the rest of [`admits`](Self::admits), for a queue pair that sends for the first time,
    /// or whose destination window has no room, or has other queue pairs waiting.
    fn admits_one(&mut self, qp: &Arc<QpInner>, core: &mut QpCore, now: Time) -> u32 {
        let QpCore { machine, side } = core;
        let Some(machine) = machine.packets() else { return u32::MAX };
        // In other states the turn only flushes requests, which sends nothing.
        let sends = matches!(machine.state(), QpState::Rts | QpState::Sqd);
        let acknowledged = matches!(qp.service(), Service::Rc | Service::Xrc);
        let Some(entry) = self.entries.get(qp.mark.index()) else { return u32::MAX };
        let waited = entry.since.is_some_and(|since| now.since(since) >= PATIENCE_NANOS);
        let pass = std::mem::take(&mut entry.pass) || waited;
        if !acknowledged || !sends || !machine.wants_requests() {
            entry.since = None;
            return u32::MAX;
        }
        let Some(path) = side.peer.path() else { return u32::MAX };
        let flight = &mut side.in_flight;
        let went_back = flight.counted() == 0 && machine.has_unacknowledged();
        let number = flight.window_or(|| window_of(path), machine.tally());
        let window = self.windows.of(number);
        if !machine.asks_kept() && window.keeps(path) {
            machine.assume_peer_keeps();
        }
        let counted = flight.counted();
        let may = pass || went_back || window.is_alone(counted) || window.is_open();
        if may && !window.is_paced(now) {
            entry.since = None;
            return window.share(counted);
        }
        entry.since.get_or_insert(now);
        // The queue pair is about to have its turn, so it is on no list, and the number of its
        // window may change. A queue pair on the waiting list of a window keeps the number.
        if entry.standing() != Standing::WaitsForWindow {
            entry.window = number;
        }
        0
    }

    /// Makes the next queue pair ready that waits for a destination window, if the window has room,
    /// or if that queue pair has waited for [`PATIENCE_NANOS`].
    #[inline]
    pub(crate) fn admit_waiting(&mut self, now: Time) {
        if self.windows.has_waiting() {
            self.let_one_in(now);
        }
    }

    #[inline(never)]
    fn let_one_in(&mut self, now: Time) {
        let Some(index) = self.windows.admit_waiting(&mut self.entries, now) else { return };
        self.pass(index);
        self.attend(index);
    }

    /// Lets a queue pair whose timer fired send requests once, even if its destination window has
    /// no room.
    pub(crate) fn exempt(&mut self, qp: &QpInner) {
        self.pass(qp.mark.index());
    }

    fn pass(&mut self, index: u32) {
        if let Some(entry) = self.entries.get(index) {
            entry.pass = true;
        }
    }

    /// Finishes the handling of an event of a queue pair. Every event ends with this call, under
    /// the lane. It publishes the state of the queue pair, arms its timer, counts its packets in
    /// flight, and gives it the standing that follows from its remaining work.
    #[inline]
    pub(crate) fn after(
        &mut self,
        device: &Device,
        qp: &Arc<QpInner>,
        core: &mut QpCore,
        event: Event,
        now: Time,
    ) {
        qp.publish_state(device, core);
        self.timers.arm(qp.qpn(), core);
        self.windows.note(core, now);
        let index = qp.mark.index();
        let Some(entry) = self.entries.get(index) else { return };
        let QpCore { machine, side } = core;
        let (was, waits) = (entry.standing(), entry.since.is_some());
        let only_ack = machine.owes_only_ack();
        let then = standing::after(was, event, machine, only_ack, waits);
        if only_ack {
            let burst = if let Event::Packets { requests } = event { Some(requests) } else { None };
            let due = side.ack.delay(burst, now);
            if then == Standing::AckDelayed {
                entry.due = due;
                self.ack_due = Some(self.ack_due.map_or(due, |first| first.min(due)));
            }
        } else {
            side.ack.left();
        }
        if then != was {
            self.move_to(qp, index, then);
        }
    }

    /// Whether the queue pair is on the waiting list of a destination window, which it leaves in
    /// its turn.
    #[inline]
    pub(crate) fn waits_for_window(&self, qp: &QpInner) -> bool {
        self.entries.standing(qp.mark.index()) == Standing::WaitsForWindow
    }

    /// Does the part of [`after`](Self::after) that may have to be done when a queue pair has sent
    /// messages and nothing else, all that was posted. No request is left to be sent, its state is
    /// what it was, and the destination window does not count messages. So its standing stays the
    /// same, unless a message has carried the delayed ACK.
    #[inline]
    pub(crate) fn after_messages(&mut self, qp: &QpInner, core: &mut QpCore) {
        self.timers.arm(qp.qpn(), core);
        let QpCore { machine, side } = core;
        if side.ack.is_listed() && !machine.owes_only_ack() {
            side.ack.left();
            let index = qp.mark.index();
            if self.entries.standing(index) == Standing::AckDelayed {
                self.put(index, Standing::Idle);
            }
        }
    }

    fn move_to(&mut self, qp: &QpInner, index: u32, then: Standing) {
        let is_attended = matches!(then, Standing::Ready | Standing::Backpressured);
        // If its doorbell was rung meanwhile, the queue pair becomes ready when the doorbells are
        // answered.
        if !is_attended || qp.mark.attend() {
            self.put(index, then);
        }
    }

    /// Moves a queue pair from the list that it is on to another.
    fn put(&mut self, index: u32, then: Standing) {
        self.unlink(index);
        match then {
            Standing::Idle => {}
            Standing::Ready => self.entries.push(&mut self.ready, index, then),
            Standing::Backpressured => self.entries.push(&mut self.backpressured, index, then),
            Standing::AckDelayed => self.entries.push(&mut self.delayed, index, then),
            Standing::WaitsForWindow => self.windows.push(&mut self.entries, index),
        }
    }

    #[inline]
    fn unlink(&mut self, index: u32) {
        match self.entries.standing(index) {
            Standing::Idle => {}
            Standing::Ready => self.entries.unlink(&mut self.ready, index),
            Standing::Backpressured => self.entries.unlink(&mut self.backpressured, index),
            Standing::AckDelayed => self.entries.unlink(&mut self.delayed, index),
            Standing::WaitsForWindow => self.windows.unlink(&mut self.entries, index),
        }
    }

    /// Makes a queue pair ready that is on no list, unless it is in the doorbells and so becomes
    /// ready anyway.
    fn attend(&mut self, index: u32) {
        if self.entries.qp(index).is_some_and(|qp| qp.mark.attend()) {
            self.entries.push(&mut self.ready, index, Standing::Ready);
        }
    }

    /// Counts received packets: after [`ACK_DELAY_PACKETS`] of them all delayed ACKs are sent.
    #[inline]
    pub(crate) fn count_received(&mut self, packets: usize) {
        self.packets += packets;
    }

    /// Makes the queue pairs ready whose delayed ACK is due. If `all` is set, or enough packets
    /// were received, makes all queue pairs ready that delay an ACK.
    #[inline(always)]
    pub(crate) fn release_acks(&mut self, all: bool, now: Time) {
        let all = all || self.packets >= ACK_DELAY_PACKETS;
        if all || self.ack_due.is_some_and(|due| due <= now) {
            self.release_due(all, now);
        }
    }

    #[inline(never)]
    fn release_due(&mut self, all: bool, now: Time) {
        self.ack_due = None;
        self.packets = 0;
        let mut index = self.delayed.first();
        // Each round of the loop handles one queue pair of the list.
        while index != NONE {
            let next = self.entries.next(index);
            let due = self.entries.get(index).map_or(now, |entry| entry.due);
            if !all && due > now {
                self.ack_due = Some(self.ack_due.map_or(due, |first| first.min(due)));
            } else {
                if let Some(qp) = self.entries.qp(index) {
                    lock(&qp.core).side.ack.release(!all);
                }
                self.entries.unlink(&mut self.delayed, index);
                self.attend(index);
            }
            index = next;
        }
    }

    /// Makes the queue pairs ready that delay an ACK for a local peer, which leaves without a
    /// system call.
    pub(crate) fn release_ring_acks(&mut self) {
        let mut index = self.delayed.first();
        // Each round of the loop handles one queue pair of the list.
        while index != NONE {
            let next = self.entries.next(index);
            let qp = self.entries.qp(index);
            let is_by_ring = |qp: &Arc<QpInner>| {
                let side = &mut lock(&qp.core).side;
                let is_by_ring = side.peer.route().answer_ring().is_some();
                if is_by_ring {
                    side.ack.release(false);
                }
                is_by_ring
            };
            if qp.is_some_and(is_by_ring) {
                self.entries.unlink(&mut self.delayed, index);
                self.attend(index);
            }
            index = next;
        }
    }

    /// Takes the next timer that is due, and returns its queue pair; `None` if no timer is due.
    #[inline]
    pub(crate) fn pop_timer(&mut self, now: Time) -> Option<Qpn> {
        self.timers.pop(now).map(Qpn::new)
    }

    /// Whether a timer is due.
    #[inline]
    pub(crate) fn has_timer(&self, now: Time) -> bool {
        self.timers.next().is_some_and(|next| next <= now)
    }

    /// Plans the next poll of the timers, after timers were taken.
    pub(crate) fn plan_timers(&mut self) {
        self.timers.plan();
    }

    /// Returns when the scheduler must be polled even if no packet comes: at once if a queue pair
    /// is ready. Delayed ACKs may wait `patience` nanoseconds longer than otherwise. Queue pairs
    /// that wait because their receivers have no room do not count: the caller sees to them.
    pub(crate) fn next_at(&self, now: Time, patience: u64) -> Option<Time> {
        if self.has_ready() {
            return Some(now);
        }
        let acks = self.ack_due.map(|due| due + patience);
        let windows = self.windows.next_at(&self.entries, now);
        [self.timers.next(), acks, windows].into_iter().flatten().min()
    }

    /// Returns the number of packets in flight in all destination windows together, and the number
    /// of queue pairs that wait for a window.
    #[cfg(test)]
    pub(crate) fn window_totals(&self) -> (u64, usize) {
        self.windows.totals()
    }

    /// Returns the standing of a queue pair.
    #[cfg(test)]
    pub(crate) fn standing_of(&self, qp: &QpInner) -> Standing {
        self.entries.standing(qp.mark.index())
    }
}

#[cfg(test)]
mod tests;
