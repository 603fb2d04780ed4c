//! What leaves a port next, before it is bytes.

use vernic_wire::{FlowControl, link_packet};

use super::frame::{FrameKind, Header, Signal, Transmit};
use super::life::Life;
use super::queue::Queued;
use super::store::{Origin, PacketStore};
use crate::Time;

/// What leaves next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// A signal.
    Signal(Signal),
    /// A flow-control packet.
    FlowControl([u8; FlowControl::LEN]),
    /// A packet of the node's store.
    Packet(Queued),
}

impl Next {
    /// Makes the frame, and moves the bytes of a packet to `out` alone, on the lane that it leaves
    /// by. That copy of the packet is gone from the store; with the last one, what the packet took
    /// room of is returned.
    pub(crate) fn leave(
        &self,
        store: &mut PacketStore,
        free_at: Time,
        now: Time,
        out: &mut Vec<u8>,
    ) -> (Transmit, Option<(Origin, Header)>) {
        let (mut life, mut freed) = (Life::new(now), None);
        let kind = match self {
            Self::Signal(signal) => FrameKind::Signal(*signal),
            Self::FlowControl(bytes) => FrameKind::FlowControl(*bytes),
            Self::Packet(queued) => {
                if let Some(taken) = store.take(queued.packet, out) {
                    (life, freed) = taken;
                    link_packet::set_virtual_lane(out, queued.header.lane);
                }
                FrameKind::Packet
            }
        };
        (Transmit { kind, free_at, life }, freed)
    }
}
