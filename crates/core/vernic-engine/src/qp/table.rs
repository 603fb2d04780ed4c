//! The queue pairs of a device by number, and the numbers that are free.
//!
//! Owned by the lane, which finds the queue pair of each packet here without another lock. A QPN
//! consists of a process slot and an index (`vernic_io::host`). The table has one page for each
//! slot that this process has, and takes another slot when all indices are in use.
//!
//! Indices are chosen at random, so that a QPN cannot be guessed from others. A freed index is used
//! again only when all indices of the page have been used, and then one of the older half of the
//! freed indices is chosen. So late packets for a destroyed queue pair are unlikely to reach a new
//! one.

use std::collections::VecDeque;
use std::sync::Arc;

use vernic_io::host::{Slot, SlotError, SlotTable};
use vernic_io::random;
use vernic_proto::cm::Heard;
use vernic_wire::Qpn;

use crate::qp::state::QpInner;
use crate::support::events::lock;

#[derive(Debug)]
struct Page {
    slot: Slot,
    /// For each index its position in `qps` plus 1; 0 if the index was never used. An index keeps
    /// its position for ever.
    places: Box<[u16]>,
    /// Queue pairs by position. The list grows when an index is used for the first time.
    qps: Vec<Option<Arc<QpInner>>>,
    /// Indices that were used and are free now, in the order in which they were freed.
    freed: VecDeque<u16>,
}

impl Page {
    fn new(slot: Slot) -> Self {
        let places = vec![0; Slot::QPNS as usize].into();
        Self { slot, places, qps: Vec::new(), freed: VecDeque::new() }
    }

    /// Returns the position of an index; `None` if the index was never used.
    #[inline]
    fn place(&self, qpn: Qpn) -> Option<usize> {
        let index = qpn.value() & (Slot::QPNS - 1);
        usize::from(self.places[index as usize]).checked_sub(1)
    }

    /// Chooses a free index at random, and gives it a position if it has none.
    fn take_index(&mut self) -> Option<u32> {
        let start = random() as usize;
        if self.qps.len() == self.places.len() {
            let old = start % (self.freed.len().div_ceil(2)).max(1);
            return self.freed.remove(old).map(u32::from);
        }
        let all = self.places.len();
        let mut indices = (0..all).map(|n| start.wrapping_add(n) % all);
        let index = indices.find(|&index| self.places[index] == 0)?;
        self.qps.push(None);
        self.places[index] = self.qps.len() as u16;
        Some(index as u32)
    }
}

/// The queue pairs of a device by number.
#[derive(Debug)]
pub(crate) struct QpTable {
    /// For each process slot the position of its page in `pages` plus 1; 0 if this device does not
    /// have the slot.
    by_slot: Box<[u16]>,
    pages: Vec<Page>,
    open: usize,
}

impl QpTable {
    pub(crate) fn new() -> Self {
        Self { by_slot: vec![0; 1 << Slot::BITS].into(), pages: Vec::new(), open: 0 }
    }

    /// Returns the number of queue pairs in the table.
    pub(crate) fn len(&self) -> usize {
        self.open
    }

    /// Returns the number of process slots that the table has taken.
    pub(crate) fn slots(&self) -> usize {
        self.pages.len()
    }

    /// Whether the next queue pair needs another process slot.
    pub(crate) fn is_full(&self) -> bool {
        self.pages.iter().all(|page| page.qps.len() == page.places.len() && page.freed.is_empty())
    }

    #[inline]
    pub(crate) fn find(&self, qpn: Qpn) -> Option<&Arc<QpInner>> {
        let page = usize::from(self.by_slot[usize::from(Slot::of(qpn).value())]).checked_sub(1)?;
        let page = &self.pages[page];
        page.qps.get(page.place(qpn)?)?.as_ref()
    }

    /// Returns when a queue pair last accepted a packet of its peer, and for how long it tries to
    /// reach a silent peer. Locks the queue pair's core.
    pub(crate) fn heard(&self, qpn: Qpn) -> Option<Heard> {
        let core = lock(&self.find(qpn)?.core);
        let (at, attr) = (core.side.peer.heard()?, core.machine.attr());
        let wait = attr.timeout.nanos().unwrap_or(u64::MAX);
        let patience = wait.saturating_mul(u64::from(attr.retry_cnt) + 1);
        Some(Heard { at, patience })
    }

