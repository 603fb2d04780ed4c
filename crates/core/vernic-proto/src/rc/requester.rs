//! RC requester: which packet leaves next (IBTA 9.7.2 to 9.7.4).
//!
//! Owns what decides whether a packet may leave: the reads in flight, the peer's credits, the RNR
//! delay, the fence, the spacing of acknowledge requests. The sequence itself is the
//! [`SendQueue`]'s, shared with the completer.

use vernic_wire::opcode::Position;

use super::probe::{Probe, Repeat};
use super::reads::Reads;
use super::window::Window;
use crate::congestion::Sent;
use crate::cx::Cx;
use crate::error::{AccessFault, Cause, WcStatus};
use crate::host::{Host, Run, RunLimits, Transmit};
use crate::segment::{Segment, packet_count, position_of};
use crate::sq::{Entry, SendQueue};
use crate::time::Time;
use crate::wqe::{SendFlags, SendOp};

/// At least one packet in so many asks for an acknowledgement, so that the window keeps moving
/// inside long messages. The responder coalesces, so asking often costs little.
const ACK_EVERY: u32 = 16;

/// What the head of the send queue failed with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fatal {
    pub(crate) status: WcStatus,
    pub(crate) cause: Cause,
}

#[derive(Debug, Default)]
pub(crate) struct Requester {
    pub(crate) reads: Reads,
    /// Message number up to which the peer has receives; `None`: it does not say.
    credit_limit: Option<u32>,
    /// Nothing leaves before this time: the peer had no receive.
    pub(crate) rnr_until: Option<Time>,
    /// Nothing leaves before this time: congestion control paces.
    paced_until: Option<Time>,
    /// Packets since the last one that asked for an acknowledgement.
    since_ack_req: u32,
    /// Requests not yet started stay where they are: SQD.
    pub(crate) draining: bool,
    /// The request at the cursor met a local error and waits until those before it are complete.
    stuck: bool,
    /// Which packets of SENDs may travel as one.
    pub(super) runs: Option<RunLimits>,
    /// Behind the last of those that did, since the cursor went back last.
    runs_end: u64,
}

/// Whether, and how, the request at the cursor may proceed.
enum Turn {
    Packet {
        length: u32,
        packets: u32,
    },
    /// Several packets of a SEND as one.
    Run(Run),
    Local,
    Wait,
}

impl Requester {
    pub(crate) fn reset(&mut self, max_rd_atomic: u32) {
        self.reads.reset(max_rd_atomic);
        self.credit_limit = None;
        self.rnr_until = None;
        self.paced_until = None;
        self.since_ack_req = 0;
        self.draining = false;
        self.stuck = false;
        self.runs = None;
        self.runs_end = 0;
    }

    /// The peer's newest count of receives: message numbers up to `limit` may be sent.
    pub(crate) fn set_credit_limit(&mut self, limit: Option<u32>) {
        self.credit_limit = limit;
    }

    /// The cursor went back; a local error is met again in its turn.
    pub(crate) fn rewound(&mut self) {
        self.stuck = false;
        self.since_ack_req = 0;
        self.runs_end = 0;
    }

    /// Whether the peer misses `seq` because it may be unable to copy the bytes of a run, rather
    /// than because something was lost: it has not been sent as a packet yet.
    pub(crate) fn was_run(&self, seq: u64) -> bool {
        seq < self.runs_end
    }

    /// The queue was flushed: nothing is left that waits.
    pub(crate) fn stop_waiting(&mut self) {
        self.rnr_until = None;
        self.paced_until = None;
    }

    /// Asks congestion control again when the next packet may leave.
    #[inline]
    pub(crate) fn pace(&mut self, window: &Window, now: Time) {
        self.paced_until = window.opens_at(now);
    }

