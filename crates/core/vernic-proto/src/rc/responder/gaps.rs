//! Requests ahead of a gap: what is kept of them, and what the peer is told of the gap (IBTA
//! 9.7.5.2.8).

use vernic_wire::{NakCode, Packet, Psn, Syndrome};

use super::Responder;
use super::checks::{Notice, Sequence};
use crate::cx::Cx;
use crate::disposition::{Disposition, DropReason};
use crate::error::ErrorClass;
use crate::host::Host;
use crate::kept::{KeptPacket, Put};

impl Responder {
    /// A request ahead of a gap: reports the gap unless that was done, and keeps the request. Not
    /// while the peer waits until there is a receive: it sends all of it again.
    #[cold]
    pub(super) fn handle_ahead(
        &mut self,
        cx: &mut Cx<'_>,
        packet: &Packet<'_>,
        reported: bool,
        is_peer: bool,
    ) -> Disposition {
        let expected = self.sequence.expected;
        let put = if is_peer && !self.sequence.not_ready {
            self.kept.put(expected, packet.psn(), packet.as_bytes())
        } else {
            Put::Off
        };
        cx.counters.packets_kept += u64::from(put == Put::Kept);
        if matches!(put, Put::Kept | Put::Known) {
            self.tells |= packet.bth().asks_kept();
            if self.tells && (packet.ack_req() || self.kept.opens_gap(packet.psn())) {
                self.tell_gap();
            }
        }
        if !reported {
            return self.report_gap();
        }
        match put {
            Put::Kept => Disposition::Kept,
            Put::NoRoom => Disposition::Drop(DropReason::NoKeepRoom),
            Put::Known | Put::Off => Disposition::Drop(DropReason::AheadOfNak),
        }
    }

    /// Whether anything is kept.
    #[inline]
    pub(crate) fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Takes the request that is expected next, if it was kept.
    pub(crate) fn take_kept(&mut self) -> Option<KeptPacket> {
        self.kept.take(self.sequence.expected)
    }

    /// Handles a request that was kept. The peer hears of it, whether or not it asked: what it
    /// would send again need not be sent.
    pub(crate) fn handle_kept(
        &mut self,
        cx: &mut Cx<'_>,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Disposition {
        cx.counters.kept_packets_handled += 1;
        let disposition = self.handle_request(cx, packet, true, host);
        if disposition == Disposition::Accepted
            && self.notice == Notice::None
            && !self.answers.is_due()
        {
            self.notice = Notice::Ack(self.sequence.expected.sub(1));
        }
        if self.tells && disposition == Disposition::Accepted {
            self.tell_next_gap();
        }
        disposition
    }

    /// The gap has closed, and there may be another one behind it, of which the peer has asked to
    /// be told.
    fn tell_next_gap(&mut self) {
        let expected = self.sequence.expected;
        if !self.kept.is_empty() && !self.kept.has(expected) {
            self.sequence.waiting = true;
            self.tell_gap();
        }
    }

    /// Tells of the gap once more: the peer has asked what is kept.
    fn tell_gap(&mut self) {
        if matches!(self.notice, Notice::None | Notice::Ack(_)) {
            self.notice = Notice::SequenceNak;
        }
    }

    /// The expected packet is missing, and others came: the peer is told (IBTA 9.7.5.2.8).
    pub(super) fn report_gap(&mut self) -> Disposition {
        self.sequence.waiting = true;
        self.notice = Notice::SequenceNak;
        Disposition::Nak(ErrorClass::PsnSequence)
    }

    /// The gap, if one is left: packets may have come in another order meanwhile.
    pub(super) fn gap_syndrome(&mut self, host: &mut impl Host) -> (Psn, Syndrome) {
        let Sequence { expected, ahead, .. } = self.sequence;
        if ahead.is_before(expected) && self.kept.is_empty() {
            // The next one is to be reported.
            self.sequence.waiting = false;
            (expected.sub(1), self.ack_syndrome(host))
        } else {
            (expected, Syndrome::nak(NakCode::PSN_SEQUENCE))
        }
    }
}
