//! Packets that left one end, and which of them arrived at the other: known where both ends wrote
//! captures, or one file has both directions.

use std::collections::VecDeque;

use vernic_wire::{Opcode, Psn};

/// Most departures that wait for their arrival.
const MAX_WAITING: usize = 4096;
/// Most packets that a later one may overtake: earlier ones are lost, and these may only be late.
const MAX_LATE: usize = 64;
/// Most arrivals that wait for their departure, where the file has them in that order.
const MAX_EARLY: usize = 64;

/// A packet on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OnItsWay {
    pub(crate) psn: Psn,
    pub(crate) opcode: Opcode,
    /// Nanoseconds since 1970.
    pub(crate) left_ns: u64,
}

/// Packets of one direction between leaving and arriving.
#[derive(Debug, Default)]
pub(crate) struct Transit {
    waiting: VecDeque<OnItsWay>,
    early: VecDeque<(Psn, Opcode)>,
    arrived: u64,
    lost: u64,
}

impl Transit {
    /// Packets that were seen to arrive.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Packets that left and did not arrive; 0 where no arrival was seen at all.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// A packet left.
    pub(crate) fn depart(&mut self, packet: OnItsWay) {
        let early = (packet.psn, packet.opcode);
        if let Some(at) = self.early.iter().position(|other| *other == early) {
            self.early.remove(at);
            return;
        }
        self.waiting.push_back(packet);
        if self.waiting.len() > MAX_WAITING {
            self.waiting.pop_front();
            self.lost += u64::from(self.arrived != 0);
        }
    }

    /// A packet arrived; returns those that are now known to be lost.
    pub(crate) fn arrive(&mut self, psn: Psn, opcode: Opcode) -> Vec<OnItsWay> {
        let is_first = self.arrived == 0;
        self.arrived += 1;
        let is_it = |other: &OnItsWay| other.psn == psn && other.opcode == opcode;
        let Some(at) = self.waiting.iter().position(is_it) else {
            self.early.push_back((psn, opcode));
            if self.early.len() > MAX_EARLY {
                self.early.pop_front();
            }
            return Vec::new();
        };
        self.waiting.remove(at);
        if is_first {
            // What left before the arrivals were captured is not lost.
            self.waiting.drain(..at);
            return Vec::new();
        }
        let lost: Vec<_> = self.waiting.drain(..at.saturating_sub(MAX_LATE)).collect();
        self.lost += lost.len() as u64;
        lost
    }

    /// The capture has ended: what still waits did not arrive.
    pub(crate) fn end(&mut self) -> Vec<OnItsWay> {
        if self.arrived == 0 {
            return Vec::new();
        }
        let lost: Vec<_> = self.waiting.drain(..).collect();
        self.lost += lost.len() as u64;
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(psn: u32) -> OnItsWay {
        OnItsWay { psn: Psn::new(psn), opcode: Opcode::RC_SEND_ONLY, left_ns: 0 }
    }

    #[test]
    fn a_packet_that_does_not_arrive_is_lost_and_one_that_is_late_is_not() {
        let mut transit = Transit::default();
        let mut lost = Vec::new();
        for psn in 0..200 {
            transit.depart(packet(psn));
            if psn != 3 && psn != 5 {
                lost.extend(transit.arrive(Psn::new(psn), Opcode::RC_SEND_ONLY));
            }
            if psn == 7 {
                lost.extend(transit.arrive(Psn::new(5), Opcode::RC_SEND_ONLY));
            }
        }
        assert_eq!((lost.len(), transit.lost()), (0, 0), "few are missing, and may be late");
        assert_eq!(transit.end(), [packet(3)]);
        assert_eq!((transit.lost(), transit.arrived()), (1, 199));
    }

    #[test]
    fn nothing_is_lost_where_arrivals_are_not_captured() {
        let mut transit = Transit::default();
        for psn in 0..10_000 {
            transit.depart(packet(psn));
        }
        assert!(transit.end().is_empty());
        assert_eq!(transit.lost(), 0);
    }

    #[test]
    fn an_arrival_before_its_departure_is_paired_with_it() {
        let mut transit = Transit::default();
        assert!(transit.arrive(Psn::new(1), Opcode::RC_ACK).is_empty());
        transit.depart(OnItsWay { opcode: Opcode::RC_ACK, ..packet(1) });
        assert!(transit.end().is_empty());
    }
}
