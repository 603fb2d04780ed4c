//! Unreliable datagram (IBTA 9.8.3): messages of one packet, each to its own destination.
//!
//! Owns the receive that waits for a datagram; sends through [`Sender`]. Called by
//! [`Qp`](crate::Qp).
//!
//! A datagram longer than the receive behind its 40-byte GRH area is dropped and the receive waits
//! for the next one (IBTA 9.9.3, class D: an unreliable request never harms its receiver's queue
//! pair; Linux rxe does the same). It is seen in the drop counter "length".

use vernic_wire::{Mtu, Packet, Psn, Service};

use crate::completion::Completion;
use crate::congestion::{Controller, Limit};
use crate::cx::{Cx, QpInit};
use crate::disposition::{Disposition, DropReason};
use crate::error::{AccessFault, PostError};
use crate::host::{Host, RxMeta, Transmit};
use crate::inbound::{fail_receive, recv_completion, tag_of};
use crate::outbound::{Cut, Sender};
use crate::sq::SendQueue;
use crate::state::QpAttr;
use crate::time::Time;
use crate::transport::{Broken, Transport, check_length};
use crate::wqe::{MAX_MESSAGE, RecvWqe, SendWqe, UdDest};

/// Bytes before the payload in every receive, for a GRH (IBTA 11.4.1.2).
const GRH_AREA: u32 = 40;

/// The machine of a UD queue pair.
#[derive(Debug)]
pub(crate) struct Ud {
    sq: SendQueue,
    sender: Sender,
    /// Datagrams go through memory, and have no static rate there.
    is_near: bool,
    /// The receive taken and not completed.
    current: Option<RecvWqe>,
}

impl Ud {
    pub(crate) fn new(init: &QpInit) -> Self {
        Self {
            sq: SendQueue::new(init.max_send_wr),
            sender: Sender::new(Controller::unpaced()),
            is_near: false,
            current: None,
        }
    }
}

impl Transport for Ud {
    fn send_queue(&self) -> &SendQueue {
        &self.sq
    }

    fn send_queue_mut(&mut self) -> &mut SendQueue {
        &mut self.sq
    }

    fn reset(&mut self) {
        self.sq.reset(Psn::new(0));
        self.sender.reset();
        self.current = None;
    }

    /// Datagrams have no sequence to expect.
    fn start_responder(&mut self, _attr: &QpAttr) {}

    fn start_requester(&mut self, attr: &QpAttr) {
        self.sq.set_first_psn(attr.sq_psn);
    }

    fn set_draining(&mut self, draining: bool, event: bool, host: &mut impl Host) {
        self.sender.set_draining(&self.sq, draining, event, host);
    }

    fn wants_requests(&self, _: &QpAttr) -> bool {
        self.sender.wants_requests(&self.sq)
    }

    /// Writes the next datagram. Its length was checked against the port's MTU when it was posted.
    fn poll_request(
        &mut self,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<Option<Transmit>, Broken> {
        let (peer, is_near) = (cx.attr.dest_qpn, self.is_near);
        let cut = Cut { service: Service::Ud, mtu: MAX_MESSAGE, peer, is_near };
        self.sender.poll(&mut self.sq, cut, cx, host, buf)
    }

    /// Datagrams are no messages, whichever way they go.
    #[inline]
    fn set_messages(&mut self, are_sent: bool) {
        self.is_near = are_sent;
    }

    fn set_limit(&mut self, limit: Option<Limit>, now: Time) {
        self.sender.set_limit(limit, now);
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
        host.flush_recv(self.current.take());
    }

    fn next_dest(&self) -> Option<UdDest> {
        self.sq.at_cursor().and_then(|(_, entry)| entry.wqe.dest)
    }

    fn check_post(&self, wqe: &SendWqe, _: &QpAttr, port_mtu: Mtu) -> Result<(), PostError> {
        check_length(wqe, port_mtu.bytes())?;
        if wqe.dest.is_none() { Err(PostError::NoDestination) } else { Ok(()) }
    }

    /// Handles a datagram. [`Disposition::Nak`] stands for a fatal error of the receive; nothing is
    /// sent.
    fn handle_packet(
        &mut self,
        cx: &mut Cx<'_>,
        packet: &Packet<'_>,
        meta: &RxMeta,
        host: &mut impl Host,
    ) -> Result<Disposition, Broken> {
        let Some(deth) = packet.deth() else {
            return Ok(Disposition::Drop(DropReason::Malformed));
        };
        if deth.qkey != cx.attr.qkey {
            return Ok(Disposition::Drop(DropReason::Qkey));
        }
        self.current = self.current.or_else(|| host.take_recv());
        let Some(recv) = self.current else {
            return Ok(Disposition::Drop(DropReason::NoReceive));
        };
        let byte_len = GRH_AREA + packet.payload().len() as u32;
        if u64::from(byte_len) > recv.capacity {
            return Ok(Disposition::Drop(DropReason::Length));
        }
        self.current = None;
        if let Err(fault) = place(packet, meta, host) {
            let completion = recv_completion(cx, recv, packet);
            return Ok(fail_receive(packet.psn(), Some(completion), fault, host));
        }
        host.complete_recv(Completion {
            byte_len,
            tag: tag_of(packet),
            src_qpn: deth.src_qpn,
            grh: meta.grh.is_some(),
            route: meta.route,
            ..recv_completion(cx, recv, packet)
        });
        cx.counters.messages_received += 1;
        Ok(Disposition::Accepted)
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
