//! The protocol machine of a queue pair: for packets or for a TCP stream.
//!
//! [`Machine`] has the methods that both machines share under the same names, so code that posts,
//! modifies, flushes or queries need not know which of the two a queue pair has. Code that moves
//! bytes asks for the one machine that it can use.

use vernic_proto::{
    AttrMask, Disposition, DropReason, Host, Keeping, ModifyError, PostError, QpAttr, QpCounters,
    QpState, RxMeta, SendProgress, SendWqe, Time, iwarp,
};
use vernic_wire::{Mtu, Packet, Pkey, Psn};

/// The protocol machine of a queue pair.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "packets find their machine without a pointer more")]
pub(crate) enum Machine {
    /// RC, UC, UD or XRC, over packets.
    Packets(vernic_proto::Qp),
    /// iWARP, over a TCP connection.
    Stream(Box<iwarp::Qp>),
}

/// Calls a method that both machines have.
macro_rules! either {
    ($self:ident, $qp:ident => $call:expr) => {
        match $self {
            Machine::Packets($qp) => $call,
            Machine::Stream($qp) => $call,
        }
    };
}

impl Machine {
    #[inline]
    pub(crate) fn state(&self) -> QpState {
        either!(self, qp => qp.state())
    }
    pub(crate) fn attr(&self) -> &QpAttr {
        either!(self, qp => qp.attr())
    }
    pub(crate) fn counters(&self) -> &QpCounters {
        either!(self, qp => qp.counters())
    }
    pub(crate) fn is_draining(&self) -> bool {
        either!(self, qp => qp.is_draining())
    }
    #[inline]
    pub(crate) fn send_room(&self) -> u32 {
        either!(self, qp => qp.send_room())
    }
    #[inline]
    pub(crate) fn next_slot(&self) -> u32 {
        either!(self, qp => qp.next_slot())
    }
    pub(crate) fn send_slots(&self) -> u32 {
        either!(self, qp => qp.send_slots())
    }
    #[inline]
    pub(crate) fn post_send(&mut self, wqe: SendWqe) -> Result<u32, PostError> {
        either!(self, qp => qp.post_send(wqe))
    }
    /// Returns how far the send requests have come since the reset.
    pub(crate) fn send_progress(&self) -> SendProgress {
        either!(self, qp => qp.send_progress())
    }
    /// Returns [`vernic_proto::Qp::posted_send`].
    pub(crate) fn posted_send(&self, index: u64) -> Option<(&SendWqe, u32)> {
        either!(self, qp => qp.posted_send(index))
    }
    pub(crate) fn modify(
        &mut self,
        attr: &QpAttr,
        mask: AttrMask,
        now: Time,
        host: &mut impl Host,
    ) -> Result<(), ModifyError> {
        either!(self, qp => qp.modify(attr, mask, now, host))
    }
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        either!(self, qp => qp.next_deadline())
    }
    pub(crate) fn handle_timeout(&mut self, now: Time, host: &mut impl Host) {
        either!(self, qp => qp.handle_timeout(now, host));
    }
    #[inline]
    pub(crate) fn wants_transmit(&self) -> bool {
        either!(self, qp => qp.wants_transmit())
    }

    /// Returns the machine for packets; `None` if the queue pair has a stream.
    #[inline]
    pub(crate) fn packets(&mut self) -> Option<&mut vernic_proto::Qp> {
        match self {
            Self::Packets(qp) => Some(qp),
            Self::Stream(_) => None,
        }
    }
    /// Returns the machine for a stream; `None` if the queue pair has packets.
    #[inline]
    pub(crate) fn stream(&mut self) -> Option<&mut iwarp::Qp> {
        match self {
            Self::Packets(_) => None,
            Self::Stream(qp) => Some(qp),
        }
    }

    /// Returns how a stream is ending; `None` if it is not, and always for packets.
    pub(crate) fn ending(&self) -> Option<iwarp::Ending> {
        match self {
            Self::Packets(_) => None,
            Self::Stream(qp) => qp.ending(),
        }
    }

    /// Handles a packet as [`vernic_proto::Qp::handle_packet_of_run`] does. Streams have none.
    #[inline]
    pub(crate) fn handle_packet_of_run(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        meta: &RxMeta,
        host: &mut impl Host,
    ) -> Disposition {
        match self {
            Self::Packets(qp) => qp.handle_packet_of_run(now, packet, meta, host),
            Self::Stream(_) => Disposition::Drop(DropReason::WrongService),
        }
    }
    /// Whether [`end_run`](Self::end_run) has anything to do.
    #[inline]
    pub(crate) fn has_run(&self) -> bool {
        matches!(self, Self::Packets(qp) if qp.has_run())
    }
    /// Ends a run of packets as [`vernic_proto::Qp::end_run`] does.
    #[inline]
    pub(crate) fn end_run(&mut self, now: Time, host: &mut impl Host) {
        if let Self::Packets(qp) = self {
            qp.end_run(now, host);
        }
    }
    /// Whether [`vernic_proto::Qp::is_credible`] holds for a packet. Streams have no packets.
    pub(crate) fn is_credible(&self, packet: &Packet<'_>) -> bool {
        matches!(self, Self::Packets(qp) if qp.is_credible(packet))
    }
    /// Whether [`vernic_proto::Qp::has_kept`] holds. Streams come in order.
    #[inline]
    pub(crate) fn has_kept(&self) -> bool {
        matches!(self, Self::Packets(qp) if qp.has_kept())
    }
    /// Sets how much of what comes ahead of a gap is kept.
    pub(crate) fn set_keeping(&mut self, keeping: Option<Keeping>) {
        if let Self::Packets(qp) = self {
            qp.set_keeping(keeping);
        }
    }
    /// Returns the value of [`vernic_proto::Qp::received_until`]. TCP has that of streams.
    #[inline]
    pub(crate) fn received_until(&self) -> Option<Psn> {
        match self {
            Self::Packets(qp) => qp.received_until(),
            Self::Stream(_) => None,
        }
    }
    #[inline]
    pub(crate) fn owes_only_ack(&self) -> bool {
        matches!(self, Self::Packets(qp) if qp.owes_only_ack())
    }
    #[inline]
    pub(crate) fn wants_requests(&self) -> bool {
        matches!(self, Self::Packets(qp) if qp.wants_requests())
    }
    #[inline]
    pub(crate) fn wants_responses(&self) -> bool {
        matches!(self, Self::Packets(qp) if qp.wants_responses())
    }
    /// Sets the smallest ACK timeout that packets may use. Streams leave acknowledgements to TCP.
    pub(crate) fn set_ack_floor(&mut self, nanos: u64) {
        if let Self::Packets(qp) = self {
            qp.set_ack_floor(nanos);
        }
    }
    /// Returns since when the peer has been silent although requests wait for its acknowledgement;
    /// `None` if it is not awaited.
    pub(crate) fn silent_since(&self) -> Option<Time> {
        match self {
            Self::Packets(qp) => qp.silent_since(),
            Self::Stream(_) => None,
        }
    }
    /// Returns the packets that an answer is awaited for, the congestion window in packets, and the
    /// smoothed round trip in nanoseconds. TCP has those of streams.
    pub(crate) fn flight(&self) -> (u64, Option<u32>, Option<u64>) {
        match self {
            Self::Packets(qp) => (qp.packets_in_flight(), qp.window(), qp.round_trip()),
            Self::Stream(_) => (0, None, None),
        }
    }
    /// Sets the partition on the alternate path. Streams have no such path.
    pub(crate) fn set_alternate_pkey(&mut self, pkey: Pkey) {
        if let Self::Packets(qp) = self {
            qp.set_alternate_pkey(pkey);
        }
    }
    /// Whether [`vernic_proto::Qp::follows`] holds for a packet. Streams have no packets.
    pub(crate) fn follows(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        by_alternate: bool,
        host: &mut impl Host,
    ) -> bool {
        match self {
            Self::Packets(qp) => qp.follows(now, packet, by_alternate, host),
            Self::Stream(_) => false,
        }
    }
    /// Notes that the port is down. Streams notice it by TCP.
    pub(crate) fn leave_port(&mut self, now: Time, host: &mut impl Host) {
        if let Self::Packets(qp) = self {
            qp.leave_port(now, host);
        }
    }
    /// Sets the rate of the port. What is a limit for streams is TCP's affair.
    pub(crate) fn set_port_rate(&mut self, mbps: u32) {
        if let Self::Packets(qp) = self {
            qp.set_port_rate(mbps);
        }
    }
    /// Sets the partition. Streams have none.
    pub(crate) fn set_pkey(&mut self, pkey: Pkey) {
        if let Self::Packets(qp) = self {
            qp.set_pkey(pkey);
        }
    }
    /// Sets the MTU of the port, which packets must fit. Streams have no such packets.
    pub(crate) fn set_port_mtu(&mut self, mtu: Mtu) {
        if let Self::Packets(qp) = self {
            qp.set_port_mtu(mtu);
        }
    }
}
