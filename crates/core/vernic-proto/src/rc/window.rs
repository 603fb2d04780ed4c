//! The window of an RC requester: what its congestion controller is told, and what it says.
//!
//! Owns the controller and times round trips for it, one at a time. Told by the requester what
//! leaves and by the completer what was answered or lost.

use vernic_wire::Kind;

use crate::congestion::{Acked, Congestion, Controller, Limit, Sent, Tally};
use crate::time::Time;

#[derive(Debug)]
pub(crate) struct Window {
    controller: Controller,
    /// Packet whose acknowledgement is being timed, and when it left.
    sample: Option<(u64, Time)>,
    /// A round trip that the controller has not been told of.
    timed: Option<u64>,
    /// Packets that may be in flight at most.
    limit: u32,
    /// A round trip was timed.
    has_timed: bool,
    /// What is being timed was repeated: the answer may be to the second copy. So was what was
    /// timed last.
    is_doubtful: bool,
    /// What the controller was told.
    tally: Tally,
}

impl Window {
    pub(crate) fn new(controller: Controller, limit: u32) -> Self {
        Self {
            controller,
            sample: None,
            timed: None,
            limit,
            has_timed: false,
            is_doubtful: false,
            tally: Tally::default(),
        }
    }

    pub(crate) fn reset(&mut self) {
        self.controller.reset();
        (self.sample, self.timed) = (None, None);
        (self.has_timed, self.is_doubtful) = (false, false);
    }

    /// What the controller was told since the queue pair was created.
    #[inline]
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Packets that may be sent and not acknowledged while so many of them are `gone` from the
    /// network.
    #[inline]
    pub(crate) fn size_with(&self, gone: u32) -> u32 {
        let size = self.controller.window();
        if gone == 0 { size } else { size.saturating_add(gone).min(self.limit.max(size)) }
    }

    /// Packets that may be in flight.
    #[inline]
    pub(crate) fn size(&self) -> u32 {
        self.controller.window()
    }

    /// Sets the limit of the rate, or ends it.
    pub(crate) fn set_limit(&mut self, limit: Option<Limit>, now: Time) {
        self.controller.set_limit(limit, now);
    }

    /// Says whether what leaves from now on is not held against the limit.
    pub(crate) fn set_exempt(&mut self, is_exempt: bool) {
        self.controller.set_exempt(is_exempt);
    }

    /// Whether there is a controller of which [`opens_at`](Self::opens_at) may be a time.
    #[inline]
    pub(crate) fn may_pace(&self) -> bool {
        self.controller.may_pace()
    }

    /// Time before which no request leaves, if it is still to come.
    #[inline]
    pub(crate) fn opens_at(&self, now: Time) -> Option<Time> {
        self.controller.not_before().filter(|at| *at > now)
    }

    /// Whether what follows a packet of so many bytes that leaves now may be held back.
    #[inline]
    pub(crate) fn pauses_after(&self, now: Time, bytes: u32) -> bool {
        self.controller.may_pace() && self.controller.pauses_after(now, bytes)
    }

    /// Packet `seq` leaves.
    #[inline]
    pub(crate) fn on_sent(&mut self, seq: u64, now: Time, sent: Sent) {
        if !sent.again && self.sample.is_none() {
            (self.sample, self.is_doubtful) = (Some((seq, now)), false);
        }
        self.tally.sent(sent);
        self.controller.on_sent(now, sent);
    }

    /// `packets` were acknowledged, everything before `una`. `limited` says that the window, not
    /// the application, limited sending. Returns the round trip in nanoseconds where this ends one
    /// that was timed.
    #[inline]
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
            self.has_timed = true;
        }
        let mut acked = Acked { packets, limited, round_trip: timed };
        if timed.is_none() && self.timed.is_some() {
            acked.round_trip = self.timed.take();
        }
        self.tally.acked(acked);
        self.controller.on_ack(now, acked);
        timed
    }

    /// The peer keeps the packets for which `is_kept`. Returns the round trip in nanoseconds where
    /// this ends one that was timed.
    pub(crate) fn on_kept(&mut self, is_kept: impl Fn(u64) -> bool, now: Time) -> Option<u64> {
        let (_, sent) = self.sample.take_if(|(seq, _)| is_kept(*seq))?;
        self.has_timed = true;
        self.timed = Some(now.since(sent));
        self.timed
    }

    /// All that was sent again since the last loss proves needless: nothing was lost.
    pub(crate) fn on_needless(&mut self, now: Time) {
        self.tally.needless();
        self.controller.on_needless(now);
    }

    /// A packet was lost; others got through.
    pub(crate) fn on_loss(&mut self, now: Time) {
        self.tally.lost();
        self.controller.on_loss(now);
    }

    /// Nothing got through for a whole timeout.
    pub(crate) fn on_silence(&mut self, now: Time) {
        self.sample = None;
        self.tally.silent();
        self.controller.on_silence(now);
    }

    /// A packet of the peer came with the mark CE.
    #[cold]
    pub(crate) fn on_mark(&mut self, now: Time, kind: Kind) {
        self.tally.marked(kind);
        self.controller.on_mark(now, kind);
    }

    /// The peer sent a congestion notification.
    #[cold]
    pub(crate) fn on_cnp(&mut self, now: Time) {
        self.tally.notified();
        self.controller.on_cnp(now);
    }

    /// Packet `seq` alone is repeated.
    pub(crate) fn on_repeat_of(&mut self, seq: u64) {
        if self.has_timed {
            self.sample.take_if(|(sample, _)| *sample == seq);
        } else if self.sample.is_some_and(|(sample, _)| sample == seq) {
            self.is_doubtful = true;
        }
    }

    /// Packets are repeated: their acknowledgements may belong to their first copies (Karn). Before
    /// a round trip was timed, even one that may be too long is better than none: without any, all
    /// that is merely late is repeated, and nothing is ever timed.
    pub(crate) fn on_repeat(&mut self) {
        if self.has_timed {
            self.sample = None;
        }
        self.is_doubtful = true;
    }

    /// What is awaited may take long for other reasons than the path.
    pub(crate) fn end_timing(&mut self) {
        self.sample = None;
    }

    /// Whether the round trip that was timed last may be of a second copy, and too long for that.
    #[inline]
    pub(crate) fn is_doubtful(&self) -> bool {
        self.is_doubtful
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::Algorithm;

    fn window() -> Window {
        Window::new(Controller::new(Algorithm::Aimd, 4096), 4096)
    }

    fn send(window: &mut Window, seq: u64, at: u64) {
        window.on_sent(seq, Time(at), Sent { packets: 1, bytes: 1024, again: false });
    }

    #[test]
    fn repetitions_end_the_timing_of_a_round_trip_unless_it_is_the_first() {
        let mut w = window();
        send(&mut w, 0, 0);
        w.on_repeat();
        w.on_repeat_of(0);
        assert_eq!(w.on_ack(1, 1, true, Time(3_000)), Some(3_000));
        for repeat in [Window::on_repeat, |w: &mut Window| w.on_repeat_of(1)] {
            send(&mut w, 1, 4_000);
            repeat(&mut w);
            assert_eq!(w.on_ack(1, 2, true, Time(5_000)), None);
        }
    }

    #[test]
    fn a_silence_before_the_first_round_trip_is_no_part_of_it() {
        let mut w = window();
        send(&mut w, 0, 0);
        w.on_silence(Time(67_000_000));
        assert_eq!(w.on_ack(1, 1, true, Time(68_000_000)), None);
    }
}
