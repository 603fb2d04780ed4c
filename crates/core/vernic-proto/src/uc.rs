//! Unreliable connection (IBTA 9.8.2): SEND and WRITE in packets, nothing acknowledged.
//!
//! Owns the expected sequence number, the message in progress and the receive that it fills; sends
//! through [`Sender`]. Called by [`Qp`](crate::Qp).
//!
//! A message that misses a packet, or breaks a rule, is dropped whole: the receive it had taken
//! stays the current one and is filled by the next message; of a WRITE, packets before the fault
//! have been stored. The next first or only packet restarts the sequence. That holds for a message
//! too long for its receive as well (IBTA 9.9.3, class D); the receiver sees it in the drop
//! counters. All that holds for parts of messages ([`MessagePart`]), which count as the packets
//! that they stand for.
//!
//! With the congestion control `dcqcn` requests leave at the rate that follows notifications of the
//! peer (IBTA A17.9). There is no window: nothing tells what has arrived.
//!
//! Since nobody hears of a WRITE that is refused, keys could be tried at the rate of the link. So
//! more than [`FORGIVEN_KEYS`] wrong ones within a second end the connection, as the first one does
//! that of RC.

use vernic_wire::{Packet, Psn, Service};

use crate::completion::{Completion, Tag};
use crate::congestion::{Controller, Limit};
use crate::cx::{Cx, QpInit};
use crate::direct::{self, Direct};
use crate::disposition::{Disposition, DropReason};
use crate::error::{AccessCheck, AccessFault, Cause, ErrorClass, Failure};
use crate::event::QpEvent;
use crate::host::{Host, RxMeta, Transmit};
use crate::inbound::{
    Message, Target, fail_receive, recv_completion, send_completion, send_fits, tag_of,
    takes_receive,
};
use crate::message::MessagePart;
use crate::outbound::{Cut, Sender, start};
use crate::sq::SendQueue;
use crate::state::{QpAttr, QpState};
use crate::time::Time;
use crate::transport::{Broken, Transport};
use crate::wqe::RecvWqe;

/// Wrong keys within [`FORGIVING_NANOS`] that are merely dropped: as many as a peer has under way
/// that has not heard yet that a region is gone. 2^32 keys take two years at that rate.
const FORGIVEN_KEYS: u32 = 64;
const FORGIVING_NANOS: u64 = 1_000_000_000;

/// The machine of a UC queue pair.
#[derive(Debug)]
pub(crate) struct Uc {
    sq: SendQueue,
    sender: Sender,
    /// Number of the next packet.
    expected: Psn,
    message: Message,
    /// The receive taken and not completed.
    current: Option<RecvWqe>,
    /// The communication-established event has been raised.
    established: bool,
    /// Wrong keys since then, which is at most [`FORGIVING_NANOS`] before the last of them.
    wrong_keys: (u32, Time),
}

/// Packets that a sender may have lost while it changed its port and still be believed: as many as
/// a window of RC has. Of all numbers it is one in 16,384.
const NEAR: u32 = 1024;

/// Why a packet was not accepted: a dropped message, one by its key, or an error of the receive
/// itself.
enum Refused {
    Drop(DropReason),
    Key(AccessFault),
    Receive(AccessFault),
}

impl Uc {
    pub(crate) fn new(init: &QpInit, controller: Controller) -> Self {
        Self {
            sq: SendQueue::new(init.max_send_wr),
            sender: Sender::new(controller.without_answers()),
            expected: Psn::new(0),
            message: Message::None,
            current: None,
            established: false,
            wrong_keys: (0, Time(0)),
        }
    }
}

impl Transport for Uc {
    fn send_queue(&self) -> &SendQueue {
        &self.sq
    }

    fn send_queue_mut(&mut self) -> &mut SendQueue {
        &mut self.sq
    }

    fn reset(&mut self) {
        self.sq.reset(Psn::new(0));
        self.sender.reset();
        self.message = Message::None;
        self.current = None;
        self.established = false;
        self.wrong_keys = (0, Time(0));
    }

