//! Properties of every part of a message, as it leaves and as it arrives; parts that nobody sent.
//!
//! A part is what its sequence number says, like a packet: this piece of this message, and the next
//! one that was not sent before. What is sent again travels in packets. Used by [`crate::local`],
//! which writes and reads the rings, and by the arrival.

use vernic_proto::{
    Disposition, DropReason, ErrorClass, MessagePart, RendezvousLimits, SendFlags, SendOp, Tag,
};
use vernic_wire::{Mtu, Psn, Rkey, Service, Srqn};

use crate::content;
use crate::cover::Count;
use crate::ctx::{Ctx, fail};
use crate::flow::{Flow, Msg};
use crate::net;
use crate::ring::{PartRecord, numbers_of};
use crate::rng::Rng;
use crate::side::{Piece, Pulled, SideState};
use crate::trace;
use crate::wirecheck::{in_rnr_delay, may_start, place_unreliable};
use crate::xrc::{is_reliable, srqn};

/// Where the payload of a rendezvous lies, as the simulated host says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) msg: usize,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

impl Named {
    /// Writes it to the start of `buf` and returns its length.
    pub(crate) fn emit(self, buf: &mut [u8]) -> usize {
        let words = [self.msg as u32, self.offset, self.length];
        for (place, word) in buf.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        size_of_val(&words)
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut words =
            bytes.chunks_exact(4).filter_map(|word| word.try_into().ok().map(u32::from_ne_bytes));
        let (msg, offset, length) = (words.next()?, words.next()?, words.next()?);
        Some(Self { msg: msg as usize, offset, length })
    }
}

/// A part leaves; returns which piece of which message it begins with.
pub(crate) fn sent(
    ctx: &mut Ctx,
    st: &SideState,
    out: &mut Flow,
    (part, payload): (&MessagePart, &[u8]),
    limits: Option<RendezvousLimits>,
    max_reads: u32,
) -> net::Tag {
    let mtu = st.mtu.bytes();
    let name = trace::part(part, mtu);
    let found = if is_reliable(st.service) {
        place(ctx, st, out, part, max_reads)
    } else {
        let numbers = numbers_of(part, mtu) as u32;
        place_unreliable(ctx, st, out, &name, (part.psn, numbers))
    };
    let Some((number, index)) = found else { return net::Tag::default() };
    let (tag, offset) = (net::Tag { msg: number, index }, index * mtu);
    let msg = &out.msgs[number];
    if !fits(st.service, part, msg, offset) || part.mtu != st.mtu {
        fail!(
            ctx,
            "{} sent {part:?} for message {number} {:?} of {} bytes at offset {offset}",
            st.label(),
            msg.op,
            msg.len
        );
        return tag;
    }
    let is_right = match limits {
        _ if !part.is_rendezvous => {
            payload.len() == part.length as usize
                && content::mismatch(msg.id, u64::from(offset), payload).is_none()
        }
        Some(limits) => {
            let want = Named { msg: number, offset, length: part.length };
            Named::parse(payload) == Some(want)
                && msg.len - offset >= limits.min_bytes
                && part.length <= limits.max_bytes.max(mtu)
        }
        None => false,
    };
    if !is_right {
        fail!(ctx, "{} sent {name} of message {number} with a wrong payload", st.label());
    }
    if out.next_local < number {
        fail!(ctx, "{} sent {name} before the local operation {}", st.label(), out.next_local);
    }
    in_rnr_delay(ctx, st, out, &name);
    ctx.hit(match st.service {
        Service::Xrc => Count::PartsXrc,
        Service::Uc => Count::PartsUc,
        _ => Count::Parts,
    });
    tag
}

/// RC and XRC: the place follows from the sequence number, which is the next one.
fn place(
    ctx: &mut Ctx,
    st: &SideState,
    out: &mut Flow,
    part: &MessagePart,
    max_reads: u32,
) -> Option<(usize, u32)> {
    let mtu = st.mtu.bytes();
    let seq = out.extend(part.psn, out.high);
    let found = seq.filter(|&seq| seq == out.high).and_then(|seq| out.holding(seq));
    let (Some(seq), Some(number)) = (seq, found) else {
        let name = trace::part(part, mtu);
        fail!(ctx, "{} sent {name}: sequence {seq:?}, next is {}", st.label(), out.high);
        return None;
    };
    let index = (seq - out.msgs[number].first) as u32;
    if index == 0 {
        may_start(ctx, st, out, number, max_reads);
    }
    out.high = seq + numbers_of(part, mtu);
    let wraps = u64::from(part.psn.value()) + (out.high - seq) > u64::from(Psn::MODULUS);
    ctx.cover.add(Count::PsnWraps, u64::from(wraps));
    Some((number, index))
}

