//! The queue pairs of a device by number, and which numbers are free.
//!
//! Owned by the lane: looked up per packet without a lock of its own. A QPN is a process slot and
//! an index (`vernic_io::host`); the table has one page per slot of this process and takes a
//! further slot when all indices are in use.
//!
//! Indices are drawn at random, so that nobody can tell a number from others. One that was freed is
//! used again when every other was used, and of those that were freed the older half goes first:
//! late packets of the dead find nobody.

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
    /// By index, the place in `qps` plus 1; 0 was never used. A place is its index's for good.
    places: Box<[u16]>,
    /// By place; grows as indices are used for the first time.
    qps: Vec<Option<Arc<QpInner>>>,
    /// Indices that were used and are free, oldest first.
    freed: VecDeque<u16>,
}

impl Page {
    fn new(slot: Slot) -> Self {
        let places = vec![0; Slot::QPNS as usize].into();
        Self { slot, places, qps: Vec::new(), freed: VecDeque::new() }
    }

    /// The place of an index that was used.
    #[inline]
    fn place(&self, qpn: Qpn) -> Option<usize> {
        let index = qpn.value() & (Slot::QPNS - 1);
        usize::from(self.places[index as usize]).checked_sub(1)
    }

    /// Draws a free index, which has a place from then on.
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

/// The table.
#[derive(Debug)]
pub(crate) struct QpTable {
    /// Slot number to place in `pages` plus 1; 0 is not ours.
    by_slot: Box<[u16]>,
    pages: Vec<Page>,
    open: usize,
}

impl QpTable {
    pub(crate) fn new() -> Self {
        Self { by_slot: vec![0; 1 << Slot::BITS].into(), pages: Vec::new(), open: 0 }
    }

    /// Queue pairs in the table.
    pub(crate) fn len(&self) -> usize {
        self.open
    }

    /// Slots taken.
    pub(crate) fn slots(&self) -> usize {
        self.pages.len()
    }

    #[inline]
    pub(crate) fn find(&self, qpn: Qpn) -> Option<&Arc<QpInner>> {
        let page = usize::from(self.by_slot[usize::from(Slot::of(qpn).value())]).checked_sub(1)?;
        let page = &self.pages[page];
        page.qps.get(page.place(qpn)?)?.as_ref()
    }

    /// When a queue pair last took a packet of its peer, and how long it tries to reach that. Locks
    /// its core.
    pub(crate) fn heard(&self, qpn: Qpn) -> Option<Heard> {
        let core = lock(&self.find(qpn)?.core);
        let (at, attr) = (core.side.heard?, core.machine.attr());
        let wait = attr.timeout.nanos().unwrap_or(u64::MAX);
        let patience = wait.saturating_mul(u64::from(attr.retry_cnt) + 1);
        Some(Heard { at, patience })
    }

    /// All queue pairs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<QpInner>> {
        self.pages.iter().flat_map(|page| page.qps.iter().flatten())
    }

    /// Takes a free number, a further slot if need be, and puts there what `make` returns.
    pub(crate) fn insert(
        &mut self,
        slots: &SlotTable,
        make: impl FnOnce(Qpn) -> Arc<QpInner>,
    ) -> Result<Arc<QpInner>, SlotError> {
        let (page, index) = self.take_number(slots)?;
        let page = &mut self.pages[page];
        let qp = make(page.slot.qpn(index));
        if let Some(place) = page.place(qp.qpn) {
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

    /// One more slot, with all of its numbers free.
    fn take_slot(&mut self, slots: &SlotTable) -> Result<Slot, SlotError> {
        let slot = slots.claim()?;
        self.pages.push(Page::new(slot));
        self.by_slot[usize::from(slot.value())] = self.pages.len() as u16;
        Ok(slot)
    }

    /// A slot of this device, for other numbers than those of queue pairs: its first one.
    pub(crate) fn first_slot(&mut self, slots: &SlotTable) -> Result<Slot, SlotError> {
        match self.pages.first() {
            Some(page) => Ok(page.slot),
            None => self.take_slot(slots),
        }
    }

    /// Takes a queue pair out and frees its number.
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
    fn indices_are_drawn_each_once_and_in_no_order() {
        let mut page = page();
        let drawn: Vec<u32> = std::iter::from_fn(|| page.take_index()).collect();
        let mut sorted = drawn.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..Slot::QPNS));
        // While most are free, that one follows another is one chance in 16,384.
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
