//! A queue pair as the lane sees it: the protocol machine and what the machine leaves to its owner.
//!
//! Everything mutable is in [`QpCore`] under one mutex that belongs to this queue pair alone.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use vernic_mem::PdId;
use vernic_proto::{Failure, QpState, QpType, Time};
use vernic_wire::{Qpn, Service};

use crate::device::path::Resolved;
use crate::device::peer_end::PeerEnd;
use crate::qp::ack_delay::AckDelay;
use crate::qp::completions::{CqRing, Wc};
use crate::qp::in_flight::InFlight;
use crate::qp::machine::Machine;
use crate::qp::peer::QpPeer;
use crate::qp::receives::{Filling, Receives};
use crate::qp::request_trace::RequestTrace;
use crate::qp::send_slots::SendSlots;

/// Everything of a queue pair that changes while it runs.
#[derive(Debug)]
pub(crate) struct QpCore {
    pub(crate) machine: Machine,
    pub(crate) side: QpSide,
}

/// State that the protocol machine leaves to its owner.
#[derive(Debug)]
pub(crate) struct QpSide {
    pub(crate) slots: SendSlots,
    pub(crate) filling: Filling,
    /// The peer of a connected service.
    pub(crate) peer: QpPeer,
    /// The addresses of an iWARP connection, present or past: our own and the peer's. In memory of
    /// their own, as the failure is, which most queue pairs do without.
    stream: Option<Box<(SocketAddr, SocketAddr)>>,
    failure: Option<Box<(Failure, Option<PeerEnd>)>>,
    pub(crate) ack: AckDelay,
    pub(crate) timer: TimerEntries,
    pub(crate) in_flight: InFlight,
    attention: Attention,
    /// The trace of the send requests, while another process asks for it.
    trace: Option<Box<RequestTrace>>,
    /// Completions of receives that go to the completion queue together.
    arrived: Vec<Wc>,
}

/// What is to be done after a call into the machine, in most cases nothing. One value, so that one
/// look finds whether anything is.
#[derive(Clone, Copy, Debug, Default)]
struct Attention(u8);

impl Attention {
    /// A completion was lost to a full completion queue.
    const LOST_COMPLETION: u8 = 1;
    /// There is a trace of the send requests.
    const TRACED: u8 = 2;

    #[inline]
    fn set(&mut self, bit: u8, on: bool) {
        self.0 = if on { self.0 | bit } else { self.0 & !bit };
    }
}

/// The number of completions that go to a completion queue together at most: as many as programs
/// usually poll for.
const MOST_ARRIVED: usize = 16;

impl QpSide {
    /// Returns the side of a queue pair in Reset. Its receives have at most `recv_sges` entries.
    pub(crate) fn new(slots: SendSlots, recv_sges: u32) -> Self {
        Self {
            slots,
            filling: Filling::with_sges(recv_sges),
            peer: QpPeer::default(),
            stream: None,
            failure: None,
            ack: AckDelay::default(),
            timer: TimerEntries::default(),
            in_flight: InFlight::default(),
            attention: Attention::default(),
            trace: None,
            arrived: Vec::new(),
        }
    }

    /// Connects the queue pair to a peer that was not heard yet. The caller ends the grants that
    /// were given to the peer before it.
    pub(crate) fn connect(&mut self, resolved: &Resolved, dest: Qpn) {
        self.peer.connect(resolved, Some(dest));
        self.in_flight.path_changed();
    }

    /// Changes the path to the same peer, as in SQD.
    pub(crate) fn change_path(&mut self, resolved: &Resolved) {
        self.peer.change_path(resolved);
        self.in_flight.path_changed();
    }

    /// The path that a migration leads to is the path from now on, to the same peer.
    pub(super) fn migrate(&mut self) {
        if let Some(resolved) = self.peer.take_alternate() {
            self.change_path(&resolved);
        }
    }

    /// Sets the addresses of an iWARP connection: our own and the peer's.
    pub(crate) fn set_stream(&mut self, ends: Option<(SocketAddr, SocketAddr)>) {
        self.stream = ends.map(Box::new);
    }

    /// Returns the addresses of an iWARP connection, present or past: our own and the peer's.
    pub(crate) fn stream(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.stream.as_deref().copied()
    }

    /// Notes the failure of the queue pair, and what is known by then of the end of its peer.
    pub(super) fn note_failure(&mut self, failure: Failure, peer_end: Option<PeerEnd>) {
        self.failure = Some(Box::new((failure, peer_end)));
    }

