//! RC completer: what the peer's answers mean for the requests sent (IBTA 9.7.5.2, 9.9.2).
//!
//! Owns the retry counters and the ACK timer. Takes ACKs, NAKs, READ and atomic responses; moves
//! the send queue's `una`, stores response data, sends the requester back after a loss, and says
//! when patience has ended. Completions are delivered in the order of the posts by
//! [`retire`](crate::send_completion::retire).
//!
//! Here is what every answer has in common. What the peer misses is in `gaps.rs`, what is missing
//! of its responses in `responses.rs`, responses of which none is missing in `run.rs`, and silence
//! in `patience.rs`.

mod gaps;
mod patience;
mod responses;
mod run;

use vernic_wire::opcode::Kind;
use vernic_wire::{Aeth, AethCode, NakCode, Packet, RnrTimer};

use self::run::Run;
use super::probe::Probe;
use super::repair::Repair;
use super::requester::{Fatal, Requester};
use super::window::Window;
use crate::cx::Cx;
use crate::disposition::{Disposition, DropReason};
use crate::error::{Cause, RemoteRange, STALL_NANOS, Stall, WcStatus, requester_status};
use crate::host::Host;
use crate::kept::{Keeping, Kept};
use crate::message::PartAck;
use crate::sq::SendQueue;
use crate::time::Time;

/// `rnr_retry` that never gives up (IBTA 9.7.5.2.8).
const RNR_FOR_EVER: u8 = 7;

/// How long a SEND that went through memory waits after its first RNR NAK, in nanoseconds; each
/// time twice as long, until the delay that the peer asked for is over.
const FIRST_LOOK_NANOS: u64 = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Completer {
    /// When the oldest unanswered packet counts as lost.
    deadline: Option<Time>,
    /// When the present run of retries began.
    trouble_since: Option<Time>,
    /// Repetitions since the last progress: after timeouts and sequence NAKs.
    retries: u32,
    /// ACK timeouts since the last progress that used up no retry.
    waits: u32,
    /// Repetitions since the last progress: after RNR NAKs.
    rnr_retries: u32,
    /// When the delay ends that the first RNR NAK since the last progress asked for, and the next
    /// look before that in nanoseconds.
    early: (Time, u64),
    /// The packet that the peer has no receive for, and since when.
    not_ready: (u64, Time),
    /// The packet of which the host was told that it waits.
    stalled: u64,
    /// `una` for which the requester was already sent back: further signs of the same loss are old.
    repairing: Option<u64>,
    /// The packet that the requester was sent back to since the peer misses it, and not since
    /// nothing was heard.
    gap: Option<u64>,
    /// When, and to which packet.
    gone_back: Option<(Time, u64)>,
    /// The peer has answered at least once.
    heard: bool,
    /// When the newest answer came to what had been answered before.
    echo_at: Option<Time>,
    /// How often that moved the ACK timeout since the last progress.
    echoes: u32,
    /// Responses that count as answered when their run ends.
    run: Run,
    /// Responses ahead of a missing one.
    kept: Kept,
    /// The peer has told that it has everything before this number. It may be past a response that
    /// is missing.
    told: u64,
    /// One past the newest response that came ahead of a missing one, whether there was room to
    /// keep it or not.
    answered: u64,
    /// Something is missing or was repeated, at the peer or here: one look for the usual case.
    is_open: bool,
}

/// The send side's parts, for the length of one call.
pub(crate) struct Parts<'a> {
    pub(crate) sq: &'a mut SendQueue,
    pub(crate) req: &'a mut Requester,
    pub(crate) window: &'a mut Window,
    pub(crate) probe: &'a mut Probe,
    pub(crate) repair: &'a mut Repair,
}

/// What an answer led to.
pub(crate) type Outcome = Result<Disposition, Fatal>;

impl Completer {
    /// Forgets everything but how much may be kept.
    pub(crate) fn reset(&mut self) {
        let mut kept = std::mem::take(&mut self.kept);
        kept.clear();
        *self = Self { kept, ..Self::default() };
    }

    /// Keeps responses ahead of a missing one from now on, within these bounds.
    pub(crate) fn set_keeping(&mut self, keeping: Option<Keeping>) {
        self.kept.set(keeping);
    }

