//! The send side of the unreliable services: each request is cut into packets and complete when its
//! last one has been handed out (IBTA 9.8.3).
//!
//! Used by `uc` and `ud`; the queue itself is a [`SendQueue`] whose `una` follows `next`. A local
//! error completes its request and stops the queue: the owner moves the queue pair to SQE
//! (IBTA 10.3.1.5).

use vernic_wire::{Position, Qpn, Service};

use crate::cx::Cx;
use crate::error::{AccessFault, Cause, Failure, WcStatus};
use crate::event::QpEvent;
use crate::host::{Host, Transmit};
use crate::message::{MessagePart, part_length};
use crate::segment::{Segment, packet_count};
use crate::send_completion::{completion, retire};
use crate::sq::{Entry, SendQueue};
use crate::transport::Broken;
use crate::wqe::SendOp;

/// What the send side knows beside its queue.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// Requests not yet started stay where they are: SQD.
    draining: bool,
    /// The drained event of SQD is still owed.
    drain_event_due: bool,
    /// Whether SENDs leave as parts of messages.
    sends_messages: bool,
}

/// How the packets of a service are made.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) service: Service,
    /// Payload bytes of a packet, at most.
    pub(crate) mtu: u32,
    /// The connected peer; a datagram's own destination comes first.
    pub(crate) peer: Qpn,
}

impl Sender {
    /// RTS to SQD, or back.
    pub(crate) fn set_draining(
        &mut self,
        sq: &SendQueue,
        draining: bool,
        event: bool,
        host: &mut impl Host,
    ) {
        self.draining = draining;
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
        self.draining
    }

    /// Whether [`poll`](Self::poll) would send or carry out something.
    pub(crate) fn wants_requests(&self, sq: &SendQueue) -> bool {
        sq.at_cursor().is_some() && (!self.draining || sq.cursor_is_started()) && !sq.is_direct()
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
                Ok(sent) => {
                    self.passed(sq, cx, host);
                    if sent.is_some() {
                        return Ok(sent);
                    }
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
        *self = Self { sends_messages: self.sends_messages, ..Self::default() };
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

/// Sends one packet of the request at the cursor, or carries it out if it is a local one.
fn step(
    sq: &mut SendQueue,
    cut: Cut,
    cx: &mut Cx<'_>,
    host: &mut impl Host,
    buf: &mut [u8],
) -> Result<Option<Transmit>, AccessFault> {
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
    Ok(Some(Transmit { len, ah: entry.wqe.dest.map(|dest| dest.ah) }))
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
