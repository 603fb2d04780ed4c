//! RC completer: what the peer's answers mean for the requests sent (IBTA 9.7.5.2, 9.9.2).
//!
//! Owns the retry counters and the ACK timer. Takes ACKs, NAKs, READ and atomic responses; moves
//! the send queue's `una`, stores response data, sends the requester back after a loss, and says
//! when patience has ended. Completions are delivered in the order of the posts by
//! [`retire`](crate::send_completion::retire).

use vernic_wire::opcode::Kind;
use vernic_wire::{Aeth, AethCode, KeptMap, NakCode, Packet, RnrTimer};

use super::probe::Probe;
use super::repair::Repair;
use super::requester::{Fatal, Requester};
use super::window::Window;
use crate::cx::Cx;
use crate::disposition::{Disposition, DropReason};
use crate::error::{Cause, RemoteRange, WcStatus, requester_status};
use crate::host::Host;
use crate::kept::{Keeping, Kept, Put};
use crate::message::PartAck;
use crate::sq::{Entry, SendQueue};
use crate::time::Time;
use crate::wqe::SendOp;

/// How often an answer to what had been answered moves the ACK timeout at most, without progress:
/// more than any queue of copies is long, but a peer that sends old acknowledgements without end is
/// no reason to wait without end.
const MOST_ECHOES: u32 = 64;

/// Longest pause between two questions to a silent peer that is known to be there, in nanoseconds,
/// unless the ACK timeout is longer. So soon it goes on when it answers again and all that it was
/// sent before was lost.
const LONGEST_PAUSE: u64 = 250_000_000;

