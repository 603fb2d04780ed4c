//! How long a peer is waited for: the ACK timer, probes, and the end of patience (IBTA 9.7.6.1.3).

use super::{Completer, Parts};
use crate::cx::Cx;
use crate::error::{Cause, STALL_NANOS, Stall, WcStatus};
use crate::host::Host;
use crate::rc::requester::Fatal;
use crate::time::Time;

/// How often an answer to what had been answered moves the ACK timeout at most, without progress:
/// more than any queue of copies is long, but a peer that sends old acknowledgements without end is
/// no reason to wait without end.
const MOST_ECHOES: u32 = 64;

/// Longest pause between two questions to a silent peer that is known to be there, in nanoseconds,
/// unless the ACK timeout is longer. So soon it goes on when it answers again and all that it was
/// sent before was lost.
const LONGEST_PAUSE: u64 = 250_000_000;

impl Completer {
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Since when nothing was heard of a peer that is waited for.
    pub(crate) fn silent_since(&self) -> Option<Time> {
        self.trouble_since.filter(|_| self.waits != 0)
    }

    /// Starts the timers with the first packet in flight.
    #[inline]
    pub(crate) fn on_sent(&mut self, parts: &mut Parts<'_>, cx: &Cx<'_>) {
        if self.deadline.is_none() {
            self.restart_timer(parts, cx);
        }
    }

    pub(super) fn restart_timer(&mut self, parts: &mut Parts<'_>, cx: &Cx<'_>) {
        let timeout = ack_timeout(parts, cx).filter(|_| parts.sq.is_outstanding());
        self.start_timer(parts, cx, timeout);
    }

    pub(super) fn start_timer(&mut self, parts: &mut Parts<'_>, cx: &Cx<'_>, timeout: Option<u64>) {
        self.deadline = timeout.map(|t| cx.now + t);
        // Without retries the application wants to hear of a loss, not to have it repaired.
        parts.probe.restart(cx.now, timeout.filter(|_| cx.attr.retry_cnt > 0));
    }

    /// The ACK timer, the RNR delay or the patience before a probe has run out.
    pub(crate) fn handle_timeout(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
    ) -> Result<(), Fatal> {
        if parts.req.rnr_delay_is_over(cx.now) {
            parts.req.end_rnr_delay();
            self.repairing = None;
            self.restart_timer(parts, cx);
        }
        if parts.repair.due().is_some_and(|t| cx.now >= t) {
            self.judge_holes(parts, cx)?;
        }
        if self.deadline.is_none_or(|t| cx.now < t) {
            self.probe_if_due(parts, cx);
            return Ok(());
        }
        if !parts.sq.is_outstanding() {
            self.deadline = None;
            return Ok(());
        }
        if let Some(later) = self.after_echo(parts, cx) {
            self.deadline = Some(later);
            self.echoes += 1;
            return Ok(());
        }
        let timeout = ack_timeout(parts, cx).unwrap_or(0);
        if let Some(hold) = parts.req.deadline().filter(|hold| *hold > cx.now)
            && parts.sq.in_flight() == 0
        {
            // The peer was not asked again yet: pacing holds that back.
            self.deadline = Some(hold + timeout);
            return Ok(());
        }
        let began = *self.trouble_since.get_or_insert(cx.now - timeout);
        let waited = cx.now.since(began);
        let una = parts.sq.una();
        if waited >= STALL_NANOS && self.stalled != una {
            self.stalled = una;
            let (tries, heard) = (self.retries + self.waits + 1, self.heard);
            host.stalled(Stall::Silent { tries, waited, heard });
        }
        if waited < host.live_peer_patience(cx.attr) {
            self.wait_for_live_peer(parts, cx, timeout);
            return Ok(());
        }
        cx.counters.ack_timeouts += 1;
        self.retries += 1;
        if self.retries > u32::from(cx.attr.retry_cnt) {
            let (tries, heard) = (self.retries + self.waits, self.heard);
            let cause = Cause::AckTimeout { tries, waited, heard };
            return Err(Fatal { status: WcStatus::RetryExceeded, cause });
        }
        parts.window.on_silence(cx.now);
        self.go_back(parts);
        self.repairing = None;
        self.restart_timer(parts, cx);
        Ok(())
    }

    /// The connection has another path: nothing is known of it, and the peer may lack all that was
    /// sent by the old one. During an RNR delay nothing is in flight.
    pub(crate) fn path_changed(&mut self, parts: &mut Parts<'_>, cx: &Cx<'_>) {
        (self.retries, self.waits, self.echoes) = (0, 0, 0);
        (self.trouble_since, self.echo_at, self.heard) = (None, None, false);
        if parts.sq.is_outstanding() && !parts.req.is_rnr_delayed() {
            parts.window.on_silence(cx.now);
            self.go_back(parts);
            self.repairing = None;
            self.restart_timer(parts, cx);
        }
    }

    /// The peer is there and does not answer: it is stopped, or others have its core. What it was
    /// sent waits for it, so it is asked with the two packets of a probe, ever more rarely, and
    /// nothing else is sent again.
    #[cold]
    fn wait_for_live_peer(&mut self, parts: &mut Parts<'_>, cx: &mut Cx<'_>, timeout: u64) {
        cx.counters.patient_timeouts += 1;
        parts.window.end_timing();
        let pause = timeout.saturating_mul(1 << self.waits.min(32));
        self.waits += 1;
        self.start_timer(parts, cx, Some(pause.min(LONGEST_PAUSE.max(timeout))));
        self.probe(parts, cx);
    }

    /// The end of an ACK timeout that starts with the newest echo, if that is still to come.
    ///
    /// An echo is the answer to a second copy of something old. The peer is alive, and takes what
    /// was sent in order, so what was sent behind that copy is on its way: to send it once more
    /// would only lengthen the queue that it stands in, for every queue pair of that peer. Copies
    /// of what was answered are not sent again, so echoes end, and silence behind them counts as
    /// ever. Those of a peer that sends them unasked count [`MOST_ECHOES`] times.
    fn after_echo(&self, parts: &Parts<'_>, cx: &Cx<'_>) -> Option<Time> {
        let later = self.echo_at? + ack_timeout(parts, cx)?;
        let may = self.echoes < MOST_ECHOES && parts.sq.in_flight() > 0;
        (may && later > cx.now).then_some(later)
    }

    /// A probe moves neither the sequence nor the ACK timer, and counts no retry: see `probe`.
    fn probe_if_due(&mut self, parts: &mut Parts<'_>, cx: &mut Cx<'_>) {
        if parts.probe.due().is_some_and(|t| cx.now >= t) {
            self.probe(parts, cx);
        }
    }

    pub(super) fn probe(&self, parts: &mut Parts<'_>, cx: &mut Cx<'_>) {
        let in_flight = parts.sq.in_flight() > 0;
        if parts.probe.fire(cx.now, in_flight) {
            cx.counters.tail_probes += 1;
            parts.window.on_repeat();
        }
    }
}

/// How long an answer is waited for, in nanoseconds. Where round trips take longer than half of
/// what the attribute says it is two of them, up to four times as long (IBTA 9.7.6.1.3).
#[inline]
fn ack_timeout(parts: &Parts<'_>, cx: &Cx<'_>) -> Option<u64> {
    cx.ack_timeout()
        .map(|nanos| parts.probe.two_round_trips().clamp(nanos, nanos.saturating_mul(4)))
}
