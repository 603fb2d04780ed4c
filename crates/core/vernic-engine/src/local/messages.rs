//! Messages between local peers about direct access to each other's memory.
//!
//! ```text
//!   initiator                                            target
//!   ASK    {its QPN, target's QPN, R_Key}   ---------->  connected? state? the responder's checks
//!          <------- GATES + file (before the offer, if the asker says that it does not have them)
//!          <------- OFFER {range, rights, gates, where} + file of the memory, if it lies in one
//!          <------- DENY  {why}
//!          <------- ENDED (later, of regions whose file came along; the gates say which)
//! ```
//!
//! "Gates" are revocation words. Two more messages are about large SENDs that the receiver copies
//! out of the sender's memory (`pull.rs`). They are sent once per pair of processes:
//!
//! ```text
//!   sender                                               receiver
//!   LEND   {its liveness word} + file of its gates  ------->  can it read the liveness word?
//!          <------- PULLS {whether it can}; sent again when it cannot any more
//! ```
//!
//! The numbers of a message are in the byte order of this host. A message that is cut off, has an
//! unknown kind, or answers no request is dropped and counted.

use vernic_mem::{Access, LivenessWord, RevocationToken};
use vernic_wire::{Qpn, Rkey};

/// The reasons for which a local peer denies a grant request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Denial {
    /// The target queue pair is not, or not yet, connected to the queue pair that asks.
    NotConnected = 0,
    /// The key is not valid for this access, or the access rights of the key or of the queue pair
    /// do not allow it.
    Refused = 1,
    /// The memory can be reached by packets only. Either it is of such a kind, or no revocation
    /// words are left, or the kernel already lets another process access it and allows only one.
    Unreachable = 2,
}

/// A message about grants between local peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// A grant request: asks to access memory by `rkey` for the queue pair `asker`. `has_gates`
    /// says whether the asker has the target's revocation words.
    Ask { asker: Qpn, target: Qpn, rkey: Rkey, has_gates: bool },
    /// The sender's revocation words. Their file comes with this message.
    Gates,
    /// The positive answer to a grant request.
    Offer { asker: Qpn, rkey: Rkey, offer: Offer },
    /// The negative answer to a grant request.
    Deny { asker: Qpn, rkey: Rkey, why: Denial },
    /// A notice that memory which was granted as a file was revoked. The receiver looks at the
    /// revocation words of its grants and unmaps what was revoked.
    Ended,
    /// An offer that the receiver of this message copies the payload of SENDs out of the sender's
    /// memory. The file of the sender's revocation words comes with this message.
    Lend { liveness: LivenessWord },
    /// The answer to `Lend`: whether the process that sends this answer can copy from the other
    /// process's memory.
    Pulls { can: bool },
}

/// The contents of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The address of the first byte, as work requests give it.
    pub(crate) iova: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    pub(crate) key: RevocationToken,
    pub(crate) qp: RevocationToken,
    /// Whether the memory lies in a file that comes with the message.
    pub(crate) is_mapped: bool,
    /// The offset of the first byte in the file, if there is one; otherwise its address in the
    /// owner's process.
    pub(crate) at: u64,
    /// The liveness word of the process that owns the memory.
    pub(crate) liveness: LivenessWord,
}

const MAGIC: [u8; 4] = *b"tk\0\x02";
const ASK: u32 = 1;
const GATES: u32 = 2;
const OFFER: u32 = 3;
const DENY: u32 = 4;
const LEND: u32 = 5;
const PULLS: u32 = 6;
const ENDED: u32 = 7;

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
    fn pass(&mut self) -> Option<RevocationToken> {
        Some(RevocationToken {
            number: self.u32()?,
            value: self.u64().filter(|&value| value != 0)?,
        })
    }
}