/// `rnr_retry` that never gives up (IBTA 9.7.5.2.8).
const RNR_FOR_EVER: u8 = 7;

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
    /// `una` for which the requester was already sent back: further signs of the same loss are old.
    repairing: Option<u64>,
    /// The requester was sent back since the peer misses a packet, and not since nothing was heard.
    is_gap: bool,
    /// When, and to which packet.
    gone_back: Option<(Time, u64)>,
    /// The peer has answered at least once.
    heard: bool,
    /// When the newest answer came to what had been answered before.
    echo_at: Option<Time>,
    /// How often that moved the ACK timeout since the last progress.
    echoes: u32,
    /// Responses ahead of a missing one.
    kept: Kept,
    /// The peer has told that it has everything before this number. It may be past a response that
    /// is missing.
    told: u64,
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
                self.handle_ack(parts, cx, seq, aeth, packet.payload())
            }
            Kind::ReadResponse | Kind::AtomicAck => {
                self.learn(parts, seq);
                if is_peer
                    && seq > parts.sq.una()
                    && let Some(disposition) = self.keep(parts, cx, seq, packet)?
                {
                    return Ok(disposition);
                }
                let disposition = self.handle_data(parts, cx, seq, packet, host)?;
                if disposition == Disposition::Accepted {
                    if !self.kept.is_empty() {
                        self.handle_kept(parts, cx, host)?;
                    }
                    if self.told > parts.sq.una() {
                        self.acknowledge(parts, cx, self.told)?;
                    }
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
    ) -> Outcome {
        let seq = parts.sq.extend(ack.psn);
        if seq >= parts.sq.high() {
            return Ok(Disposition::Drop(DropReason::StaleResponse));
        }
        self.heard = true;
        cx.counters.acks_received += 1;
        self.handle_ack(parts, cx, seq, ack.aeth, &[])
    }

    fn handle_ack(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        seq: u64,
        aeth: Aeth,
        kept: &[u8],
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
            AethCode::RnrNak(timer) => self.handle_rnr(parts, cx, seq, (aeth, timer)),
            AethCode::Nak(NakCode::PSN_SEQUENCE) => self.handle_gap(parts, cx, seq, kept),
            AethCode::Nak(code) => self.handle_refusal(parts, cx, seq, code),
            AethCode::Reserved(_) => Ok(Disposition::Drop(DropReason::Malformed)),
        }
    }

    /// Everything before `limit` has arrived at the peer. An unanswered READ or atomic among it
    /// means that its response was lost: an implied NAK (IBTA 9.7.5.1.1).
    fn acknowledge(&mut self, parts: &mut Parts<'_>, cx: &mut Cx<'_>, limit: u64) -> Outcome {
        let before = parts.sq.una();
        if limit > 0 {
            self.learn(parts, limit - 1);
        }
        let reached = parts.sq.plain_until(limit);
        if reached > before {
            self.progress(parts, cx, reached);
        }
        if reached < limit {
            return self.implied_nak(parts, cx, limit);
        }
        Ok(Disposition::Accepted)
    }

    /// The peer has `seq`. If that was not sent again since the peer missed a packet before it, the
    /// peer has kept it.
    #[inline]
    fn learn(&self, parts: &mut Parts<'_>, seq: u64) {
        if self.is_gap && parts.sq.next() <= seq {
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
            parts.repair.on_round_trip(nanos);
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

    fn restart_timer(&mut self, parts: &mut Parts<'_>, cx: &Cx<'_>) {
        let timeout = cx.ack_timeout().filter(|_| parts.sq.is_outstanding());
        self.start_timer(parts, cx, timeout);
    }

    fn start_timer(&mut self, parts: &mut Parts<'_>, cx: &Cx<'_>, timeout: Option<u64>) {
        self.deadline = timeout.map(|t| cx.now + t);
        // Without retries the application wants to hear of a loss, not to have it repaired.
        parts.probe.restart(cx.now, timeout.filter(|_| cx.attr.retry_cnt > 0));
    }

    /// The peer has everything before `limit`, and a response of it is missing.
    #[cold]
    fn implied_nak(&mut self, parts: &mut Parts<'_>, cx: &mut Cx<'_>, limit: u64) -> Outcome {
        if self.may_ask_alone(parts, cx, parts.sq.una()) {
            self.told = self.told.max(limit);
            self.miss_response(parts, cx, None)?;
            return Ok(Disposition::Drop(DropReason::ResponseAhead));
        }
        if self.repairing == Some(parts.sq.una()) {
            return Ok(Disposition::Drop(DropReason::ResponseAhead));
        }
        if parts.repair.misses(parts.sq.una()) {
            // It is asked for, and counted; now something behind it is missing too.
            self.go_back(parts);
            self.restart_timer(parts, cx);
            return Ok(Disposition::Drop(DropReason::ResponseAhead));
        }
        cx.counters.implied_naks += 1;
        self.repeat(parts, cx, |tries| Cause::SequenceNak { tries })
    }

    /// Whether a missing response may be asked for alone: nothing of what follows it is lost for
    /// that. Not while the requester waits, or went back and is to send all of it again.
    fn may_ask_alone(&self, parts: &Parts<'_>, cx: &Cx<'_>, missing: u64) -> bool {
        let is_next = parts.sq.next() <= missing;
        self.kept.is_on() && !is_next && !parts.req.is_rnr_delayed() && cx.attr.retry_cnt > 0
    }

    /// NAK "PSN sequence error": the peer has everything before `seq` and misses `seq`.
    fn handle_gap(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        seq: u64,
        kept: &[u8],
    ) -> Outcome {
        cx.counters.sequence_naks_received += 1;
        if seq < parts.sq.una() {
            return Ok(Disposition::Drop(DropReason::StaleResponse));
        }
        self.acknowledge(parts, cx, seq)?;
        let may_select = parts.req.asks_kept && cx.attr.retry_cnt > 0;
        if may_select && !kept.is_empty() && !parts.req.is_rnr_delayed() {
            return self.handle_map(parts, cx, (seq, &KeptMap::parse(kept)));
        }
        if parts.sq.una() < seq && self.repairing != Some(parts.sq.una()) {
            // The rest of a READ is asked for, and something behind it is missing too.
            self.go_back(parts);
            self.restart_timer(parts, cx);
            return Ok(Disposition::Accepted);
        }
        if self.repairing == Some(parts.sq.una()) {
            return Ok(Disposition::Accepted);
        }
        if parts.req.was_rendezvous(seq) {
            // Nothing was lost: no retry, nor a sign of a path that is too narrow. Bounded: a
            // rendezvous is sent once.
            self.trouble_since.get_or_insert(cx.now);
            self.go_back(parts);
            self.restart_timer(parts, cx);
            return Ok(Disposition::Accepted);
        }
        self.repeat(parts, cx, |tries| Cause::SequenceNak { tries })?;
        (self.is_gap, self.gone_back, self.is_open) = (true, Some((cx.now, seq)), true);
        if cx.ack_timeout().is_some() {
            parts.req.withhold_last(parts.sq);
        }
        Ok(Disposition::Accepted)
    }

    /// The peer misses a packet, and tells what it keeps behind that. What it has is not sent
    /// again, even if the requester had gone back.
    fn handle_map(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        (missing, map): (u64, &KeptMap),
    ) -> Outcome {
        if !parts.repair.on_map(parts.sq, &parts.req.reads, (missing, map), cx.now) {
            return Ok(Disposition::Accepted);
        }
        if parts.sq.next() < parts.sq.high() {
            parts.sq.resume();
        }
        let is_kept =
            |seq: u64| seq > missing && map.has((seq - missing).min(u64::from(u32::MAX)) as u32);
        Self::on_kept(parts, cx, is_kept);
        // The peer is heard, and gets on.
        self.restart_timer(parts, cx);
        self.judge_holes(parts, cx)?;
        Ok(Disposition::Accepted)
    }

    /// A packet for which `is_kept` was answered, though one before it is missing: that may end the
    /// round trip which is being timed.
    fn on_kept(parts: &mut Parts<'_>, cx: &Cx<'_>, is_kept: impl Fn(u64) -> bool) {
        if let Some(nanos) = parts.window.on_kept(is_kept, cx.now) {
            parts.probe.on_round_trip(nanos);
            parts.repair.on_round_trip(nanos);
        }
    }

    /// Decides what of that which the peer misses is lost, or gives up.
    fn judge_holes(&mut self, parts: &mut Parts<'_>, cx: &mut Cx<'_>) -> Result<(), Fatal> {
        self.is_open = true;
        let verdict = parts.repair.judge(cx.now);
        if parts.repair.take_needless() {
            parts.window.on_needless(cx.now);
        }
        parts.req.gone = parts.repair.gone() + self.kept.len();
        if verdict.lost {
            parts.window.on_loss(cx.now);
        }
        // To have gone back to it was a retry already.
        if verdict.oldest && self.repairing != Some(parts.sq.una()) {
            self.retries += 1;
            self.trouble_since.get_or_insert(cx.now);
            if self.retries > u32::from(cx.attr.retry_cnt) {
                let cause = Cause::SequenceNak { tries: self.retries };
                return Err(Fatal { status: WcStatus::RetryExceeded, cause });
            }
        }
        Ok(())
    }

    /// `una` has moved while the peer missed something.
    #[cold]
    fn repaired(&mut self, parts: &mut Parts<'_>, cx: &Cx<'_>, una: u64) {
        parts.repair.on_progress(una, cx.now);
        if let Some((at, _)) = self.gone_back.take_if(|(_, seq)| *seq < una) {
            parts.repair.on_gone_back(at, cx.now);
        }
        if parts.repair.take_needless() {
            parts.window.on_needless(cx.now);
        }
        parts.req.gone = parts.repair.gone() + self.kept.len();
        let is_repairing = parts.req.gone > 0 || parts.repair.due().is_some();
        self.is_open = is_repairing || self.gone_back.is_some();
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
        (self.is_gap, self.gone_back, self.told) = (false, None, 0);
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
        seq: u64,
        (aeth, timer): (Aeth, RnrTimer),
    ) -> Outcome {
        cx.counters.rnr_naks_received += 1;
        if seq < parts.sq.una() {
            return Ok(Disposition::Drop(DropReason::StaleResponse));
        }
        self.acknowledge(parts, cx, seq)?;
        if parts.sq.una() < seq || parts.req.is_rnr_delayed() {
            return Ok(Disposition::Accepted);
        }
        self.rnr_retries += 1;
        let limit = cx.attr.rnr_retry;
        if limit != RNR_FOR_EVER && self.rnr_retries > u32::from(limit) {
            let cause = Cause::RnrNak { tries: self.rnr_retries, delay: timer };
            return Err(Fatal { status: WcStatus::RnrRetryExceeded, cause });
        }
        // Receives that the peer told of before are used up.
        parts.req.end_credits(aeth.msn);
        parts.req.start_rnr_delay(cx.now + timer.nanos());
        self.go_back(parts);
        self.deadline = None;
        parts.probe.restart(cx.now, None);
        Ok(Disposition::Accepted)
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

    /// Keeps a response if one before it is missing, and asks for that alone. `None` if it is to be
    /// handled as it comes.
    #[cold]
    fn keep(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        seq: u64,
        packet: &Packet<'_>,
    ) -> Result<Option<Disposition>, Fatal> {
        let reached = parts.sq.plain_until(seq);
        if reached >= seq || !self.may_ask_alone(parts, cx, reached) {
            return Ok(None);
        }
        let put = self.kept.put(parts.sq.psn(reached), packet.psn(), packet.as_bytes());
        if reached > parts.sq.una() {
            self.progress(parts, cx, reached);
        }
        let disposition = match put {
            Put::Kept => {
                cx.counters.packets_kept += 1;
                // It is no longer in the network; the next progress counts anew.
                (parts.req.gone, self.is_open) = (parts.req.gone + 1, true);
                Self::on_kept(parts, cx, |sent| sent == seq);
                // The peer is heard, and gets on.
                self.restart_timer(parts, cx);
                Disposition::Kept
            }
            Put::Known => Disposition::Duplicate,
            Put::NoRoom => Disposition::Drop(DropReason::NoKeepRoom),
            Put::Off => Disposition::Drop(DropReason::ResponseAhead),
        };
        self.miss_response(parts, cx, Some(seq))?;
        Ok(Some(disposition))
    }

    /// The oldest response is missing, and others came: the rest of its READ is asked for, unless
    /// it comes by itself. `heard` is the response that shows it.
    fn miss_response(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        heard: Option<u64>,
    ) -> Result<(), Fatal> {
        let una = parts.sq.una();
        if self.repairing == Some(una) {
            return Ok(());
        }
        let packets = parts.req.reads.end_of(una).map_or(1, |end| (end - una) as u32);
        if !parts.repair.on_missing((una, packets), heard, cx.now) {
            return Ok(());
        }
        cx.counters.implied_naks += 1;
        self.judge_holes(parts, cx)
    }

    /// Handles the responses that were kept and are next.
    #[cold]
    fn handle_kept(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
    ) -> Result<(), Fatal> {
        // Bounded: so many are kept.
        while let Some(kept) = self.kept.take(parts.sq.psn(parts.sq.una())) {
            let Ok(packet) = Packet::parse(kept.bytes()) else { continue };
            cx.counters.kept_packets_handled += 1;
            self.handle_data(parts, cx, parts.sq.una(), &packet, host)?;
        }
        let next = parts.sq.una();
        let is_sent = next < parts.sq.next() && parts.req.reads.end_of(next).is_some();
        if is_sent && !self.kept.is_empty() {
            self.miss_response(parts, cx, None)?;
        }
        Ok(())
    }

    /// A response with data, or an empty one. It implies an ACK of everything before it.
    fn handle_data(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        seq: u64,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Outcome {
        if seq < parts.sq.una() {
            self.echo_at = Some(cx.now);
            parts.probe.on_echo();
            return Ok(Disposition::Duplicate);
        }
        match self.acknowledge(parts, cx, seq)? {
            Disposition::Accepted => {}
            other => return Ok(other),
        }
        if parts.sq.una() != seq {
            return Ok(Disposition::Drop(DropReason::ResponseAhead));
        }
        let Some((index, &entry)) = parts.sq.holding(seq) else {
            return Ok(Disposition::Drop(DropReason::StaleResponse));
        };
        let (offset, data) = expected_data(parts, cx, seq, &entry, packet)?;
        if let Some(aeth) = packet.aeth() {
            take_credits(parts.req, aeth);
        }
        if !data.is_empty() {
            let slot = parts.sq.slot(index);
            host.scatter_response(slot, offset, data.as_slice()).map_err(|fault| Fatal {
                status: WcStatus::LocalProtection,
                cause: Cause::LocalMemory(fault),
            })?;
        }
        self.progress(parts, cx, seq + 1);
        Ok(Disposition::Accepted)
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
        let timeout = cx.ack_timeout().unwrap_or(0);
        if let Some(hold) = parts.req.deadline().filter(|hold| *hold > cx.now)
            && parts.sq.in_flight() == 0
        {
            // The peer was not asked again yet: pacing holds that back.
            self.deadline = Some(hold + timeout);
            return Ok(());
        }
        let began = *self.trouble_since.get_or_insert(cx.now - timeout);
        let waited = cx.now.since(began);
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
        let later = self.echo_at? + cx.ack_timeout()?;
        let may = self.echoes < MOST_ECHOES && parts.sq.in_flight() > 0;
        (may && later > cx.now).then_some(later)
    }

    /// A probe moves neither the sequence nor the ACK timer, and counts no retry: see `probe`.
    fn probe_if_due(&mut self, parts: &mut Parts<'_>, cx: &mut Cx<'_>) {
        if parts.probe.due().is_some_and(|t| cx.now >= t) {
            self.probe(parts, cx);
        }
    }

    fn probe(&self, parts: &mut Parts<'_>, cx: &mut Cx<'_>) {
        let in_flight = parts.sq.in_flight() > 0;
        if parts.probe.fire(cx.now, in_flight) {
            cx.counters.tail_probes += 1;
            parts.window.on_repeat();
        }
    }
}

/// End-to-end credits: the peer has receives for messages up to MSN + credits (IBTA 9.7.7.2.5).
fn take_credits(req: &mut Requester, aeth: Aeth) {
    if let AethCode::Ack { credits } = aeth.syndrome.decode() {
        req.set_credit_limit(credits.count().map(|n| aeth.msn.wrapping_add(n) & 0xFF_FFFF));
    }
}

/// Response bytes: a slice of the packet, or the 8 bytes of an atomic.
enum Data<'a> {
    Slice(&'a [u8]),
    Word([u8; 8]),
}

impl Data<'_> {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Slice(s) => s,
            Self::Word(w) => w,
        }
    }
    fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }
}

