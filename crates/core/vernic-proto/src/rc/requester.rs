//! RC requester: which packet leaves next (IBTA 9.7.2 to 9.7.4).
//!
//! Owns what decides whether a packet may leave: the reads in flight, the peer's credits, the RNR
//! delay, the fence, the spacing of acknowledge requests. The sequence itself is the
//! [`SendQueue`]'s, shared with the completer.

use vernic_wire::opcode::Position;
use vernic_wire::{Headers, Mtu, Service};

use super::probe::{Probe, Repeat};
use super::reads::Reads;
use super::repair::Repair;
use super::window::Window;
use crate::congestion::Sent;
use crate::cx::Cx;
use crate::error::{AccessFault, Cause, WcStatus};
use crate::host::{Host, Transmit};
use crate::message::{MessagePart, RendezvousLimits, part_length};
use crate::segment::{Segment, packet_count};
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
    /// Nothing leaves before this time.
    hold: Option<Time>,
    /// The peer had no receive and named that time; else congestion control did.
    is_rnr: bool,
    /// Packets since the last one that asked for an acknowledgement.
    since_ack_req: u32,
    /// Requests not yet started stay where they are: SQD.
    pub(crate) draining: bool,
    /// The request at the cursor met a local error and waits until those before it are complete.
    stuck: bool,
    /// Whether SENDs leave as parts of messages.
    pub(super) sends_messages: bool,
    /// Which payload of theirs the peer copies.
    pub(super) rendezvous: Option<RendezvousLimits>,
    /// The peer keeps what comes ahead of a gap, and is asked to tell what.
    pub(super) asks_kept: bool,
    /// From this number on nothing leaves until all before it is acknowledged; `u64::MAX` if
    /// nothing is held back. See [`withhold_last`](Self::withhold_last).
    withheld: u64,
    /// How often that was done.
    trials: u8,
    /// Sequence numbers that are not acknowledged and not in the network either.
    pub(super) gone: u32,
    /// Behind the last part of a message that was sent, since the cursor went back last.
    messages_end: u64,
    /// The same of the last rendezvous.
    rendezvous_end: u64,
}

/// Most sequence numbers of parts of messages in flight: well below half of all, so that of any two
/// it is clear which is the later one. The peer's memory bounds them before that.
const MOST_IN_FLIGHT: u64 = 1 << 22;

/// How often the last packet is held back of a peer that may keep packets. Some of these may be
/// lost themselves.
const MOST_TRIALS: u8 = 3;

/// Largest window in packets in which half the usual room is enough for a READ, which then asks for
/// less. On average a quarter of a READ of the window stays empty, not half of one. In larger
/// windows that matters less than the requests that it takes.
const SMALL_WINDOW: u32 = 128;

/// Whether, and how, the request at the cursor may proceed.
enum Turn {
    Packet {
        length: u32,
        packets: u32,
    },
    /// A part of a message, unless too much is in flight.
    Message,
    Local,
    Wait,
}

impl Requester {
    pub(crate) fn reset(&mut self, max_rd_atomic: u32) {
        self.reads.reset(max_rd_atomic);
        self.credit_limit = None;
        self.stop_waiting();
        self.since_ack_req = 0;
        self.draining = false;
        self.stuck = false;
        self.sends_messages = false;
        self.rendezvous = None;
        (self.asks_kept, self.gone) = (false, 0);
        (self.withheld, self.trials) = (u64::MAX, 0);
        (self.messages_end, self.rendezvous_end) = (0, 0);
    }

    /// The peer's newest count of receives: message numbers up to `limit` may be sent.
    pub(crate) fn set_credit_limit(&mut self, limit: Option<u32>) {
        self.credit_limit = limit;
    }

    /// The peer has no receive for the message behind number `msn`: whatever it told before of how
    /// many it has, it has none.
    pub(crate) fn end_credits(&mut self, msn: u32) {
        self.credit_limit = self.credit_limit.map(|_| msn);
    }

    /// The cursor went back; a local error is met again in its turn.
    pub(crate) fn rewound(&mut self) {
        self.stuck = false;
        self.since_ack_req = 0;
        (self.messages_end, self.rendezvous_end) = (0, 0);
        self.withheld = u64::MAX;
    }

    /// Holds the last packet that the cursor went back behind until all before it is acknowledged.
    /// A peer that has kept it acknowledges it, too, which shows that the peer keeps packets.
    /// Otherwise all would be sent again before the first answer comes, wherever few packets are in
    /// flight. Not done to a peer that has not shown it in [`MOST_TRIALS`] times.
    pub(super) fn withhold_last(&mut self, sq: &SendQueue) {
        if self.asks_kept || self.trials >= MOST_TRIALS || self.sends_messages {
            return;
        }
        let last = sq.high() - 1;
        let last = self.reads.piece_of(last).map_or(last, |piece| piece.start);
        if last > sq.una() {
            self.withheld = last;
            self.trials += 1;
        }
    }

