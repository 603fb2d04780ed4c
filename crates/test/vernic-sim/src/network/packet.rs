//! Packets under way: in a slab, so that none is allocated once that has grown.
//!
//! A packet is the bytes that a queue pair wrote, as far as anything reads them: its headers, and
//! the map of a NAK. The payload is virtual: its length counts everywhere, its bytes are nowhere.

use std::collections::BTreeMap;

use vernic_wire::{Opcode, Qpn};

/// Bytes of a packet that are kept: BTH and RETH with immediate data, or a whole CNP, which has no
/// more to say than zeros.
pub(super) const KEPT: usize = 32;

/// What Ethernet, IPv4, UDP and the ICRC add to a transport packet in a buffer: 14 + 20 + 8 + 4
/// bytes, and 4 of the frame's check.
const FRAME: u32 = 50;
/// What a frame takes on a wire beside its bytes: preamble and the gap between frames.
const GAP: u32 = 20;
/// Bytes of a PFC frame on the wire.
pub(super) const PAUSE_FRAME: u32 = 64 + GAP;
/// Bytes of a frame beside its payload, at most.
pub(super) const MOST_OVERHEAD: u32 = FRAME + GAP + KEPT as u32;

/// A packet of a queue pair on its way, as far as its receiver looks at it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    /// First bytes, from the BTH on.
    pub(super) head: [u8; KEPT],
    /// Which use of its connection it belongs to.
    pub(super) generation: u32,
    /// Whether the bytes behind the first ones are kept too: a map of what a responder keeps.
    pub(super) has_tail: bool,
}

impl Packet {
    /// Whether it is of the requester.
    #[inline]
    pub(super) fn is_request(&self) -> bool {
        Opcode(self.head[0]).info().is_request()
    }

    /// Number of the queue pair that it is for.
    #[inline]
    pub(super) fn dest_qpn(&self) -> Qpn {
        Qpn::new(u32::from_be_bytes([0, self.head[5], self.head[6], self.head[7]]))
    }
}

/// What switches must know of a packet, in one word: the host that it is for (13 bits), what ECMP
/// hashes (32), transport bytes (13), the ECN field of the IP header (2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Label(u64);

impl Label {
    pub(super) const fn new(to: u32, hash: u32, len: u32, ecn: u8) -> Self {
        Self((to as u64) << 47 | (hash as u64) << 15 | (len as u64) << 2 | ecn as u64)
    }

    /// Host that it is for.
    #[inline]
    pub(super) const fn to(self) -> u32 {
        (self.0 >> 47) as u32
    }

    /// What ECMP hashes.
    #[inline]
    pub(super) const fn hash(self) -> u32 {
        (self.0 >> 15) as u32
    }

    /// Transport bytes: BTH to pad.
    #[inline]
    pub(super) const fn len(self) -> u32 {
        (self.0 >> 2) as u32 & 0x1FFF
    }

    /// ECN field of the IP header.
    #[inline]
    pub(super) const fn ecn(self) -> u8 {
        self.0 as u8 & 3
    }

    /// Sets the ECN field.
    #[inline]
    pub(super) const fn with_ecn(self, ecn: u8) -> Self {
        Self(self.0 & !3 | ecn as u64)
    }

    /// Bytes in a switch's buffer.
    #[inline]
    pub(super) const fn frame(self) -> u32 {
        self.len() + FRAME
    }

    /// Bytes on a wire.
    #[inline]
    pub(super) const fn wire(self) -> u32 {
        wire_bytes(self.len())
    }
}

/// A packet on its way: its place in the slab, and its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parcel {
    pub(super) place: u32,
    pub(super) label: Label,
}

/// Bytes that a transport packet of `len` bytes takes on a wire.
pub(super) const fn wire_bytes(len: u32) -> u32 {
    len + FRAME + GAP
}

/// All packets under way.
#[derive(Debug, Default)]
pub(super) struct Slab {
    packets: Vec<Packet>,
    free: Vec<u32>,
    /// What is behind the first bytes of the few packets of which that matters, by place.
    tails: BTreeMap<u32, Box<[u8]>>,
}

impl Slab {
    /// Takes a packet in.
    #[inline]
    pub(super) fn insert(&mut self, packet: Packet) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.packets[place as usize] = packet;
                place
            }
            None => {
                self.packets.push(packet);
                self.packets.len() as u32 - 1
            }
        }
    }

    /// Keeps what is behind the first bytes of a packet.
    pub(super) fn insert_tail(&mut self, place: u32, tail: Box<[u8]>) {
        self.tails.insert(place, tail);
    }

    /// Takes out what was behind the first bytes of the packet that was taken out from there.
    pub(super) fn remove_tail(&mut self, place: u32) -> Option<Box<[u8]>> {
        self.tails.remove(&place)
    }

    /// Takes a packet out.
    #[inline]
    pub(super) fn remove(&mut self, place: u32) -> Packet {
        self.free.push(place);
        self.packets[place as usize]
    }

    #[inline]
    pub(super) fn at(&self, place: u32) -> &Packet {
        &self.packets[place as usize]
    }

    /// Packets under way.
    pub(super) fn len(&self) -> usize {
        self.packets.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_keeps_the_largest_values() {
        let label = Label::new(8191, u32::MAX, 4160, 2).with_ecn(3);
        assert_eq!((label.to(), label.hash()), (8191, u32::MAX));
        assert_eq!((label.len(), label.ecn()), (4160, 3));
    }
}
