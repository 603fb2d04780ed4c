//! Reliable connection: requester, completer and responder of one queue pair (IBTA 9.7). An XRC
//! initiator uses the first two, an XRC target the last (IBTA A14).
//!
//! Each part owns its state in a file of its own; this one joins them: it hands packets to the part
//! that they are for, and carries a failure of any part to both queues.

pub(crate) mod completer;
mod probe;
mod reads;
mod repair;
mod requester;
pub(crate) mod responder;
mod window;

#[cfg(test)]
mod send_tests;

use vernic_wire::{Mtu, Packet, Psn};

use crate::congestion::{Controller, Limit, Tally};
use crate::cx::{Cx, QpInit};
use crate::direct::{self, Direct};
use crate::disposition::{Disposition, DropReason};
use crate::error::{Cause, Failure, PostError, WcStatus};
use crate::event::QpEvent;
use crate::host::{CONGESTION_EXPERIENCED, Host, RxMeta, Transmit};
use crate::kept::{Keeping, KeptPacket};
use crate::message::{MessagePart, PartAck, RendezvousLimits};
use crate::send_completion::{completion, retire};
use crate::sq::{Entry, SendQueue};
use crate::state::{ModifyError, PathMigState, QpAttr, QpType};
use crate::time::Time;
use crate::transport::{Broken, Transport, check_length};
use crate::wqe::{MAX_MESSAGE, SendOp, SendWqe};

use completer::{Completer, Parts};
use probe::Probe;
use repair::Repair;
use requester::{Fatal, Requester};
use responder::Responder;
use window::Window;

/// The machine of an RC queue pair.
#[derive(Debug)]
pub(crate) struct Rc {
    sq: SendQueue,
    requester: Requester,
    completer: Completer,
    responder: Responder,
    window: Window,
    probe: Probe,
    repair: Repair,
    shared_rq: bool,
    is_xrc: bool,
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
            repair: &mut $self.repair,
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
            window: Window::new(controller, init.max_window),
            probe: Probe::default(),
            repair: Repair::default(),
            shared_rq: init.shared_rq,
            is_xrc: init.qp_type != QpType::Rc,
            drain_event_due: false,
        }
    }

    /// Does what follows an answer of the peer.
    #[inline]
    fn after_answer(
        &mut self,
        outcome: completer::Outcome,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
    ) -> Result<Disposition, Broken> {
        self.after_progress(cx, host);
        outcome.map_err(|fatal| self.give_up(cx, fatal, host))
    }

    /// Does what follows where requests may have been answered.
    #[inline]
    fn after_progress(&mut self, cx: &Cx<'_>, host: &mut impl Host) {
        self.requester.pace(&self.window, cx.now);
        retire(&mut self.sq, cx, host);
        self.check_drained(host);
    }

    /// Writes a packet that the peer misses.
    #[inline]
    fn poll_repair(
        &mut self,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Option<usize> {
        if !self.repair.is_queued() {
            return None;
        }
        let (window, repair) = (&mut self.window, &mut self.repair);
        let len = self.requester.poll_repair(&self.sq, window, repair, cx, host, buf)?;
        self.completer.on_sent(&mut parts!(self), cx);
        self.requester.pace(&self.window, cx.now);
        Some(len)
    }

    /// The peer's answers, or their absence, are the end: of the path if there is an alternate one
    /// (IBTA 17.2.8.1), else of the connection.
    #[cold]
    fn give_up(&mut self, cx: &Cx<'_>, fatal: Fatal, host: &mut impl Host) -> Broken {
        let is_armed = cx.attr.path_mig_state == PathMigState::Armed;
        match fatal.status {
            WcStatus::RetryExceeded if is_armed => Broken::Path,
            _ => self.fail(cx, fatal, host),
        }
    }

    fn check_drained(&mut self, host: &mut impl Host) {
        if self.drain_event_due && self.sq.is_drained() {
            self.drain_event_due = false;
            host.event(QpEvent::SqDrained);
        }
    }

    /// The send side failed: says why, and completes the request that met it.
    #[cold]
    fn fail(&mut self, cx: &Cx<'_>, fatal: Fatal, host: &mut impl Host) -> Broken {
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
        Broken::QueuePair
    }
}

impl Transport for Rc {
    fn send_queue(&self) -> &SendQueue {
        &self.sq
    }

    fn send_queue_mut(&mut self) -> &mut SendQueue {
        &mut self.sq
    }