    /// Handles a packet whose opcode is a response's.
    pub(crate) fn handle_response(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        (packet, is_peer): (&Packet<'_>, bool),
        host: &mut impl Host,
    ) -> Outcome {
        let seq = parts.sq.extend(packet.psn());
        if seq >= parts.sq.high() {
            return Ok(Disposition::Drop(DropReason::StaleResponse));
        }
        self.heard = true;
        match packet.info().kind {
            Kind::Ack => {
                let Some(aeth) = packet.aeth() else {
                    return Ok(Disposition::Drop(DropReason::Malformed));
                };
                cx.counters.acks_received += 1;
                self.handle_ack(parts, cx, seq, (aeth, packet.payload()), host)
            }
            Kind::ReadResponse | Kind::AtomicAck => {
                self.learn(parts, seq + 1);
                if is_peer
                    && seq > parts.sq.una()
                    && let Some(disposition) = self.keep(parts, cx, seq, packet)?
                {
                    return Ok(disposition);
                }
                let disposition = self.handle_data(parts, cx, seq, packet, host)?;
                let is_behind = !self.kept.is_empty() || self.told > parts.sq.una();
                if is_behind && disposition == Disposition::Accepted {
                    self.catch_up(parts, cx, host)?;
                }
                Ok(disposition)
            }
            _ => Ok(Disposition::Drop(DropReason::UnknownOpcode)),
        }
    }

    /// Handles an acknowledgement that came with a part of a message: as an ACK packet.
    #[inline]
    pub(crate) fn handle_part_ack(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        ack: PartAck,
        host: &mut impl Host,
    ) -> Outcome {
        let seq = parts.sq.extend(ack.psn);
        if seq >= parts.sq.high() {
            return Ok(Disposition::Drop(DropReason::StaleResponse));
        }
        self.heard = true;
        cx.counters.acks_received += 1;
        self.handle_ack(parts, cx, seq, (ack.aeth, &[]), host)
    }

    fn handle_ack(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        seq: u64,
        (aeth, kept): (Aeth, &[u8]),
        host: &mut impl Host,
    ) -> Outcome {
        match aeth.syndrome.decode() {
            AethCode::Ack { .. } => {
                if seq < parts.sq.una() {
                    self.echo_at = Some(cx.now);
                    parts.probe.on_echo();
                    return Ok(Disposition::Duplicate);
                }
                take_credits(parts.req, aeth);
                self.acknowledge(parts, cx, seq + 1)
            }
            AethCode::RnrNak(timer) => self.handle_rnr(parts, cx, (seq, aeth, timer), host),
            AethCode::Nak(NakCode::PSN_SEQUENCE) => self.handle_gap(parts, cx, seq, kept),
            AethCode::Nak(code) => self.handle_refusal(parts, cx, seq, code),
            AethCode::Reserved(_) => Ok(Disposition::Drop(DropReason::Malformed)),
        }
    }

    /// Everything before `limit` has arrived at the peer. An unanswered READ or atomic among it
    /// means that its response was lost: an implied NAK (IBTA 9.7.5.1.1).
    fn acknowledge(&mut self, parts: &mut Parts<'_>, cx: &mut Cx<'_>, limit: u64) -> Outcome {
        let before = parts.sq.una();
        self.learn(parts, limit);
        let reached = parts.sq.plain_until(limit);
        if reached > before {
            self.progress(parts, cx, reached);
        }
        if reached < limit {
            return self.implied_nak(parts, cx, limit);
        }
        Ok(Disposition::Accepted)
    }

    /// The peer has what is before `limit`. If the last of it was not sent again since the peer
    /// missed a packet before it, the peer has kept it.
    #[inline]
    fn learn(&self, parts: &mut Parts<'_>, limit: u64) {
        // The packet behind the missing one does not count: where packets overtake each other, the
        // missing one may have come by itself, and what follows it may have been dropped.
        let is_behind = self.gap.is_some_and(|missing| limit > missing + 1);
        if is_behind && parts.sq.next() < limit {
            parts.req.ask_from_now_on();
        }
    }

    /// `una` moves: patience and timer start anew.
    fn progress(&mut self, parts: &mut Parts<'_>, cx: &mut Cx<'_>, una: u64) {
        let full = parts.sq.in_flight() * 2 >= u64::from(parts.window.size())
            && !parts.req.was_message(una);
        let packets = (una - parts.sq.una()) as u32;
        parts.sq.acknowledge(una);
        parts.req.reads.answered(una);
        parts.req.acknowledged(una);
        if let Some(nanos) = parts.window.on_ack(packets, una, full, cx.now) {
            parts.probe.on_round_trip(nanos);
            parts.repair.on_round_trip(nanos, parts.window.is_doubtful());
        }
        if self.is_open {
            self.repaired(parts, cx, una);
        }
        parts.probe.on_progress();
        self.retries = 0;
        self.waits = 0;
        self.rnr_retries = 0;
        self.echoes = 0;
        self.trouble_since = None;
        self.repairing = None;
        // The request that met "not ready" has been taken after all: a copy of it came later.
        parts.req.end_rnr_delay();
        self.restart_timer(parts, cx);
    }

    /// Goes back to the oldest unanswered packet, or gives up.
    fn repeat(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        cause: impl Fn(u32) -> Cause,
    ) -> Outcome {
        self.retries += 1;
        if self.retries > u32::from(cx.attr.retry_cnt) {
            return Err(Fatal { status: WcStatus::RetryExceeded, cause: cause(self.retries) });
        }
        self.trouble_since.get_or_insert(cx.now);
        parts.window.on_loss(cx.now);
        self.go_back(parts);
        self.restart_timer(parts, cx);
        Ok(Disposition::Accepted)
    }

    fn go_back(&mut self, parts: &mut Parts<'_>) {
        self.repairing = Some(parts.sq.una());
        (self.gap, self.gone_back, self.told) = (None, None, 0);
        parts.repair.clear();
        parts.req.gone = 0;
        parts.sq.rewind();
        parts.req.rewound();
        parts.window.on_repeat();
    }

    fn handle_rnr(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        (seq, aeth, timer): (u64, Aeth, RnrTimer),
        host: &mut impl Host,
    ) -> Outcome {
        cx.counters.rnr_naks_received += 1;
        if seq < parts.sq.una() {
            return Ok(Disposition::Drop(DropReason::StaleResponse));
        }
        self.acknowledge(parts, cx, seq)?;
        if parts.sq.una() < seq || parts.req.is_rnr_delayed() {
            return Ok(Disposition::Accepted);
        }
        let until = self.rnr_delay(parts.req.sends_messages, timer, cx.now);
        let limit = cx.attr.rnr_retry;
        if limit != RNR_FOR_EVER && self.rnr_retries > u32::from(limit) {
            let cause = Cause::RnrNak { tries: self.rnr_retries, delay: timer };
            return Err(Fatal { status: WcStatus::RnrRetryExceeded, cause });
        }
        self.note_not_ready(parts, cx, host);
        // Receives that the peer told of before are used up.
        parts.req.end_credits(aeth.msn);
        parts.req.start_rnr_delay(until);
        self.go_back(parts);
        parts.window.end_timing();
        self.deadline = None;
        parts.probe.restart(cx.now, None);
        Ok(Disposition::Accepted)
    }

    /// Counts an RNR NAK, and returns when the request may be sent again. Within a host it is tried
    /// before the first delay is over, which costs no network anything and counts as no retry: a
    /// program that posts its receive behind its answer posts it soon.
    fn rnr_delay(&mut self, by_memory: bool, timer: RnrTimer, now: Time) -> Time {
        let (end, next) = self.early;
        if self.rnr_retries == 1 && by_memory && now < end {
            self.early.1 = 2 * next;
            return end.min(now + next);
        }
        self.rnr_retries += 1;
        let end = now + timer.nanos();
        if self.rnr_retries > 1 || !by_memory {
            return end;
        }
        self.early = (end, 2 * FIRST_LOOK_NANOS);
        end.min(now + FIRST_LOOK_NANOS)
    }

    /// Packets take the wire from now on: there the whole delay is waited for.
    #[cold]
    pub(super) fn end_early_looks(&self, sq: &SendQueue, req: &mut Requester) {
        if self.rnr_retries == 1 && sq.in_flight() == 0 {
            req.extend_rnr_delay(self.early.0);
        }
    }

    /// The peer has no receive for the oldest request; the host is told once it has had none for
    /// long.
    fn note_not_ready(&mut self, parts: &Parts<'_>, cx: &Cx<'_>, host: &mut impl Host) {
        let una = parts.sq.una();
        if self.not_ready.0 != una {
            self.not_ready = (una, cx.now);
        }
        let waited = cx.now.since(self.not_ready.1);
        if waited >= STALL_NANOS && self.stalled != una {
            self.stalled = una;
            let for_ever = cx.attr.rnr_retry == RNR_FOR_EVER;
            let behind = |(index, _)| (parts.sq.tail() - index - 1) as u32;
            let behind = parts.sq.holding(una).map_or(0, behind);
            let naks = self.rnr_retries;
            host.stalled(Stall::NotReady { naks, waited, behind, for_ever });
        }
    }

    /// A NAK that ends the connection: requests before it succeeded, the one at `seq` failed.
    fn handle_refusal(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        seq: u64,
        code: NakCode,
    ) -> Outcome {
        if seq < parts.sq.una() {
            return Ok(Disposition::Drop(DropReason::StaleResponse));
        }
        self.acknowledge(parts, cx, seq)?;
        if parts.sq.una() < seq {
            return Ok(Disposition::Accepted);
        }
        let (status, class) = requester_status(code);
        let asked = parts.sq.holding(seq).and_then(|(_, entry)| RemoteRange::of(&entry.wqe));
        Err(Fatal { status, cause: Cause::RemoteNak { class, asked } })
    }
}

/// End-to-end credits: the peer has receives for messages up to MSN + credits (IBTA 9.7.7.2.5).
fn take_credits(req: &mut Requester, aeth: Aeth) {
    if let AethCode::Ack { credits } = aeth.syndrome.decode() {
        req.set_credit_limit(credits.count().map(|n| aeth.msn.wrapping_add(n) & 0xFF_FFFF));
    }
}
