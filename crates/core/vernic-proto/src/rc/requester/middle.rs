//! Packets in the middle of a message: nearly all of a long SEND or WRITE.
//!
//! Such a packet has no header but the BTH, is full, begins and ends nothing, and needs no credit.
//! So it needs few of the decisions that [`Requester::poll`] takes for any packet.

use vernic_wire::opcode::{self, Kind, Position, Tail};
use vernic_wire::{Bth, Service};

use super::Requester;
use crate::congestion::Sent;
use crate::cx::Cx;
use crate::host::{Host, Transmit};
use crate::rc::window::Window;
use crate::segment;
use crate::sq::SendQueue;

impl Requester {
    /// Writes the next packet if it is one in the middle of a message of RC. `None`, and nothing
    /// but the content of `buf` has changed: [`poll`](Self::poll) decides.
    #[inline(never)]
    pub(crate) fn poll_middle(
        &mut self,
        sq: &mut SendQueue,
        window: &mut Window,
        cx: &mut Cx<'_>,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        let (index, entry) = sq.at_cursor()?;
        let (kind, ..) = segment::meaning(&entry.wqe.op);
        let (next, again) = (sq.next(), sq.next() < sq.high());
        let is_part = kind == Kind::Send && self.sends_messages && !again;
        let is_closed = sq.in_flight() >= u64::from(window.size_with(self.gone));
        if !matches!(kind, Kind::Send | Kind::Write)
            || cx.service != Service::Rc
            || self.hold.is_some()
            || sq.is_direct()
            || is_part
            || is_closed
            || next >= self.withheld
        {
            return None;
        }
        let mtu = cx.attr.path_mtu.bytes();
        let offset = (next - entry.first) as u32 * mtu;
        let ack_req = self.asks_ack_within(sq, window, (cx.now, mtu));
        let opcode = opcode::request(Service::Rc, kind, Position::Middle, Tail::None)?;
        let mut bth = Bth::new(opcode, cx.attr.dest_qpn, sq.psn(next));
        bth.pkey = cx.pkey;
        bth.migreq = cx.attr.migreq();
        bth.ack_req = ack_req;
        bth.reserved7 = if self.asks_kept { Bth::ASKS_KEPT } else { 0 };
        bth.emit(buf);
        let len = Bth::LEN + mtu as usize;
        // A local error is met again by `poll`, which tells it.
        host.gather(sq.slot(index), offset, &mut buf[Bth::LEN..len]).ok()?;
        self.since_ack_req = if ack_req { 0 } else { self.since_ack_req + 1 };
        cx.counters.retransmitted_packets += u64::from(again);
        cx.counters.tx_packets += 1;
        cx.counters.tx_bytes += len as u64;
        window.on_sent(next, cx.now, Sent { packets: 1, bytes: len as u32, again });
        sq.advance(1);
        Some(Transmit { len, ah: None })
    }
}