/// Whether the part is the piece of the message at `offset`.
fn fits(service: Service, part: &MessagePart, msg: &Msg, offset: u32) -> bool {
    let mtu = part.mtu.bytes();
    let queue = (service == Service::Xrc).then(|| srqn(msg.queue, msg.bad));
    let end = u64::from(offset) + u64::from(part.length);
    let ends = end == u64::from(msg.len);
    let is_whole =
        ends || end < u64::from(msg.len) && part.length != 0 && part.length.is_multiple_of(mtu);
    let tag = match msg.op {
        SendOp::SendImm(imm) if ends => Tag::Imm(imm),
        SendOp::SendInv(rkey) if ends => Tag::Invalidated(rkey),
        _ => Tag::None,
    };
    let solicited = ends && msg.flags.contains(SendFlags::SOLICITED);
    msg.is_send()
        && is_whole
        && (part.starts, part.ends) == (offset == 0, ends)
        && (part.tag, part.solicited, part.srqn) == (tag, solicited, queue)
}

/// The piece that a part is, if it is the one to be executed now; and its extended sequence number,
/// where the service has an order to keep.
pub(crate) fn expect(st: &SideState, inn: &Flow, record: &PartRecord) -> (Option<Piece>, u64) {
    let PartRecord { part, tag, .. } = record;
    if !is_reliable(st.service) {
        let (offset, first) = (tag.index * st.mtu.bytes(), tag.index == 0);
        let piece = Piece { msg: tag.msg, offset, len: part.length, first, last: part.ends };
        return (inn.msgs.get(tag.msg).map(|_| piece), 0);
    }
    let Some(seq) = inn.extend(part.psn, inn.exec) else { return (None, u64::MAX) };
    let Some(number) = inn.holding(seq).filter(|_| seq == inn.exec) else { return (None, seq) };
    let offset = (seq - inn.msgs[number].first) as u32 * st.mtu.bytes();
    let (first, last) = (offset == 0, part.ends);
    (Some(Piece { msg: number, offset, len: part.length, first, last }), seq)
}

/// What became of a payload that had to be copied, against what was said of the part.
pub(crate) fn judge_pull(
    ctx: &mut Ctx,
    st: &SideState,
    inn: &mut Flow,
    name: &str,
    disposition: Disposition,
) {
    let withdrawn = Disposition::Drop(DropReason::RendezvousWithdrawn);
    let fits = match st.pulled {
        Some(Pulled::Unreachable) => disposition == Disposition::Nak(ErrorClass::PsnSequence),
        Some(Pulled::Withdrawn) => disposition == withdrawn,
        Some(Pulled::Bytes) | None => disposition != withdrawn,
    };
    inn.unreachable |= st.pulled == Some(Pulled::Unreachable);
    if !fits {
        fail!(ctx, "{} {disposition:?} {name}: {:?}", st.label(), st.pulled);
    }
}

/// A part that nobody sent: one of the peer's with random changes, or a random one around `near`.
pub(crate) fn garbage(
    rng: &mut Rng,
    real: Option<&MessagePart>,
    (near, path_mtu): (Psn, Mtu),
) -> (MessagePart, Vec<u8>) {
    let mtu = path_mtu.bytes();
    let random = MessagePart {
        psn: near.add(rng.below(5) as u32).sub(2),
        length: 0,
        mtu: path_mtu,
        is_rendezvous: rng.percent(30),
        starts: rng.percent(50),
        ends: rng.percent(50),
        solicited: rng.percent(50),
        tag: Tag::None,
        srqn: None,
    };
    let mut part = *real.unwrap_or(&random);
    // Without a change it is a copy that comes before the real one.
    for _ in 0..rng.range(0, 4) {
        match rng.below(9) {
            0 => part.psn = Psn::new(rng.word() as u32 & 0xFF_FFFF),
            1 => part.psn = part.psn.add(rng.below(5) as u32).sub(2),
            2 => {
                let word = rng.word() as u32;
                part.length = rng.pick(&[0, 1, mtu, mtu * 3, mtu + 1, word, word >> 12, u32::MAX]);
            }
            3 => part.is_rendezvous = !part.is_rendezvous,
            4 => part.starts = !part.starts,
            5 => part.ends = !part.ends,
            6 => {
                let other = Srqn::new(rng.word() as u32 & 3);
                part.srqn = rng.pick(&[None, Some(other)]);
            }
            7 => part.mtu = rng.pick(&[Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B4096]),
            _ => {
                let word = rng.word() as u32;
                part.tag = rng.pick(&[Tag::None, Tag::Imm(word), Tag::Invalidated(Rkey(word))]);
            }
        }
    }
    // Payload is as long as the part says, if a ring can hold that, or not.
    let fitting = part.length.min(1 << 16) as usize;
    let len = if rng.percent(90) { fitting } else { rng.below(5_000) as usize };
    let payload = if part.is_rendezvous { Vec::new() } else { vec![0x5A; len] };
    (part, payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_read_again() {
        let named = Named { msg: 7, offset: 4096, length: 100_000 };
        let mut buf = [0; 64];
        let len = named.emit(&mut buf);
        assert_eq!(Named::parse(&buf[..len]), Some(named));
        assert_eq!(Named::parse(&buf[..len - 1]), None);
    }
}
