//! What a queue pair asks of its transport service.
//!
//! [`Transport`] is the seam between [`Qp`](crate::Qp), which owns attributes, counters and the
//! states of the verbs, and the machine of one service, which owns sequence, messages and queues.
//! `Qp` calls a machine only in states in which the call means something, and changes the state
//! itself; a machine says by [`Broken`] that it must.
//!
//! # How to add a service
//!
//! 1. The machine: one file that implements this trait, like `ud`. What has a default is for what
//!    some services lack; `outbound` and `inbound` have what unreliable services share.
//! 2. A variant of [`QpType`](crate::QpType), with its `Service` of the opcode table, and its
//!    columns in the table of `transition`.
//! 3. A variant of `Machine` in `qp/machine.rs`, with an arm of its two matches. Nothing else
//!    matches on the machine.

use core::fmt;

use vernic_wire::{Mtu, Packet, Psn};

use crate::congestion::{Limit, Tally};
use crate::cx::Cx;
use crate::direct::Direct;
use crate::disposition::{Disposition, DropReason};
use crate::error::{Cause, PostError};
use crate::host::{Host, RxMeta, Transmit};
use crate::kept::{Keeping, KeptPacket};
use crate::message::{MessagePart, PartAck, RendezvousLimits};
use crate::sq::SendQueue;
use crate::state::{ModifyError, QpAttr};
use crate::time::Time;
use crate::wqe::{MAX_MESSAGE, SendWqe, UdDest};

/// An error that was reported and completed, and that changes the queue pair's state, or its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The send queue alone stops: SQE (IBTA 10.3.1.5).
    SendQueue,
    /// Both queues stop: Error.
    QueuePair,
    /// Nothing stops: the path is given up for the alternate one. Nothing was reported.
    Path,
}

/// The machine of a transport service. What follows a `cx` is handled at `cx.now`.
pub(crate) trait Transport: fmt::Debug {
    fn send_queue(&self) -> &SendQueue;
    fn send_queue_mut(&mut self) -> &mut SendQueue;

    // States.

    /// Forgets everything.
    fn reset(&mut self);

    /// Init to RTR.
    fn start_responder(&mut self, attr: &QpAttr);

    /// RTR to RTS.
    fn start_requester(&mut self, attr: &QpAttr);

    /// RTS to SQD, or back; with `event`, the host is told when the send queue has drained.
    fn set_draining(&mut self, draining: bool, event: bool, host: &mut impl Host);

    /// Whether nothing started is left in the send queue.
    fn is_drained(&self) -> bool {
        self.send_queue().is_drained()
    }

    /// Refuses that `max_rd_atomic` becomes 0 while something is queued that needs it.
    fn check_no_reads(&self) -> Result<(), ModifyError> {
        Ok(())
    }

    /// In SQD: the numbers of READs and atomics at once may have changed.
    fn set_read_depths(&mut self, _attr: &QpAttr) {}

