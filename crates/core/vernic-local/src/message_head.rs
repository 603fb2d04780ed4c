//! The head of a message in a ring: which queue pair it is for, and which part of which SEND it is.
//!
//! ```text
//!  flags    bit 0 starts, 1 ends, 2 solicited, 3 rendezvous, 4 immediate data, 5 invalidates;
//!           bits 6 to 8 the sender's path MTU, in the code of the verbs; 9 XRC
//!  word 0   number of the destination queue pair
//!  word 1   sequence number of the first packet that the part stands for
//!  word 2   immediate data, or the R_Key to be invalidated
//! ```
//! The length of the payload is the record's, or that in the rendezvous record which takes the
//! payload's place (`rendezvous.rs`). With the bit XRC, the 4 bytes behind that are the number of
//! the shared receive queue, and no payload. The contents of a head are not trusted: a head that no
//! sender writes is refused here, and the rest is the responder's to check.
//!
//! A change to heads, or to the services whose SENDs travel in parts, takes another version of the
//! connection (`hello.rs`): processes of other builds would drop such parts.

use crate::ring::MessageHead;
use vernic_proto::{MessagePart, Tag};
use vernic_wire::{Mtu, Psn, Qpn, Rkey, Srqn};

const STARTS: u16 = 1 << 0;
const ENDS: u16 = 1 << 1;
const SOLICITED: u16 = 1 << 2;
const RENDEZVOUS: u16 = 1 << 3;
const IMMEDIATE: u16 = 1 << 4;
const INVALIDATES: u16 = 1 << 5;
const XRC: u16 = 1 << 9;
/// The first bit of the path MTU, and all its bits.
const MTU_SHIFT: u32 = 6;
const MTU: u16 = 7 << MTU_SHIFT;
const ALL: u16 = (1 << 10) - 1;

/// Numbers of queue pairs, packets and shared receive queues have 24 bits.
const NUMBERS: u32 = 0xFF_FFFF;

/// Bytes of the number of a shared receive queue behind the payload.
pub(crate) const SRQN_BYTES: usize = 4;

/// Writes the number of a part's shared receive queue to `buf`, behind the part's payload. Returns
/// the bytes of the number: none if the part names no such queue.
#[inline]
pub(crate) fn put_srqn(part: &MessagePart, buf: &mut [u8]) -> usize {
    match (part.srqn, buf.first_chunk_mut::<SRQN_BYTES>()) {
        (Some(srqn), Some(place)) => {
            *place = srqn.value().to_ne_bytes();
            SRQN_BYTES
        }
        _ => 0,
    }
}

/// Returns the head of a part for the queue pair `dest` of a local peer.
#[inline]
pub fn head_of(dest: Qpn, part: &MessagePart) -> MessageHead {
    let bit = |is_set: bool, bit: u16| if is_set { bit } else { 0 };
    let (kind, tag) = match part.tag {
        Tag::None => (0, 0),
        Tag::Imm(imm) => (IMMEDIATE, imm),
        Tag::Invalidated(rkey) => (INVALIDATES, rkey.value()),
    };
    let flags = bit(part.starts, STARTS)
        | bit(part.ends, ENDS)
        | bit(part.solicited, SOLICITED)
        | bit(part.is_rendezvous, RENDEZVOUS)
        | bit(part.srqn.is_some(), XRC)
        | u16::from(part.mtu as u8) << MTU_SHIFT
        | kind;
    MessageHead { flags, words: [dest.value(), part.psn.value(), tag] }
}

/// Returns the destination and the part that a head names, and its payload, of the `bytes` behind
/// the head; `None` if no sender writes such a record.
#[inline]
pub fn part_of(head: MessageHead, bytes: &[u8]) -> Option<(Qpn, MessagePart, &[u8])> {
    let MessageHead { flags, words: [dest, psn, tag] } = head;
    let has = |bit: u16| flags & bit != 0;
    let (payload, srqn) = if has(XRC) { cut_srqn(bytes)? } else { (bytes, None) };
    let mtu = Mtu::from_code(((flags & MTU) >> MTU_SHIFT) as u8)?;
    let last_only = SOLICITED | IMMEDIATE | INVALIDATES;
    let is_meant = flags & !ALL == 0
        && dest <= NUMBERS
        && psn <= NUMBERS
        && (has(ENDS) || flags & last_only == 0)
        && !(has(IMMEDIATE) && has(INVALIDATES));
    let part = MessagePart {
        psn: Psn::new(psn),
        length: payload.len() as u32,
        mtu,
        is_rendezvous: has(RENDEZVOUS),
        starts: has(STARTS),
        ends: has(ENDS),
        solicited: has(SOLICITED),
        tag: match () {
            () if has(IMMEDIATE) => Tag::Imm(tag),
            () if has(INVALIDATES) => Tag::Invalidated(Rkey(tag)),
            () => Tag::None,
        },
        srqn,
    };
    is_meant.then_some((Qpn::new(dest), part, payload))
}

/// Splits what is behind a head of XRC into payload and number.
fn cut_srqn(bytes: &[u8]) -> Option<(&[u8], Option<Srqn>)> {
    let (payload, number) = bytes.split_last_chunk::<SRQN_BYTES>()?;
    let number = u32::from_ne_bytes(*number);
    (number <= NUMBERS).then_some((payload, Some(Srqn::new(number))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        let mut understood = 0;
        for flags in 0..=u16::MAX {
            let head = MessageHead { flags, words: [0x12_3456, 0xFF_FFFF, 0xABCD_EF01] };
            let mut bytes = [7; 81];
            bytes[77..].copy_from_slice(&0xAB_CDEF_u32.to_ne_bytes());
            let Some((dest, part, payload)) = part_of(head, &bytes) else { continue };
            understood += 1;
            let length = if flags & XRC == 0 { 81 } else { 77 };
            assert_eq!((dest, part.psn), (Qpn::new(0x12_3456), Psn::new(NUMBERS)));
            assert_eq!((payload.len(), part.length), (length, length as u32));
            assert_eq!(part.srqn, (length == 77).then_some(Srqn::new(0xAB_CDEF)));
            let mut number = [0; 6];
            assert_eq!(put_srqn(&part, &mut number), 81 - length);
            assert!(length == 81 || number[..4] == bytes[77..]);
            let again = head_of(dest, &part);
            let word = if part.tag == Tag::None { 0 } else { 0xABCD_EF01 };
            assert_eq!(again, MessageHead { words: [0x12_3456, NUMBERS, word], ..head });
        }
        // Starts or not, a rendezvous or not: 4 that do not end, and of those that do 2 times 3;
        // each at every path MTU, of RC and of XRC.
        assert_eq!(understood, 2 * (4 + 4 * 2 * 3) * Mtu::ALL.len());
        for words in [[1 << 24, 0, 0], [0, 1 << 24, 0], [u32::MAX, 0, 0]] {
            assert_eq!(
                part_of(MessageHead { flags: STARTS | ENDS | 1 << MTU_SHIFT, words }, &[1]),
                None
            );
        }
        let flags = XRC | STARTS | ENDS | 1 << MTU_SHIFT;
        let with = |bytes: &[u8]| part_of(MessageHead { flags, words: [1, 2, 3] }, bytes).is_some();
        assert!(with(&NUMBERS.to_ne_bytes()));
        assert!(!with(&(NUMBERS + 1).to_ne_bytes()) && !with(&[0; 3]) && !with(&[]));
    }
}
