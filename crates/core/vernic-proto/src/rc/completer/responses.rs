//! READ and atomic responses: data that comes, what is kept ahead of a missing response, and what
//! is asked for again (IBTA 9.7.5.1.1, 9.7.5.1.7).

use vernic_wire::Packet;

use super::{Completer, Outcome, Parts, take_credits};
use crate::cx::Cx;
use crate::disposition::{Disposition, DropReason};
use crate::error::{Cause, WcStatus};
use crate::host::Host;
use crate::kept::Put;
use crate::rc::requester::Fatal;
use crate::sq::Entry;
use crate::wqe::SendOp;

impl Completer {
    /// The peer has everything before `limit`, and a response of it is missing.
    #[cold]
    pub(super) fn implied_nak(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        limit: u64,
    ) -> Outcome {
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

    /// Keeps a response if one before it is missing, and asks for that alone. `None` if it is to be
    /// handled as it comes.
    #[cold]
    pub(super) fn keep(
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
        self.answered = self.answered.max(seq + 1);
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

    /// What the peer is known to have: everything before this number. It has told so, or answered a
    /// later request.
    pub(super) fn known(&self) -> u64 {
        self.told.max(self.answered)
    }

    /// A response that was missing has come: what is known to be done behind it is done, in the
    /// order of the requests. What is missing next is asked for, if it was sent.
    #[cold]
    pub(super) fn catch_up(
        &mut self,
        parts: &mut Parts<'_>,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
    ) -> Result<(), Fatal> {
        // Bounded: each round but the last one completes something.
        loop {
            let before = parts.sq.una();
            self.handle_kept(parts, cx, host)?;
            let reached = parts.sq.plain_until(self.known());
            if reached > parts.sq.una() {
                self.progress(parts, cx, reached);
            }
            if parts.sq.una() == before {
                break;
            }
        }
        // Behind a requester that went back, it was not asked for again yet.
        if self.told > parts.sq.una() && parts.sq.next() > parts.sq.una() {
            self.acknowledge(parts, cx, self.told)?;
        }
        Ok(())
    }

    /// Handles the responses that were kept and are next.
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
    pub(super) fn handle_data(
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
        let Some((index, entry)) = parts.sq.holding(seq) else {
            return Ok(Disposition::Drop(DropReason::StaleResponse));
        };
        let (offset, data) = expected_data(parts, cx, seq, entry, packet)?;
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
}

/// Response bytes: a slice of the packet, or the 8 bytes of an atomic.
pub(super) enum Data<'a> {
    Slice(&'a [u8]),
    Word([u8; 8]),
}

impl Data<'_> {
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Slice(s) => s,
            Self::Word(w) => w,
        }
    }
    pub(super) fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }
}

/// Checks the response against the request that waits for it (IBTA 9.7.5.1.7, 9.9.2.3).
#[inline]
pub(super) fn expected_data<'p>(
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