    /// Returns all queue pairs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<QpInner>> {
        self.pages.iter().flat_map(|page| page.qps.iter().flatten())
    }

    /// Chooses a free QPN, in a new process slot if need be, and inserts the queue pair that `make`
    /// returns for it.
    pub(crate) fn insert(
        &mut self,
        slots: &SlotTable,
        make: impl FnOnce(Qpn) -> Arc<QpInner>,
    ) -> Result<Arc<QpInner>, SlotError> {
        let (page, index) = self.take_number(slots)?;
        let page = &mut self.pages[page];
        let qp = make(page.slot.qpn(index));
        if let Some(place) = page.place(qp.qpn()) {
            page.qps[place] = Some(qp.clone());
        }
        self.open += 1;
        Ok(qp)
    }

    fn take_number(&mut self, slots: &SlotTable) -> Result<(usize, u32), SlotError> {
        for (place, page) in self.pages.iter_mut().enumerate() {
            if let Some(index) = page.take_index() {
                return Ok((place, index));
            }
        }
        self.take_slot(slots)?;
        let place = self.pages.len() - 1;
        Ok((place, self.pages[place].take_index().unwrap_or(0)))
    }

    /// Takes another process slot, and adds a page for it.
    fn take_slot(&mut self, slots: &SlotTable) -> Result<Slot, SlotError> {
        let slot = slots.claim()?;
        self.pages.push(Page::new(slot));
        self.by_slot[usize::from(slot.value())] = self.pages.len() as u16;
        Ok(slot)
    }

    /// Returns the first process slot of this device, for numbers that are not those of queue
    /// pairs. Takes a slot if there is none yet.
    pub(crate) fn first_slot(&mut self, slots: &SlotTable) -> Result<Slot, SlotError> {
        match self.pages.first() {
            Some(page) => Ok(page.slot),
            None => self.take_slot(slots),
        }
    }

    /// Removes a queue pair and frees its number.
    pub(crate) fn remove(&mut self, qpn: Qpn) -> Option<Arc<QpInner>> {
        let page = usize::from(self.by_slot[usize::from(Slot::of(qpn).value())]).checked_sub(1)?;
        let page = &mut self.pages[page];
        let place = page.place(qpn)?;
        let qp = page.qps.get_mut(place)?.take()?;
        page.freed.push_back((qpn.value() & (Slot::QPNS - 1)) as u16);
        self.open -= 1;
        Some(qp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        Page::new(Slot::FIRST)
    }

    #[test]
    fn a_table_is_full_until_a_slot_or_a_number_is_free() {
        let mut table = QpTable::new();
        assert!(table.is_full(), "it has no slot");
        table.pages.push(page());
        assert!(!table.is_full());
        while table.pages[0].take_index().is_some() {}
        assert!(table.is_full());
        table.pages[0].freed.push_back(5);
        assert!(!table.is_full());
    }

    #[test]
    fn indices_are_drawn_each_once_and_in_no_order() {
        let mut page = page();
        let drawn: Vec<u32> = std::iter::from_fn(|| page.take_index()).collect();
        let mut sorted = drawn.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..Slot::QPNS));
        // While most are free, the chance that one index follows another is one in 16,384.
        let first = &drawn[..1000];
        let followers = first.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) <= 2).count();
        assert!(followers < 20, "{followers} of 999");
        let halves = first.iter().filter(|index| **index < Slot::QPNS / 2).count();
        assert!((350..650).contains(&halves), "{halves} of 1000 in one half");
    }

    #[test]
    fn a_freed_index_is_used_again_when_all_were_and_others_waited_longer() {
        let mut page = page();
        let first = page.take_index().unwrap();
        page.freed.push_back(first as u16);
        for _ in 1..Slot::QPNS {
            assert_ne!(page.take_index().unwrap(), first);
        }
        for index in (0..100).filter(|index| u32::from(*index) != first) {
            page.freed.push_back(index);
        }
        let newest = *page.freed.back().unwrap();
        let (all, half) = (page.freed.len(), page.freed.len() / 2);
        for _ in 0..half {
            assert_ne!(page.take_index().unwrap(), u32::from(newest));
        }
        assert_eq!(std::iter::from_fn(|| page.take_index()).count(), all - half);
    }
}
