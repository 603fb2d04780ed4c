//! Packets that are sent once more, beside the sequence: by a probe, or because the peer misses
//! them.

use vernic_wire::opcode::Position;

use super::Requester;
use super::turn::length_of;
use crate::congestion::Sent;
use crate::cx::Cx;
use crate::host::Host;
use crate::rc::probe::{Probe, Repeat};
use crate::rc::repair::Repair;
use crate::rc::window::Window;
use crate::segment::Segment;
use crate::sq::SendQueue;

impl Requester {
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
}
