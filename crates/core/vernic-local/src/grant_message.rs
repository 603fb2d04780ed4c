//! Messages between local peers about direct access to each other's memory.
//!
//! ```text
//!   initiator                                            target
//!   REQUEST {its QPN, target's QPN, R_Key}  ---------->  connected? state? the responder's checks
//!          <------- REVOCATION_FILE (before the offer, if the asker does not have it)
//!          <------- OFFER {range, rights, tokens, where} + file of the memory, if it lies in one
//!          <------- DENY  {why}
//!          <------- REVOKED (later, of regions whose file came along; the words say which)
//! ```
//!
//! Two more messages are about large SENDs that the receiver copies
//! out of the sender's memory (`rendezvous.rs`). They are sent once per pair of processes. Where
//! only a try tells whether an initiator may copy (`kernel_access.rs`), its first grant request
//! has the target send them, too:
//!
//! ```text
//!   sender                                               receiver
//!   RENDEZVOUS_OFFER {liveness word} + revocation file  ---->  can it read the liveness word?
//!          <------- RENDEZVOUS_REPLY {whether it can}; sent again when it cannot any more
//! ```
//!
//! The numbers of a message are in the byte order of this host. A message that is cut off, has an
//! unknown kind, or answers no request is dropped and counted.

use vernic_mem::{Access, LivenessWord, RevocationToken};
use vernic_wire::{Qpn, Rkey};

/// The reasons for which a local peer denies a grant request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Denial {
    /// The target queue pair is not, or not yet, connected to the queue pair that asks.
    NotConnected = 0,
    /// The key is not valid for this access, or the access rights of the key or of the queue pair
    /// do not allow it.
    Refused = 1,
    /// The memory can be reached by packets only. Either it is of such a kind, or no revocation
    /// words are left, or the kernel already lets another process access it and allows only one.
    Unreachable = 2,
    /// The memory is not mapped, and Yama keeps the process that asks out of it, as long as the
    /// setting `direct` of the process that answers is not `ptrace`.
    NotPermitted = 3,
}

/// A message about grants between local peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantMessage {
    /// A grant request: asks to access memory by `rkey` for the queue pair `asker`. `has_words`
    /// says whether the asker has the target's revocation words.
    Request {
        /// The queue pair that asks, of the sender.
        asker: Qpn,
        /// The queue pair that it is connected to.
        target: Qpn,
        /// The key of the memory.
        rkey: Rkey,
        /// Whether the sender has the revocation words.
        has_words: bool,
    },
    /// The sender's revocation words. Their file comes with this message.
    RevocationFile,
    /// The positive answer to a grant request.
    Offer {
        /// The queue pair that has asked.
        asker: Qpn,
        /// The key of the memory.
        rkey: Rkey,
        /// What is granted.
        offer: GrantOffer,
    },
    /// The negative answer to a grant request.
    Deny {
        /// The queue pair that has asked.
        asker: Qpn,
        /// The key of the memory.
        rkey: Rkey,
        /// Why not.
        why: Denial,
    },
    /// A notice that memory which was granted as a file was revoked. The receiver looks at the
    /// revocation words of its grants and unmaps what was revoked.
    Revoked,
    /// An offer that the receiver of this message copies the payload of SENDs out of the sender's
    /// memory. The file of the sender's revocation words comes with this message.
    RendezvousOffer {
        /// The sender's liveness word, to try to read.
        liveness: LivenessWord,
    },
    /// The answer to `RendezvousOffer`: whether the process that sends this answer can copy from
    /// the other process's memory.
    RendezvousReply {
        /// Whether it can.
        can: bool,
    },
}

/// The contents of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantOffer {
    /// The address of the first byte, as work requests give it.
    pub iova: u64,
    /// Length in bytes.
    pub len: u64,
    /// The rights that are granted.
    pub access: Access,
    /// The token of the key: the grant ends when its revocation word changes.
    pub key: RevocationToken,
    /// The token of the queue pair, likewise.
    pub qp: RevocationToken,
    /// Whether the memory lies in a file that comes with the message.
    pub is_mapped: bool,
    /// The offset of the first byte in the file, if there is one; otherwise its address in the
    /// owner's process.
    pub at: u64,
    /// The liveness word of the process that owns the memory.
    pub liveness: LivenessWord,
}

