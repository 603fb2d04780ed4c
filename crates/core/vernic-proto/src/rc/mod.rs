//! Reliable connection: requester, completer and responder of one queue pair (IBTA 9.7). An XRC
//! initiator uses the first two, an XRC target the last (IBTA A14).
//!
//! Each part owns its state in a file of its own; this one joins them: it hands packets to the part
//! that they are for, and carries a failure of any part to both queues.

pub(crate) mod completer;
mod probe;
mod reads;
mod requester;
pub(crate) mod responder;
mod window;

#[cfg(test)]
mod send_tests;

use vernic_wire::Packet;

use crate::congestion::Controller;
use crate::cx::{Cx, QpInit};
use crate::disposition::Disposition;
use crate::error::{Cause, Failure, WcStatus};
use crate::event::QpEvent;
use crate::host::{Host, RunLimits, RxMeta, Transmit};
use crate::send_completion::{completion, retire};
use crate::sq::{Entry, SendQueue};
use crate::state::{ModifyError, QpAttr};
use crate::time::Time;

use completer::{Completer, Parts};
use probe::Probe;
pub(crate) use requester::Fatal;
use requester::Requester;
use responder::Responder;
use window::Window;

/// ECN field of an IP header that a congested router has marked (RFC 3168).
pub(crate) const CONGESTION_EXPERIENCED: u8 = 3;

/// The machine of an RC queue pair.
#[derive(Debug)]
pub(crate) struct Rc {
    pub(crate) sq: SendQueue,
    requester: Requester,
    completer: Completer,
    responder: Responder,
    window: Window,
    probe: Probe,
    shared_rq: bool,
    /// The drained event of SQD is still owed.
    drain_event_due: bool,
}

macro_rules! parts {
    ($self:ident) => {
        Parts {
            sq: &mut $self.sq,
            req: &mut $self.requester,
            window: &mut $self.window,
            probe: &mut $self.probe,
        }
    };
}

impl Rc {
    pub(crate) fn new(init: &QpInit, controller: Controller) -> Self {
        Self {
            sq: SendQueue::new(init.max_send_wr),
            requester: Requester::default(),
            completer: Completer::default(),
            responder: Responder::new(),
            window: Window::new(controller),
            probe: Probe::default(),
            shared_rq: init.shared_rq,
            drain_event_due: false,
        }
    }

    pub(crate) fn reset(&mut self) {
        self.sq.reset(vernic_wire::Psn::new(0));
        self.requester.reset(0);
        self.completer.reset();
        self.responder = Responder::new();
        self.window.reset();
        self.probe = Probe::default();
        self.drain_event_due = false;
    }

    /// Init to RTR.
    pub(crate) fn start_responder(&mut self, attr: &QpAttr) {
        self.responder.reset(attr, self.shared_rq);
    }

    /// RTR to RTS.
    pub(crate) fn start_requester(&mut self, attr: &QpAttr) {
        self.sq.set_first_psn(attr.sq_psn);
        self.requester.reset(u32::from(attr.max_rd_atomic));
        self.completer.reset();
    }

    /// Refuses that `max_rd_atomic` becomes 0 while something is queued that needs it: it could
    /// neither be sent nor complete.
    pub(crate) fn check_no_reads(&self) -> Result<(), ModifyError> {
        let mut reads = self.sq.needing_response();
        let Some(first) = reads.next() else { return Ok(()) };
        let queued = 1 + reads.count() as u32;
        Err(ModifyError::ReadsQueued { queued, wr_id: first.wqe.wr_id })
    }

    /// In SQD: the numbers of READs and atomics at once may have changed.
    pub(crate) fn set_read_depths(&mut self, attr: &QpAttr) {
        self.requester.reads.set_depth(u32::from(attr.max_rd_atomic));
        self.responder.set_depth(attr.max_dest_rd_atomic);
    }

    /// RTS to SQD, or back.
    pub(crate) fn set_draining(&mut self, draining: bool, event: bool, host: &mut impl Host) {
        self.requester.draining = draining;
        self.drain_event_due = draining && event;
        self.check_drained(host);
    }

    fn check_drained(&mut self, host: &mut impl Host) {
        if self.drain_event_due && self.sq.is_drained() {
            self.drain_event_due = false;
            host.event(QpEvent::SqDrained);
        }
    }

    /// Whether a send queue in SQD has nothing outstanding any more.
    pub(crate) fn is_drained(&self) -> bool {
        self.sq.is_drained()
    }

    pub(crate) fn handle_packet(
        &mut self,
        cx: &mut Cx<'_>,
        packet: &Packet<'_>,
        meta: &RxMeta,
        host: &mut impl Host,
    ) -> (Disposition, Result<(), Fatal>) {
        if meta.ecn == CONGESTION_EXPERIENCED {
            self.window.on_mark(cx.now, packet.info().kind);
            self.requester.pace(&self.window, cx.now);
        }
        if packet.info().is_request() {
            return (self.responder.handle_request(cx, packet, meta, host), Ok(()));
        }
        let outcome = self.completer.handle_response(&mut parts!(self), cx, packet, host);
        self.requester.pace(&self.window, cx.now);
        retire(&mut self.sq, cx, host);
        self.check_drained(host);
        match outcome {
            Ok(disposition) => (disposition, Ok(())),
            Err(fatal) => (Disposition::Accepted, Err(fatal)),
        }
    }

