//! What the peer misses: NAKs for a gap, with and without a map of what it keeps behind that.

use vernic_wire::KeptMap;

use super::{Completer, Outcome, Parts};
use crate::cx::Cx;
use crate::disposition::{Disposition, DropReason};
use crate::error::{Cause, WcStatus};
use crate::rc::requester::Fatal;

impl Completer {
    /// NAK "PSN sequence error": the peer has everything before `seq` and misses `seq`.
    pub(super) fn handle_gap(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        seq: u64,
        kept: &[u8],
    ) -> Outcome {
        cx.counters.sequence_naks_received += 1;
        // What the peer is known to have, it cannot miss: the NAK was sent before that.
        if seq < parts.sq.una().max(self.known()) {
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
        (self.gap, self.gone_back, self.is_open) = (Some(seq), Some((cx.now, seq)), true);
        if cx.ack_timeout().is_some() {
            parts.req.withhold(parts.sq);
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
        parts.req.was_told = true;
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
    pub(super) fn on_kept(parts: &mut Parts<'_>, cx: &Cx<'_>, is_kept: impl Fn(u64) -> bool) {
        if let Some(nanos) = parts.window.on_kept(is_kept, cx.now) {
            parts.probe.on_round_trip(nanos);
            parts.repair.on_round_trip(nanos, parts.window.is_doubtful());
        }
    }

    /// Decides what of that which the peer misses is lost, or gives up.
    pub(super) fn judge_holes(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), Fatal> {
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
    pub(super) fn repaired(&mut self, parts: &mut Parts<'_>, cx: &Cx<'_>, una: u64) {
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
}