    /// The peer has shown that it keeps packets: it is asked which, and nothing is held back.
    pub(super) fn ask_from_now_on(&mut self) {
        (self.asks_kept, self.withheld) = (true, u64::MAX);
    }

    /// Everything before `una` is acknowledged.
    #[inline]
    pub(super) fn acknowledged(&mut self, una: u64) {
        if una >= self.withheld {
            self.withheld = u64::MAX;
        }
    }

    /// Whether the peer misses `seq` because it may be unable to copy the payload of a rendezvous,
    /// rather than because something was lost: it has not been sent as a packet yet.
    pub(crate) fn was_rendezvous(&self, seq: u64) -> bool {
        seq < self.rendezvous_end
    }

    /// Whether what is before `seq` was sent as parts of messages, which the window does not limit.
    pub(crate) fn was_message(&self, seq: u64) -> bool {
        seq <= self.messages_end
    }

    /// The queue was flushed: nothing is left that waits.
    pub(crate) fn stop_waiting(&mut self) {
        self.hold = None;
        self.is_rnr = false;
    }

    /// The next packet asks for an acknowledgement.
    pub(super) fn ask_ack(&mut self) {
        self.since_ack_req = ACK_EVERY;
    }

    /// Asks congestion control again when the next packet may leave. An RNR delay comes first;
    /// the calls that end it ask again.
    #[inline]
    pub(crate) fn pace(&mut self, window: &Window, now: Time) {
        // Also where a controller no longer paces: what it held back before may leave then.
        if window.may_pace() || self.hold.is_some() {
            self.pace_anew(window, now);
        }
    }

    /// Asks again, also where there may be nothing any more that paces.
    #[inline]
    pub(crate) fn pace_anew(&mut self, window: &Window, now: Time) {
        if !self.is_rnr {
            self.hold = window.opens_at(now);
        }
    }

