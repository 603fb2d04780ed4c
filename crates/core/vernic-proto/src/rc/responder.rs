//! RC responder: checks each request in the standard's order, carries it out, answers (IBTA 9.7.4,
//! 9.7.5, 9.9.2).
//!
//! Owns the expected sequence number, the message in progress, the receive that it fills, and what
//! is to be answered. `rc` calls it with request packets, and asks it for response packets. It
//! calls [`Host`] for memory, receives and completions.
//!
//! A request goes through named steps, each of which gives the next one:
//!
//! ```text
//!   check_psn -> check_op_seq -> check_op_valid -> check_srq -> check_resource -> check_length
//!      |  |           each may refuse: NAK, by the table of errors                      |
//!      |  +-> answer_again (a duplicate)                                                v
//!      +----> kept: ahead of a gap          acknowledge <- complete <- execute <- check_rkey
//! ```
//! What is kept goes the same way when its turn has come, from `check_psn` on.
//! Up to `execute` a step changes nothing but the receive it takes; so a request that was answered
//! with RNR NAK starts over when it comes again.
//!
//! Responses leave in the order of sequence numbers: answers to READs and atomics first, then one
//! [`Notice`] for everything else, however many packets it covers.
//!
//! Here is the way of a request. Duplicates are in `duplicates.rs`, what comes ahead of a gap in
//! `gaps.rs`, the packets that answer in `responses.rs`, what they are made from in `answers.rs`,
//! and parts of messages in `messages.rs`.

mod answers;
mod checks;
mod duplicates;
mod gaps;
mod messages;
mod responses;
#[cfg(test)]
mod tests;

use vernic_wire::opcode::Kind;
use vernic_wire::{Packet, Psn, Srqn};

use crate::completion::{Completion, Tag};
use crate::cx::Cx;
use crate::disposition::{Disposition, DropReason};
use crate::error::{AccessFault, Cause, ErrorClass, Failure};
use crate::event::QpEvent;
use crate::host::Host;
use crate::inbound::{Message, Target, fills_receive, recv_completion, tag_of};
use crate::kept::{Keeping, Kept};
use crate::segment::packet_count;
use crate::state::{QpAttr, QpState};
use crate::wqe::RecvWqe;

use answers::{Answers, Body};
use checks::{
    Notice, Sequence, Step, acknowledge, atomic_op, check_length, check_op_seq, check_op_valid,
    check_psn, check_resource, check_rkey, check_srq, flush, place,
};

/// The responder of one RC queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    sequence: Sequence,
    /// Messages completed, 24 bits: the MSN of the next AETH.
    msn: u32,
    message: Message,
    /// On XRC, the shared receive queue that its packets name.
    srqn: Option<Srqn>,
    /// The receive taken for the message in progress.
    current: Option<RecvWqe>,
    answers: Answers,
    notice: Notice,
    /// Requests ahead of a gap.
    kept: Kept,
    /// Whether the peer is told which: it has asked.
    tells: bool,
    /// Credits are not reported for a shared queue (IBTA 9.7.7.2).
    shared_rq: bool,
    /// The communication-established event has been raised.
    established: bool,
    /// A READ failed while it was being answered.
    failed: bool,
}

impl Responder {
    /// One that expects nothing yet. Allocates nothing.
    pub(crate) fn new() -> Self {
        Self {
            sequence: Sequence::default(),
            msn: 0,
            message: Message::None,
            srqn: None,
            current: None,
            answers: Answers::default(),
            notice: Notice::None,
            kept: Kept::default(),
            tells: false,
            shared_rq: false,
            established: false,
            failed: false,
        }
    }

    /// Init to RTR: starts at `rq_psn`, with room for `max_dest_rd_atomic` answers.
    pub(crate) fn reset(&mut self, attr: &QpAttr, shared_rq: bool) {
        let mut answers = core::mem::take(&mut self.answers);
        answers.reset(attr.max_dest_rd_atomic);
        self.forget();
        let sequence = Sequence { expected: attr.rq_psn, ..Sequence::default() };
        (self.sequence, self.answers, self.shared_rq) = (sequence, answers, shared_rq);
    }

    /// Forgets everything but how much may be kept.
    pub(crate) fn forget(&mut self) {
        let mut kept = core::mem::take(&mut self.kept);
        kept.clear();
        *self = Self { kept, ..Self::new() };
    }

