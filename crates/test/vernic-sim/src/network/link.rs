//! A port: the line of packets before it, and the link that it sends them by.
//!
//! Owns the line, when the link is free again, and whether PFC has paused it. Store and forward: a
//! packet arrives when its last byte does. Ports of hosts have no line: the host's queue pairs are
//! asked for the next packet when the link is free.

use std::collections::VecDeque;

use super::events::{Event, Events};
use super::packet::{Label, PAUSE_FRAME, Parcel};
use super::units::Rate;

/// A packet in the line of a port.
#[derive(Clone, Copy, Debug)]
struct Queued {
    label: Label,
    place: u32,
    /// Port that it came by, and whether it counts as headroom there, in the lowest bit.
    came_by: u32,
}

/// A packet that a port has taken off its line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) packet: Parcel,
    /// Port that it came by.
    pub(super) came_by: u32,
    /// Whether it counts as headroom there.
    pub(super) in_headroom: bool,
}

/// One end of a cable, as a sender: one cache line, for it is looked at for each packet.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Port {
    line: VecDeque<Queued>,
    /// When the link has sent what it is sending.
    free_at: u64,
    /// Bytes in the line, and the most that there were.
    bytes: u32,
    most: u32,
    /// 256ths of a picosecond that a byte takes.
    picos_256: u32,
    /// An event will come when the link is free.
    armed: bool,
    paused: bool,
}

/// PFC at a port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pauses {
    /// When the present pause began, and how long all before it were, in picoseconds.
    began: Option<u64>,
    sum: u64,
    pub(super) count: u64,
}

impl Pauses {
    /// Picoseconds for which the port has been paused.
    pub(super) fn sum(&self, now: u64) -> u64 {
        self.sum + self.began.map_or(0, |began| now - began)
    }

    /// A PFC frame has come.
    pub(super) fn note(&mut self, now: u64, on: bool) {
        if on && self.began.is_none() {
            self.began = Some(now);
            self.count += 1;
        }
        if !on && let Some(began) = self.began.take() {
            self.sum += now - began;
        }
    }
}

/// What a port is to do about its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing: it is paused, or an event will come.
    Wait,
    /// The link is free.
    Send,
}

impl Port {
    pub(super) fn new(rate: Rate) -> Self {
        Self {
            line: VecDeque::new(),
            free_at: 0,
            bytes: 0,
            most: 0,
            picos_256: rate.picos_256(),
            armed: false,
            paused: false,
        }
    }

    /// Bytes in the line.
    #[inline]
    pub(super) fn depth(&self) -> u32 {
        self.bytes
    }

    /// Looks at both ends of the line.
    #[inline]
    pub(super) fn foresee(&self) -> u32 {
        let came_by = |queued: &Queued| queued.came_by;
        self.line.front().map_or(0, came_by) ^ self.line.back().map_or(0, came_by)
    }

    /// Most bytes that stood in the line.
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    /// Picoseconds that so many bytes take.
    #[inline]
    pub(super) fn picos(&self, bytes: u64) -> u64 {
        (bytes * u64::from(self.picos_256)) >> 8
    }

    /// Puts a packet at the end of the line.
    #[inline]
    pub(super) fn queue(&mut self, taken: Taken) {
        let Taken { packet: Parcel { place, label }, came_by, in_headroom } = taken;
        self.bytes += label.frame();
        self.most = self.most.max(self.bytes);
        let came_by = came_by << 1 | u32::from(in_headroom);
        self.line.push_back(Queued { label, place, came_by });
    }

    /// Takes the first packet of the line.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Taken> {
        let Queued { label, place, came_by } = self.line.pop_front()?;
        if self.line.is_empty() {
            // Has the line begin at the same place again, which is in the cache.
            self.line.clear();
        }
        self.bytes -= label.frame();
        let packet = Parcel { place, label };
        Some(Taken { packet, came_by: came_by >> 1, in_headroom: came_by & 1 == 1 })
    }

    #[inline]
    pub(super) fn has_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// Whether a packet that comes now need not stand in line.
    #[inline]
    pub(super) fn is_idle(&self, now: u64) -> bool {
        !self.has_line() && !self.paused && self.free_at <= now
    }

    /// Says whether the port `number` may send now. If its link is busy, an event will ask again.
    #[inline]
    pub(super) fn turn(&mut self, number: u32, now: u64, events: &mut Events) -> Turn {
        if self.paused || self.armed {
            return Turn::Wait;
        }
        if self.free_at > now {
            self.armed = true;
            events.push(self.free_at, Event::Free { port: number });
            return Turn::Wait;
        }
        Turn::Send
    }

    /// The event has come that [`turn`](Self::turn) asked for.
    #[inline]
    pub(super) fn disarm(&mut self) {
        self.armed = false;
    }

    /// Sends a packet. Returns when its last byte has left.
    #[inline]
    pub(super) fn send(&mut self, now: u64, packet: Parcel) -> u64 {
        self.free_at = now + self.picos(u64::from(packet.label.wire()));
        self.free_at
    }

    /// When a PFC frame leaves: behind the packet that is being sent, before all in the line.
    pub(super) fn pause_leaves(&self, now: u64) -> u64 {
        self.free_at.max(now) + self.picos(u64::from(PAUSE_FRAME))
    }

    /// A PFC frame has come: pauses, or goes on.
    pub(super) fn set_paused(&mut self, on: bool) {
        self.paused = on;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_one_cache_line() {
        assert_eq!(size_of::<Port>(), 64);
    }

    #[test]
    fn pauses_add_up_and_a_second_frame_begins_no_second_one() {
        let mut pauses = Pauses::default();
        for (now, on) in [(10, true), (15, true), (30, false), (40, false), (50, true)] {
            pauses.note(now, on);
        }
        assert_eq!((pauses.sum(57), pauses.count), (27, 2));
    }
}
