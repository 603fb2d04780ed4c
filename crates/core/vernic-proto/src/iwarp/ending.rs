//! How a stream ends, and what becomes of the queues (RFC 5040, 5.4, 6.2, 7; RFC 5041, 6.2; RFC
//! 5044, 8).
//!
//! | what | at this end | the peer hears |
//! |---|---|---|
//! | the peer violates something | failure, event, Error, both queues flushed | a Terminate, then FIN |
//! | local memory of a request is gone | the same, and that request has its status | a Terminate, then FIN |
//! | a Terminate comes | failure, event, Error; the request that it names has its status | FIN |
//! | the connection is lost | failure, event, Error, both queues flushed | |
//! | the application enters Error | both queues flushed | a Terminate, then FIN |
//! | the application closes | requests posted before are finished, later ones flushed | FIN |
//! | the peer closes | goes on sending; READs in flight are lost | FIN, when this end closes too |
//!
//! "After sending a Terminate Message on an RDMAP Stream, the Local Peer MUST NOT send any more
//! Messages on that specific RDMAP Stream" (RFC 5040, 5.4), and what arrives is dropped: "DDP MUST
//! silently drop any subsequent incoming DDP Segments" (RFC 5041, 7.1). It is still read, for a
//! socket that is closed with unread data resets the connection and may destroy the Terminate on
//! its way. "The peer SHOULD perform a graceful LLP teardown to ensure the Terminate Message is
//! successfully Delivered" (RFC 5040, 6.2.1); patience with the other half is bounded by
//! `linger_ns`.

use vernic_wire::Psn;
use vernic_wire::iwarp::{DdpHeader, RdmapOpcode, ReadRequest, TermCode, Terminate, Untagged};

use super::inbound::{Answered, Inbound, Stop, recv_completion};
use super::qp::Qp;
use super::requester::Fatal;
use super::stream::{Rx, Shutdown, Stream, Tx};
use crate::completion::Completion;
use crate::error::{
    AccessFault, Cause, Ending, Failure, RemoteRange, StreamEnd, Violation, WcStatus,
    terminated_status,
};
use crate::event::QpEvent;
use crate::host::Host;
use crate::state::QpState;
use crate::time::Time;

/// What both queues are told when a stream fails.
pub(super) struct Verdict {
    pub(super) cause: Cause,
    /// Of the failure, and of the receive in progress.
    pub(super) status: WcStatus,
    /// The request that fails with a status of its own.
    pub(super) request: Option<(u64, WcStatus)>,
    /// The receive in progress fails, too, and is not only flushed.
    pub(super) fails_receive: bool,
    pub(super) event: Option<QpEvent>,
}

/// The Terminate over the segment that has just been looked at: which headers it carries is figure
/// 10 and section 7.1 of RFC 5040. Errors of MPA and local ones carry none.
fn terminate_over(code: TermCode, inbound: &Inbound) -> Terminate {
    let terminate = Terminate::new(code);
    let carries = matches!((code.layer, code.error_type), (0, 1 | 2) | (1, _));
    let Some((header, segment_len, control)) = inbound.segment().filter(|_| carries) else {
        return terminate;
    };
    let is_read = code.layer == 0 && header.control().opcode == RdmapOpcode::READ_REQUEST;
    Terminate {
        length_valid: true,
        segment_len: segment_len as u16,
        ddp: Some(header),
        read: ReadRequest::parse(control).ok().filter(|_| is_read),
        ..terminate
    }
}

impl Qp {
    /// An incoming segment ends the stream.
    pub(super) fn stop_over(&mut self, now: Time, stop: &Stop, host: &mut impl Host) {
        let Some(stream) = self.stream.as_deref_mut() else { return };
        // Whatever it says, it speaks.
        stream.expect_no_word();
        match *stop {
            Stop::Violation { violation, fault } => {
                stream.hear_offence(violation);
                let row = violation.row();
                let terminate = terminate_over(row.code, &stream.inbound);
                let verdict = Verdict {
                    cause: Cause::Violation { violation, fault },
                    status: row.recv_status,
                    request: None,
                    fails_receive: true,
                    event: row.event,
                };
                self.fail(now, verdict, Some(terminate), host);
            }
            Stop::Request { index, status, stop } => {
                let (cause, code, event) = match stop {
                    Answered::Bad(what, violation) => {
                        let row = violation.row();
                        (Cause::BadResponse(what), row.code, row.event)
                    }
                    Answered::Memory(fault) => {
                        let row = Violation::SendMemory.row();
                        (Cause::LocalMemory(fault), row.code, row.event)
                    }
                };
                let terminate = terminate_over(code, &stream.inbound);
                let request = Some((index, status));
                let verdict = Verdict { cause, status, request, fails_receive: false, event };
                self.fail(now, verdict, Some(terminate), host);
            }
            Stop::Terminated(terminate) => self.terminated(now, &terminate, host),
        }
    }