    /// Returns the failure of the queue pair, if it has failed since the last reset, and what was
    /// known then of the end of its peer.
    pub(super) fn failure(&self) -> Option<(Failure, Option<PeerEnd>)> {
        self.failure.as_deref().copied()
    }

    /// Keeps the completion of a receive until [`push_arrived`](Self::push_arrived). One lock of
    /// the completion queue is enough for some of them.
    #[inline]
    pub(super) fn gather_arrived(&mut self, receives: &Receives, wc: Wc) {
        if self.arrived.len() == MOST_ARRIVED {
            self.push_arrived(receives);
        }
        self.arrived.reserve_exact(MOST_ARRIVED - self.arrived.len());
        self.arrived.push(wc);
    }

    /// Adds the completions that were kept to the completion queue.
    #[inline]
    pub(super) fn push_arrived(&mut self, receives: &Receives) {
        self.hand_arrived(|wcs| receives.cq().is_none_or(|cq| cq.push_all(wcs)));
    }

    /// Hands over the completions that were kept. `push` returns false if one was lost.
    #[inline]
    pub(super) fn hand_arrived(&mut self, push: impl FnOnce(&[Wc]) -> bool) {
        if !self.arrived.is_empty() {
            let fits = push(&self.arrived);
            self.arrived.clear();
            self.note_completion(fits);
        }
    }

    /// Notes whether a completion fits its completion queue. If not, it is lost.
    #[inline]
    pub(super) fn note_completion(&mut self, fits: bool) {
        if !fits {
            self.attention.set(Attention::LOST_COMPLETION, true);
        }
    }

    /// Whether [`QpInner::attend`] has something to do after a call into the machine.
    #[inline]
    pub(crate) fn needs_attention(&self) -> bool {
        self.attention.0 != 0
    }

    /// Whether a completion was lost to a full completion queue: the queue pair must go to error.
    #[inline]
    pub(super) fn has_lost_completion(&self) -> bool {
        self.attention.0 & Attention::LOST_COMPLETION != 0
    }

    pub(super) fn forget_lost_completion(&mut self) {
        self.attention.set(Attention::LOST_COMPLETION, false);
    }

    /// Returns the trace of the send requests, if there is one.
    pub(crate) fn trace(&mut self) -> Option<&mut RequestTrace> {
        self.trace.as_deref_mut()
    }

    pub(crate) fn set_trace(&mut self, trace: Option<RequestTrace>) {
        self.attention.set(Attention::TRACED, trace.is_some());
        self.trace = trace.map(Box::new);
    }
}

/// Whether the responder of a queue pair in this state takes requests.
pub(crate) fn takes_requests(state: QpState) -> bool {
    matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
}

/// A queue pair's entries in the timer wheel: the next one, and one that an earlier deadline was
/// put in front of (an RNR delay before an ACK timeout). Other entries are leftovers and fire in
/// vain.
#[derive(Debug, Default)]
pub(crate) struct TimerEntries {
    next: Option<Time>,
    later: Option<Time>,
}

impl TimerEntries {
    /// Whether `deadline` needs a new entry, which is noted then.
    pub(crate) fn needs(&mut self, deadline: Time) -> bool {
        if self.next.is_some_and(|at| at <= deadline) {
            return false;
        }
        if self.later.is_none() {
            self.later = self.next;
        }
        self.next = Some(deadline);
        true
    }

    /// Notes that an entry fired. Returns false if it is a leftover.
    pub(crate) fn fired(&mut self, now: Time) -> bool {
        let real = self.next.is_some_and(|at| at <= now);
        if real {
            self.next = self.later.take();
        }
        real
    }
}

/// The state of a queue pair that threads and the scheduler report to each other.
#[derive(Debug)]
pub(crate) struct Mark {
    /// Whether a turn is sure to come that examines the send queue: the queue pair is in the
    /// doorbells, ready or backpressured. Set by the thread that puts it there, cleared by the lane
    /// before the check.
    attended: AtomicBool,
    /// The index of the queue pair's entry in the scheduler. Written under the lane.
    index: AtomicU32,
}

impl Mark {
    /// Returns the mark of a queue pair that is not open yet.
    pub(crate) const fn new() -> Self {
        Self { attended: AtomicBool::new(false), index: AtomicU32::new(u32::MAX) }
    }

    /// Notes that a turn is sure to come; returns false if that was noted before.
    #[inline]
    pub(crate) fn attend(&self) -> bool {
        !self.attended.load(Ordering::Relaxed) && !self.attended.swap(true, Ordering::AcqRel)
    }

