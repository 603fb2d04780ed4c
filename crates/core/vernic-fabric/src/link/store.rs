//! The bytes of the packets in a node.
//!
//! A packet stays in the receive buffer of the port that it came by until the last of its copies
//! has left; the store counts copies. Vectors are recycled, by sizes of powers of two, so that a
//! short packet never holds a long vector: the store takes at most twice the bytes of its packets,
//! and a bounded number of spare vectors. An owner that brings vectors of its own decides their
//! length; they leave with the packet.

use vernic_wire::{LinkPacket, PortNum, VirtualLane, vcrc};

use super::frame::Header;
use super::life::Life;
use crate::Time;

/// Spare vectors of each size that are kept.
const SPARE: usize = 64;
/// The smallest vectors have 2 to the power of this many bytes.
const SMALLEST: u32 = 6;
/// Sizes of vectors: 64 bytes to 8,192.
const SIZES: usize = 8;

/// What a packet takes room of until it is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// The receive buffer of a port, in a lane.
    Port(PortNum, VirtualLane),
    /// The node itself.
    Node,
}

/// A packet of a [`PacketStore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PacketId(u32);

#[cfg(test)]
impl PacketId {
    /// Makes an id of no packet, for tests that need no bytes.
    pub(crate) const fn of_test(value: u32) -> Self {
        Self(value)
    }
}

/// A packet.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// LRH to VCRC.
    pub(crate) bytes: Vec<u8>,
    /// The header as it arrived.
    pub(crate) header: Header,
    /// What it takes room of.
    pub(crate) origin: Origin,
    /// How far the packet has come.
    pub(crate) life: Life,
    copies: u16,
}

/// Spare vectors, by sizes of powers of two.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spares([Vec<Vec<u8>>; SIZES]);

impl Spares {
    /// Returns the index of the size of vectors that holds so many bytes.
    fn size_of(len: usize) -> usize {
        let power = len.next_power_of_two().trailing_zeros();
        (power.saturating_sub(SMALLEST) as usize).min(SIZES - 1)
    }
    /// Returns a spare vector with room for a packet of so many bytes, LRH to ICRC, and its VCRC.
    pub(crate) fn pop(&mut self, len: usize) -> Option<Vec<u8>> {
        self.0[Self::size_of(len + vcrc::LEN)].pop()
    }
    /// Keeps a vector, unless there are `most` of its size, or it is of none of the sizes.
    pub(crate) fn push(&mut self, bytes: Vec<u8>, most: usize) {
        let size = Self::size_of(bytes.capacity());
        let spare = &mut self.0[size];
        if spare.len() < most && bytes.capacity() == 1 << SMALLEST << size {
            spare.push(bytes);
        }
    }
    /// Copies `bytes`, with room for a VCRC behind them, into a spare vector, or a new one.
    fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let size = Self::size_of(bytes.len() + vcrc::LEN);
        let recycled = self.0[size].pop();
        let mut vector = recycled.unwrap_or_else(|| Vec::with_capacity(1 << SMALLEST << size));
        vector.clear();
        vector.extend_from_slice(bytes);
        vector
    }
}

/// The packets of a node. As many as the receive buffers of its ports hold, and those that the node
/// itself sends, both of which the callers bound.
#[derive(Clone, Debug, Default)]
pub(crate) struct PacketStore {
    slots: Vec<Option<Stored>>,
    free: Vec<u32>,
    spares: Spares,
}

