//! What leaves a port next, before it is bytes.

use vernic_wire::{FlowControl, link_packet};

use super::frame::{FrameKind, Signal};
use super::queue::Queued;
use super::store::PacketStore;

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
    /// Returns the packet, if it is one.
    pub(crate) const fn packet(&self) -> Option<&Queued> {
        if let Self::Packet(queued) = self { Some(queued) } else { None }
    }
    /// Writes the frame's bytes to `out` alone, on the lane that it leaves by.
    pub(crate) fn write(&self, store: &PacketStore, out: &mut Vec<u8>) -> FrameKind {
        out.clear();
        match self {
            Self::Signal(signal) => FrameKind::Signal(*signal),
            Self::FlowControl(bytes) => {
                out.extend_from_slice(bytes);
                FrameKind::FlowControl
            }
            Self::Packet(queued) => {
                if let Some(stored) = store.find(queued.packet) {
                    out.extend_from_slice(&stored.bytes);
                    link_packet::set_virtual_lane(out, queued.header.lane);
                }
                FrameKind::Packet
            }
        }
    }
}
