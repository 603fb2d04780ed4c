//! The send side of the unreliable services: each request is cut into packets and complete when its
//! last one has been handed out (IBTA 9.8.3).
//!
//! Used by `uc` and `ud`; the queue itself is a [`SendQueue`] whose `una` follows `next`. A local
//! error completes its request and stops the queue: the owner moves the queue pair to SQE
//! (IBTA 10.3.1.5).

use bitflags::bitflags;
use vernic_wire::{Position, Qpn, Service};

use crate::congestion::{Congestion, Controller, DatagramPacer, Limit, Sent};
use crate::cx::Cx;
use crate::error::{AccessFault, Cause, Failure, WcStatus};
use crate::event::QpEvent;
use crate::host::{Host, Transmit};
use crate::message::{MessagePart, part_length};
use crate::segment::{Segment, packet_count};
use crate::send_completion::{completion, retire};
use crate::sq::{Entry, SendQueue};
use crate::time::Time;
use crate::transport::Broken;
use crate::wqe::SendOp;

bitflags! {
    /// What keeps requests where they are: nothing, nearly always.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Gate: u8 {
        /// Requests not yet started: SQD.
        const DRAINING = 1;
        /// All of them, until the time [`Sender::hold`].
        const HELD = 2;
    }
}

/// What the send side knows beside its queue.
#[derive(Debug)]
pub(crate) struct Sender {
    gate: Gate,
    /// The drained event of SQD is still owed.
    drain_event_due: bool,
    /// Whether SENDs leave as parts of messages.
    sends_messages: bool,
    /// What paces, if anything does. Its window means nothing here.
    controller: Controller,
    /// What datagrams with static rates have still to pay for.
    datagrams: DatagramPacer,
    /// Time before which nothing leaves.
    hold: Option<Time>,
}

/// How the packets of a service are made.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) service: Service,
    /// Payload bytes of a packet, at most.
    pub(crate) mtu: u32,
    /// The connected peer; a datagram's own destination comes first.
    pub(crate) peer: Qpn,
    /// Packets do not go by the link, so that static rates do not count.
    pub(crate) is_near: bool,
}

impl Sender {
    /// The send side of a queue pair, at the pace of a controller.
    pub(crate) fn new(controller: Controller) -> Self {
        Self {
            gate: Gate::empty(),
            drain_event_due: false,
            sends_messages: false,
            controller,
            datagrams: DatagramPacer::new(),
            hold: None,
        }
    }

    /// Forgets everything.
    pub(crate) fn reset(&mut self) {
        self.controller.reset();
        (self.gate, self.hold) = (Gate::empty(), None);
        (self.drain_event_due, self.sends_messages) = (false, false);
        self.datagrams = DatagramPacer::new();
    }

    /// The peer tells of congestion on the path to it.
    pub(crate) fn handle_cnp(&mut self, now: Time) {
        self.controller.on_cnp(now);
        self.pace(now);
    }

    /// Sets the limit of the rate, or ends it.
    pub(crate) fn set_limit(&mut self, limit: Option<Limit>, now: Time) {
        self.controller.set_limit(limit, now);
        self.pace(now);
    }

    /// Says whether what leaves from now on is not held against the limit.
    pub(crate) fn set_exempt(&mut self, is_exempt: bool) {
        self.controller.set_exempt(is_exempt);
    }