    /// The peer tells of congestion on the path to it.
    #[cold]
    pub(crate) fn handle_cnp(&mut self, now: Time) {
        self.window.on_cnp(now);
        self.requester.pace(&self.window, now);
    }

    pub(crate) fn poll_request(
        &mut self,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<Option<Transmit>, Fatal> {
        if let Some(len) = self.poll_probe(cx, host, buf) {
            return Ok(Some(Transmit { len, ah: None, run: None }));
        }
        let mut sent = self.requester.poll(&mut self.sq, &mut self.window, cx, host, buf)?;
        // Local operations at the head are finished without an answer.
        retire(&mut self.sq, cx, host);
        if sent.is_none() {
            // That may have left a request at the head that met a local error: it fails now.
            sent = self.requester.poll(&mut self.sq, &mut self.window, cx, host, buf)?;
        }
        if sent.is_some() {
            self.completer.on_sent(&mut parts!(self), cx);
            self.requester.pace(&self.window, cx.now);
        }
        Ok(sent)
    }

    /// A packet of a probe, if one is to be sent.
    #[inline]
    pub(crate) fn poll_probe(
        &mut self,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Option<usize> {
        if !self.probe.is_pending() {
            return None;
        }
        self.requester.poll_probe(&self.sq, &mut self.probe, cx, host, buf)
    }

    pub(crate) fn poll_response(
        &mut self,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Option<usize> {
        self.responder.poll_response(cx, host, buf)
    }

    /// Whether answering a READ failed, so that the queue pair is to enter Error.
    pub(crate) fn response_failed(&self) -> bool {
        self.responder.has_failed()
    }

    /// Which packets may travel as one from now on.
    #[inline]
    pub(crate) fn set_runs(&mut self, runs: Option<RunLimits>) {
        self.requester.runs = runs;
    }

    /// Whether requests not yet started stay where they are: SQD.
    pub(crate) fn holds_new(&self) -> bool {
        self.requester.draining
    }

    /// The request at the cursor was carried out without packets.
    pub(crate) fn finish_direct(&mut self, cx: &Cx<'_>, host: &mut impl Host) {
        self.sq.finish_direct();
        retire(&mut self.sq, cx, host);
        self.check_drained(host);
    }

    /// The request at the cursor begins anew, in packets, though SQD may hold back others.
    pub(crate) fn start_in_packets(&mut self, mtu: u32) {
        self.sq.set_direct(None);
        Requester::start(&mut self.sq, mtu);
    }

    /// Whether a probe, or the rest of one, leaves next.
    #[inline]
    pub(crate) fn is_probing(&self) -> bool {
        self.probe.is_pending()
    }

    pub(crate) fn wants_requests(&self, attr: &QpAttr) -> bool {
        self.is_probing()
            || self.sq.is_direct()
            || self.requester.is_ready(&self.sq, &self.window, attr.path_mtu.bytes())
    }

    pub(crate) fn wants_responses(&self) -> bool {
        self.responder.wants_transmit()
    }

    pub(crate) fn owes_only_ack(&self) -> bool {
        self.responder.owes_only_ack()
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let earlier =
            |a: Option<Time>, b: Option<Time>| a.zip(b).map_or(a.or(b), |(a, b)| Some(a.min(b)));
        earlier(self.requester.deadline(), earlier(self.completer.deadline(), self.probe.due()))
    }

    pub(crate) fn silent_since(&self) -> Option<Time> {
        self.completer.silent_since()
    }

    pub(crate) fn handle_timeout(
        &mut self,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
    ) -> Result<(), Fatal> {
        let outcome = self.completer.handle_timeout(&mut parts!(self), cx, host);
        self.requester.pace(&self.window, cx.now);
        outcome
    }

    /// The send side failed: says why, and completes the request that met it.
    pub(crate) fn fail(&mut self, cx: &Cx<'_>, fatal: Fatal, host: &mut impl Host) {
        let head: Option<Entry> = self.sq.pop();
        host.failure(Failure {
            status: fatal.status,
            wr_id: head.map(|entry| entry.wqe.wr_id),
            psn: self.sq.psn(self.sq.una()),
            cause: fatal.cause,
        });
        if let Some(entry) = head {
            host.complete_send(completion(&entry, cx, fatal.status, fatal.cause.vendor_err()));
        }
    }

    /// Completes every send request still queued as flushed.
    pub(crate) fn flush_send(&mut self, cx: &Cx<'_>, host: &mut impl Host) {
        while let Some(entry) = self.sq.pop() {
            let code = Cause::Flushed.vendor_err();
            host.complete_send(completion(&entry, cx, WcStatus::Flushed, code));
        }
        self.requester.stop_waiting();
        self.completer.reset();
        self.probe = Probe::default();
    }

    /// Completes everything still queued, on both queues, as flushed.
    pub(crate) fn flush(&mut self, cx: &Cx<'_>, host: &mut impl Host) {
        self.flush_send(cx, host);
        self.responder.halt();
        host.flush_recv(self.responder.take_current());
    }
}
