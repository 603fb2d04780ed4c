//! Parts of messages: what a peer in the same host takes instead of packets.

use vernic_wire::{Mtu, Service};

use super::turn::{Turn, offset_of};
use super::{Fatal, Requester};
use crate::congestion::Sent;
use crate::cx::Cx;
use crate::error::AccessFault;
use crate::host::Host;
use crate::message::{MessagePart, part_length};
use crate::rc::window::Window;
use crate::sq::SendQueue;

/// The payload of a part of a message.
struct Payload {
    length: u32,
    is_rendezvous: bool,
    /// Bytes that it takes in the buffer.
    written: usize,
}

impl Requester {
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
}
