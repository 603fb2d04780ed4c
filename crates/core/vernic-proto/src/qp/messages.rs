//! SENDs of connections (RC, XRC, UC) that travel without packets, to a process of this host
//! ([`MessagePart`]).
//!
//! The owner says with [`Qp::set_messages`] that the peer is reached through memory that loses
//! nothing. From then on SENDs that were not sent before leave by [`Qp::poll_message`], in their
//! turn among the packets of [`Qp::poll_request`], and [`Qp::handle_message`] takes those of the
//! peer. A part carries the acknowledgement that is due in the other direction
//! ([`Qp::take_ack`], [`Qp::handle_ack`]).

use super::Qp;
use super::machine::{Machine, each};
use crate::cx::Cx;
use crate::disposition::{Disposition, DropReason};
use crate::host::Host;
use crate::message::{MessagePart, PartAck, RendezvousLimits};
use crate::state::{QpState, QpType};
use crate::time::Time;
use crate::transport::Transport;
use vernic_wire::AethCode;

impl Qp {
    /// Says whether SENDs leave as parts of messages, until it is said anew. They do not at first,
    /// and never on UD, or where an alternate path was armed, or the rate is limited. What is sent
    /// again leaves in packets all the same.
    ///
    /// It also says which way requests go: through memory if messages may be sent, else by the
    /// link, for which alone static rates are.
    #[inline]
    pub fn set_messages(&mut self, are_sent: bool) {
        if self.needs.is_empty() {
            each!(&mut self.machine, m => m.set_messages(are_sent));
        } else {
            self.set_messages_if_free(are_sent);
        }
    }

    /// Says which payload of SENDs the peer copies out of this process's memory, until it is said
    /// anew; none at first.
    #[inline]
    pub fn set_rendezvous(&mut self, limits: Option<RendezvousLimits>) {
        each!(&mut self.machine, m => m.set_rendezvous(limits));
    }

    /// Bytes of the SEND of RC or XRC that is sent next; 0 if it is none.
    #[inline]
    pub fn next_send_bytes(&self) -> u32 {
        each!(&self.machine, m => m.next_send_bytes())
    }

    /// Whether all that was posted is sent or carried out, and no probe is to leave: neither
    /// [`poll_message`](Self::poll_message) nor [`poll_request`](Self::poll_request) has anything
    /// to do. Cheaper than [`wants_requests`](Self::wants_requests), which knows what holds the
    /// next request back.
    #[inline]
    pub fn has_sent_all(&self) -> bool {
        let sends = matches!(self.attr.state, QpState::Rts | QpState::Sqd);
        sends && each!(&self.machine, m => !m.is_probing() && m.send_queue().at_cursor().is_none())
    }

    /// Whether [`poll_message`](Self::poll_message) has something to send.
    #[inline]
    pub fn has_message(&self) -> bool {
        let sends = matches!(self.attr.state, QpState::Rts | QpState::Sqd);
        sends && each!(&self.machine, m => m.has_message(&self.attr))
    }

    /// Writes the payload of the next part of a message into `buf`, which holds the path MTU, or
    /// where that payload lies. Returns the part and the bytes written. `None` if a packet is next,
    /// or nothing: see [`poll_request`](Self::poll_request), which sends no part.
    #[inline]
    pub fn poll_message(
        &mut self,
        now: Time,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Option<(MessagePart, usize)> {
        if !matches!(self.attr.state, QpState::Rts | QpState::Sqd) {
            return None;
        }
        let cx = cx!(self, now);
        match each!(&mut self.machine, m => m.poll_message(cx, host, buf)) {
            Ok(sent) => sent,
            Err(broken) => {
                self.stop_for(broken, now, host);
                None
            }
        }
    }

    /// Takes the positive acknowledgement that is due, for the part that leaves now to carry.
    /// Returns `None` if none is due, or something else is to be answered before it: see
    /// [`poll_response`](Self::poll_response). Only where answers take the way of the part.
    #[inline]
    pub fn take_ack(&mut self, now: Time, host: &mut impl Host) -> Option<PartAck> {
        if self.needs.packets() {
            return None;
        }
        let cx = cx!(self, now);
        each!(&mut self.machine, m => m.take_ack(cx, host))
    }

    /// Handles an acknowledgement that came with a part of a message: before the part, and as an
    /// ACK packet. The owner has verified that the connected peer has sent it.
    #[inline]
    pub fn handle_ack(&mut self, now: Time, ack: PartAck, host: &mut impl Host) -> Disposition {
        if self.init.qp_type != QpType::Rc {
            return Disposition::Drop(DropReason::WrongService);
        }
        if !self.takes(false) {
            return Disposition::Drop(DropReason::BadState);
        }
        if !matches!(ack.aeth.syndrome.decode(), AethCode::Ack { .. }) {
            return Disposition::Drop(DropReason::Malformed);
        }
        let cx = cx!(self, now);
        match each!(&mut self.machine, m => m.handle_ack(cx, ack, host)) {
            Ok(Disposition::Duplicate) => {
                self.counters.duplicates_received += 1;
                Disposition::Duplicate
            }
            Ok(disposition) => disposition,
            Err(broken) => {
                self.stop_for(broken, now, host);
                Disposition::Accepted
            }
        }
    }

    /// Handles a part of a message whose destination is this queue pair. The owner has verified
    /// that the connected peer has sent it. `payload` is the part's payload, empty for a
    /// rendezvous.
    pub fn handle_message(
        &mut self,
        now: Time,
        part: &MessagePart,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Disposition {
        if !self.init.qp_type.receives() {
            return Disposition::Drop(DropReason::WrongService);
        }
        if !self.takes(true) {
            return Disposition::Drop(DropReason::BadState);
        }
        if !part.is_rendezvous && payload.len() as u64 != u64::from(part.length) {
            return Disposition::Drop(DropReason::Malformed);
        }
        self.counters.rx_packets += u64::from(part.packets());
        self.counters.rx_bytes += u64::from(part.length);
        let cx = cx!(self, now);
        let disposition = each!(&mut self.machine, m => m.handle_message(cx, part, payload, host));
        self.after_request(disposition, now, host)
    }
}