    /// Time before which nothing leaves.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.hold
    }

    /// Time has passed.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if self.hold.is_some() {
            self.pace(now);
        }
    }

    /// Asks again when the next packet may leave.
    #[cold]
    fn pace(&mut self, now: Time) {
        let datagrams = self.datagrams.not_before();
        let at = self.controller.not_before().map_or(datagrams, |at| at.max(datagrams));
        self.hold = Some(at).filter(|at| *at > now);
        self.gate.set(Gate::HELD, self.hold.is_some());
    }

    /// Packets left, at a static rate in Mb/s if it is not 0.
    #[cold]
    fn pay(&mut self, sent: Sent, mbps: u32, now: Time) {
        self.controller.on_sent(now, sent);
        if mbps != 0 {
            self.datagrams.on_sent(now, sent.bytes, mbps);
        }
        self.pace(now);
    }

    /// RTS to SQD, or back.
    pub(crate) fn set_draining(
        &mut self,
        sq: &SendQueue,
        draining: bool,
        event: bool,
        host: &mut impl Host,
    ) {
        self.gate.set(Gate::DRAINING, draining);
        self.drain_event_due = draining && event;
        self.check_drained(sq, host);
    }

    fn check_drained(&mut self, sq: &SendQueue, host: &mut impl Host) {
        if self.drain_event_due && sq.is_drained() {
            self.drain_event_due = false;
            host.event(QpEvent::SqDrained);
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.gate.contains(Gate::DRAINING)
    }

    /// Whether [`poll`](Self::poll) would send or carry out something.
    pub(crate) fn wants_requests(&self, sq: &SendQueue) -> bool {
        sq.at_cursor().is_some() && (self.gate.is_empty() || self.opens(sq)) && !sq.is_direct()
    }

    /// Whether the gate lets the request at the cursor through, though it is not open for all.
    #[cold]
    fn opens(&self, sq: &SendQueue) -> bool {
        self.gate == Gate::DRAINING && sq.cursor_is_started()
    }

    /// SENDs leave as parts of messages from now on, or in packets.
    #[inline]
    pub(crate) fn set_messages(&mut self, are_sent: bool) {
        self.sends_messages = are_sent;
    }

    /// Whether [`poll_message`](Self::poll_message) would send something.
    #[inline]
    pub(crate) fn has_message(&self, sq: &SendQueue) -> bool {
        let is_send = |(_, entry): (u64, &Entry)| entry.is_send();
        self.sends_messages && sq.at_cursor().is_some_and(is_send) && self.wants_requests(sq)
    }

    /// Something was sent or carried out: completes the request if that was the end of it.
    pub(crate) fn passed(&mut self, sq: &mut SendQueue, cx: &Cx<'_>, host: &mut impl Host) {
        sq.acknowledge(sq.next());
        retire(sq, cx, host);
        self.check_drained(sq, host);
    }

    /// Writes the next packet, carrying out local operations on the way. `None` if a part of a
    /// message is next.
    pub(crate) fn poll(
        &mut self,
        sq: &mut SendQueue,
        cut: Cut,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<Option<Transmit>, Broken> {
        // Bounded: each round sends and returns, or passes one local request of the queue.
        while self.wants_requests(sq) && !self.has_message(sq) {
            match step(sq, cut, cx, host, buf) {
                Ok(step) => {
                    self.passed(sq, cx, host);
                    let Some((sent, mbps)) = step else { continue };
                    let mbps = if cut.is_near { 0 } else { mbps };
                    if mbps != 0 || self.controller.may_pace() {
                        let sent = Sent { packets: 1, bytes: sent.len as u32, again: false };
                        self.pay(sent, mbps, cx.now);
                    }
                    return Ok(Some(sent));
                }
                Err(fault) => {
                    fail(sq, cx, fault, host);
                    return Err(Broken::SendQueue);
                }
            }
        }
        Ok(None)
    }

    /// Writes the payload of the next part of a message. `None` if something else is next.
    #[inline]
    pub(crate) fn poll_message(
        &mut self,
        sq: &mut SendQueue,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<Option<MessagePart>, Broken> {
        if !self.has_message(sq) {
            return Ok(None);
        }
        match write_part(sq, cx, host, buf) {
            Ok(part) => {
                self.passed(sq, cx, host);
                if let Some(part) = part.filter(|_| self.controller.may_pace()) {
                    let (packets, bytes) = (part.packets(), part.length);
                    self.pay(Sent { packets, bytes, again: false }, 0, cx.now);
                }
                Ok(part)
            }
            Err(fault) => {
                fail(sq, cx, fault, host);
                Err(Broken::SendQueue)
            }
        }
    }

    /// Completes every request still queued as flushed.
    pub(crate) fn flush(&mut self, sq: &mut SendQueue, cx: &Cx<'_>, host: &mut impl Host) {
        (self.gate, self.hold, self.drain_event_due) = (Gate::empty(), None, false);
        while let Some(entry) = sq.pop() {
            let code = Cause::Flushed.vendor_err();
            host.complete_send(completion(&entry, cx, WcStatus::Flushed, code));
        }
    }
}

/// Gives the request at the cursor its sequence numbers.
pub(crate) fn start(sq: &mut SendQueue, mtu: u32) {
    if let Some((_, entry)) = sq.at_cursor() {
        let packets = if entry.is_local() { 0 } else { packet_count(entry.wqe.length, mtu) };
        sq.start(packets);
    }
}

/// Sends one packet of the request at the cursor, or carries it out if it is a local one. Returns
/// the packet, and its static rate in Mb/s, 0 for none.
fn step(
    sq: &mut SendQueue,
    cut: Cut,
    cx: &mut Cx<'_>,
    host: &mut impl Host,
    buf: &mut [u8],
) -> Result<Option<(Transmit, u32)>, AccessFault> {
    let Some((index, &entry)) = sq.at_cursor() else { return Ok(None) };
    if !sq.cursor_is_started() {
        start(sq, cut.mtu);
    }
    if entry.is_local() {
        host.local_op(&entry.wqe)?;
        sq.advance(0);
        return Ok(None);
    }
    let entry = *sq.entry(index);
    let packet = (sq.next() - entry.first) as u32;
    let offset = packet * cut.mtu;
    let segment = Segment {
        service: cut.service,
        wqe: &entry.wqe,
        slot: sq.slot(index),
        psn: sq.psn(sq.next()),
        dest: entry.wqe.dest.map_or(cut.peer, |dest| dest.qpn),
        offset,
        length: (entry.wqe.length - offset).min(cut.mtu),
        position: Position::of(packet, entry.packets),
        ack_req: false,
        asks_kept: false,
    };
    let len = segment.write(cx, host, buf)?;
    cx.counters.tx_packets += 1;
    cx.counters.tx_bytes += len as u64;
    cx.counters.messages_sent += u64::from(segment.position.ends());
    sq.advance(1);
    let (ah, mbps) = entry.wqe.dest.map_or((None, 0), |dest| (Some(dest.ah), dest.rate_mbps));
    Ok(Some((Transmit { len, ah }, mbps)))
}

/// Writes as much of the SEND at the cursor as `buf` holds, as a part of a message.
#[inline]
fn write_part(
    sq: &mut SendQueue,
    cx: &mut Cx<'_>,
    host: &mut impl Host,
    buf: &mut [u8],
) -> Result<Option<MessagePart>, AccessFault> {
    let mtu = cx.attr.path_mtu;
    if !sq.cursor_is_started() {
        start(sq, mtu.bytes());
    }
    let Some((index, entry)) = sq.at_cursor() else { return Ok(None) };
    let offset = (sq.next() - entry.first) as u32 * mtu.bytes();
    let length = part_length(entry.wqe.length - offset, buf.len(), mtu);
    host.gather(sq.slot(index), offset, &mut buf[..length as usize])?;
    let part = MessagePart::of(&entry.wqe, sq.psn(sq.next()), (offset, length), mtu);
    let packets = part.packets();
    cx.counters.tx_packets += u64::from(packets);
    cx.counters.tx_bytes += u64::from(length);
    cx.counters.messages_sent += u64::from(part.ends);
    sq.advance(packets);
    Ok(Some(part))
}

/// The request at the head met a local error: everything before it is complete.
fn fail(sq: &mut SendQueue, cx: &Cx<'_>, fault: AccessFault, host: &mut impl Host) {
    let psn = sq.psn(sq.next());
    let Some(entry) = sq.pop() else { return };
    let (status, cause) = (local_status(&entry), Cause::LocalMemory(fault));
    host.failure(Failure { status, wr_id: Some(entry.wqe.wr_id), psn, cause });
    host.complete_send(completion(&entry, cx, status, cause.vendor_err()));
}

fn local_status(entry: &Entry) -> WcStatus {
    match entry.wqe.op {
        SendOp::BindMw(_) => WcStatus::MwBind,
        SendOp::LocalInv(_) => WcStatus::LocalQpOperation,
        _ => WcStatus::LocalProtection,
    }
}