    /// Time before which nothing leaves.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.hold
    }

    /// The peer has no receive: nothing leaves before this time.
    pub(crate) fn start_rnr_delay(&mut self, until: Time) {
        self.hold = Some(until);
        self.is_rnr = true;
    }

    /// Whether an RNR delay holds.
    pub(crate) fn is_rnr_delayed(&self) -> bool {
        self.is_rnr
    }

    /// The RNR delay has ended, or turns out to be needless.
    #[inline]
    pub(crate) fn end_rnr_delay(&mut self) {
        if self.is_rnr {
            self.stop_waiting();
        }
    }

    /// Whether there is an RNR delay and its time has come.
    pub(crate) fn rnr_delay_is_over(&self, now: Time) -> bool {
        self.is_rnr && self.hold.is_some_and(|until| now >= until)
    }

    /// Whether [`poll`](Self::poll) would send or carry out something now.
    #[inline]
    pub(crate) fn is_ready(&self, sq: &SendQueue, window: &Window, mtu: u32) -> bool {
        if self.hold.is_some() || (self.stuck && !sq.cursor_is_head()) {
            return false;
        }
        match sq.at_cursor() {
            Some((_, entry)) => {
                let size = window.size_with(self.gone);
                !matches!(self.turn(sq, size, entry, mtu), Turn::Wait)
            }
            None => false,
        }
    }

    /// Whether [`poll_message`](Self::poll_message) would send something now.
    #[inline]
    pub(crate) fn has_message(&self, sq: &SendQueue, window: &Window, mtu: u32) -> bool {
        if !self.sends_messages || self.hold.is_some() || (self.stuck && !sq.cursor_is_head()) {
            return false;
        }
        let Some((_, entry)) = sq.at_cursor() else { return false };
        matches!(self.turn(sq, window.size_with(self.gone), entry, mtu), Turn::Message)
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
        if self.hold.is_some() {
            return Ok(None);
        }
        let (mtu, size) = (cx.attr.path_mtu.bytes(), window.size_with(self.gone));
        // Bounded: each round sends and returns, or passes one local request of the queue.
        while let Some((index, &entry)) = sq.at_cursor() {
            let turn = self.turn(sq, size, &entry, mtu);
            if matches!(turn, Turn::Packet { .. }) && !sq.cursor_is_started() {
                Self::start(sq, mtu);
            }
            let part = match turn {
                Turn::Wait | Turn::Message => return Ok(None),
                Turn::Local => match host.local_op(&entry.wqe) {
                    // Started only now: one that failed is met again in its turn.
                    Ok(()) => {
                        sq.start(0);
                        sq.advance(0);
                        continue;
                    }
                    Err(fault) => return self.local_error(sq, &entry, fault),
                },
                Turn::Packet { length, packets } => (length, packets),
            };
            let entry = *sq.entry(index);
            return match self.send(sq, window, cx, host, buf, (index, &entry), part) {
                Ok(sent) => Ok(Some(sent)),
                Err(fault) => self.local_error(sq, &entry, fault),
            };
        }
        Ok(None)
    }

    /// Gives the request at the cursor its sequence numbers.
    #[inline]
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
    #[inline]
    fn turn(&self, sq: &SendQueue, window: u32, entry: &Entry, mtu: u32) -> Turn {
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
        if self.sends_messages && entry.is_send() && sq.next() == sq.high() {
            let has_room = sq.in_flight() < MOST_IN_FLIGHT;
            return if has_room { Turn::Message } else { Turn::Wait };
        }
        if sq.next() >= self.withheld {
            return Turn::Wait;
        }
        let mut room = u64::from(window).saturating_sub(sq.in_flight());
        if room == 0 {
            if !self.is_unasked(sq, entry) {
                return Turn::Wait;
            }
            room = 1;
        }
        if entry.needs_response() {
            self.read_turn(sq, window, entry, mtu, room)
        } else {
            let offset = offset_of(sq, entry, mtu);
            Turn::Packet { length: length_of(entry, offset, 1, mtu), packets: 1 }
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

    /// A READ asks for as much as the window lets return, or for what it asked for before.
    fn read_turn(&self, sq: &SendQueue, window: u32, entry: &Entry, mtu: u32, room: u64) -> Turn {
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
                let share = u64::from(window / self.reads.depth().clamp(1, 4)).max(1);
                let packets = left.min(share);
                let least = if window <= SMALL_WINDOW { packets.div_ceil(2) } else { packets };
                if sq.in_flight() == 0 {
                    packets
                } else if least > room {
                    return Turn::Wait;
                } else {
                    packets.min(room)
                }
            }
        };
        let length = length_of(entry, offset_of(sq, entry, mtu), packets, mtu);
        Turn::Packet { length, packets: packets as u32 }
    }

    /// End-to-end flow control (IBTA 9.7.7.2): within the credits, or one message alone as a probe.
    #[inline]
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
        (length, packets): (u32, u32),
    ) -> Result<Transmit, AccessFault> {
        let mtu = cx.attr.path_mtu.bytes();
        let next = sq.next();
        let (position, ack_req) = if entry.needs_response() {
            (Position::Only, false)
        } else {
            let position = Position::of((next - entry.first) as u32, entry.packets);
            (position, self.asks_ack(sq, window, position, (cx.now, mtu)))
        };
        let segment = Segment {
            service: cx.service,
            wqe: &entry.wqe,
            slot: sq.slot(index),
            psn: sq.psn(next),
            dest: cx.attr.dest_qpn,
            offset: offset_of(sq, entry, mtu),
            length,
            position,
            ack_req,
            asks_kept: self.asks_kept,
        };
        let len = segment.write(cx, host, buf)?;
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
        let asked_for = if entry.needs_response() { length } else { 0 };
        window.on_sent(next, cx.now, Sent { packets, bytes: len as u32 + asked_for, again });
        cx.counters.tx_packets += 1;
        cx.counters.tx_bytes += len as u64;
        sq.advance(packets);
        Ok(Transmit { len, ah: None })
    }

    /// Writes the payload of the next part of a message, or where it lies. `None` if something else
    /// is next, or nothing may leave.
    #[inline]
    pub(crate) fn poll_message(
        &mut self,
        sq: &mut SendQueue,
        window: &mut Window,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<Option<(MessagePart, usize)>, Fatal> {
        if self.hold.is_some() || !self.sends_messages {
            return Ok(None);
        }
        let Some((index, entry)) = sq.at_cursor() else { return Ok(None) };
        let mtu = cx.attr.path_mtu.bytes();
        if !matches!(self.turn(sq, window.size_with(self.gone), entry, mtu), Turn::Message) {
            return Ok(None);
        }
        if !sq.cursor_is_started() {
            Self::start(sq, mtu);
        }
        let (entry, slot, path_mtu) = (sq.entry(index), sq.slot(index), cx.attr.path_mtu);
        let offset = offset_of(sq, entry, mtu);
        let left = entry.wqe.length - offset;
        let payload = match self.write_payload((slot, offset, left), path_mtu, host, buf) {
            Ok(payload) => payload,
            Err(fault) => {
                let entry = *entry;
                return self.local_error(sq, &entry, fault).map(|_| None);
            }
        };
        let Payload { length, is_rendezvous, written } = payload;
        let (psn, wqe) = (sq.psn(sq.next()), &entry.wqe);
        let part = MessagePart {
            is_rendezvous,
            srqn: wqe.srqn.filter(|_| cx.service == Service::Xrc),
            ..MessagePart::of(wqe, psn, (offset, length), path_mtu)
        };
        let packets = part.packets();
        cx.counters.messages_sent += u64::from(part.ends);
        cx.counters.tx_packets += u64::from(packets);
        cx.counters.tx_bytes += u64::from(length);
        window.on_sent(sq.next(), cx.now, Sent { packets, bytes: length, again: false });
        self.since_ack_req = 0;
        self.messages_end = sq.next() + u64::from(packets);
        if is_rendezvous {
            self.rendezvous_end = self.messages_end;
        }
        sq.advance(packets);
        Ok(Some((part, written)))
    }

    /// Writes the payload of a SEND of which `left` bytes are left from `offset` on, as much as
    /// fits, or where it lies.
    #[inline]
    fn write_payload(
        &self,
        (slot, offset, left): (u32, u32, u32),
        mtu: Mtu,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<Payload, AccessFault> {
        if let Some(limits) = self.rendezvous.filter(|limits| left >= limits.min_bytes) {
            let length = left.min((limits.max_bytes & !(mtu.bytes() - 1)).max(mtu.bytes()));
            if let Some(written) = host.name_payload(slot, offset, length, buf)? {
                return Ok(Payload { length, is_rendezvous: true, written });
            }
        }
        let length = part_length(left, buf.len(), mtu);
        let written = length as usize;
        host.gather(slot, offset, &mut buf[..written])?;
        Ok(Payload { length, is_rendezvous: false, written })
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
        // Bounded: a probe has two packets.
        while let Some(repeat) = probe.take() {
            let Some((seq, packets)) = self.repeated(sq, repeat) else { continue };
            if let Some(len) = self.write_again(sq, (seq, packets), cx, host, buf) {
                return Some(len);
            }
        }
        None
    }

    /// Whether a packet that the peer misses may be sent again now.
    #[cold]
    pub(crate) fn may_repair(&self, sq: &SendQueue, window: &Window, repair: &Repair) -> bool {
        repair.is_queued()
            && self.hold.is_none()
            && (sq.in_flight() < u64::from(window.size_with(self.gone))
                || repair.is_oldest_queued())
    }

    /// Sends a packet again that the peer misses, if one is due and the window has room. One that
    /// local memory refuses is left out: going back meets the error in its turn.
    pub(crate) fn poll_repair(
        &mut self,
        sq: &SendQueue,
        window: &mut Window,
        repair: &mut Repair,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Option<usize> {
        // Bounded: each hole is taken once.
        while self.may_repair(sq, window, repair) {
            let (seq, packets) = repair.take(sq.high(), cx.now)?;
            self.gone = repair.gone();
            window.on_repeat_of(seq);
            if let Some(len) = self.write_again(sq, (seq, u64::from(packets)), cx, host, buf) {
                window.on_sent(seq, cx.now, Sent { packets, bytes: len as u32, again: true });
                return Some(len);
            }
        }
        None
    }

    /// Writes the packet at `seq`, or the READ that asks for so many packets from there on, once
    /// more.
    fn write_again(
        &self,
        sq: &SendQueue,
        (seq, packets): (u64, u64),
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Option<usize> {
        let mtu = cx.attr.path_mtu.bytes();
        let (index, entry) = sq.holding(seq)?;
        let number = (seq - entry.first) as u32;
        let several = !entry.needs_response();
        let position = if several { Position::of(number, entry.packets) } else { Position::Only };
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
            asks_kept: self.asks_kept,
        };
        let len = segment.write(cx, host, buf).ok()?;
        cx.counters.retransmitted_packets += 1;
        cx.counters.tx_packets += 1;
        cx.counters.tx_bytes += len as u64;
        Some(len)
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
    #[inline]
    fn asks_ack(
        &self,
        sq: &SendQueue,
        window: &Window,
        position: Position,
        leaving: (Time, u32),
    ) -> bool {
        // Most packets end a message: the window is looked at for the others alone.
        position.ends() || self.asks_ack_within(sq, window, leaving)
    }

    /// The same of a packet that does not end its message.
    fn asks_ack_within(&self, sq: &SendQueue, window: &Window, (now, mtu): (Time, u32)) -> bool {
        let size = window.size_with(self.gone);
        self.since_ack_req + 1 >= ACK_EVERY.min(size / 4)
            || sq.in_flight() + 1 >= u64::from(size)
            || sq.next() + 1 >= self.withheld
            || window.pauses_after(now, mtu + Headers::MAX_LEN as u32)
    }
}

/// The payload of a part of a message.
struct Payload {
    length: u32,
    is_rendezvous: bool,
    /// Bytes that it takes in the buffer.
    written: usize,
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