    /// A request of our own cannot be made: "the Terminate Message and Error code are sent instead
    /// of the request" (RFC 5040, 7.1 (1)).
    pub(super) fn fail_request(&mut self, now: Time, fatal: Fatal, host: &mut impl Host) {
        let index = self.sq.at_cursor().map(|(index, _)| index);
        let row = Violation::SendMemory.row();
        let verdict = Verdict {
            cause: Cause::LocalMemory(fatal.fault),
            status: fatal.status,
            request: index.map(|index| (index, fatal.status)),
            fails_receive: false,
            event: None,
        };
        self.fail(now, verdict, Some(Terminate::new(row.code)), host);
    }

    /// A READ of the peer's cannot be answered any more: its memory went away meanwhile.
    pub(super) fn fail_answer(&mut self, now: Time, fault: AccessFault, host: &mut impl Host) {
        let Some(stream) = self.stream.as_deref() else { return };
        let violation = Violation::of_read(&fault);
        let row = violation.row();
        let terminate = stream.answers.describe(Terminate::new(row.code));
        let verdict = Verdict {
            cause: Cause::Violation { violation, fault: Some(fault) },
            status: row.recv_status,
            request: None,
            fails_receive: false,
            event: row.event,
        };
        self.fail(now, verdict, Some(terminate), host);
    }

    /// The peer's last word. What it names may be a request that is not complete: "the state of all
    /// outstanding RDMA Messages is indeterminate, and the Messages SHOULD be considered Completed
    /// in error" (RFC 5040, 6.2.1).
    fn terminated(&mut self, now: Time, terminate: &Terminate, host: &mut impl Host) {
        let Some(stream) = self.stream.as_deref() else { return };
        let status = terminated_status(terminate.code);
        let named = match terminate.ddp {
            Some(DdpHeader::Untagged(Untagged { queue, msn, .. })) => {
                stream.requester.numbered(&self.sq, queue, msn)
            }
            _ => None,
        };
        let asked = named.and_then(|index| RemoteRange::of(&self.sq.entry(index).wqe));
        let verdict = Verdict {
            cause: Cause::Terminated { code: terminate.code, asked },
            status,
            request: named.map(|index| (index, status)),
            fails_receive: false,
            event: Some(QpEvent::Fatal),
        };
        self.fail(now, verdict, None, host);
    }

    /// The connection is gone, or as good as gone.
    pub(super) fn lost(&mut self, now: Time, end: StreamEnd, host: &mut impl Host) {
        if matches!(self.attr.state, QpState::Rts | QpState::Sqd) {
            let verdict = Verdict {
                cause: Cause::ConnectionLost(end),
                status: WcStatus::RemoteAborted,
                request: None,
                fails_receive: false,
                event: Some(QpEvent::Fatal),
            };
            self.fail(now, verdict, None, host);
        }
        self.let_go();
    }

    /// Nothing more is sent or received, whatever the peer does.
    pub(super) fn let_go(&mut self) {
        self.cut();
        self.shutdown = self.stream.as_deref().map(Stream::last_shutdown).or(self.shutdown);
    }

    /// Tells both queues of a failure and enters Error; `terminate` is what the peer is told.
    fn fail(
        &mut self,
        now: Time,
        verdict: Verdict,
        terminate: Option<Terminate>,
        host: &mut impl Host,
    ) {
        let Some(stream) = self.stream.as_deref_mut() else { return };
        let ending = match (verdict.cause, terminate) {
            (Cause::ConnectionLost(end), _) => Some(Ending::Lost(end)),
            (Cause::Terminated { code, .. }, _) => Some(Ending::Terminated(code)),
            (_, Some(terminate)) => Some(Ending::Aborted(terminate.code)),
            (_, None) => None,
        };
        stream.ending = stream.ending.or(ending);
        let code = verdict.cause.vendor_err();
        let psn = Psn::new(stream.inbound.send_msn().0);
        let current = stream.inbound.current().filter(|_| verdict.fails_receive);
        let wr_id = match verdict.request {
            Some((index, _)) => Some(self.sq.entry(index).wqe.wr_id),
            None => current.map(|recv| recv.wr_id),
        };
        host.failure(Failure { status: verdict.status, wr_id, psn, cause: verdict.cause });
        if let Some(recv) = current {
            stream.inbound.take_current();
            let cx = self.cx(now);
            let completion = recv_completion(&cx, recv.wr_id, verdict.status);
            host.complete_recv(Completion { vendor_err: code, ..completion });
        }
        if let Some(event) = verdict.event {
            host.event(event);
        }
        let failed = verdict.request.map(|(index, status)| (index, status, code));
        self.enter_error(now, failed, terminate, host);
    }

