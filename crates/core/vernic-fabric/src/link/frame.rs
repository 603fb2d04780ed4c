//! What travels on a cable, and what is read of a packet at the ends of the cable.

use vernic_wire::link_packet::credit_blocks;
use vernic_wire::{Bth, FlowControl, Lid, LinkPacket, Mtu, Pkey, ServiceLevel, VirtualLane};

use super::life::Life;
use crate::Time;

/// A signal of the physical layer: what training sequences say (IBTA 5.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// The sender of the signal has no link, and does not look for one.
    Silent,
    /// The sender of the signal has no link, and looks for one.
    Polling,
    /// The sender of the signal has heard the other end, and is ready.
    Ready,
}

/// What arrives at one end of a cable. The owner of the cable keeps the order of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    /// A signal.
    Signal(Signal),
    /// A flow-control packet, LPCRC and all.
    FlowControl(&'a [u8]),
    /// A packet, LRH to VCRC.
    Packet(&'a [u8]),
}

/// What leaves by one end of a cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// A signal, which has no bytes.
    Signal(Signal),
    /// A flow-control packet, LPCRC and all.
    FlowControl([u8; FlowControl::LEN]),
    /// A packet.
    Packet,
}

impl FrameKind {
    /// Returns the frame, of a packet with its bytes, as it arrives at the other end.
    pub const fn frame<'a>(&'a self, bytes: &'a [u8]) -> Frame<'a> {
        match self {
            Self::Signal(signal) => Frame::Signal(*signal),
            Self::FlowControl(bytes) => Frame::FlowControl(bytes),
            Self::Packet => Frame::Packet(bytes),
        }
    }
}

/// A frame that leaves now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// What it is. The bytes of a packet are in the buffer that the caller passed.
    pub kind: FrameKind,
    /// When its last byte has left, and the next frame can.
    pub free_at: Time,
    /// How far a packet has come; of other frames nothing.
    pub life: Life,
}

/// What the link layer remembers of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// The lane of the LRH.
    pub(crate) lane: VirtualLane,
    /// The service level.
    pub(crate) service_level: ServiceLevel,
    /// The destination.
    pub(crate) dlid: Lid,
    /// Bytes, LRH to VCRC.
    pub(crate) bytes: u16,
    /// The partition, of a packet that has a BTH.
    pub(crate) pkey: Option<Pkey>,
}

impl Header {
    /// Reads the header of a packet.
    pub(crate) fn of(packet: &LinkPacket<'_>) -> Self {
        let lrh = packet.lrh();
        Self {
            lane: packet.virtual_lane(),
            service_level: ServiceLevel::new(lrh.service_level),
            dlid: Lid(lrh.dlid),
            bytes: packet.bytes().len() as u16,
            pkey: packet.transport().and_then(|bytes| Bth::parse(bytes).ok()).map(|bth| bth.pkey),
        }
    }
    /// Returns the blocks of 64 bytes that the packet takes of a buffer.
    pub(crate) const fn blocks(&self) -> u16 {
        credit_blocks(self.bytes as usize)
    }
    /// Returns the units of 4 bytes that counters of data count, VCRC not among them.
    pub(crate) const fn words(&self) -> u64 {
        (self.bytes / 4) as u64
    }
}

/// Returns whether a packet of so many bytes, LRH to VCRC, fits an MTU, with the 124 bytes that
/// headers and ICRC may have besides (IBTA 7.7.8).
pub(crate) const fn fits(bytes: usize, mtu: Mtu) -> bool {
    let spare = LinkPacket::MAX_LEN - Mtu::B4096.bytes() as usize;
    bytes <= mtu.bytes() as usize + spare
}

#[cfg(test)]
pub(crate) mod tests {
    use vernic_wire::{Lrh, link_packet};

    use super::*;

    /// Makes a packet, LRH to VCRC, with so many bytes of payload, to queue pair 5.
    pub(crate) fn packet(lane: u8, dlid: u16, payload: usize) -> Vec<u8> {
        let mut packet = vec![0; Lrh::LEN + Bth::LEN + payload + 4 + 2];
        let lrh =
            Lrh { virtual_lane: lane, next_header: Lrh::NEXT_BTH, dlid, slid: 1, ..Lrh::default() };
        lrh.emit(&mut packet);
        packet[10..12].copy_from_slice(&Pkey::DEFAULT.value().to_be_bytes());
        packet[15] = 5;
        link_packet::finish(&mut packet).unwrap();
        packet
    }

    /// Reads the header of such a packet.
    pub(crate) fn header(lane: u8, dlid: u16, payload: usize) -> Header {
        Header::of(&LinkPacket::parse(&packet(lane, dlid, payload)).unwrap())
    }

    #[test]
    fn a_header_says_what_the_link_needs() {
        let header = header(3, 7, 256);
        assert_eq!((header.lane.value(), header.dlid), (3, Lid(7)));
        assert_eq!((header.bytes, header.blocks(), header.words()), (282, 5, 70));
        assert_eq!(header.pkey, Some(Pkey::DEFAULT));
    }

    #[test]
    fn payload_beyond_the_mtu_does_not_fit() {
        for mtu in Mtu::ALL {
            let most = mtu.bytes() as usize + 124 + 2;
            assert!(fits(most, mtu) && !fits(most + 1, mtu));
        }
    }
}