    fn reset(&mut self) {
        self.sq.reset(vernic_wire::Psn::new(0));
        self.requester.reset(0);
        self.completer.reset();
        self.responder.forget();
        self.window.reset();
        self.probe = Probe::default();
        self.repair = Repair::default();
        self.drain_event_due = false;
    }

    fn start_responder(&mut self, attr: &QpAttr) {
        self.responder.reset(attr, self.shared_rq);
    }

    fn start_requester(&mut self, attr: &QpAttr) {
        self.sq.set_first_psn(attr.sq_psn);
        self.requester.reset(u32::from(attr.max_rd_atomic));
        self.completer.reset();
    }

    fn check_no_reads(&self) -> Result<(), ModifyError> {
        let mut reads = self.sq.needing_response();
        let Some(first) = reads.next() else { return Ok(()) };
        let queued = 1 + reads.count() as u32;
        Err(ModifyError::ReadsQueued { queued, wr_id: first.wqe.wr_id })
    }

    fn set_read_depths(&mut self, attr: &QpAttr) {
        self.requester.reads.set_depth(u32::from(attr.max_rd_atomic));
        self.responder.set_depth(attr.max_dest_rd_atomic);
    }

    fn set_draining(&mut self, draining: bool, event: bool, host: &mut impl Host) {
        self.requester.draining = draining;
        self.drain_event_due = draining && event;
        self.check_drained(host);
    }

    fn handle_packet(
        &mut self,
        cx: &mut Cx<'_>,
        packet: &Packet<'_>,
        meta: &RxMeta,
        host: &mut impl Host,
    ) -> Result<Disposition, Broken> {
        if meta.ecn == CONGESTION_EXPERIENCED {
            self.end_run(cx, host);
            self.window.on_mark(cx.now, packet.info().kind);
            self.requester.pace(&self.window, cx.now);
        }
        if packet.info().is_request() {
            return Ok(self.responder.handle_request(cx, packet, meta.is_peer, host));
        }
        if self.completer.place_next(&mut parts!(self), cx, packet, host).is_some() {
            return Ok(Disposition::Accepted);
        }
        self.end_run(cx, host);
        let packet = (packet, meta.is_peer);
        let outcome = self.completer.handle_response(&mut parts!(self), cx, packet, host);
        self.after_answer(outcome, cx, host)
    }

    #[inline]
    fn has_run(&self) -> bool {
        self.completer.has_run()
    }

    #[inline]
    fn end_run(&mut self, cx: &mut Cx<'_>, host: &mut impl Host) {
        if self.completer.end_run(&mut parts!(self), cx) {
            self.after_progress(cx, host);
        }
    }

    fn set_keeping(&mut self, keeping: Option<Keeping>) {
        self.completer.set_keeping(keeping.clone());
        self.responder.set_keeping(keeping);
    }

    #[inline]
    fn has_kept(&self) -> bool {
        self.responder.has_kept()
    }

    fn take_kept(&mut self) -> Option<KeptPacket> {
        self.responder.take_kept()
    }

    fn handle_kept(
        &mut self,
        cx: &mut Cx<'_>,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Disposition {
        self.responder.handle_kept(cx, packet, host)
    }

    #[cold]
    fn handle_cnp(&mut self, now: Time) {
        self.window.on_cnp(now);
        self.requester.pace(&self.window, now);
    }

    #[cold]
    fn set_limit(&mut self, limit: Option<Limit>, now: Time) {
        self.window.set_limit(limit, now);
        self.requester.pace_anew(&self.window, now);
    }

    #[cold]
    fn set_exempt(&mut self, is_exempt: bool) {
        self.window.set_exempt(is_exempt);
    }

    fn ask_ack(&mut self) {
        self.requester.ask_ack();
    }

    #[inline]
    fn peer_keeps(&self) -> bool {
        self.requester.was_told
    }

    #[inline]
    fn asks_kept(&self) -> bool {
        self.requester.asks_kept
    }

    fn assume_peer_keeps(&mut self) {
        self.requester.ask_from_now_on();
    }

