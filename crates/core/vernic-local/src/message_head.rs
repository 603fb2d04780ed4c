//! The head of a message in a ring: which queue pair it is for, and which part of which SEND it is.
//!
//! ```text
//!  flags    bit 0 starts, 1 ends, 2 solicited, 3 rendezvous, 4 immediate data, 5 invalidates;
//!           bits 6 to 8 the sender's path MTU, in the code of the verbs
//!  word 0   number of the destination queue pair
//!  word 1   sequence number of the first packet that the part stands for
//!  word 2   immediate data, or the R_Key to be invalidated
//! ```
//! The length of the payload is the record's, or that in the rendezvous record which takes the
//! payload's place (`rendezvous.rs`). The contents of a head are not trusted: a head that no sender
//! writes is refused here, and the rest is the responder's to check.

use crate::ring::MessageHead;
use vernic_proto::{MessagePart, Tag};
use vernic_wire::{Mtu, Psn, Qpn, Rkey};

const STARTS: u16 = 1 << 0;
const ENDS: u16 = 1 << 1;
const SOLICITED: u16 = 1 << 2;
const RENDEZVOUS: u16 = 1 << 3;
const IMMEDIATE: u16 = 1 << 4;
const INVALIDATES: u16 = 1 << 5;
/// The first bit of the path MTU, and all its bits.
const MTU_SHIFT: u32 = 6;
const MTU: u16 = 7 << MTU_SHIFT;
const ALL: u16 = (1 << 9) - 1;

/// Numbers of queue pairs and packets have 24 bits.
const NUMBERS: u32 = 0xFF_FFFF;

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
        | u16::from(part.mtu as u8) << MTU_SHIFT
        | kind;
    MessageHead { flags, words: [dest.value(), part.psn.value(), tag] }
}

/// Returns the destination and the part that a head names, with a payload of `length` bytes; `None`
/// if no sender writes such a head.
#[inline]
pub fn part_of(head: MessageHead, length: u32) -> Option<(Qpn, MessagePart)> {
    let MessageHead { flags, words: [dest, psn, tag] } = head;
    let has = |bit: u16| flags & bit != 0;
    let mtu = Mtu::from_code(((flags & MTU) >> MTU_SHIFT) as u8)?;
    let last_only = SOLICITED | IMMEDIATE | INVALIDATES;
    let is_meant = flags & !ALL == 0
        && dest <= NUMBERS
        && psn <= NUMBERS
        && (has(ENDS) || flags & last_only == 0)
        && !(has(IMMEDIATE) && has(INVALIDATES));
    let part = MessagePart {
        psn: Psn::new(psn),
        length,
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
    };
    is_meant.then_some((Qpn::new(dest), part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        let mut understood = 0;
        for flags in 0..=u16::MAX {
            let head = MessageHead { flags, words: [0x12_3456, 0xFF_FFFF, 0xABCD_EF01] };
            let Some((dest, part)) = part_of(head, 77) else { continue };
            understood += 1;
            assert_eq!((dest, part.psn, part.length), (Qpn::new(0x12_3456), Psn::new(NUMBERS), 77));
            let again = head_of(dest, &part);
            let word = if part.tag == Tag::None { 0 } else { 0xABCD_EF01 };
            assert_eq!(again, MessageHead { words: [0x12_3456, NUMBERS, word], ..head });
        }
        // Starts or not, a rendezvous or not: 4 that do not end, and of those that do 2 times 3;
        // each at every path MTU.
        assert_eq!(understood, (4 + 4 * 2 * 3) * Mtu::ALL.len());
        for words in [[1 << 24, 0, 0], [0, 1 << 24, 0], [u32::MAX, 0, 0]] {
            assert_eq!(
                part_of(MessageHead { flags: STARTS | ENDS | 1 << MTU_SHIFT, words }, 1),
                None
            );
        }
    }
}
