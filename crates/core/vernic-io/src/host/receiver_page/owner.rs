//! The part of an [`ReceiverPage`] that peers read while they wait for its owner. It says which of
//! the owner's queue pairs answer requests, and whether the owner has closed its device in order.
//!
//! A silent peer may be stopped or not scheduled, and then it is worth waiting for. If its queue
//! pair is gone, it is not. The process itself cannot be asked while it is stopped, so it says so
//! beforehand, in memory. The page is a hint. A process that writes it wrongly makes its peers wait
//! longer, which they bound, or for as long as for a peer on another host.
//!
//! Limits: the page covers only the queue pairs of the first slot. It does not say which peer a
//! queue pair answers.

use std::sync::atomic::Ordering;

use vernic_wire::Qpn;

use super::super::Slot;
use super::ReceiverPage;

/// Not 0 once the process has closed its device in order.
const LEFT: usize = 48;
/// The slot that the bits are about, 0 for none.
const SLOT: usize = 49;
/// The first word of the bits, one bit for each queue pair of the slot.
const BITS: usize = 256;

impl ReceiverPage {
    /// Returns the word and the bit of a queue pair of the slot.
    fn place(qpn: Qpn) -> (usize, u64) {
        let index = qpn.value() & (Slot::QPNS - 1);
        (BITS + index as usize / 64, 1 << (index % 64))
    }

    fn speaks_of(&self, qpn: Qpn) -> bool {
        self.load(SLOT) == u64::from(Slot::of(qpn).value())
    }

    /// For the owner: notes that it has this slot. Only the first slot's queue pairs are recorded.
    pub(crate) fn set_slot(&self, slot: Slot) {
        if self.load(SLOT) == 0 {
            self.page.word(SLOT).store(slot.value().into(), Ordering::Release);
        }
    }

    /// For the owner: sets whether one of its queue pairs answers requests from now on.
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

    /// For the owner: says that it closes its device in order, or ends.
    pub(crate) fn leave(&self) {
        self.page.word(LEFT).store(1, Ordering::Release);
    }

    /// Whether the owner has closed its device in order.
    pub fn has_left(&self) -> bool {
        self.page.word(LEFT).load(Ordering::Acquire) != 0
    }
}