    /// Keeps requests ahead of a gap from now on, within these bounds.
    pub(crate) fn set_keeping(&mut self, keeping: Option<Keeping>) {
        self.kept.set(keeping);
    }

    /// SQD: the number of answers kept for replay has changed.
    pub(crate) fn set_depth(&mut self, max_dest_rd_atomic: u8) {
        self.answers.set_depth(max_dest_rd_atomic);
    }

    /// Whether a READ failed in [`poll_response`](Self::poll_response): the queue pair is to enter
    /// Error, as after a request that was refused.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// The receive that was taken and not completed, for the flush.
    pub(crate) fn take_current(&mut self) -> Option<RecvWqe> {
        self.current.take()
    }

    /// The queue pair enters Error. A refusal still leaves, and so does what is due before it: the
    /// peer would take its absence for a loss. Otherwise unanswered READs are given up.
    pub(crate) fn halt(&mut self) {
        self.kept.clear();
        if !matches!(self.notice, Notice::Nak(..)) && self.answers.is_due() {
            self.answers.clear();
            self.notice = Notice::None;
        }
    }

    /// The number before which every request was received and handled in order.
    #[inline]
    pub(crate) fn received_until(&self) -> Psn {
        self.sequence.expected
    }

    /// Handles a request packet of this service.
    ///
    /// On a fatal class the NAK is queued, the receive in progress completed, failure and event are
    /// told to `host`; the caller moves the queue pair to Error and flushes.
    pub(crate) fn handle_request(
        &mut self,
        cx: &mut Cx<'_>,
        packet: &Packet<'_>,
        is_peer: bool,
        host: &mut impl Host,
    ) -> Disposition {
        if !self.begin(cx, host) {
            return Disposition::Drop(DropReason::BadState);
        }
        let numbers = (packet.psn(), packet.psn());
        match check_psn(&mut self.sequence, &mut self.notice, numbers) {
            Step::Ahead { reported } => self.handle_ahead(cx, packet, reported, is_peer),
            step => self.go_through(step, cx, packet, host),
        }
    }

    /// Goes through the steps from `step` on.
    fn go_through(
        &mut self,
        mut step: Step,
        cx: &mut Cx<'_>,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Disposition {
        let mtu = cx.attr.path_mtu.bytes();
        // Bounded: every step leads to a later one.
        loop {
            step = match step {
                Step::CheckOpSeq => check_op_seq(&self.message, packet),
                Step::CheckOpValid => check_op_valid(cx.attr.access, packet),
                Step::CheckSrq => {
                    let named = (srqn_of(packet), packet.info().position.starts());
                    match check_srq(self.srqn, named, host) {
                        Ok(()) => Step::CheckResource,
                        Err(class) => Step::Refuse(class, None),
                    }
                }
                Step::CheckResource => {
                    check_resource(&mut self.current, &self.answers, packet, host)
                }
                Step::CheckLength => check_length(&self.message, self.current, packet, mtu),
                Step::CheckRkey => check_rkey(packet, host),
                Step::Execute => self.execute(mtu, packet, host),
                Step::Complete => self.complete(cx, packet, host),
                Step::Acknowledge => acknowledge(&mut self.notice, packet),
                Step::AnswerAgain => self.answer_again(mtu, packet),
                Step::Refuse(class, fault) => {
                    let completion = self.current.map(|recv| recv_completion(cx, recv, packet));
                    Step::Done(self.refuse(packet.psn(), completion, (class, fault), host))
                }
                Step::NotReady => Step::Done(self.not_ready()),
                Step::Ahead { .. } => Step::Done(Disposition::Drop(DropReason::AheadOfNak)),
                Step::Done(disposition) => return disposition,
            }
        }
    }

    /// Whether the state takes requests. The first one in RTR tells that the peer is connected.
    #[inline]
    fn begin(&mut self, cx: &Cx<'_>, host: &mut impl Host) -> bool {
        if !matches!(cx.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            return false;
        }
        if cx.attr.state == QpState::Rtr && !self.established {
            host.event(QpEvent::CommEstablished);
        }
        self.established = true;
        true
    }