    /// Notes that the turn has come.
    #[inline]
    pub(crate) fn leave(&self) {
        self.attended.store(false, Ordering::Release);
    }

    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    pub(crate) fn set_index(&self, index: u32) {
        self.index.store(index, Ordering::Relaxed);
    }
}

/// A queue pair as the lane sees it.
#[derive(Debug)]
pub(crate) struct QpInner {
    qpn: Qpn,
    qp_type: QpType,
    service: Service,
    pd: PdId,
    /// The XRC domain of a target.
    pub(super) domain: Option<PdId>,
    /// The completion queue of sends. XRC targets have neither completion queue, and initiators
    /// have none of receives.
    pub(super) send_cq: Option<Arc<CqRing>>,
    receives: Receives,
    pub(crate) core: Mutex<QpCore>,
    /// The state that the queue pair shares with the scheduler.
    pub(crate) mark: Mark,
    /// Copy of the machine's state for posting receives without the core.
    pub(super) state: AtomicU8,
}

impl QpInner {
    /// Returns a queue pair in Reset. It is of a protection domain, and an XRC target of an XRC
    /// `domain` besides.
    pub(crate) fn new(
        qpn: Qpn,
        qp_type: QpType,
        (pd, domain): (PdId, Option<PdId>),
        send_cq: Option<Arc<CqRing>>,
        receives: Receives,
        machine: Machine,
        side: QpSide,
    ) -> Self {
        Self {
            qpn,
            qp_type,
            service: qp_type.service(),
            pd,
            domain,
            send_cq,
            receives,
            core: Mutex::new(QpCore { machine, side }),
            mark: Mark::new(),
            state: AtomicU8::new(QpState::Reset as u8),
        }
    }

    #[inline]
    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    #[inline]
    pub(crate) fn qp_type(&self) -> QpType {
        self.qp_type
    }

    #[inline]
    pub(crate) fn service(&self) -> Service {
        self.service
    }

    #[inline]
    pub(crate) fn pd(&self) -> PdId {
        self.pd
    }

    #[inline]
    pub(crate) fn receives(&self) -> &Receives {
        &self.receives
    }

    /// Returns the completion queue of sends; `None` if the queue pair sends nothing.
    pub(crate) fn send_cq(&self) -> Option<&Arc<CqRing>> {
        self.send_cq.as_ref()
    }

    /// Returns the completion queues, that of sends first.
    pub(crate) fn cqs(&self) -> impl Iterator<Item = &Arc<CqRing>> {
        self.send_cq.iter().chain(self.receives.cq())
    }

    /// Clears what the protocol machine leaves to its owner, when the queue pair enters Reset.
    pub(crate) fn forget(&self, side: &mut QpSide) {
        side.peer = QpPeer::default();
        side.filling.reset();
        (side.stream, side.failure) = (None, None);
        self.receives.clear();
        self.cqs().for_each(|cq| cq.purge(self.qpn));
    }

    pub(crate) fn has_state(&self, state: QpState) -> bool {
        self.state.load(Ordering::SeqCst) == state as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::cap::QpCap;

    #[test]
    fn what_few_queue_pairs_need_takes_no_room_in_the_others() {
        /// Bytes of the two that are in each queue pair: pointers.
        const HERE: usize = 16;
        let without = QpSide::new(SendSlots::new(1, &QpCap::default(), Service::Rc), 1);
        assert_eq!(size_of_val(&without.stream) + size_of_val(&without.failure), HERE);
    }

    #[test]
    fn deadlines_that_go_back_and_forth_do_not_pile_up_entries() {
        // An ACK timeout of 67 ms, and an RNR delay of 0.64 ms in front of it, 1000 times.
        let mut entries = TimerEntries::default();
        let mut wheel: Vec<Time> = Vec::new();
        let mut now = Time(0);
        let arm = |entries: &mut TimerEntries, wheel: &mut Vec<Time>, deadline| {
            if entries.needs(deadline) {
                wheel.push(deadline);
            }
        };
        for _ in 0..1000 {
            arm(&mut entries, &mut wheel, now + 67_000_000);
            arm(&mut entries, &mut wheel, now + 640_000);
            now = now + 640_000;
            wheel.sort();
            while wheel.first().is_some_and(|&at| at <= now) {
                wheel.remove(0);
                entries.fired(now);
            }
            assert!(wheel.len() <= 2, "{} entries", wheel.len());
        }
    }
}
