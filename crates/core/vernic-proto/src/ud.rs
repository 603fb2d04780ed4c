//! Unreliable datagram (IBTA 9.8.3): messages of one packet, each to its own destination.
//!
//! Owns the receive that waits for a datagram; sends through [`Sender`]. Called by
//! [`Qp`](crate::Qp).
//!
//! A datagram longer than the receive behind its 40-byte GRH area is dropped and the receive waits
//! for the next one (IBTA 9.9.3, class D: an unreliable request never harms its receiver's queue
//! pair; Linux rxe does the same). It is seen in the drop counter "length".

use vernic_wire::{Packet, Psn, Service};

use crate::completion::Completion;
use crate::cx::{Cx, QpInit};
use crate::disposition::{Disposition, DropReason};
use crate::error::AccessFault;
use crate::host::{Host, RxMeta, Transmit};
use crate::inbound::{fail_receive, recv_completion, tag_of};
use crate::outbound::{Cut, Sender};
use crate::sq::SendQueue;
use crate::state::QpAttr;
use crate::wqe::{MAX_MESSAGE, RecvWqe};

/// Bytes before the payload in every receive, for a GRH (IBTA 11.4.1.2).
const GRH_AREA: u32 = 40;

/// The machine of a UD queue pair.
#[derive(Debug)]
pub(crate) struct Ud {
    pub(crate) sq: SendQueue,
    sender: Sender,
    /// The receive taken and not completed.
    current: Option<RecvWqe>,
}

impl Ud {
    pub(crate) fn new(init: &QpInit) -> Self {
        Self { sq: SendQueue::new(init.max_send_wr), sender: Sender::default(), current: None }
    }

    pub(crate) fn reset(&mut self) {
        self.sq.reset(Psn::new(0));
        self.sender = Sender::default();
        self.current = None;
    }

    /// Init to RTR: datagrams have no sequence to expect.
    pub(crate) fn start_responder(&mut self, _attr: &QpAttr) {}

    /// RTR to RTS.
    pub(crate) fn start_requester(&mut self, attr: &QpAttr) {
        self.sq.set_first_psn(attr.sq_psn);
    }

    /// RTS to SQD, or back.
    pub(crate) fn set_draining(&mut self, draining: bool, event: bool, host: &mut impl Host) {
        self.sender.set_draining(&self.sq, draining, event, host);
    }

    /// Whether nothing started is left in the send queue.
    pub(crate) fn is_drained(&self) -> bool {
        self.sq.is_drained()
    }

    /// Whether [`poll_request`](Self::poll_request) has something to do.
    pub(crate) fn wants_requests(&self) -> bool {
        self.sender.wants_requests(&self.sq)
    }

    /// Writes the next datagram; the flag says that the queue pair is to enter SQE. Its length was
    /// checked against the port's MTU when it was posted.
    pub(crate) fn poll_request(
        &mut self,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> (Option<Transmit>, bool) {
        let cut = Cut { service: Service::Ud, mtu: MAX_MESSAGE, peer: cx.attr.dest_qpn };
        self.sender.poll(&mut self.sq, cut, cx, host, buf)
    }

    /// Completes every send request still queued as flushed.
    pub(crate) fn flush_send(&mut self, cx: &Cx<'_>, host: &mut impl Host) {
        self.sender.flush(&mut self.sq, cx, host);
    }

    /// Completes everything still queued, on both queues, as flushed.
    pub(crate) fn flush(&mut self, cx: &Cx<'_>, host: &mut impl Host) {
        self.flush_send(cx, host);
        host.flush_recv(self.current.take());
    }

    /// Handles a datagram. [`Disposition::Nak`] stands for a fatal error of the receive; nothing is
    /// sent.
    pub(crate) fn handle_packet(
        &mut self,
        cx: &mut Cx<'_>,
        packet: &Packet<'_>,
        meta: &RxMeta,
        host: &mut impl Host,
    ) -> Disposition {
        let Some(deth) = packet.deth() else {
            return Disposition::Drop(DropReason::Malformed);
        };
        if deth.qkey != cx.attr.qkey {
            return Disposition::Drop(DropReason::Qkey);
        }
        self.current = self.current.or_else(|| host.take_recv());
        let Some(recv) = self.current else {
            return Disposition::Drop(DropReason::NoReceive);
        };
        let byte_len = GRH_AREA + packet.payload().len() as u32;
        if u64::from(byte_len) > recv.capacity {
            return Disposition::Drop(DropReason::Length);
        }
        self.current = None;
        if let Err(fault) = place(packet, meta, host) {
            return fail_receive(cx, packet, Some(recv), fault, host);
        }
        host.complete_recv(Completion {
            byte_len,
            tag: tag_of(packet),
            src_qpn: deth.src_qpn,
            grh: true,
            sl: meta.sl,
            ..recv_completion(cx, recv, packet)
        });
        cx.counters.messages_received += 1;
        Disposition::Accepted
    }
}

/// Stores the GRH area, zeros if there is none, and the payload behind it.
fn place(packet: &Packet<'_>, meta: &RxMeta, host: &mut impl Host) -> Result<(), AccessFault> {
    host.scatter_recv(0, &meta.grh.unwrap_or([0; GRH_AREA as usize]))?;
    let payload = packet.payload();
    if payload.is_empty() { Ok(()) } else { host.scatter_recv(u64::from(GRH_AREA), payload) }
}

#[cfg(test)]
mod tests;