    /// Does what the request asks for (IBTA 9.7.4.2). READs are answered later, from memory.
    fn execute(&mut self, mtu: u32, packet: &Packet<'_>, host: &mut impl Host) -> Step {
        let payload = packet.payload();
        let target = Target::of(packet);
        let body = match (packet.info().kind, target) {
            (Kind::Send | Kind::Write, _) => return place(&self.message, packet, host),
            (Kind::ReadRequest, Some(Target { rkey, addr, len, .. })) => {
                Ok(Body::Read { rkey, addr, length: len as u32, srqn: srqn_of(packet) })
            }
            (Kind::CmpSwap | Kind::FetchAdd, Some(target)) => host
                .atomic(target.rkey, target.addr, atomic_op(packet))
                .map(|original| Body::Atomic { original }),
            (Kind::AtomicWrite, Some(target)) => match payload.try_into() {
                Ok(data) => host.atomic_write(target.rkey, target.addr, data).map(|()| Body::Empty),
                Err(_) => return Step::Refuse(ErrorClass::PacketLength, None),
            },
            (Kind::Flush, Some(target)) => flush(target, packet, host).map(|()| Body::Empty),
            _ => return Step::Refuse(ErrorClass::UnsupportedOpcode, None),
        };
        match body {
            Ok(body) => {
                self.answers.push(packet.psn(), next_msn(self.msn), body, mtu);
                Step::Complete
            }
            Err(fault) => Step::Refuse(ErrorClass::RemoteAccess, Some(fault)),
        }
    }

    /// Moves on in the sequence; at the end of a message, completes the receive it took.
    fn complete(&mut self, cx: &mut Cx<'_>, packet: &Packet<'_>, host: &mut impl Host) -> Step {
        let ends = packet.info().position.ends();
        let tag = tag_of(packet);
        if let Tag::Invalidated(rkey) = tag
            && let Err(fault) = host.invalidate_remote(rkey)
        {
            return Step::Refuse(ErrorClass::Invalidate, Some(fault));
        }
        if ends
            && fills_receive(packet)
            && let Some(recv) = self.current.take()
        {
            let byte_len = self.message.total(packet);
            host.complete_recv(Completion { byte_len, tag, ..recv_completion(cx, recv, packet) });
        }
        if ends {
            self.msn = next_msn(self.msn);
            cx.counters.messages_received += 1;
        }
        self.message = self.message.after(packet);
        self.srqn = srqn_of(packet);
        let mtu = cx.attr.path_mtu.bytes();
        self.sequence.expected = self.sequence.expected.add(numbers_taken(packet, mtu));
        Step::Acknowledge
    }

    /// Carries out what the table of errors says about `class` (IBTA 9.9.2.4).
    ///
    /// `completion` is that of the receive in progress, as if the request had been carried out.
    fn refuse(
        &mut self,
        psn: Psn,
        completion: Option<Completion>,
        (class, fault): (ErrorClass, Option<AccessFault>),
        host: &mut impl Host,
    ) -> Disposition {
        let row = class.row();
        let cause = Cause::Responder { class, fault };
        let wr_id = completion.map(|completion| completion.wr_id);
        host.failure(Failure { status: row.recv_status, wr_id, psn, cause });
        self.current = None;
        if let Some(completion) = completion {
            let (status, vendor_err) = (row.recv_status, cause.vendor_err());
            host.complete_recv(Completion { status, vendor_err, ..completion });
        }
        if let Some(event) = row.event {
            host.event(event);
        }
        self.notice = Notice::Nak(psn, row.nak);
        Disposition::Nak(class)
    }

    /// No receive: the peer is asked to come back (IBTA 9.7.5.2.8). It then sends everything from
    /// the expected packet on, so nothing stays kept meanwhile.
    fn not_ready(&mut self) -> Disposition {
        self.kept.clear();
        (self.sequence.waiting, self.sequence.not_ready) = (true, true);
        self.notice = Notice::RnrNak;
        Disposition::Rnr
    }
}

/// Sequence numbers that a request packet takes: a READ as many as its response (IBTA 9.7.2).
fn numbers_taken(packet: &Packet<'_>, mtu: u32) -> u32 {
    match (packet.info().kind, packet.reth()) {
        (Kind::ReadRequest, Some(reth)) => packet_count(reth.length, mtu),
        _ => 1,
    }
}

/// The shared receive queue that an XRC request names.
fn srqn_of(packet: &Packet<'_>) -> Option<Srqn> {
    packet.xrceth().map(|header| header.srqn)
}

fn next_msn(msn: u32) -> u32 {
    (msn + 1) & 0xFF_FFFF
}
