//! RC requester: which packet leaves next (IBTA 9.7.2 to 9.7.4).
//!
//! Owns what decides whether a packet may leave: the reads in flight, the peer's credits, the RNR
//! delay, the fence, the spacing of acknowledge requests. The sequence itself is the
//! [`SendQueue`]'s, shared with the completer.

mod again;
mod messages;
mod middle;
mod turn;

use vernic_wire::Headers;
use vernic_wire::opcode::Position;

use self::turn::{Turn, offset_of, packet_count_of};
use super::reads::Reads;
use super::window::Window;
use crate::congestion::Sent;
use crate::cx::Cx;
use crate::error::{AccessFault, Cause, WcStatus};
use crate::host::{Host, Transmit};
use crate::message::RendezvousLimits;
use crate::segment::Segment;
use crate::sq::{Entry, SendQueue};
use crate::time::Time;
use crate::wqe::SendOp;

/// At least one packet in so many asks for an acknowledgement, or one in half a window, so that the
/// window keeps moving inside long messages. So many may leave with one acknowledgement. Asking
/// more often costs a peer whose processor is the bottleneck a tenth of its bandwidth.
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
    /// The peer has told in a map what it keeps, which only a peer that keeps packets can do.
    pub(super) was_told: bool,
    /// From this number on nothing leaves until all before it is acknowledged; `u64::MAX` if
    /// nothing is held back. See [`withhold`](Self::withhold).
    withheld: u64,
    /// How often that was done.
    trials: u8,
    /// How often the peer proved to lack what was held back.
    failed_trials: u8,
    /// Sequence numbers that are not acknowledged and not in the network either.
    pub(super) gone: u32,
    /// Behind the last part of a message that was sent, since the cursor went back last.
    messages_end: u64,
    /// The same of the last rendezvous.
    rendezvous_end: u64,
}

/// How often packets are held back of a peer that may keep packets.
const MOST_TRIALS: u8 = 16;
/// How often the peer may lack what was held back. It may have been lost itself.
const MOST_FAILED_TRIALS: u8 = 8;

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
        (self.asks_kept, self.was_told, self.gone) = (false, false, 0);
        (self.withheld, self.trials, self.failed_trials) = (u64::MAX, 0, 0);
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

    /// Holds some of what the cursor went back behind until all before it is acknowledged. A peer
    /// that has kept the first of these packets acknowledges it, too, which shows that the peer
    /// keeps packets. Otherwise all would be sent again before the first answer comes, wherever few
    /// packets are in flight. Not done to a peer that has lacked them [`MOST_FAILED_TRIALS`] times.
    ///
    /// These are the last packet, then the newer half, then all but the missing one, and so on: a
    /// queue that overflows takes many packets in a row, and nobody knows which.
    pub(super) fn withhold(&mut self, sq: &SendQueue) {
        let may = self.trials < MOST_TRIALS && self.failed_trials < MOST_FAILED_TRIALS;
        if self.asks_kept || !may || self.sends_messages {
            return;
        }
        let flight = sq.high() - sq.una();
        let held = [1, flight / 2, flight.saturating_sub(1)][usize::from(self.trials % 3)];
        let first = sq.high() - held;
        // A READ is asked for as a whole.
        let first = match self.reads.piece_of(first) {
            Some(piece) if piece.start <= sq.una() => piece.end,
            Some(piece) => piece.start,
            None => first,
        };
        if first > sq.una() && first < sq.high() {
            self.withheld = first;
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
            self.failed_trials += 1;
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

    /// The RNR delay lasts until this time at least.
    pub(crate) fn extend_rnr_delay(&mut self, until: Time) {
        let held = self.hold.filter(|_| self.is_rnr);
        self.start_rnr_delay(held.map_or(until, |held| held.max(until)));
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
        while let Some((index, entry)) = sq.at_cursor() {
            let part = match self.turn(sq, size, entry, mtu) {
                Turn::Wait | Turn::Message => return Ok(None),
                Turn::Local => match host.local_op(&entry.wqe) {
                    // Started only now: one that failed is met again in its turn.
                    Ok(()) => {
                        sq.start(0);
                        sq.advance(0);
                        continue;
                    }
                    Err(fault) => return self.local_error(sq, entry, fault),
                },
                Turn::Packet { length, packets } => (length, packets),
            };
            if !sq.cursor_is_started() {
                Self::start(sq, mtu);
            }
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
        self.since_ack_req + 1 >= ACK_EVERY.min(size / 2)
            || sq.in_flight() + 1 >= u64::from(size)
            || sq.next() + 1 >= self.withheld
            || window.pauses_after(now, mtu + Headers::MAX_LEN as u32)
    }
}
