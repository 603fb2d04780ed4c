//! Which queue pairs owe an acknowledgement, and how long it may wait.
//!
//! An ACK is a packet and, where nothing else goes to that peer, a system call; both cost as much
//! as a small message. IBTA lets a responder acknowledge many requests with one ACK (9.7.5.1.2), so
//! an ACK that is all a queue pair has to send waits a moment: for more requests to acknowledge, or
//! for a reply that it can ride with. READ and atomic responses and NAKs never wait.
//!
//! Whether waiting is right depends on the peer. One that sends on without the ACK (a ping-pong of
//! messages, a stream) gains. One that needs its completion before it goes on would lose
//! [`HOLD_NANOS`] each time. So each queue pair learns: if no more requests came while an ACK
//! waited, and that happens a few times in a row, the next `PROMPT_BURSTS` bursts are
//! acknowledged at the next poll, or ride with a reply if one is posted first; after those it tries
//! waiting again.
//!
//! Limits: an ACK waits [`HOLD_NANOS`] while the application calls into the device, until the
//! background thread takes over if it does not; and never longer than [`HOLD_PACKETS`] packets.

use std::collections::VecDeque;
use std::sync::Arc;

use vernic_proto::Time;

use crate::qp::ack_hold::AckHold;
use crate::qp::state::QpInner;
use crate::qp::timers::make_ready;
use crate::support::events::lock;

/// How long an ACK waits, in nanoseconds: four round trips of a small message between spinning
/// processes, so that a ping-pong sends one for every four messages; about the round trip of a
/// network. Measured (p50 one way, 64 bytes): 2.55 us with 10 us, 2.35 with 20, 2.36 with 40.
const HOLD_NANOS: u64 = 20_000;

/// Packets received by the lane after which all ACKs go: half of a requester's first window.
const HOLD_PACKETS: usize = 64;

/// The list. Owned by the lane.
#[derive(Debug, Default)]
pub(crate) struct Owing {
    list: VecDeque<Arc<QpInner>>,
    /// When the first of the list is due.
    due: Option<Time>,
    /// Packets received since the list was last emptied.
    packets: usize,
}

impl Owing {
    /// Makes room for `count` queue pairs, so that the data path never allocates.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.list.reserve(count.saturating_sub(self.list.len()));
    }

    /// When the lane must look at the list.
    pub(crate) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Counts received packets.
    pub(crate) fn count(&mut self, packets: usize) {
        self.packets += packets;
    }

    /// A burst of packets for `qp` was handled, with `requests` among them or not, and all that it
    /// has to send is an ACK.
    #[inline]
    pub(crate) fn add(&mut self, qp: &Arc<QpInner>, hold: &mut AckHold, requests: bool, now: Time) {
        if hold.listed {
            hold.meanwhile(requests);
        } else {
            self.list(qp, hold, now);
        }
    }

    /// `qp` had its turn and still has nothing to send but an ACK.
    #[inline]
    pub(crate) fn keep(&mut self, qp: &Arc<QpInner>, hold: &mut AckHold, now: Time) {
        if !hold.listed {
            self.list(qp, hold, now);
        }
    }

    fn list(&mut self, qp: &Arc<QpInner>, hold: &mut AckHold, now: Time) {
        hold.listed = true;
        hold.more = false;
        hold.prompt = hold.prompt.saturating_sub(1);
        hold.due = if hold.prompt == 0 { now + HOLD_NANOS } else { now };
        self.due = Some(self.due.map_or(hold.due, |due| due.min(hold.due)));
        self.list.push_back(qp.clone());
    }

    /// Moves those that are due, or all, to the ready list.
    #[inline]
    pub(crate) fn release(&mut self, all: bool, now: Time, ready: &mut VecDeque<Arc<QpInner>>) {
        let all = all || self.packets >= HOLD_PACKETS;
        if all || self.due.is_some_and(|due| due <= now) {
            self.release_due(all, now, ready);
        }
    }

    fn release_due(&mut self, all: bool, now: Time, ready: &mut VecDeque<Arc<QpInner>>) {
        self.due = None;
        self.packets = 0;
        for _ in 0..self.list.len() {
            let Some(qp) = self.list.pop_front() else { return };
            let mut core = lock(&qp.core);
            let hold = &mut core.side.ack;
            if !all && hold.due > now {
                self.due = Some(self.due.map_or(hold.due, |due| due.min(hold.due)));
                drop(core);
                self.list.push_back(qp);
                continue;
            }
            if !all && hold.prompt == 0 {
                hold.learn();
            }
            hold.listed = false;
            drop(core);
            make_ready(ready, &qp);
        }
    }

    /// Forgets a queue pair that is closed.
    pub(crate) fn remove(&mut self, qp: &Arc<QpInner>) {
        self.list.retain(|other| !Arc::ptr_eq(other, qp));
    }
}