    /// Completes every send request still queued as flushed.
    fn flush_send(&mut self, cx: &Cx<'_>, host: &mut impl Host);

    /// Completes everything still queued, on both queues, as flushed.
    fn flush(&mut self, cx: &Cx<'_>, host: &mut impl Host);

    // Requests.

    /// Whether a request of an operation that the service has may be posted. Its room in the send
    /// queue is checked behind it.
    fn check_post(&self, wqe: &SendWqe, attr: &QpAttr, port_mtu: Mtu) -> Result<(), PostError> {
        let _ = (attr, port_mtu);
        check_length(wqe, MAX_MESSAGE)
    }

    /// Whether [`poll_request`](Self::poll_request) has something to do.
    fn wants_requests(&self, attr: &QpAttr) -> bool;

    /// Writes the next request packet.
    fn poll_request(
        &mut self,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<Option<Transmit>, Broken>;

    /// Whether a probe, or the rest of one, leaves next.
    fn is_probing(&self) -> bool {
        false
    }

    /// Writes a packet of a probe, if one is to be sent.
    fn poll_probe(
        &mut self,
        _cx: &mut Cx<'_>,
        _host: &mut impl Host,
        _buf: &mut [u8],
    ) -> Option<usize> {
        None
    }

    /// Where the next datagram goes.
    fn next_dest(&self) -> Option<UdDest> {
        None
    }

    /// Whether SENDs leave as parts of messages from now on.
    fn set_messages(&mut self, _are_sent: bool) {}

    /// Which payload of them the peer copies from now on.
    fn set_rendezvous(&mut self, _limits: Option<RendezvousLimits>) {}

    /// Bytes of the SEND that is sent next, where such may leave as parts of messages.
    fn next_send_bytes(&self) -> u32 {
        0
    }

    /// Whether a part of a message leaves next.
    fn has_message(&self, _attr: &QpAttr) -> bool {
        false
    }

    /// Writes the payload of the next part of a message, or where that lies.
    fn poll_message(
        &mut self,
        _cx: &mut Cx<'_>,
        _host: &mut impl Host,
        _buf: &mut [u8],
    ) -> Result<Option<(MessagePart, usize)>, Broken> {
        Ok(None)
    }

    /// Takes the positive acknowledgement that is all there is to answer, for a part to carry.
    fn take_ack(&mut self, _cx: &mut Cx<'_>, _host: &mut impl Host) -> Option<PartAck> {
        None
    }

    /// The request that the owner may carry out without packets.
    fn next_direct(&self) -> Option<Direct> {
        None
    }

    /// The request at the cursor was carried out without packets.
    fn finish_direct(&mut self, _cx: &Cx<'_>, _host: &mut impl Host) {}

    /// The request at the cursor begins anew, in packets, though SQD may hold back others.
    fn start_in_packets(&mut self, _mtu: u32) {}

    // Packets of the peer.

    /// Handles a packet of this service, as one of a run: [`end_run`](Self::end_run) is called
    /// before anything but a further packet. [`Disposition::Nak`] of a fatal class ends the queue
    /// pair as well as [`Broken`] does.
    fn handle_packet(
        &mut self,
        cx: &mut Cx<'_>,
        packet: &Packet<'_>,
        meta: &RxMeta,
        host: &mut impl Host,
    ) -> Result<Disposition, Broken>;

    /// Whether packets of a run were handled of which something is left for its end.
    fn has_run(&self) -> bool {
        false
    }

    /// Does what is left where a run of packets ends.
    fn end_run(&mut self, _cx: &mut Cx<'_>, _host: &mut impl Host) {}

    /// Keeps what comes ahead of a gap from now on, within these bounds.
    fn set_keeping(&mut self, _keeping: Option<Keeping>) {}

    /// Whether anything is kept.
    fn has_kept(&self) -> bool {
        false
    }

    /// Takes what was kept, if its turn has come.
    fn take_kept(&mut self) -> Option<KeptPacket> {
        None
    }

    /// Handles a request that was kept. A fatal class ends the queue pair as ever.
    fn handle_kept(
        &mut self,
        _cx: &mut Cx<'_>,
        _packet: &Packet<'_>,
        _host: &mut impl Host,
    ) -> Disposition {
        Disposition::Drop(DropReason::WrongService)
    }

    /// Handles a part of a message of the peer. [`Disposition::Nak`] of a fatal class ends the
    /// queue pair.
    fn handle_message(
        &mut self,
        _cx: &mut Cx<'_>,
        _part: &MessagePart,
        _payload: &[u8],
        _host: &mut impl Host,
    ) -> Disposition {
        Disposition::Drop(DropReason::WrongService)
    }

    /// Handles an acknowledgement that came with a part of a message.
    fn handle_ack(
        &mut self,
        _cx: &mut Cx<'_>,
        _ack: PartAck,
        _host: &mut impl Host,
    ) -> Result<Disposition, Broken> {
        Ok(Disposition::Drop(DropReason::WrongService))
    }

    /// The peer tells of congestion on the path to it.
    fn handle_cnp(&mut self, _now: Time) {}

    /// Requests leave at this rate at most from now on; `None` for as fast as they may.
    fn set_limit(&mut self, limit: Option<Limit>, now: Time);

    /// Says whether what leaves from now on is not held against that limit.
    fn set_exempt(&mut self, _is_exempt: bool) {}

    /// The next packet of requests asks for an acknowledgement, where there are any.
    fn ask_ack(&mut self) {}

    /// Whether the peer has told in a map what it keeps of that which comes ahead of a gap.
    fn peer_keeps(&self) -> bool {
        false
    }

    /// Whether requests ask the peer to tell what it keeps.
    fn asks_kept(&self) -> bool {
        false
    }

    /// The peer keeps what comes ahead of a gap, as is known from elsewhere.
    fn assume_peer_keeps(&mut self) {}

    /// Whether a packet of which nothing says that the peer has sent it may be handled.
    fn is_credible(&self, _packet: &Packet<'_>) -> bool {
        true
    }

    // Responses.

    /// Whether [`poll_response`](Self::poll_response) has something to send.
    fn wants_responses(&self) -> bool {
        false
    }

    /// The number before which every request was received and handled in order, where requests are
    /// acknowledged.
    fn received_until(&self) -> Option<Psn> {
        None
    }

    /// Whether all that it has is a positive acknowledgement.
    fn owes_only_ack(&self) -> bool {
        false
    }

    /// Writes the next response packet.
    fn poll_response(
        &mut self,
        _cx: &mut Cx<'_>,
        _host: &mut impl Host,
        _buf: &mut [u8],
    ) -> Option<usize> {
        None
    }

    /// Whether the response that was written last says that the responder failed.
    fn response_failed(&self) -> bool {
        false
    }

    // Answers that are awaited: none where nothing is acknowledged.

    /// Packets that an acknowledgement or an answer is awaited for.
    fn packets_in_flight(&self) -> u64 {
        0
    }

    /// The congestion window in packets, where there is such.
    fn window(&self) -> Option<u32> {
        None
    }

    /// The smoothed round trip in nanoseconds, where one was measured.
    fn round_trip(&self) -> Option<u64> {
        None
    }

    /// What congestion control was told, where there is such.
    fn tally(&self) -> Option<&Tally> {
        None
    }

    /// Requests that have been started and not completed.
    fn requests_in_flight(&self) -> u64 {
        0
    }

    /// Whether request packets are on the way that were not acknowledged.
    fn has_unacknowledged(&self) -> bool {
        false
    }

    /// Whether request packets that were sent are to be sent again.
    fn is_repeating(&self) -> bool {
        false
    }

    /// Since when the peer has been silent, if it is waited for since it is known to be there.
    fn silent_since(&self) -> Option<Time> {
        None
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called, at the latest.
    fn next_deadline(&self) -> Option<Time> {
        None
    }

    /// Time has passed.
    fn handle_timeout(&mut self, _cx: &mut Cx<'_>, _host: &mut impl Host) -> Result<(), Broken> {
        Ok(())
    }

    /// The attributes have another path: patience begins anew, and what is not answered is sent
    /// again.
    fn path_changed(&mut self, _cx: &mut Cx<'_>) {}

    /// Nothing comes from the connected peer any more, for this cause.
    fn handle_gone(
        &mut self,
        _cx: &mut Cx<'_>,
        _cause: Cause,
        _host: &mut impl Host,
    ) -> Result<(), Broken> {
        Ok(())
    }
}

/// Whether a message is short enough.
pub(crate) fn check_length(wqe: &SendWqe, limit: u32) -> Result<(), PostError> {
    let length = wqe.length;
    if length > limit { Err(PostError::Length { length, limit }) } else { Ok(()) }
}