const MAGIC: [u8; 4] = *b"tk\0\x02";
const REQUEST: u32 = 1;
const REVOCATION_FILE: u32 = 2;
const OFFER: u32 = 3;
const DENY: u32 = 4;
const RENDEZVOUS_OFFER: u32 = 5;
const RENDEZVOUS_REPLY: u32 = 6;
const REVOKED: u32 = 7;

/// A reader of the numbers in a message, from front to back.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (now, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*now))
    }
    fn u64(&mut self) -> Option<u64> {
        let (now, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*now))
    }
    fn bool(&mut self) -> Option<bool> {
        self.u32().filter(|&number| number <= 1).map(|number| number == 1)
    }
    fn qpn(&mut self) -> Option<Qpn> {
        self.u32().filter(|&qpn| qpn <= Qpn::MULTICAST.value()).map(Qpn::new)
    }
    fn token(&mut self) -> Option<RevocationToken> {
        Some(RevocationToken {
            number: self.u32()?,
            value: self.u64().filter(|&value| value != 0)?,
        })
    }
}

impl GrantMessage {
    /// Returns the message as bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let mut push = |numbers: &[u32]| numbers.iter().for_each(|n| bytes.extend(n.to_ne_bytes()));
        match self {
            Self::Request { asker, target, rkey, has_words } => {
                let has_words = u32::from(*has_words);
                push(&[REQUEST, asker.value(), target.value(), rkey.value(), has_words]);
            }
            Self::RevocationFile => push(&[REVOCATION_FILE]),
            Self::Revoked => push(&[REVOKED]),
            Self::Offer { asker, rkey, offer } => {
                let mapped = u32::from(offer.is_mapped);
                push(&[OFFER, asker.value(), rkey.value(), offer.access.bits(), mapped]);
                let LivenessWord { addr, value } = offer.liveness;
                for number in [offer.iova, offer.len, offer.at, addr, value] {
                    bytes.extend(number.to_ne_bytes());
                }
                for token in [offer.key, offer.qp] {
                    bytes.extend(token.number.to_ne_bytes());
                    bytes.extend(token.value.to_ne_bytes());
                }
            }
            Self::Deny { asker, rkey, why } => {
                push(&[DENY, asker.value(), rkey.value(), *why as u32]);
            }
            Self::RendezvousOffer { liveness: LivenessWord { addr, value } } => {
                push(&[RENDEZVOUS_OFFER]);
                [addr, value].iter().for_each(|number| bytes.extend(number.to_ne_bytes()));
            }
            Self::RendezvousReply { can } => push(&[RENDEZVOUS_REPLY, u32::from(*can)]),
        }
        bytes
    }

    /// Parses a message; `None` if it is none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes.strip_prefix(&MAGIC)?);
        let message = match reader.u32()? {
            REQUEST => {
                let (asker, target) = (reader.qpn()?, reader.qpn()?);
                let (rkey, has_words) = (Rkey(reader.u32()?), reader.bool()?);
                Self::Request { asker, target, rkey, has_words }
            }
            REVOCATION_FILE => Self::RevocationFile,
            REVOKED => Self::Revoked,
            OFFER => {
                let (asker, rkey) = (reader.qpn()?, Rkey(reader.u32()?));
                Self::Offer { asker, rkey, offer: GrantOffer::parse(&mut reader)? }
            }
            DENY => {
                let (asker, rkey) = (reader.qpn()?, Rkey(reader.u32()?));
                let why = match reader.u32()? {
                    0 => Denial::NotConnected,
                    1 => Denial::Refused,
                    2 => Denial::Unreachable,
                    3 => Denial::NotPermitted,
                    _ => return None,
                };
                Self::Deny { asker, rkey, why }
            }
            RENDEZVOUS_OFFER => Self::RendezvousOffer {
                liveness: LivenessWord { addr: reader.u64()?, value: reader.u64()? },
            },
            RENDEZVOUS_REPLY => Self::RendezvousReply { can: reader.bool()? },
            _ => return None,
        };
        reader.0.is_empty().then_some(message)
    }
}