impl PacketStore {
    /// Takes a packet, LRH to VCRC, that was checked.
    pub(crate) fn insert(
        &mut self,
        bytes: Vec<u8>,
        header: Header,
        origin: Origin,
        life: Life,
    ) -> PacketId {
        self.place(Stored { bytes, header, origin, life, copies: 1 })
    }
    /// Takes a packet of the node itself, LRH to ICRC, and appends its VCRC. `None` if it is no
    /// packet.
    pub(crate) fn insert_own(&mut self, bytes: &[u8], now: Time) -> Option<(PacketId, Header)> {
        if bytes.len() + vcrc::LEN > LinkPacket::MAX_LEN {
            return None;
        }
        let mut bytes = self.spares.copy(bytes);
        bytes.extend([0; vcrc::LEN]);
        vcrc::stamp(&mut bytes);
        let Some(header) = LinkPacket::parse(&bytes).ok().map(|packet| Header::of(&packet)) else {
            self.recycle(bytes);
            return None;
        };
        let (origin, life) = (Origin::Node, Life::new(now));
        let stored = Stored { bytes, header, origin, life, copies: 1 };
        Some((self.place(stored), header))
    }
    fn place(&mut self, stored: Stored) -> PacketId {
        if let Some(at) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(at as usize)
        {
            *slot = Some(stored);
            return PacketId(at);
        }
        self.slots.push(Some(stored));
        PacketId(self.slots.len() as u32 - 1)
    }
    /// Keeps a vector for another packet, unless it is of none of the sizes.
    pub(crate) fn recycle(&mut self, bytes: Vec<u8>) {
        self.spares.push(bytes, SPARE);
    }
    /// Returns a packet.
    pub(crate) fn find(&self, id: PacketId) -> Option<&Stored> {
        self.slots.get(id.0 as usize)?.as_ref()
    }
    /// Counts one more copy of a packet.
    pub(crate) fn copy(&mut self, id: PacketId) {
        if let Some(Some(stored)) = self.slots.get_mut(id.0 as usize) {
            stored.copies += 1;
        }
    }
    /// Gives up one copy of a packet. With the last one the packet is gone, and what it took room
    /// of is returned with its header.
    pub(crate) fn release(&mut self, id: PacketId) -> Option<(Origin, Header)> {
        let slot = self.slots.get_mut(id.0 as usize)?;
        let stored = slot.as_mut()?;
        stored.copies -= 1;
        if stored.copies > 0 {
            return None;
        }
        let Stored { bytes, header, origin, .. } = slot.take()?;
        self.free.push(id.0);
        self.recycle(bytes);
        Some((origin, header))
    }
    /// Gives up one copy of a packet, whose bytes become those of `out`. Returns how far the packet
    /// has come, and what [`release`](Self::release) does.
    pub(crate) fn take(
        &mut self,
        id: PacketId,
        out: &mut Vec<u8>,
    ) -> Option<(Life, Option<(Origin, Header)>)> {
        let stored = self.slots.get_mut(id.0 as usize)?.as_mut()?;
        let life = stored.life;
        if stored.copies == 1 {
            std::mem::swap(&mut stored.bytes, out);
        } else {
            out.clear();
            out.extend_from_slice(&stored.bytes);
        }
        Some((life, self.release(id)))
    }
    /// Returns how many packets there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::frame::tests::{header, packet};

    fn insert(store: &mut PacketStore, payload: usize) -> PacketId {
        let bytes = store.spares.copy(&packet(0, 9, payload));
        store.insert(bytes, header(0, 9, payload), Origin::Node, Life::new(Time(0)))
    }

    #[test]
    fn a_packet_is_gone_with_its_last_copy() {
        let mut store = PacketStore::default();
        let id = insert(&mut store, 64);
        store.copy(id);
        assert_eq!(store.release(id), None);
        assert_eq!(store.find(id).unwrap().bytes, packet(0, 9, 64));
        assert_eq!(store.release(id), Some((Origin::Node, header(0, 9, 64))));
        assert_eq!((store.len(), store.release(id)), (0, None));
        assert!(store.find(id).is_none());
    }

    #[test]
    fn slots_and_vectors_are_used_again() {
        let mut store = PacketStore::default();
        for round in 0..100 {
            let ids = [64, 4096, 64].map(|payload| insert(&mut store, payload));
            assert_eq!(store.len(), 3, "round {round}");
            assert!(ids.iter().all(|id| store.release(*id).is_some()));
        }
        assert_eq!(store.slots.len(), 3);
        assert_eq!(store.spares.0.iter().map(Vec::len).sum::<usize>(), 3);
    }

    #[test]
    fn short_packets_never_hold_long_vectors() {
        let mut store = PacketStore::default();
        let long: Vec<_> = (0..20).map(|_| insert(&mut store, 4096)).collect();
        assert!(long.iter().all(|id| store.release(*id).is_some()));
        let ids: Vec<_> = (0..20).map(|_| insert(&mut store, 16)).collect();
        for id in ids {
            let bytes = &store.find(id).unwrap().bytes;
            assert!(bytes.capacity() <= 64, "{} for {}", bytes.capacity(), bytes.len());
        }
    }

    #[test]
    fn what_the_node_sends_gets_its_vcrc() {
        let mut store = PacketStore::default();
        let whole = packet(2, 9, 100);
        let (id, read) = store.insert_own(&whole[..whole.len() - 2], Time(0)).unwrap();
        assert_eq!(read, header(2, 9, 100));
        assert_eq!(store.find(id).unwrap().bytes, whole);
        assert_eq!(store.insert_own(&whole[..whole.len() - 6], Time(0)), None);
        assert_eq!(store.insert_own(&vec![0; 10_000], Time(0)), None);
        assert_eq!(store.len(), 1);
    }
}
