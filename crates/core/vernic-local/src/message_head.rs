//! The head of a message in a ring: which queue pair it is for, and which part of which SEND it is.
//!
//! ```text
//!  flags    bit 0 starts, 1 ends, 2 solicited, 3 rendezvous, 4 immediate data, 5 invalidates;
//!           bits 6 to 8 the sender's path MTU, in the code of the verbs; 9 XRC; 10 carries an
//!           acknowledgement
//!  word 0   number of the destination queue pair
//!  word 1   sequence number of the first packet that the part stands for
//!  word 2   immediate data, or the R_Key to be invalidated
//! ```
//! The length of the payload is the record's, or that in the rendezvous record which takes the
//! payload's place (`rendezvous.rs`). With the bit XRC, the 4 bytes behind that are the number of
//! the shared receive queue, and no payload. With the bit for an acknowledgement, which XRC never
//! has, they are 8 bytes: the last sequence number that is acknowledged, and the AETH of an ACK
//! packet. The contents of a head are not trusted: a head that no sender writes is refused here,
//! and the rest is the responder's to check.
//!
//! A change to heads, or to the services whose SENDs travel in parts, takes another version of the
//! connection (`hello.rs`): processes of other builds would drop such parts.

use crate::ring::MessageHead;
use vernic_proto::{MessagePart, PartAck, Tag};
use vernic_wire::{Aeth, Mtu, Psn, Qpn, Rkey, Srqn};

const STARTS: u16 = 1 << 0;
const ENDS: u16 = 1 << 1;
const SOLICITED: u16 = 1 << 2;
const RENDEZVOUS: u16 = 1 << 3;
const IMMEDIATE: u16 = 1 << 4;
const INVALIDATES: u16 = 1 << 5;
const XRC: u16 = 1 << 9;
const ACK: u16 = 1 << 10;
/// The first bit of the path MTU, and all its bits.
const MTU_SHIFT: u32 = 6;
const MTU: u16 = 7 << MTU_SHIFT;
const ALL: u16 = (1 << 11) - 1;

/// Numbers of queue pairs, packets and shared receive queues have 24 bits.
const NUMBERS: u32 = 0xFF_FFFF;

/// Bytes of the number of a shared receive queue behind the payload.
const SRQN_BYTES: usize = 4;
/// Bytes of an acknowledgement there.
const ACK_BYTES: usize = 4 + Aeth::LEN;
/// Bytes behind the payload, at most.
pub(crate) const TAIL_BYTES: usize = ACK_BYTES;

/// Writes to `buf`, behind the payload of a part, what is to be there: the number of the part's
/// shared receive queue, or an acknowledgement. Returns the bytes written.
#[inline]
pub fn put_tail(part: &MessagePart, ack: Option<PartAck>, buf: &mut [u8]) -> usize {
    match (part.srqn, ack) {
        (Some(srqn), _) => {
            buf[..SRQN_BYTES].copy_from_slice(&srqn.value().to_ne_bytes());
            SRQN_BYTES
        }
        (None, Some(ack)) => {
            buf[..4].copy_from_slice(&ack.psn.value().to_ne_bytes());
            ack.aeth.emit(&mut buf[4..ACK_BYTES]);
            ACK_BYTES
        }
        (None, None) => 0,
    }
}

/// Returns the head of a part for the queue pair `dest` of a local peer.
#[inline]
pub fn head_of(dest: Qpn, part: &MessagePart, ack: Option<PartAck>) -> MessageHead {
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
        | bit(part.srqn.is_none() && ack.is_some(), ACK)
        | u16::from(part.mtu as u8) << MTU_SHIFT
        | kind;
    MessageHead { flags, words: [dest.value(), part.psn.value(), tag] }
}

/// A part of a message, as a record holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRecord<'a> {
    /// The queue pair that it is for.
    pub dest: Qpn,
    /// The part.
    pub part: MessagePart,
    /// The payload of the part, or the rendezvous record in place of it.
    pub payload: &'a [u8],
    /// The acknowledgement that the part carries.
    pub ack: Option<PartAck>,
}

/// Returns what a head and the `bytes` behind it hold; `None` if no sender writes such a record.
#[inline]
pub fn part_of(head: MessageHead, bytes: &[u8]) -> Option<PartRecord<'_>> {
    let MessageHead { flags, words: [dest, psn, tag] } = head;
    let has = |bit: u16| flags & bit != 0;
    let (payload, srqn, ack) = match flags & (XRC | ACK) {
        0 => (bytes, None, None),
        ACK => cut_ack(bytes)?,
        XRC => cut_srqn(bytes)?,
        _ => return None,
    };
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
    is_meant.then_some(PartRecord { dest: Qpn::new(dest), part, payload, ack })
}