impl GrantOffer {
    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        let access = Access::from_bits(reader.u32()?)?;
        let is_mapped = reader.bool()?;
        let (iova, len, at) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let liveness = LivenessWord { addr: reader.u64()?, value: reader.u64()? };
        let (key, qp) = (reader.token()?, reader.token()?);
        // The range may end with the last byte of the address space, so only the last byte's
        // address must not overflow.
        iova.checked_add(len.checked_sub(1)?)?;
        Some(Self { iova, len, access, key, qp, is_mapped, at, liveness })
    }
}

impl GrantOffer {
    /// Returns the offset at which `len` bytes at address `addr` begin in the granted range.
    /// Returns `None` if the range does not cover all of them, or may not be written.
    pub fn place_write(&self, addr: u64, len: u32) -> Option<u64> {
        self.place(addr, len, Access::REMOTE_WRITE)
    }

    #[inline]
    /// Returns the offset of a range in the grant; `None` if the grant does not cover all of the
    /// range with these rights.
    pub fn place(&self, addr: u64, len: u32, needs: Access) -> Option<u64> {
        let at = addr.checked_sub(self.iova)?;
        let inside = at <= self.len && u64::from(len) <= self.len - at;
        (inside && self.access.contains(needs)).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> GrantOffer {
        GrantOffer {
            iova: 0x7000,
            len: 100,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            key: RevocationToken { number: 3, value: 0x0123_4567_89AB_CDEF },
            qp: RevocationToken { number: 1 << 19, value: 1 },
            is_mapped: true,
            at: 0x5000,
            liveness: LivenessWord { addr: 0x1234_5678_9000, value: 77 },
        }
    }

    fn every_kind() -> Vec<GrantMessage> {
        let (asker, target, rkey) = (Qpn::new(0x40_0011), Qpn::new(0x80_0022), Rkey(0xFFFF_FF01));
        let mut all = vec![
            GrantMessage::Request { asker, target, rkey, has_words: false },
            GrantMessage::Request { asker, target, rkey, has_words: true },
            GrantMessage::RevocationFile,
            GrantMessage::Revoked,
            GrantMessage::Offer { asker, rkey, offer: offer() },
            GrantMessage::Offer { asker, rkey, offer: GrantOffer { is_mapped: false, ..offer() } },
            GrantMessage::RendezvousOffer { liveness: offer().liveness },
            GrantMessage::RendezvousReply { can: false },
            GrantMessage::RendezvousReply { can: true },
        ];
        use Denial::{NotConnected, NotPermitted, Refused, Unreachable};
        for why in [NotConnected, Refused, Unreachable, NotPermitted] {
            all.push(GrantMessage::Deny { asker, rkey, why });
        }
        all
    }

    #[test]
    fn what_is_told_is_understood_and_nothing_shorter_or_longer_is() {
        for message in every_kind() {
            let mut bytes = message.emit();
            assert_eq!(GrantMessage::parse(&bytes), Some(message.clone()));
            for len in 0..bytes.len() {
                assert_eq!(GrantMessage::parse(&bytes[..len]), None, "{message:?} cut to {len}");
            }
            bytes.push(0);
            assert_eq!(GrantMessage::parse(&bytes), None);
        }
        assert_eq!(GrantMessage::parse(&[MAGIC.as_slice(), &9_u32.to_ne_bytes()].concat()), None);
    }

    #[test]
    fn offers_that_cannot_be_meant_are_not_understood() {
        let refused = |offer: GrantOffer| {
            let message = GrantMessage::Offer { asker: Qpn::new(1), rkey: Rkey(2), offer };
            GrantMessage::parse(&message.emit()).is_none()
        };
        assert!(!refused(GrantOffer { iova: u64::MAX - 99, ..offer() }));
        assert!(refused(GrantOffer { iova: u64::MAX - 98, ..offer() }));
        assert!(refused(GrantOffer { len: 0, ..offer() }));
        assert!(refused(GrantOffer { key: RevocationToken { number: 1, value: 0 }, ..offer() }));
        assert!(refused(GrantOffer { access: Access::from_bits_retain(1 << 31), ..offer() }));
    }
}
