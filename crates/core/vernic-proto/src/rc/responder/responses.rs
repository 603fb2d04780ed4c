//! Response packets: answers to READs and atomics in the order of their requests, then what is to
//! be said of everything else.

use vernic_wire::opcode::{self, HeaderSet, Kind};
use vernic_wire::packet::pad_of;
use vernic_wire::{
    Aeth, AethCode, AtomicAckEth, Bth, CreditCode, Headers, NakCode, Opcode, Position, Psn,
    Syndrome,
};

use super::Responder;
use super::answers::{Body, Piece};
use super::checks::Notice;
use crate::cx::Cx;
use crate::error::{AccessCheck, AccessFault, Cause, ErrorClass, Failure};
use crate::host::Host;
use crate::message::PartAck;
use crate::state::QpState;

impl Responder {
    /// Whether [`poll_response`](Self::poll_response) has something to send.
    pub(crate) fn wants_transmit(&self) -> bool {
        self.answers.is_due() || self.notice != Notice::None
    }

    /// Whether all there is to send is a positive acknowledgement.
    pub(crate) fn owes_only_ack(&self) -> bool {
        !self.answers.is_due() && matches!(self.notice, Notice::Ack(_))
    }

    /// Takes the positive acknowledgement, if it is all there is to send.
    #[inline]
    pub(crate) fn take_ack(&mut self, cx: &mut Cx<'_>, host: &mut impl Host) -> Option<PartAck> {
        let Notice::Ack(psn) = self.notice else { return None };
        if self.answers.is_due() {
            return None;
        }
        self.notice = Notice::None;
        cx.counters.acks_sent += 1;
        Some(PartAck { psn, aeth: Aeth { syndrome: self.ack_syndrome(host), msn: self.msn } })
    }

    /// Writes the next response into `buf`, which holds the path MTU and all headers.
    pub(crate) fn poll_response(
        &mut self,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Option<usize> {
        if let Some(piece) = self.answers.next_piece(cx.attr.path_mtu.bytes()) {
            match self.write_piece(cx, &piece, host, buf) {
                Ok(len) => {
                    self.answers.sent();
                    return Some(len);
                }
                Err(fault) => return Some(self.read_failed(cx, &piece, fault, host, buf)),
            }
        }
        let (psn, syndrome) = match core::mem::replace(&mut self.notice, Notice::None) {
            Notice::None => return None,
            Notice::Ack(psn) => (psn, self.ack_syndrome(host)),
            Notice::SequenceNak => self.gap_syndrome(host),
            Notice::RnrNak => (self.sequence.expected, Syndrome::rnr(cx.attr.min_rnr_timer)),
            Notice::Nak(psn, code) => (psn, Syndrome::nak(code)),
        };
        Some(self.write_notice(cx, psn, syndrome, buf))
    }

    pub(super) fn ack_syndrome(&self, host: &mut impl Host) -> Syndrome {
        let credits = if self.shared_rq { None } else { host.recv_credits() };
        Syndrome::ack(credits.map_or(CreditCode::INVALID, CreditCode::at_most))
    }

    fn write_notice(&self, cx: &mut Cx<'_>, psn: Psn, syndrome: Syndrome, buf: &mut [u8]) -> usize {
        let counters = &mut *cx.counters;
        match syndrome.decode() {
            AethCode::RnrNak(_) => counters.rnr_naks_sent += 1,
            AethCode::Nak(NakCode::PSN_SEQUENCE) => counters.sequence_naks_sent += 1,
            AethCode::Nak(_) => {}
            _ => counters.acks_sent += 1,
        }
        let mut headers = response_headers(cx, response_opcode(cx, Kind::Ack, Position::Only), psn);
        headers.aeth = Some(Aeth { syndrome, msn: self.msn });
        let end = headers.emit(buf);
        let is_gap = syndrome == Syndrome::nak(NakCode::PSN_SEQUENCE);
        if is_gap && self.tells {
            let map = self.kept.map(psn, cx.attr.path_mtu.bytes());
            return end + map.emit(&mut buf[end..]);
        }
        end
    }

    fn write_piece(
        &self,
        cx: &Cx<'_>,
        piece: &Piece,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<usize, AccessFault> {
        let (kind, payload) = match piece.body {
            Body::Read { length, .. } => (Kind::ReadResponse, length as usize),
            Body::Empty => (Kind::ReadResponse, 0),
            Body::Atomic { .. } => (Kind::AtomicAck, 0),
        };
        let opcode = response_opcode(cx, kind, piece.position);
        let mut headers = response_headers(cx, opcode, piece.psn);
        headers.bth.pad = pad_of(payload);
        if opcode.info().has(HeaderSet::AETH) {
            headers.aeth = Some(Aeth { syndrome: self.ack_syndrome(host), msn: piece.msn });
        }
        if let Body::Atomic { original } = piece.body {
            headers.atomic_ack = Some(AtomicAckEth { original });
        }
        let start = headers.emit(buf);
        let end = start + payload;
        if let Body::Read { rkey, addr, srqn, .. } = piece.body
            && payload > 0
        {
            let (check, key, len) = (AccessCheck::Srq, rkey.value(), payload as u64);
            let gone = |_| AccessFault { check, key, addr, len };
            srqn.map_or(Ok(()), |srqn| host.select_srq(srqn).map_err(gone))?;
            host.read_remote(rkey, addr, &mut buf[start..end])?;
        }
        let padded = end + usize::from(headers.bth.pad);
        buf[end..padded].fill(0);
        Ok(padded)
    }

    /// The memory of a READ has become inaccessible. The first time this ends the connection; for a
    /// replay only the peer can tell whether it still waits, so it is told and this end goes on.
    fn read_failed(
        &mut self,
        cx: &mut Cx<'_>,
        piece: &Piece,
        fault: AccessFault,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> usize {
        let class = ErrorClass::RemoteAccess;
        let row = class.row();
        if piece.replay {
            self.answers.abandon();
        } else {
            self.answers.clear();
            self.notice = Notice::None;
            self.failed = true;
        }
        if self.failed && cx.attr.state != QpState::Error {
            let cause = Cause::Responder { class, fault: Some(fault) };
            host.failure(Failure { status: row.recv_status, wr_id: None, psn: piece.psn, cause });
            if let Some(event) = row.event {
                host.event(event);
            }
        }
        self.write_notice(cx, piece.psn, Syndrome::nak(row.nak), buf)
    }
}

/// The service's opcode. Every kind and position that is asked for has its row; the fallback keeps
/// this free of panics.
fn response_opcode(cx: &Cx<'_>, kind: Kind, position: Position) -> Opcode {
    opcode::response(cx.service, kind, position).unwrap_or(Opcode::RC_ACK)
}

fn response_headers(cx: &Cx<'_>, opcode: Opcode, psn: Psn) -> Headers {
    let mut bth = Bth::new(opcode, cx.attr.dest_qpn, psn);
    bth.pkey = cx.pkey;
    bth.migreq = cx.attr.migreq();
    Headers::new(bth)
}
