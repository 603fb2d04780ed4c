//! Slots: the high bits of a queue pair number, which say which process owns it (`slots.rs`).

use vernic_wire::Qpn;

/// A slot: the high bits of a QPN, which name its process (more exactly, a link of a process).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// Bits of a QPN that are the slot.
    pub const BITS: u32 = 10;
    /// Bits of a QPN that are the index.
    pub const INDEX_BITS: u32 = 14;
    /// QPNs in a slot.
    pub const QPNS: u32 = 1 << Self::INDEX_BITS;
    /// No slot: the slot of QPNs 0 and 1.
    pub(crate) const NONE: Self = Self(0);
    /// The first slot that a process may take.
    pub const FIRST: Self = Self(1);
    /// The last slot that a process may take.
    pub const LAST: Self = Self((1 << Self::BITS) - 2);

    /// Returns the slot of this number, which has 10 bits. It may be a slot that no process can
    /// take.
    pub const fn new(number: u16) -> Option<Self> {
        if number >> Self::BITS == 0 { Some(Self(number)) } else { None }
    }

    /// Returns the slot of a QPN. It may be a slot that no process can take.
    pub const fn of(qpn: Qpn) -> Self {
        Self((qpn.value() >> Self::INDEX_BITS) as u16)
    }

    /// Returns the QPN with this slot and the low 14 bits of `index`.
    pub const fn qpn(self, index: u32) -> Qpn {
        Qpn::new((self.0 as u32) << Self::INDEX_BITS | index & (Self::QPNS - 1))
    }

    /// Returns the number of the slot, 0 to 1023.
    pub const fn value(self) -> u16 {
        self.0
    }

    /// The number of classes of slots.
    pub const CLASSES: u16 = 16;

    /// Returns the class of the slot, one of [`CLASSES`](Self::CLASSES).
    #[inline]
    pub const fn class(self) -> u16 {
        self.0 % Self::CLASSES
    }

    /// Returns the flow for packets to a queue pair of this slot: number `n` of the flows for its
    /// class.
    ///
    /// Two flows that differ in class or number share no source port, if `n` is below
    /// [`FLOWS`](crate::udp::FLOWS). The slots of a process's links are of different classes, so
    /// each link can have its flows brought to its own socket. Slots of different processes are of
    /// one class now and then (one of sixteen). Then one of the processes hands over the packets of
    /// the other.
    #[inline]
    pub const fn flow(self, n: u16) -> u16 {
        n * Self::CLASSES + self.class()
    }

    /// Whether the slot can belong to a process: not the slot of QPNs 0 and 1, nor that of
    /// multicast.
    pub const fn is_ordinary(self) -> bool {
        self.0 >= Self::FIRST.0 && self.0 <= Self::LAST.0
    }
}