    fn poll_request(
        &mut self,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<Option<Transmit>, Broken> {
        if let Some(len) = self.poll_probe(cx, host, buf) {
            return Ok(Some(Transmit { len, ah: None }));
        }
        if let Some(len) = self.poll_repair(cx, host, buf) {
            return Ok(Some(Transmit { len, ah: None }));
        }
        let middle = match self.sq.is_in_middle() {
            true => self.requester.poll_middle(&mut self.sq, &mut self.window, cx, host, buf),
            false => None,
        };
        if middle.is_some() {
            self.completer.on_sent(&mut parts!(self), cx);
            self.requester.pace(&self.window, cx.now);
            return Ok(middle);
        }
        let mut polled = self.requester.poll(&mut self.sq, &mut self.window, cx, host, buf);
        if polled.is_ok() {
            // Local operations at the head are finished without an answer.
            retire(&mut self.sq, cx, host);
        }
        if let Ok(None) = polled {
            // That may have left a request at the head that met a local error: it fails now.
            polled = self.requester.poll(&mut self.sq, &mut self.window, cx, host, buf);
        }
        let sent = polled.map_err(|fatal| self.fail(cx, fatal, host))?;
        if sent.is_some() {
            self.completer.on_sent(&mut parts!(self), cx);
            self.requester.pace(&self.window, cx.now);
        }
        Ok(sent)
    }

    #[inline]
    fn poll_probe(
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

    fn poll_response(
        &mut self,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Option<usize> {
        self.responder.poll_response(cx, host, buf)
    }

    fn response_failed(&self) -> bool {
        self.responder.has_failed()
    }

    #[inline]
    fn handle_message(
        &mut self,
        cx: &mut Cx<'_>,
        part: &MessagePart,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Disposition {
        if part.srqn.is_some() != self.is_xrc {
            return Disposition::Drop(DropReason::WrongService);
        }
        self.responder.handle_message(cx, part, payload, host)
    }

    #[inline]
    fn set_messages(&mut self, are_sent: bool) {
        if self.requester.sends_messages && !are_sent {
            self.completer.end_early_looks(&self.sq, &mut self.requester);
        }
        self.requester.sends_messages = are_sent;
    }

    #[inline]
    fn set_rendezvous(&mut self, limits: Option<RendezvousLimits>) {
        self.requester.rendezvous = limits;
    }

    #[inline]
    fn next_send_bytes(&self) -> u32 {
        match self.sq.at_cursor() {
            Some((_, entry)) if entry.is_send() => entry.wqe.length,
            _ => 0,
        }
    }

    #[inline]
    fn has_message(&self, attr: &QpAttr) -> bool {
        let mtu = attr.path_mtu.bytes();
        !self.probe.is_pending() && self.requester.has_message(&self.sq, &self.window, mtu)
    }

    #[inline]
    fn poll_message(
        &mut self,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<Option<(MessagePart, usize)>, Broken> {
        if self.probe.is_pending() {
            return Ok(None);
        }
        let polled = self.requester.poll_message(&mut self.sq, &mut self.window, cx, host, buf);
        let sent = polled.map_err(|fatal| self.fail(cx, fatal, host))?;
        if sent.is_some() {
            self.completer.on_sent(&mut parts!(self), cx);
            self.requester.pace(&self.window, cx.now);
        }
        Ok(sent)
    }

    #[inline]
    fn take_ack(&mut self, cx: &mut Cx<'_>, host: &mut impl Host) -> Option<PartAck> {
        self.responder.take_ack(cx, host)
    }

    #[inline]
    fn handle_ack(
        &mut self,
        cx: &mut Cx<'_>,
        ack: PartAck,
        host: &mut impl Host,
    ) -> Result<Disposition, Broken> {
        self.end_run(cx, host);
        let outcome = self.completer.handle_part_ack(&mut parts!(self), cx, ack, host);
        self.after_answer(outcome, cx, host)
    }

    /// The memory of an XRC request is of the shared receive queue's domain: packets go there.
    #[inline]
    fn next_direct(&self) -> Option<Direct> {
        if self.is_xrc { None } else { direct::next(&self.sq, self.requester.draining) }
    }

    fn finish_direct(&mut self, cx: &Cx<'_>, host: &mut impl Host) {
        self.sq.finish_direct();
        retire(&mut self.sq, cx, host);
        self.check_drained(host);
    }

    fn start_in_packets(&mut self, mtu: u32) {
        self.sq.set_direct(None);
        Requester::start(&mut self.sq, mtu);
    }

    #[inline]
    fn is_probing(&self) -> bool {
        self.probe.is_pending()
    }

    fn check_post(&self, wqe: &SendWqe, attr: &QpAttr, _: Mtu) -> Result<(), PostError> {
        check_length(wqe, MAX_MESSAGE)?;
        if attr.max_rd_atomic == 0 && needs_read_depth(&wqe.op) {
            return Err(PostError::NoReadDepth);
        }
        if self.is_xrc && wqe.srqn.is_none() && !is_local(&wqe.op) {
            return Err(PostError::NoSrqn);
        }
        Ok(())
    }

    #[inline]
    fn wants_requests(&self, attr: &QpAttr) -> bool {
        self.is_probing()
            || (self.repair.is_queued()
                && self.requester.may_repair(&self.sq, &self.window, &self.repair))
            || self.sq.is_direct()
            || self.requester.is_ready(&self.sq, &self.window, attr.path_mtu.bytes())
    }

    #[inline]
    fn wants_responses(&self) -> bool {
        self.responder.wants_transmit()
    }

    #[inline]
    fn owes_only_ack(&self) -> bool {
        self.responder.owes_only_ack()
    }

    #[inline]
    fn received_until(&self) -> Option<Psn> {
        Some(self.responder.received_until())
    }

    fn next_deadline(&self) -> Option<Time> {
        let earlier =
            |a: Option<Time>, b: Option<Time>| a.zip(b).map_or(a.or(b), |(a, b)| Some(a.min(b)));
        let answer = earlier(self.completer.deadline(), self.probe.due());
        earlier(self.requester.deadline(), earlier(answer, self.repair.due()))
    }

    #[inline]
    fn packets_in_flight(&self) -> u64 {
        self.sq.in_flight().saturating_sub(self.requester.gone.into())
    }

    fn window(&self) -> Option<u32> {
        Some(self.window.size())
    }

    fn round_trip(&self) -> Option<u64> {
        self.repair.round_trip()
    }

    #[inline]
    fn tally(&self) -> Option<&Tally> {
        Some(self.window.tally())
    }

    #[inline]
    fn requests_in_flight(&self) -> u64 {
        self.sq.outstanding()
    }

    fn has_unacknowledged(&self) -> bool {
        self.sq.is_outstanding()
    }

    fn is_repeating(&self) -> bool {
        self.sq.next() < self.sq.high() || self.repair.is_queued()
    }

    fn silent_since(&self) -> Option<Time> {
        self.completer.silent_since()
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>, host: &mut impl Host) -> Result<(), Broken> {
        let outcome = self.completer.handle_timeout(&mut parts!(self), cx, host);
        self.requester.pace(&self.window, cx.now);
        outcome.map_err(|fatal| self.give_up(cx, fatal, host))
    }

    fn path_changed(&mut self, cx: &mut Cx<'_>) {
        self.completer.path_changed(&mut parts!(self), cx);
        self.requester.pace(&self.window, cx.now);
    }

    fn flush_send(&mut self, cx: &Cx<'_>, host: &mut impl Host) {
        if let Some(end) = self.completer.take_run() {
            self.sq.acknowledge(end);
            retire(&mut self.sq, cx, host);
        }
        while let Some(entry) = self.sq.pop() {
            let code = Cause::Flushed.vendor_err();
            host.complete_send(completion(&entry, cx, WcStatus::Flushed, code));
        }
        self.requester.stop_waiting();
        self.completer.reset();
        self.probe = Probe::default();
        self.repair.clear();
        self.requester.gone = 0;
    }

    fn flush(&mut self, cx: &Cx<'_>, host: &mut impl Host) {
        self.flush_send(cx, host);
        self.responder.halt();
        host.flush_recv(self.responder.take_current());
    }

    /// A request always: the responder carries out the next one alone. A response that answers what
    /// a peer answers that has received everything.
    fn is_credible(&self, packet: &Packet<'_>) -> bool {
        packet.info().is_request() || self.sq.is_edge(packet.psn())
    }

    /// As if all retries had failed at once; if nothing is outstanding, an event says so.
    fn handle_gone(
        &mut self,
        cx: &mut Cx<'_>,
        cause: Cause,
        host: &mut impl Host,
    ) -> Result<(), Broken> {
        if self.sq.is_empty() {
            host.event(QpEvent::Fatal);
        }
        Err(self.fail(cx, Fatal { status: WcStatus::RetryExceeded, cause }, host))
    }
}

/// Whether an operation is carried out here and sends nothing.
fn is_local(op: &SendOp) -> bool {
    matches!(op, SendOp::LocalInv(_) | SendOp::BindMw(_))
}

/// Whether an operation counts against `max_rd_atomic`.
fn needs_read_depth(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Read(_)
            | SendOp::CmpSwap { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::Flush { .. }
            | SendOp::AtomicWrite(_)
    )
}
