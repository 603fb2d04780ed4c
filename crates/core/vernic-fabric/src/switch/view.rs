//! The attributes of a switch as its data plane sees them.

use vernic_wire::PortNum;

use crate::attributes::{Forwarding, PortAttributes};
use crate::link::Lifetimes;

/// Why a packet does not leave, which says what is counted where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The tables do not lead out: counted at the port that it came by.
    Relay,
    /// The port is not active, or the packet is too long for the other end: counted at the port
    /// that it was to leave by.
    Discard,
    /// The partition is not of the port that it was to leave by, and counted there.
    Partition,
}

/// The attributes of a switch, borrowed for a call.
#[derive(Debug)]
pub struct View<'a> {
    /// The ports by number; the first is port 0, the switch itself.
    pub ports: &'a mut [PortAttributes],
    /// The forwarding tables.
    pub forwarding: &'a mut Forwarding,
}

impl View<'_> {
    /// Returns the attributes of a port.
    pub(crate) fn port(&mut self, port: PortNum) -> Option<&mut PortAttributes> {
        self.ports.get_mut(usize::from(port.0))
    }
    /// Returns how long packets may wait at a port.
    pub(crate) fn lifetimes(&self, port: PortNum) -> Lifetimes {
        match self.ports.get(usize::from(port.0)) {
            Some(attributes) => Lifetimes::of_codes(
                attributes.head_of_queue_life,
                self.forwarding.life_time,
                attributes.stall_count,
            ),
            None => Lifetimes::FOR_EVER,
        }
    }
    /// Counts a packet, or a copy, that does not leave.
    pub(crate) fn count(&mut self, ingress: PortNum, egress: PortNum, refusal: Refusal) {
        let at = if refusal == Refusal::Relay { ingress } else { egress };
        let Some(attributes) = self.port(at) else { return };
        let counters = &mut attributes.counters;
        match refusal {
            Refusal::Relay => counters.rcv_switch_relay += 1,
            Refusal::Discard => counters.xmit_discards += 1,
            Refusal::Partition => counters.xmit_constraint += 1,
        }
    }
}
