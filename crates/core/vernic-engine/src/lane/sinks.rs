//! Packet sinks: where the packets of a turn are written, to the batch of a link or to the ring of
//! a local peer.

use vernic_io::{TxBatch, TxLanes, TxPath};
use vernic_local::{LocalPeers, RingOut};

use crate::lane::udp_backpressure::UdpBackpressure;

/// All sinks of a lane.
pub(super) struct Sinks<'a> {
    pub(super) tx: &'a mut TxLanes,
    pub(super) udp_backpressure: &'a mut UdpBackpressure,
    pub(super) local_peers: &'a mut LocalPeers,
}

/// Space for a packet.
pub(super) enum Room<'a> {
    Free(&'a mut [u8]),
    /// No space until the batch has been sent, which the lane does next.
    Batch,
    /// No space until the receiver has taken something out of its ring.
    Receiver,
}

/// Where the packets of a part of a turn are written.
pub(super) trait PacketSink {
    /// Returns space for the next packet of a queue pair.
    fn room(&mut self) -> Room<'_>;
    /// Sends the packet of `len` bytes in that space. Every packet of a state that sends has a
    /// path: the transition to RTR set it.
    fn push(&mut self, path: &TxPath, len: usize);
}

impl PacketSink for TxBatch {
    #[inline]
    fn room(&mut self) -> Room<'_> {
        self.room().map_or(Room::Batch, Room::Free)
    }
    #[inline]
    fn push(&mut self, path: &TxPath, len: usize) {
        self.push(path, len);
    }
}

impl PacketSink for RingOut<'_> {
    #[inline]
    fn room(&mut self) -> Room<'_> {
        let is_lost = self.is_given_up();
        self.room(is_lost).map_or(Room::Receiver, Room::Free)
    }
    #[inline]
    fn push(&mut self, path: &TxPath, len: usize) {
        self.push(path, len);
    }
}