impl Told {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let mut push = |numbers: &[u32]| numbers.iter().for_each(|n| bytes.extend(n.to_ne_bytes()));
        match self {
            Self::Ask { asker, target, rkey, has_gates } => {
                let has_gates = u32::from(*has_gates);
                push(&[ASK, asker.value(), target.value(), rkey.value(), has_gates]);
            }
            Self::Gates => push(&[GATES]),
            Self::Ended => push(&[ENDED]),
            Self::Offer { asker, rkey, offer } => {
                let mapped = u32::from(offer.is_mapped);
                push(&[OFFER, asker.value(), rkey.value(), offer.access.bits(), mapped]);
                let LivenessWord { addr, value } = offer.liveness;
                for number in [offer.iova, offer.len, offer.at, addr, value] {
                    bytes.extend(number.to_ne_bytes());
                }
                for pass in [offer.key, offer.qp] {
                    bytes.extend(pass.number.to_ne_bytes());
                    bytes.extend(pass.value.to_ne_bytes());
                }
            }
            Self::Deny { asker, rkey, why } => {
                push(&[DENY, asker.value(), rkey.value(), *why as u32]);
            }
            Self::Lend { liveness: LivenessWord { addr, value } } => {
                push(&[LEND]);
                [addr, value].iter().for_each(|number| bytes.extend(number.to_ne_bytes()));
            }
            Self::Pulls { can } => push(&[PULLS, u32::from(*can)]),
        }
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes.strip_prefix(&MAGIC)?);
        let told = match reader.u32()? {
            ASK => {
                let (asker, target) = (reader.qpn()?, reader.qpn()?);
                let (rkey, has_gates) = (Rkey(reader.u32()?), reader.bool()?);
                Self::Ask { asker, target, rkey, has_gates }
            }
            GATES => Self::Gates,
            ENDED => Self::Ended,
            OFFER => {
                let (asker, rkey) = (reader.qpn()?, Rkey(reader.u32()?));
                Self::Offer { asker, rkey, offer: Offer::parse(&mut reader)? }
            }
            DENY => {
                let (asker, rkey) = (reader.qpn()?, Rkey(reader.u32()?));
                let why = match reader.u32()? {
                    0 => Denial::NotConnected,
                    1 => Denial::Refused,
                    2 => Denial::Unreachable,
                    _ => return None,
                };
                Self::Deny { asker, rkey, why }
            }
            LEND => {
                Self::Lend { liveness: LivenessWord { addr: reader.u64()?, value: reader.u64()? } }
            }
            PULLS => Self::Pulls { can: reader.bool()? },
            _ => return None,
        };
        reader.0.is_empty().then_some(told)
    }
}

impl Offer {
    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        let access = Access::from_bits(reader.u32()?)?;
        let is_mapped = reader.bool()?;
        let (iova, len, at) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let liveness = LivenessWord { addr: reader.u64()?, value: reader.u64()? };
        let (key, qp) = (reader.pass()?, reader.pass()?);
        // The range may end with the last byte of the address space, so only the last byte's
        // address must not overflow.
        iova.checked_add(len.checked_sub(1)?)?;
        Some(Self { iova, len, access, key, qp, is_mapped, at, liveness })
    }
}

impl Offer {
    /// Returns the offset at which `len` bytes at address `addr` begin in the granted range.
    /// Returns `None` if the range does not cover all of them, or may not be written.
    pub(crate) fn place_write(&self, addr: u64, len: u32) -> Option<u64> {
        self.place(addr, len, Access::REMOTE_WRITE)
    }

    #[inline]
    pub(crate) fn place(&self, addr: u64, len: u32, needs: Access) -> Option<u64> {
        let at = addr.checked_sub(self.iova)?;
        let inside = at <= self.len && u64::from(len) <= self.len - at;
        (inside && self.access.contains(needs)).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        Offer {
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

    fn every_kind() -> Vec<Told> {
        let (asker, target, rkey) = (Qpn::new(0x40_0011), Qpn::new(0x80_0022), Rkey(0xFFFF_FF01));
        let mut all = vec![
            Told::Ask { asker, target, rkey, has_gates: false },
            Told::Ask { asker, target, rkey, has_gates: true },
            Told::Gates,
            Told::Ended,
            Told::Offer { asker, rkey, offer: offer() },
            Told::Offer { asker, rkey, offer: Offer { is_mapped: false, ..offer() } },
            Told::Lend { liveness: offer().liveness },
            Told::Pulls { can: false },
            Told::Pulls { can: true },
        ];
        for why in [Denial::NotConnected, Denial::Refused, Denial::Unreachable] {
            all.push(Told::Deny { asker, rkey, why });
        }
        all
    }

    #[test]
    fn what_is_told_is_understood_and_nothing_shorter_or_longer_is() {
        for told in every_kind() {
            let mut bytes = told.emit();
            assert_eq!(Told::parse(&bytes), Some(told.clone()));
            for len in 0..bytes.len() {
                assert_eq!(Told::parse(&bytes[..len]), None, "{told:?} cut to {len}");
            }
            bytes.push(0);
            assert_eq!(Told::parse(&bytes), None);
        }
        assert_eq!(Told::parse(&[MAGIC.as_slice(), &9_u32.to_ne_bytes()].concat()), None);
    }

    #[test]
    fn offers_that_cannot_be_meant_are_not_understood() {
        let refused = |offer: Offer| {
            let told = Told::Offer { asker: Qpn::new(1), rkey: Rkey(2), offer };
            Told::parse(&told.emit()).is_none()
        };
        assert!(!refused(Offer { iova: u64::MAX - 99, ..offer() }));
        assert!(refused(Offer { iova: u64::MAX - 98, ..offer() }));
        assert!(refused(Offer { len: 0, ..offer() }));
        assert!(refused(Offer { key: RevocationToken { number: 1, value: 0 }, ..offer() }));
        assert!(refused(Offer { access: Access::from_bits_retain(1 << 31), ..offer() }));
    }
}