    /// Something that nothing leaves before, if there is such a time: the earlier of two.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Time> {
        match (self.rnr_until, self.paced_until) {
            (Some(rnr), Some(paced)) => Some(rnr.min(paced)),
            (rnr, paced) => rnr.or(paced),
        }
    }

    /// Whether [`poll`](Self::poll) would send or carry out something now.
    pub(crate) fn is_ready(&self, sq: &SendQueue, window: &Window, mtu: u32) -> bool {
        if self.deadline().is_some() || (self.stuck && !sq.cursor_is_head()) {
            return false;
        }
        match sq.at_cursor() {
            Some((_, entry)) => !matches!(self.turn(sq, window, entry, mtu), Turn::Wait),
            None => false,
        }
    }

    /// Writes the next packet, carrying out local operations on the way.
    pub(crate) fn poll(
        &mut self,
        sq: &mut SendQueue,
        window: &mut Window,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<Option<Transmit>, Fatal> {
        if self.deadline().is_some() {
            return Ok(None);
        }
        let mtu = cx.attr.path_mtu.bytes();
        // Bounded: each round sends and returns, or passes one local request of the queue.
        while let Some((index, &entry)) = sq.at_cursor() {
            let turn = self.turn(sq, window, &entry, mtu);
            if matches!(turn, Turn::Packet { .. } | Turn::Run(_)) && !sq.cursor_is_started() {
                Self::start(sq, mtu);
            }
            let (length, packets, run) = match turn {
                Turn::Wait => return Ok(None),
                Turn::Local => match host.local_op(&entry.wqe) {
                    // Started only now: one that failed is met again in its turn.
                    Ok(()) => {
                        sq.start(0);
                        sq.advance(0);
                        continue;
                    }
                    Err(fault) => return self.local_error(sq, &entry, fault),
                },
                Turn::Packet { length, packets } => (length, packets, None),
                Turn::Run(run) => (run.length, run.packets, Some(run)),
            };
            let entry = *sq.entry(index);
            let part = (length, packets, run);
            return match self.send(sq, window, cx, host, buf, (index, &entry), part) {
                Ok(sent) => Ok(Some(sent)),
                Err(fault) => self.local_error(sq, &entry, fault),
            };
        }
        Ok(None)
    }

    /// Gives the request at the cursor its sequence numbers.
    pub(crate) fn start(sq: &mut SendQueue, mtu: u32) {
        if let Some((_, entry)) = sq.at_cursor() {
            let packets = packet_count_of(entry, mtu);
            sq.start(packets);
        }
    }

    /// A local error completes its request only after those before it: until then the queue stands.
    fn local_error(
        &mut self,
        sq: &SendQueue,
        entry: &Entry,
        fault: AccessFault,
    ) -> Result<Option<Transmit>, Fatal> {
        if !sq.cursor_is_head() {
            self.stuck = true;
            return Ok(None);
        }
        let status = match entry.wqe.op {
            SendOp::BindMw(_) => WcStatus::MwBind,
            SendOp::LocalInv(_) => WcStatus::LocalQpOperation,
            _ => WcStatus::LocalProtection,
        };
        Err(Fatal { status, cause: Cause::LocalMemory(fault) })
    }

    /// Decides about the request at the cursor without changing anything.
    fn turn(&self, sq: &SendQueue, window: &Window, entry: &Entry, mtu: u32) -> Turn {
        if sq.is_direct() {
            return Turn::Wait;
        }
        if !sq.cursor_is_started() {
            let fenced = entry.wqe.flags.contains(SendFlags::FENCE);
            if self.draining || (fenced && !self.reads.is_empty()) {
                return Turn::Wait;
            }
            if entry.is_local() {
                return Turn::Local;
            }
        }
        let at_start = !sq.cursor_is_started() || sq.next() == entry.first;
        if at_start && entry.takes_receive() && !self.has_credit(sq, entry) {
            return Turn::Wait;
        }
        let mut room = u64::from(window.size()).saturating_sub(sq.in_flight());
        if room == 0 {
            if !self.is_unasked(sq, entry) {
                return Turn::Wait;
            }
            room = 1;
        }
        if entry.needs_response() {
            self.read_turn(sq, window, entry, mtu, room)
        } else {
            self.packet_turn(sq, window, entry, mtu, room)
        }
    }

    /// Whether the window has shrunk below packets in flight of which none asks for an answer: all
    /// are of the message at the cursor, whose last packet would. One packet more must ask, or
    /// nothing would open the window again but a timeout.
    #[cold]
    fn is_unasked(&self, sq: &SendQueue, entry: &Entry) -> bool {
        let flight = sq.in_flight();
        let sent = if sq.cursor_is_started() { sq.next() - entry.first } else { 0 };
        !entry.needs_response() && sent >= flight && u64::from(self.since_ack_req) >= flight
    }

    fn packet_turn(
        &self,
        sq: &SendQueue,
        window: &Window,
        entry: &Entry,
        mtu: u32,
        room: u64,
    ) -> Turn {
        let offset = offset_of(sq, entry, mtu);
        if let Some(limits) = &self.runs
            && let Some(run) = next_run(limits, sq, window, entry, (offset, mtu))
        {
            return if u64::from(run.packets) <= room { Turn::Run(run) } else { Turn::Wait };
        }
        Turn::Packet { length: length_of(entry, offset, 1, mtu), packets: 1 }
    }

    /// A READ asks for as much as the window lets return, or for what it asked for before.
    fn read_turn(
        &self,
        sq: &SendQueue,
        window: &Window,
        entry: &Entry,
        mtu: u32,
        room: u64,
    ) -> Turn {
        let next = sq.next();
        if !self.reads.may_send(next) {
            return Turn::Wait;
        }
        let left = if sq.cursor_is_started() {
            entry.end() - next
        } else {
            u64::from(packet_count_of(entry, mtu))
        };
        let packets = match self.reads.end_of(next) {
            Some(end) => end - next,
            None => {
                let share = u64::from(window.size() / self.reads.depth().clamp(1, 4)).max(1);
                let packets = left.min(share);
                if packets > room && sq.in_flight() > 0 {
                    return Turn::Wait;
                }
                packets
            }
        };
        let length = length_of(entry, offset_of(sq, entry, mtu), packets, mtu);
        Turn::Packet { length, packets: packets as u32 }
    }

    /// End-to-end flow control (IBTA 9.7.7.2): within the credits, or one message alone as a probe.
    fn has_credit(&self, sq: &SendQueue, entry: &Entry) -> bool {
        let Some(limit) = self.credit_limit else { return true };
        let ssn = if sq.cursor_is_started() { entry.ssn } else { sq.next_ssn() };
        // Within half the circle of 24 bits: ssn <= limit.
        (limit.wrapping_sub(ssn) & 0xFF_FFFF) < 0x80_0000 || sq.in_flight() == 0
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one queue pair, split by owner")]
    fn send(
        &mut self,
        sq: &mut SendQueue,
        window: &mut Window,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
        (index, entry): (u64, &Entry),
        (length, mut packets, mut run): (u32, u32, Option<Run>),
    ) -> Result<Transmit, AccessFault> {
        let mtu = cx.attr.path_mtu.bytes();
        let next = sq.next();
        let (position, ack_req) = if entry.needs_response() {
            (Position::Only, false)
        } else {
            let position = position_of((next - entry.first) as u32, packets, entry.packets);
            (position, run.is_some() || self.asks_ack(sq, window, position))
        };
        let mut segment = Segment {
            service: cx.service,
            wqe: &entry.wqe,
            slot: sq.slot(index),
            psn: sq.psn(next),
            dest: cx.attr.dest_qpn,
            offset: offset_of(sq, entry, mtu),
            length,
            position,
            ack_req,
        };
        let named = match run {
            Some(run) => segment.write_run(cx, host, run, buf)?,
            None => None,
        };
        let len = match named {
            Some(len) => len,
            None => {
                if run.take().is_some() {
                    // Its bytes travel themselves, in packets.
                    packets = 1;
                    segment.length = length.min(mtu);
                    segment.position = Position::of((next - entry.first) as u32, entry.packets);
                    segment.ack_req = self.asks_ack(sq, window, segment.position);
                }
                segment.write(cx, host, buf)?
            }
        };
        let Segment { position, ack_req, .. } = segment;
        self.since_ack_req = if ack_req { 0 } else { self.since_ack_req + 1 };
        if entry.needs_response()
            && self.reads.sent(next, next + u64::from(packets))
            && next != entry.first
        {
            // The peer counts each piece as a message of its own.
            sq.count_message();
        }
        let again = next < sq.high();
        if again {
            cx.counters.retransmitted_packets += 1;
        } else {
            cx.counters.messages_sent += u64::from(position.ends());
        }
        let bytes = len as u32 + run.map_or(0, |run| run.length);
        window.on_sent(next, cx.now, Sent { packets, bytes, again });
        cx.counters.tx_packets += 1;
        cx.counters.tx_bytes += len as u64;
        if let Some(Run { length, packets }) = run {
            self.runs_end = next + u64::from(packets);
            cx.counters.tx_packets += u64::from(packets) - 1;
            cx.counters.tx_bytes += u64::from(length);
        }
        sq.advance(packets);
        Ok(Transmit { len, ah: None, run })
    }

    /// Writes the next packet of a probe, if one is under way. A packet that local memory refuses
    /// is left out: going back meets the error in its turn.
    pub(crate) fn poll_probe(
        &self,
        sq: &SendQueue,
        probe: &mut Probe,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Option<usize> {
        let mtu = cx.attr.path_mtu.bytes();
        // Bounded: a probe has two packets.
        while let Some(repeat) = probe.take() {
            let Some((seq, packets)) = self.repeated(sq, repeat) else { continue };
            let Some((index, entry)) = sq.holding(seq) else { continue };
            let number = (seq - entry.first) as u32;
            let several = !entry.needs_response();
            let position =
                if several { Position::of(number, entry.packets) } else { Position::Only };
            let segment = Segment {
                service: cx.service,
                wqe: &entry.wqe,
                slot: sq.slot(index),
                psn: sq.psn(seq),
                dest: cx.attr.dest_qpn,
                offset: number * mtu,
                length: length_of(entry, number * mtu, packets, mtu),
                position,
                ack_req: several,
            };
            if let Ok(len) = segment.write(cx, host, buf) {
                cx.counters.retransmitted_packets += 1;
                cx.counters.tx_packets += 1;
                cx.counters.tx_bytes += len as u64;
                return Some(len);
            }
        }
        None
    }

    /// Number of a packet that a probe repeats, and how many responses it asks for; `None` if the
    /// newest is the oldest. A READ is asked for again from its first missing response on.
    fn repeated(&self, sq: &SendQueue, repeat: Repeat) -> Option<(u64, u64)> {
        let (una, next) = (sq.una(), sq.next());
        if una >= next {
            return None;
        }
        let last = match repeat {
            Repeat::Oldest => una,
            Repeat::Newest => next - 1,
        };
        let seq = match self.reads.piece_of(last) {
            Some(piece) => piece.start.max(una),
            None => last,
        };
        let packets = self.reads.end_of(seq).map_or(1, |end| end - seq);
        (repeat == Repeat::Oldest || seq > una).then_some((seq, packets))
    }

    /// Asked at the end of a message, now and then within one, when the window closes, and by each
    /// packet that the next one may be held back behind.
    fn asks_ack(&self, sq: &SendQueue, window: &Window, position: Position) -> bool {
        position.ends()
            || self.since_ack_req + 1 >= ACK_EVERY.min(window.size() / 4)
            || sq.in_flight() + 1 >= u64::from(window.size())
            || window.is_paced()
    }
}

/// The packets that travel next as one, of a SEND that is worth it. What may have been sent before
/// travels in packets: a peer that could not copy it asks for them so. So no run is left on the way
/// of a request that is complete, however often its packets were repeated.
///
/// A run takes half of the window at most. Of what is in flight less than a quarter has not asked
/// for an acknowledgement ([`ACK_EVERY`]), so room for one comes without more packets.
fn next_run(
    limits: &RunLimits,
    sq: &SendQueue,
    window: &Window,
    entry: &Entry,
    (offset, mtu): (u32, u32),
) -> Option<Run> {
    let left = entry.wqe.length - offset;
    if left < limits.min_bytes || !entry.is_send() || sq.next() < sq.high() {
        return None;
    }
    let most = (limits.max_bytes / mtu).min(window.size() / 2) * mtu;
    let length = left.min(most);
    (length >= limits.min_bytes).then(|| Run { length, packets: packet_count(length, mtu) })
}

/// Sequence numbers that the request takes.
fn packet_count_of(entry: &Entry, mtu: u32) -> u32 {
    match entry.wqe.op {
        SendOp::Flush { .. }
        | SendOp::AtomicWrite(_)
        | SendOp::CmpSwap { .. }
        | SendOp::FetchAdd { .. } => 1,
        _ => packet_count(entry.wqe.length, mtu),
    }
}

/// Payload bytes of a packet of a SEND or WRITE, bytes that a READ asks for with `packets` of them.
fn length_of(entry: &Entry, offset: u32, packets: u64, mtu: u32) -> u32 {
    match entry.wqe.op {
        _ if !entry.needs_response() => (entry.wqe.length - offset).min(mtu),
        SendOp::Read(_) => {
            u64::from(entry.wqe.length - offset).min(packets * u64::from(mtu)) as u32
        }
        _ => entry.wqe.length,
    }
}

/// Payload bytes before the packet at `next`.
fn offset_of(sq: &SendQueue, entry: &Entry, mtu: u32) -> u32 {
    if sq.cursor_is_started() { (sq.next() - entry.first) as u32 * mtu } else { 0 }
}
