//! The window of an RC requester: what its congestion controller is told, and what it says.
//!
//! Owns the controller and times round trips for it, one at a time. Told by the requester what
//! leaves and by the completer what was answered or lost.

use vernic_wire::Kind;

use crate::congestion::{Acked, Congestion, Controller, Sent};
use crate::time::Time;

#[derive(Debug)]
pub(crate) struct Window {
    controller: Controller,
    /// Packet whose acknowledgement is being timed, and when it left.
    sample: Option<(u64, Time)>,
}

impl Window {
    pub(crate) fn new(controller: Controller) -> Self {
        Self { controller, sample: None }
    }

    pub(crate) fn reset(&mut self) {
        self.controller.reset();
        self.sample = None;
    }

    /// Packets that may be in flight.
    #[inline]
    pub(crate) fn size(&self) -> u32 {
        self.controller.window()
    }

    /// Time before which no request leaves, if it is still to come.
    #[inline]
    pub(crate) fn opens_at(&self, now: Time) -> Option<Time> {
        self.controller.not_before().filter(|at| *at > now)
    }

    /// Whether packets may be held back.
    #[inline]
    pub(crate) fn is_paced(&self) -> bool {
        self.controller.not_before().is_some()
    }

    /// Packet `seq` leaves.
    #[inline]
    pub(crate) fn on_sent(&mut self, seq: u64, now: Time, sent: Sent) {
        if !sent.again && self.sample.is_none() {
            self.sample = Some((seq, now));
        }
        self.controller.on_sent(now, sent);
    }

    /// `packets` were acknowledged, everything before `una`. `limited` says that the window, not
    /// the application, limited sending. Returns the round trip in nanoseconds where this ends one
    /// that was timed.
    pub(crate) fn on_ack(
        &mut self,
        packets: u32,
        una: u64,
        limited: bool,
        now: Time,
    ) -> Option<u64> {
        let timed = self.sample.filter(|(seq, _)| una > *seq).map(|(_, sent)| now.since(sent));
        if timed.is_some() {
            self.sample = None;
        }
        self.controller.on_ack(now, Acked { packets, limited, round_trip: timed });
        timed
    }

    /// A packet was lost; others got through.
    pub(crate) fn on_loss(&mut self, now: Time) {
        self.controller.on_loss(now);
    }

    /// Nothing got through for a whole timeout.
    pub(crate) fn on_silence(&mut self, now: Time) {
        self.controller.on_silence(now);
    }

    /// A packet of the peer came with the mark CE.
    #[cold]
    pub(crate) fn on_mark(&mut self, now: Time, kind: Kind) {
        self.controller.on_mark(now, kind);
    }

    /// The peer sent a congestion notification.
    #[cold]
    pub(crate) fn on_cnp(&mut self, now: Time) {
        self.controller.on_cnp(now);
    }

    /// A packet is repeated: its acknowledgement may belong to its first copy (Karn).
    pub(crate) fn on_repeat(&mut self) {
        self.sample = None;
    }
}