    /// Error is entered: both queues are flushed, and the peer hears why, if anything is left that
    /// it could hear it by.
    pub(super) fn enter_error(
        &mut self,
        now: Time,
        failed: Option<(u64, WcStatus, u32)>,
        terminate: Option<Terminate>,
        host: &mut impl Host,
    ) {
        self.attr.state = QpState::Error;
        let mut current = None;
        if let Some(stream) = self.stream.as_deref_mut() {
            let ending = terminate.map_or(Ending::Closed, |said| Ending::Aborted(said.code));
            stream.ending.get_or_insert(ending);
            current = stream.inbound.take_current();
            stream.answers.clear();
            stream.stall_until = None;
            match terminate {
                Some(_) if stream.tx == Tx::Open => stream.hold_last_word(now),
                _ => stream.expect_no_word(),
            }
            let was_open = stream.rx != Rx::Ended;
            if was_open {
                stream.rx = Rx::Dead;
            }
            stream.linger_until.get_or_insert(now + stream.config.linger_ns);
            self.shutdown = silence(stream, terminate).or(self.shutdown);
        }
        self.flush_sends(now, failed, host);
        host.flush_recv(current);
        if self.init.shared_rq {
            host.event(QpEvent::LastWqeReached);
        }
    }

    /// Nothing is sent or received any more.
    pub(super) fn cut(&mut self) {
        if let Some(stream) = self.stream.as_deref_mut() {
            stream.rx = Rx::Ended;
            stream.tx = Tx::Shut;
            stream.linger_until = None;
            stream.stall_until = None;
            stream.expect_no_word();
        }
    }

    /// After something was sent, taken or answered: a closing stream may have said all.
    pub(super) fn check_drained(&mut self, now: Time, host: &mut impl Host) {
        let Some(stream) = self.stream.as_deref_mut() else { return };
        if let Tx::Terminating(_, Some(end)) = stream.tx
            && stream.accepted >= end
        {
            stream.tx = Tx::Shut;
            self.shutdown = Some(half_or_whole(stream));
            self.check_over(now, host);
            return;
        }
        // A responder that may not speak yet has nothing to say, whatever is queued.
        let silent = stream.tx == Tx::Fenced;
        if stream.closing
            && matches!(stream.tx, Tx::Open | Tx::Fenced)
            && (silent || stream.is_drained(&self.sq))
        {
            stream.tx = Tx::Shut;
            stream.linger_until = Some(now + stream.config.linger_ns);
            self.shutdown = Some(half_or_whole(stream));
            self.check_over(now, host);
        }
    }

    /// Both halves are closed in order: the queue pair has nothing left to do.
    pub(super) fn check_over(&mut self, now: Time, host: &mut impl Host) {
        let Some(stream) = self.stream.as_deref() else { return };
        if stream.tx != Tx::Shut || stream.rx != Rx::Ended {
            return;
        }
        if matches!(self.attr.state, QpState::Rts | QpState::Sqd) {
            self.enter_error(now, None, None, host);
        }
        self.cut();
        self.shutdown = Some(Shutdown::Close);
    }
}

/// The sending half falls silent, after the last word if there is one and it can be said.
fn silence(stream: &mut Stream, terminate: Option<Terminate>) -> Option<Shutdown> {
    match (stream.tx, terminate) {
        (Tx::Open, Some(terminate)) => {
            stream.tx = Tx::Terminating(terminate, None);
            None
        }
        (Tx::Open | Tx::Fenced, _) => {
            stream.tx = Tx::Shut;
            Some(half_or_whole(stream))
        }
        (Tx::Terminating(..) | Tx::Shut, _) => None,
    }
}

fn half_or_whole(stream: &Stream) -> Shutdown {
    if stream.rx == Rx::Ended { Shutdown::Close } else { Shutdown::Write }
}
