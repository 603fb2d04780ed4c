//! Slots: the high bits of a queue pair number, which say whose process it is (`slots.rs`).

use vernic_wire::Qpn;

/// The high bits of a QPN: which process (more exactly, which link of which process).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// Bits of a QPN that are the slot.
    pub const BITS: u32 = 10;
    /// Bits of a QPN that are the index.
    pub const INDEX_BITS: u32 = 14;
    /// QPNs in a slot.
    pub const QPNS: u32 = 1 << Self::INDEX_BITS;
    /// Stands for no slot: that of QPNs 0 and 1.
    pub(crate) const NONE: Self = Self(0);
    /// First slot that a process may take.
    pub const FIRST: Self = Self(1);
    /// Last slot that a process may take.
    pub const LAST: Self = Self((1 << Self::BITS) - 2);

    /// The slot of this number, which has 10 bits. May be one that no process can take.
    pub(crate) const fn new(number: u16) -> Option<Self> {
        if number >> Self::BITS == 0 { Some(Self(number)) } else { None }
    }

    /// The slot of a QPN. May be one that no process can take.
    pub const fn of(qpn: Qpn) -> Self {
        Self((qpn.value() >> Self::INDEX_BITS) as u16)
    }

    /// The QPN with this slot and the low 14 bits of `index`.
    pub const fn qpn(self, index: u32) -> Qpn {
        Qpn::new((self.0 as u32) << Self::INDEX_BITS | index & (Self::QPNS - 1))
    }

    /// The number, 0 to 1023.
    pub const fn value(self) -> u16 {
        self.0
    }

    /// Classes of slots.
    pub const CLASSES: u16 = 16;

    /// Which of the [`CLASSES`](Self::CLASSES) it is of.
    #[inline]
    pub const fn class(self) -> u16 {
        self.0 % Self::CLASSES
    }

    /// The flow for packets to a queue pair of this slot: number `n` of the flows for its class. Of
    /// two flows that differ in class or number none shares a source port with the other, if `n` is
    /// below [`FLOWS`](crate::udp::FLOWS): so the links of a process, whose slots are of different
    /// classes, can each have theirs brought to their own socket. Slots of different processes are
    /// of one class now and then (one of sixteen): then one of them hands over the packets of the
    /// other.
    #[inline]
    pub const fn flow(self, n: u16) -> u16 {
        n * Self::CLASSES + self.class()
    }

    /// True for slots that belong to a process: not those of QPN 0 and 1, and of multicast.
    pub const fn is_ordinary(self) -> bool {
        self.0 >= Self::FIRST.0 && self.0 <= Self::LAST.0
    }
}
