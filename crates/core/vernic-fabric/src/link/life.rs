//! How far a packet has come in the subnet: what ends packets that tables lead in a circle.
//!
//! No packet of InfiniBand has this, and it never is on the wire. It goes beside a packet from node
//! to node, where one process has them all. A node that gets bytes alone takes a packet for new.

use crate::Time;

/// Switches that a packet may pass: as many as a directed route can name (IBTA 14.2.2), so that a
/// subnet manager can reach no node that is farther away.
const MOST_HOPS: u8 = 63;
/// Nanoseconds that a packet to a group may be under way: about as long as subnet managers let
/// packets wait in a switch. Copies that multiply in a circle would take too long to count to 63.
const GROUP_NS: u64 = 1 << 30;

/// How far a packet has come since it entered the subnet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life {
    born: Time,
    hops: u8,
}

impl Life {
    /// Begins: the packet enters the subnet now.
    pub const fn new(now: Time) -> Self {
        Self { born: now, hops: 0 }
    }
    /// Counts a switch that the packet passes.
    #[must_use]
    pub(crate) const fn next(self) -> Self {
        Self { hops: self.hops.saturating_add(1), ..self }
    }
    /// Returns whether the packet has passed more switches than there can be on its way, or has
    /// gone to a group for too long.
    pub(crate) const fn is_over(self, to_group: bool, now: Time) -> bool {
        self.hops > MOST_HOPS || to_group && now.since(self.born) > GROUP_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_passes_63_switches_and_no_more() {
        let mut life = Life::new(Time(5));
        for _ in 0..63 {
            life = life.next();
            assert!(!life.is_over(true, Time(6)));
        }
        assert!(life.next().is_over(false, Time(6)));
    }

    #[test]
    fn a_packet_to_a_group_has_a_second() {
        let life = Life::new(Time(5));
        assert!(!life.is_over(true, Time(5 + GROUP_NS)));
        assert!(life.is_over(true, Time(6 + GROUP_NS)));
        assert!(!life.is_over(false, Time(6 + GROUP_NS)), "it may wait for a slow receiver");
    }
}
