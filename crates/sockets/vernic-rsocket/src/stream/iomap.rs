//! Mapped buffers: which entry of the peer's table each of ours has, and which are to be told.

use std::collections::VecDeque;

use super::write::{Sent, Small, Source, Write, WriteId};
use crate::wire::{ConnData, IomapEntry, Message, RemoteSge};

/// The peer's table as far as our buffers are in it.
#[derive(Debug, Default)]
pub(super) struct Iomaps {
    /// Which entries are in use.
    taken: Vec<bool>,
    /// Entries that the peer has not been told of; no more than there are entries.
    waiting: VecDeque<(u16, IomapEntry)>,
}

impl Iomaps {
    pub(super) fn connect(&mut self, entries: u16) {
        self.taken = vec![false; usize::from(entries)];
    }

    /// Takes an entry for a buffer, which the peer is told of before the next data; `None` if the
    /// peer's table is full.
    pub(super) fn map(&mut self, entry: IomapEntry) -> Option<u16> {
        let index = self.taken.iter().position(|taken| !taken)?;
        self.taken[index] = true;
        let index = index as u16;
        self.waiting.push_back((index, entry));
        Some(index)
    }

    /// Gives an entry back. The peer keeps it until the next buffer takes its place; what it writes
    /// there meanwhile is refused by the key.
    pub(super) fn unmap(&mut self, index: u16) {
        self.waiting.retain(|(waiting, _)| *waiting != index);
        if let Some(taken) = self.taken.get_mut(usize::from(index)) {
            *taken = false;
        }
    }

    /// Whether the peer is to be told of one.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The write that tells the peer of the next one.
    pub(super) fn poll(&mut self, peer: &ConnData) -> Option<Write> {
        let (index, entry) = self.waiting.pop_front()?;
        let RemoteSge { addr, rkey, length } = peer.target_list;
        // Behind the target list, in the same region.
        let list = u64::from(length) * RemoteSge::LEN as u64;
        let addr = addr.wrapping_add(list + u64::from(index) * IomapEntry::LEN as u64);
        Some(Write {
            id: WriteId::new(Sent::Iomap),
            source: Source::Bytes(Small::new(entry.to_bytes(peer.byte_order()))),
            addr,
            rkey,
            message: Some(Message::Iomap(u32::from(index))),
        })
    }
}