/// The payload behind a head, and what may follow it.
type Behind<'a> = (&'a [u8], Option<Srqn>, Option<PartAck>);

/// Splits what is behind a head of XRC into payload and number.
fn cut_srqn(bytes: &[u8]) -> Option<Behind<'_>> {
    let (payload, number) = bytes.split_last_chunk::<SRQN_BYTES>()?;
    let number = u32::from_ne_bytes(*number);
    (number <= NUMBERS).then_some((payload, Some(Srqn::new(number)), None))
}

/// Splits what is behind a head into payload and acknowledgement.
#[inline]
fn cut_ack(bytes: &[u8]) -> Option<Behind<'_>> {
    let (payload, ack) = bytes.split_last_chunk::<ACK_BYTES>()?;
    let (psn, aeth) = (u32::from_ne_bytes(*ack.first_chunk()?), Aeth::parse(&ack[4..]).ok()?);
    let ack = PartAck { psn: Psn::new(psn), aeth };
    (psn <= NUMBERS).then_some((payload, None, Some(ack)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SRQN: u32 = 0xAB_CDEF;

    fn ack() -> PartAck {
        PartAck { psn: Psn::new(0x65_4321), aeth: Aeth { msn: 0x12_3456, ..Aeth::default() } }
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        let mut understood = 0;
        for flags in 0..=u16::MAX {
            let head = MessageHead { flags, words: [0x12_3456, 0xFF_FFFF, 0xABCD_EF01] };
            let mut bytes = [7; 81];
            let length = match flags & (XRC | ACK) {
                0 => 81,
                XRC => {
                    bytes[77..].copy_from_slice(&SRQN.to_ne_bytes());
                    77
                }
                _ => {
                    bytes[73..77].copy_from_slice(&ack().psn.value().to_ne_bytes());
                    ack().aeth.emit(&mut bytes[77..]);
                    73
                }
            };
            let Some(record) = part_of(head, &bytes) else { continue };
            understood += 1;
            let PartRecord { dest, part, payload, ack: carried } = record;
            assert_eq!((dest, part.psn), (Qpn::new(0x12_3456), Psn::new(NUMBERS)));
            assert_eq!((payload.len(), part.length), (length, length as u32));
            assert_eq!(part.srqn, (length == 77).then_some(Srqn::new(SRQN)));
            assert_eq!(carried, (length == 73).then_some(ack()));
            let mut tail = [0; TAIL_BYTES];
            let written = put_tail(&part, carried, &mut tail);
            assert_eq!(tail[..written], bytes[length..]);
            let again = head_of(dest, &part, carried);
            let word = if part.tag == Tag::None { 0 } else { 0xABCD_EF01 };
            assert_eq!(again, MessageHead { words: [0x12_3456, NUMBERS, word], ..head });
        }
        // Starts or not, a rendezvous or not: 4 that do not end, and of those that do 2 times 3;
        // each at every path MTU, of RC with and without an acknowledgement, and of XRC.
        assert_eq!(understood, 3 * (4 + 4 * 2 * 3) * Mtu::ALL.len());
        let flags = STARTS | ENDS | 1 << MTU_SHIFT;
        for words in [[1 << 24, 0, 0], [0, 1 << 24, 0], [u32::MAX, 0, 0]] {
            assert_eq!(part_of(MessageHead { flags, words }, &[1]), None);
        }
        let with = |bit: u16, bytes: &[u8]| {
            part_of(MessageHead { flags: flags | bit, words: [1, 2, 3] }, bytes).is_some()
        };
        assert!(with(XRC, &NUMBERS.to_ne_bytes()));
        assert!(!with(XRC, &(NUMBERS + 1).to_ne_bytes()) && !with(XRC, &[0; 3]) && !with(XRC, &[]));
        let acknowledges = |psn: u32| [psn.to_ne_bytes(), [0; 4]].concat();
        assert!(with(ACK, &acknowledges(NUMBERS)) && !with(ACK, &acknowledges(NUMBERS + 1)));
        assert!(!with(ACK, &[0; 7]) && !with(ACK | XRC, &[0; 12]));
    }
}
