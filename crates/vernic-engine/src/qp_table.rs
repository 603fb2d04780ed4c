//! The queue pairs of a device by number, and which numbers are free.
//!
//! Owned by the lane: looked up per packet without a lock of its own. A QPN is a process slot and
//! an index (`vernic_io::slot`); the table has one array per slot of this process and takes a
//! further slot when all indices are in use. A freed index goes to the end of its slot's list, so
//! that a number is used again as late as possible: late packets of the dead find nobody.

use std::collections::VecDeque;
use std::sync::Arc;

use vernic_io::slot::{Slot, SlotError, SlotTable};
use vernic_proto::cm::Heard;
use vernic_wire::Qpn;

use crate::events::lock;
use crate::qp_state::QpInner;

#[derive(Debug)]
struct Page {
    slot: Slot,
    /// By index; grows as indices are used for the first time.
    qps: Vec<Option<Arc<QpInner>>>,
    freed: VecDeque<u16>,
}

impl Page {
    fn take_index(&mut self) -> Option<u32> {
        if (self.qps.len() as u32) < Slot::QPNS {
            self.qps.push(None);
            return Some(self.qps.len() as u32 - 1);
        }
        self.freed.pop_front().map(u32::from)
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
        let index = qpn.value() & (Slot::QPNS - 1);
        self.pages[page].qps.get(index as usize)?.as_ref()
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
        page.qps[index as usize] = Some(qp.clone());
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
        self.pages.push(Page { slot, qps: Vec::new(), freed: VecDeque::new() });
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
        let index = qpn.value() & (Slot::QPNS - 1);
        let page = &mut self.pages[page];
        let qp = page.qps.get_mut(index as usize)?.take()?;
        page.freed.push_back(index as u16);
        self.open -= 1;
        Some(qp)
    }
}
