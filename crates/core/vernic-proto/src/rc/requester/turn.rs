//! Whether the request at the cursor may proceed, and with how much (IBTA 9.7.7.2, 9.7.4).

use super::Requester;
use crate::segment::packet_count;
use crate::sq::{Entry, SendQueue};
use crate::wqe::{SendFlags, SendOp};

/// Most sequence numbers of parts of messages in flight: well below half of all, so that of any two
/// it is clear which is the later one. The peer's memory bounds them before that.
const MOST_IN_FLIGHT: u64 = 1 << 22;

/// Largest window in packets in which a READ may ask for less than usual: for a 16th of the window,
/// or as little as fills the window with as many requests as may be outstanding. Half of that stays
/// empty on average. In larger windows that matters less than the requests that it takes.
const SMALL_WINDOW: u32 = 128;

/// Whether, and how, the request at the cursor may proceed.
pub(super) enum Turn {
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
    /// Decides about the request at the cursor without changing anything.
    #[inline]
    pub(super) fn turn(&self, sq: &SendQueue, window: u32, entry: &Entry, mtu: u32) -> Turn {
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
            // The window has room for one packet.
            None if left == 1 => 1,
            None => {
                let share = u64::from(window / self.reads.depth().clamp(1, 4)).max(1);
                let packets = left.min(share);
                let least = if window <= SMALL_WINDOW {
                    let part = u64::from(window.div_ceil(self.reads.depth().clamp(1, 16)));
                    packets.min(part)
                } else {
                    packets
                };
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
}

/// Sequence numbers that the request takes.
pub(super) fn packet_count_of(entry: &Entry, mtu: u32) -> u32 {
    match entry.wqe.op {
        SendOp::Flush { .. }
        | SendOp::AtomicWrite(_)
        | SendOp::CmpSwap { .. }
        | SendOp::FetchAdd { .. } => 1,
        _ => packet_count(entry.wqe.length, mtu),
    }
}

/// Payload bytes of a packet of a SEND or WRITE, bytes that a READ asks for with `packets` of them.
pub(super) fn length_of(entry: &Entry, offset: u32, packets: u64, mtu: u32) -> u32 {
    match entry.wqe.op {
        _ if !entry.needs_response() => (entry.wqe.length - offset).min(mtu),
        SendOp::Read(_) => {
            u64::from(entry.wqe.length - offset).min(packets * u64::from(mtu)) as u32
        }
        _ => entry.wqe.length,
    }
}

/// Payload bytes before the packet at `next`.
pub(super) fn offset_of(sq: &SendQueue, entry: &Entry, mtu: u32) -> u32 {
    if sq.cursor_is_started() { (sq.next() - entry.first) as u32 * mtu } else { 0 }
}