    fn start_responder(&mut self, attr: &QpAttr) {
        self.expected = attr.rq_psn;
    }

    fn start_requester(&mut self, attr: &QpAttr) {
        self.sq.set_first_psn(attr.sq_psn);
    }

    fn set_draining(&mut self, draining: bool, event: bool, host: &mut impl Host) {
        self.sender.set_draining(&self.sq, draining, event, host);
    }

    fn wants_requests(&self, _: &QpAttr) -> bool {
        self.sq.is_direct() || self.sender.wants_requests(&self.sq)
    }

    fn finish_direct(&mut self, cx: &Cx<'_>, host: &mut impl Host) {
        self.sq.finish_direct();
        self.sender.passed(&mut self.sq, cx, host);
    }

    fn start_in_packets(&mut self, mtu: u32) {
        self.sq.set_direct(None);
        start(&mut self.sq, mtu);
    }

    #[inline]
    fn set_messages(&mut self, are_sent: bool) {
        self.sender.set_messages(are_sent);
    }

    #[inline]
    fn has_message(&self, _: &QpAttr) -> bool {
        self.sender.has_message(&self.sq)
    }

    #[inline]
    fn poll_message(
        &mut self,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<Option<(MessagePart, usize)>, Broken> {
        let sent = self.sender.poll_message(&mut self.sq, cx, host, buf)?;
        Ok(sent.map(|part| (part, part.length as usize)))
    }

    fn poll_request(
        &mut self,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<Option<Transmit>, Broken> {
        let (mtu, peer) = (cx.attr.path_mtu.bytes(), cx.attr.dest_qpn);
        let cut = Cut { service: Service::Uc, mtu, peer, is_near: false };
        self.sender.poll(&mut self.sq, cut, cx, host, buf)
    }

    fn handle_cnp(&mut self, now: Time) {
        self.sender.handle_cnp(now);
    }

    fn set_limit(&mut self, limit: Option<Limit>, now: Time) {
        self.sender.set_limit(limit, now);
    }

    fn set_exempt(&mut self, is_exempt: bool) {
        self.sender.set_exempt(is_exempt);
    }

    fn next_deadline(&self) -> Option<Time> {
        self.sender.deadline()
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>, _: &mut impl Host) -> Result<(), Broken> {
        self.sender.handle_timeout(cx.now);
        Ok(())
    }

    fn flush_send(&mut self, cx: &Cx<'_>, host: &mut impl Host) {
        self.sender.flush(&mut self.sq, cx, host);
    }

    fn flush(&mut self, cx: &Cx<'_>, host: &mut impl Host) {
        self.flush_send(cx, host);
        self.message = Message::None;
        host.flush_recv(self.current.take());
    }

    /// Handles a packet of this service. [`Disposition::Nak`] stands for a fatal error; nothing is
    /// sent.
    fn handle_packet(
        &mut self,
        cx: &mut Cx<'_>,
        packet: &Packet<'_>,
        _meta: &RxMeta,
        host: &mut impl Host,
    ) -> Result<Disposition, Broken> {
        self.begin(cx, host);
        self.follow_sequence(packet.psn(), 1);
        let result = self
            .check_op_seq(packet)
            .and_then(|()| self.check_resource(packet, host))
            .and_then(|()| self.check_length(cx, packet))
            .and_then(|()| check_rkey(cx, packet, host))
            .and_then(|()| self.execute(packet, host));
        Ok(match result {
            Ok(()) => self.complete(cx, packet, host),
            Err(Refused::Drop(reason)) => {
                self.message = Message::None;
                Disposition::Drop(reason)
            }
            Err(Refused::Key(fault)) => self.refuse_key(cx, packet, fault, host),
            Err(Refused::Receive(fault)) => self.fail(cx, packet, fault, host),
        })
    }

    /// A rendezvous is refused: a sender's memory is its own again before the receiver could copy.
    fn handle_message(
        &mut self,
        cx: &mut Cx<'_>,
        part: &MessagePart,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Disposition {
        if part.srqn.is_some() {
            return Disposition::Drop(DropReason::WrongService);
        }
        if part.is_rendezvous {
            return Disposition::Drop(DropReason::RendezvousRefused);
        }
        // The service has no such SEND.
        if matches!(part.tag, Tag::Invalidated(_)) {
            return Disposition::Drop(DropReason::Malformed);
        }
        self.begin(cx, host);
        self.follow_sequence(part.psn, part.packets());
        match self.take_part(cx, part, payload, host) {
            Ok(()) => {
                self.complete_part(cx, part, host);
                Disposition::Accepted
            }
            Err(Refused::Drop(reason)) => {
                self.message = Message::None;
                Disposition::Drop(reason)
            }
            Err(Refused::Key(fault) | Refused::Receive(fault)) => {
                let complete = |recv| send_completion(cx, recv, part.solicited);
                let completion = self.current.take().map(complete);
                self.message = Message::None;
                fail_receive(part.psn, completion, fault, host)
            }
        }
    }

    /// Any number is taken, but one of the next few is asked for: as many as [`NEAR`] behind the
    /// next, which were lost.
    fn is_credible(&self, packet: &Packet<'_>) -> bool {
        packet.psn().distance_from(self.expected) <= NEAR
    }

    #[inline]
    fn next_direct(&self) -> Option<Direct> {
        direct::next(&self.sq, self.sender.is_draining())
    }
}

impl Uc {
    /// A WRITE by a key that opens nothing is dropped; by too many of them soon after each other,
    /// everything ends.
    #[cold]
    fn refuse_key(
        &mut self,
        cx: &Cx<'_>,
        packet: &Packet<'_>,
        fault: AccessFault,
        host: &mut impl Host,
    ) -> Disposition {
        self.message = Message::None;
        let (count, since) = &mut self.wrong_keys;
        if cx.now.since(*since) >= FORGIVING_NANOS {
            (*count, *since) = (0, cx.now);
        }
        *count += 1;
        if *count <= FORGIVEN_KEYS {
            return Disposition::Drop(DropReason::AccessRefused);
        }
        let class = ErrorClass::RemoteAccess;
        let row = class.row();
        let cause = Cause::Responder { class, fault: Some(fault) };
        host.failure(Failure { status: row.recv_status, wr_id: None, psn: packet.psn(), cause });
        if let Some(event) = row.event {
            host.event(event);
        }
        Disposition::Nak(class)
    }

    /// The first packet in RTR tells that the peer is connected.
    #[inline]
    fn begin(&mut self, cx: &Cx<'_>, host: &mut impl Host) {
        if cx.attr.state == QpState::Rtr && !self.established {
            host.event(QpEvent::CommEstablished);
        }
        self.established = true;
    }

    /// A gap breaks the message in progress; the start of one sets the sequence (IBTA 9.8.2.2.1).
    /// What came takes so many numbers from `psn` on.
    #[inline]
    fn follow_sequence(&mut self, psn: Psn, numbers: u32) {
        if psn != self.expected {
            self.message = Message::None;
        }
        self.expected = psn.add(numbers);
    }

    /// Checks a part as its packets would be checked, and places its payload.
    #[inline]
    fn take_part(
        &mut self,
        cx: &Cx<'_>,
        part: &MessagePart,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Result<(), Refused> {
        let received = match self.message {
            _ if part.starts => 0,
            Message::Send { received } => received,
            Message::None | Message::Write { .. } => {
                return Err(Refused::Drop(DropReason::MessageBroken));
            }
        };
        if part.starts {
            self.current = self.current.or_else(|| host.take_recv());
        }
        let recv = self.current.ok_or(Refused::Drop(DropReason::NoReceive))?;
        if !part.has_fitting_length(cx.attr.path_mtu)
            || !send_fits(received, part.length, recv.capacity)
        {
            return Err(Refused::Drop(DropReason::Length));
        }
        self.message = Message::Send { received: received + part.length };
        if payload.is_empty() {
            return Ok(());
        }
        host.scatter_recv(u64::from(received), payload).map_err(Refused::Receive)
    }

    /// At the end of the message, its receive completes.
    #[inline]
    fn complete_part(&mut self, cx: &mut Cx<'_>, part: &MessagePart, host: &mut impl Host) {
        if !part.ends {
            return;
        }
        let message = core::mem::replace(&mut self.message, Message::None);
        if let (Message::Send { received: byte_len }, Some(recv)) = (message, self.current.take()) {
            let completion = send_completion(cx, recv, part.solicited);
            host.complete_recv(Completion { byte_len, tag: part.tag, ..completion });
        }
        cx.counters.messages_received += 1;
    }

    /// A start is always taken: what it cuts off is abandoned (IBTA 9.8.2.2.2).
    fn check_op_seq(&mut self, packet: &Packet<'_>) -> Result<(), Refused> {
        let info = packet.info();
        if info.position.starts() {
            self.message = Message::None;
        }
        if info.is_request() && self.message.admits(info.kind, info.position) {
            Ok(())
        } else {
            Err(Refused::Drop(DropReason::MessageBroken))
        }
    }

    fn check_resource(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<(), Refused> {
        if !takes_receive(packet) {
            return Ok(());
        }
        self.current = self.current.or_else(|| host.take_recv());
        self.current.map(|_| ()).ok_or(Refused::Drop(DropReason::NoReceive))
    }

    fn check_length(&self, cx: &Cx<'_>, packet: &Packet<'_>) -> Result<(), Refused> {
        let capacity = self.current.map_or(0, |recv| recv.capacity);
        self.message
            .check_length(packet, cx.attr.path_mtu.bytes(), capacity)
            .map_err(|_| Refused::Drop(DropReason::Length))
    }

    fn execute(&self, packet: &Packet<'_>, host: &mut impl Host) -> Result<(), Refused> {
        let payload = packet.payload();
        match self.message.at(packet) {
            _ if payload.is_empty() => Ok(()),
            Message::None => Err(Refused::Drop(DropReason::MessageBroken)),
            Message::Send { received } => {
                host.scatter_recv(u64::from(received), payload).map_err(Refused::Receive)
            }
            Message::Write { rkey, addr, .. } => host
                .write_remote(rkey, addr, payload)
                .map_err(|_| Refused::Drop(DropReason::AccessRefused)),
        }
    }

    /// At the end of a message that takes one, the receive completes. A WRITE without immediate
    /// data leaves a receive alone that an earlier, broken message had taken.
    fn complete(
        &mut self,
        cx: &mut Cx<'_>,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Disposition {
        if packet.info().position.ends() {
            let is_send = matches!(self.message.at(packet), Message::Send { .. });
            if (is_send || takes_receive(packet))
                && let Some(recv) = self.current.take()
            {
                let (byte_len, tag) = (self.message.total(packet), tag_of(packet));
                let completion = recv_completion(cx, recv, packet);
                host.complete_recv(Completion { byte_len, tag, ..completion });
            }
            cx.counters.messages_received += 1;
        }
        self.message = self.message.after(packet);
        Disposition::Accepted
    }

    /// The receive's own scatter list is invalid: it completes in error, and so does everything.
    fn fail(
        &mut self,
        cx: &Cx<'_>,
        packet: &Packet<'_>,
        fault: AccessFault,
        host: &mut impl Host,
    ) -> Disposition {
        self.message = Message::None;
        let completion = self.current.take().map(|recv| recv_completion(cx, recv, packet));
        fail_receive(packet.psn(), completion, fault, host)
    }
}

/// Rights of the queue pair, then key, range and rights of the region; zero bytes need no key.
fn check_rkey(cx: &Cx<'_>, packet: &Packet<'_>, host: &mut impl Host) -> Result<(), Refused> {
    use AccessCheck as C;
    let Some(target) = Target::of(packet) else { return Ok(()) };
    target.check_qp_rights(cx.attr.access).and_then(|()| target.check_region(host)).map_err(
        |fault| match fault.check {
            // Whoever knows the key has no need to guess.
            C::QpRights | C::Rights | C::Bounds => Refused::Drop(DropReason::AccessRefused),
            _ => Refused::Key(fault),
        },
    )
}

#[cfg(test)]
mod tests;
