//! What a process says of itself in its [`Intake`], for peers that wait for it: which of its queue
//! pairs answer requests, and whether it has closed its device in order.
//!
//! A peer that is silent may be stopped, or not scheduled, in which case it is worth waiting for;
//! or its queue pair is gone, in which case it is not. The process itself cannot be asked while it
//! is stopped, so it says so beforehand, in memory. It is a hint: whoever writes the page wrongly
//! makes its peers wait for longer, which they bound, or for as long as for a peer on another host.
//!
//! Limits: the queue pairs of the first slot. Of others nothing is said, nor of whom a queue pair
//! answers.

use std::sync::atomic::Ordering;

use vernic_wire::Qpn;

use super::super::Slot;
use super::Intake;

/// Not 0 once the process has closed its device in order.
const LEFT: usize = 48;
/// The slot whose queue pairs the bits are of, 0 for none.
const SLOT: usize = 49;
/// The first word of the bits, one for each queue pair of the slot.
const BITS: usize = 256;

impl Intake {
    /// Where the bit of a queue pair of the slot is.
    fn place(qpn: Qpn) -> (usize, u64) {
        let index = qpn.value() & (Slot::QPNS - 1);
        (BITS + index as usize / 64, 1 << (index % 64))
    }

    fn speaks_of(&self, qpn: Qpn) -> bool {
        self.load(SLOT) == u64::from(Slot::of(qpn).value())
    }

    /// For the owner: it has this slot. The first is that whose queue pairs are spoken of.
    pub(crate) fn set_slot(&self, slot: Slot) {
        if self.load(SLOT) == 0 {
            self.page.word(SLOT).store(slot.value().into(), Ordering::Release);
        }
    }

    /// For the owner: whether a queue pair of its answers requests from now on.
    pub(crate) fn set_answering(&self, qpn: Qpn, answers: bool) {
        if !self.speaks_of(qpn) {
            return;
        }
        let (word, bit) = Self::place(qpn);
        match answers {
            true => self.page.word(word).fetch_or(bit, Ordering::Release),
            false => self.page.word(word).fetch_and(!bit, Ordering::Release),
        };
    }

    /// Whether the owner's queue pair answers requests; `None` if the owner does not say.
    pub fn answers(&self, qpn: Qpn) -> Option<bool> {
        let (word, bit) = Self::place(qpn);
        self.speaks_of(qpn).then(|| self.page.word(word).load(Ordering::Acquire) & bit != 0)
    }

    /// For the owner: it closes its device in order, or ends.
    pub(crate) fn leave(&self) {
        self.page.word(LEFT).store(1, Ordering::Release);
    }

    /// Whether the owner has closed its device in order.
    pub fn has_left(&self) -> bool {
        self.page.word(LEFT).load(Ordering::Acquire) != 0
    }
}