/// Checks the response against the request that waits for it (IBTA 9.7.5.1.7, 9.9.2.3).
fn expected_data<'p>(
    parts: &Parts<'_>,
    cx: &Cx<'_>,
    seq: u64,
    entry: &Entry,
    packet: &Packet<'p>,
) -> Result<(u32, Data<'p>), Fatal> {
    let bad = |what| Fatal { status: WcStatus::BadResponse, cause: Cause::BadResponse(what) };
    match (entry.wqe.op, packet.atomic_ack()) {
        (SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. }, Some(ack)) => {
            Ok((0, Data::Word(ack.original.to_ne_bytes())))
        }
        (SendOp::Read(_), None) => {
            let mtu = cx.attr.path_mtu.bytes();
            let offset = (seq - entry.first) as u32 * mtu;
            let wanted = (entry.wqe.length - offset).min(mtu) as usize;
            if packet.payload().len() != wanted {
                return Err(bad("a READ response of the wrong length"));
            }
            let ends = parts.req.reads.end_of(seq).is_none_or(|end| end == seq + 1);
            if packet.info().position.ends() != ends {
                return Err(bad("a READ response that ends early or late"));
            }
            Ok((offset, Data::Slice(packet.payload())))
        }
        (SendOp::Flush { .. } | SendOp::AtomicWrite(_), None) => {
            if !packet.payload().is_empty() {
                return Err(bad("data in the answer to a FLUSH or ATOMIC WRITE"));
            }
            Ok((0, Data::Slice(&[])))
        }
        (SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. }, None) => {
            Err(bad("a READ response to an atomic"))
        }
        (_, Some(_)) => Err(bad("an atomic response to another request")),
        (_, None) => Err(bad("a READ response to a request that has none")),
    }
}
