//! Batches of packets: what one message of a data connection carries.
//!
//! ```text
//!  byte   0..3   4      5      6..7     8..
//!       +------+------+------+--------+---------------------+
//!       | head | port | zero | length | packet, LRH to ICRC |   port to packet, once per packet
//!       +------+------+------+--------+---------------------+
//! ```

use vernic_wire::PortNum;

use crate::{HEAD, MAX_MESSAGE};

/// The kind of the message.
pub(crate) const PACKETS: u8 = 0x10;

/// Bytes before each packet.
const PACKET_HEAD: usize = 4;

/// Bytes of the longest packet of a batch. Those of a link are shorter.
pub const MAX_PACKET: usize = 16 * 1024;

/// A message under construction. Allocates once, when it is made.
#[derive(Debug)]
pub struct PacketBatch {
    bytes: Vec<u8>,
    packets: usize,
}

impl Default for PacketBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl PacketBatch {
    /// Makes an empty batch.
    pub fn new() -> Self {
        let mut bytes = Vec::with_capacity(MAX_MESSAGE);
        bytes.extend([PACKETS, 0, 0, 0]);
        Self { bytes, packets: 0 }
    }
    /// Adds room for a packet of `len` bytes that leaves by `port`, or came by it, and returns the
    /// room, filled with zeros. Returns `None` if the batch has no room: send it, then
    /// [`clear`](Self::clear) it. An empty batch has room for a packet of [`MAX_PACKET`] bytes.
    #[inline]
    pub fn reserve(&mut self, port: PortNum, len: usize) -> Option<&mut [u8]> {
        let at = self.bytes.len() + PACKET_HEAD;
        if len > MAX_PACKET || at + len > MAX_MESSAGE {
            return None;
        }
        let [low, high] = (len as u16).to_le_bytes();
        self.bytes.extend_from_slice(&[port.0, 0, low, high]);
        self.bytes.resize(at + len, 0);
        self.packets += 1;
        Some(&mut self.bytes[at..])
    }
    /// Adds a packet. Returns whether there was room.
    #[inline]
    pub fn push(&mut self, port: PortNum, packet: &[u8]) -> bool {
        let at = self.bytes.len() + PACKET_HEAD;
        if packet.len() > MAX_PACKET || at + packet.len() > MAX_MESSAGE {
            return false;
        }
        let [low, high] = (packet.len() as u16).to_le_bytes();
        self.bytes.extend_from_slice(&[port.0, 0, low, high]);
        self.bytes.extend_from_slice(packet);
        self.packets += 1;
        true
    }
    /// Returns whether a packet of `len` bytes has room.
    pub fn has_room(&self, len: usize) -> bool {
        len <= MAX_PACKET && self.bytes.len() + PACKET_HEAD + len <= MAX_MESSAGE
    }
    /// Returns how many packets there are.
    pub const fn len(&self) -> usize {
        self.packets
    }
    /// Returns whether there is no packet.
    pub const fn is_empty(&self) -> bool {
        self.packets == 0
    }
    /// Forgets all packets.
    pub fn clear(&mut self) {
        self.bytes.truncate(HEAD);
        self.packets = 0;
    }
    /// Returns the message.
    pub fn message(&self) -> &[u8] {
        &self.bytes
    }
    /// Returns the packets in their order.
    pub fn iter(&self) -> Packets<'_> {
        Packets(&self.bytes[HEAD..])
    }
}

/// The packets of a message, each with its port.
#[derive(Clone, Copy, Debug)]
pub struct Packets<'a>(&'a [u8]);

impl<'a> Packets<'a> {
    /// Reads a message; `None` if it is no batch, or if a length in it is wrong. A whole batch is
    /// checked before its first packet is used.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        let body = message.strip_prefix(&[PACKETS, 0, 0, 0])?;
        let mut rest = Self(body);
        // Each round takes at least the head of a packet.
        while rest.next().is_some() {}
        rest.0.is_empty().then_some(Self(body))
    }
}

impl<'a> Packets<'a> {
    /// Returns the packets, each with the index of its first byte in the message. The packets must
    /// be as they were read: none was taken yet.
    pub fn with_offsets(self) -> impl Iterator<Item = (PortNum, &'a [u8], usize)> {
        self.scan(HEAD, |at, (port, packet)| {
            let start = *at + PACKET_HEAD;
            *at = start + packet.len();
            Some((port, packet, start))
        })
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = (PortNum, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (&[port, zero, low, high], rest) = self.0.split_first_chunk::<PACKET_HEAD>()?;
        let len = usize::from(u16::from_le_bytes([low, high]));
        if zero != 0 || len > MAX_PACKET {
            return None;
        }
        let (packet, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((PortNum(port), packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_out_as_they_went_in() {
        let mut batch = PacketBatch::new();
        assert!(batch.push(PortNum(1), &[1, 2, 3]));
        batch.reserve(PortNum(2), 4).unwrap().copy_from_slice(&[4, 5, 6, 7]);
        assert!(batch.push(PortNum(254), &[]));
        let expected: [(_, &[u8]); 3] =
            [(PortNum(1), &[1, 2, 3]), (PortNum(2), &[4, 5, 6, 7]), (PortNum(254), &[])];
        assert!(Packets::parse(batch.message()).unwrap().eq(expected));
        assert!(batch.iter().eq(expected) && batch.len() == 3);
        for (_, packet, at) in Packets::parse(batch.message()).unwrap().with_offsets() {
            assert_eq!(&batch.message()[at..at + packet.len()], packet);
        }
        batch.clear();
        assert!(batch.is_empty() && Packets::parse(batch.message()).unwrap().next().is_none());
    }

    #[test]
    fn a_batch_is_never_longer_than_a_message() {
        let mut batch = PacketBatch::new();
        let packet = [7; 4096];
        while batch.push(PortNum(1), &packet) {}
        assert!(!batch.has_room(4096) && batch.reserve(PortNum(1), 4096).is_none());
        assert_eq!(batch.len(), (MAX_MESSAGE - 4) / 4100);
        assert!(batch.message().len() <= MAX_MESSAGE);
        batch.clear();
        assert!(batch.has_room(MAX_PACKET) && !batch.has_room(MAX_PACKET + 1));
        assert!(batch.reserve(PortNum(1), MAX_PACKET + 1).is_none());
    }

    #[test]
    fn a_batch_with_a_wrong_length_is_refused_whole() {
        let mut batch = PacketBatch::new();
        batch.push(PortNum(1), &[1, 2, 3]);
        batch.push(PortNum(1), &[4; 300]);
        let good = batch.message().to_vec();
        for len in 0..good.len() {
            assert_eq!(Packets::parse(&good[..len]).is_some(), len == 4 || len == 11, "{len}");
        }
        for at in [0, 1, 5, 6, 7] {
            let mut bad = good.clone();
            bad[at] ^= 0x81;
            assert!(Packets::parse(&bad).is_none(), "{at}");
        }
    }
}
