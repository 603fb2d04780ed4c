//! A port: the line of packets before it, and the link that it sends them by.
//!
//! Owns the line, the packets on the link, when that is free again, and whether PFC has paused it.
//! Store and forward: a packet arrives when its last byte does. Ports of hosts have no line: the
//! host's queue pairs are asked for the next packet when the link is free.
//!
//! ```text
//!   first                                   last
//!   [ on the link, with times ][ in the line ]     a packet that is sent stays where it is
//! ```

use std::collections::VecDeque;

use super::events::{Events, NEVER};
use super::packet::{Label, PAUSE_FRAME, Parcel};
use super::units::Rate;

/// A packet in the line of a port, or on its link.
#[derive(Clone, Copy, Debug)]
struct Queued {
    /// When it arrives, once it has been sent.
    arrives: u64,
    label: Label,
    place: u32,
    /// Port that it came by, and whether it counts as headroom there, in the lowest bit.
    came_by: u32,
}

/// A packet in a line, and what the buffer must know of it.
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
    /// Packets on the link, and behind them those in the line.
    packets: VecDeque<Queued>,
    /// Packets on the link.
    on_link: u32,
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
            packets: VecDeque::new(),
            on_link: 0,
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
        self.packets.push_back(Queued { arrives: NEVER, label, place, came_by });
    }

    /// Sends the first packet of the line, by a link with a delay of so many picoseconds. Returns
    /// it, and when it arrives.
    #[inline]
    pub(super) fn send_first(&mut self, now: u64, delay: u64) -> Option<(Taken, u64)> {
        let Queued { label, place, came_by, .. } = *self.packets.get(self.on_link as usize)?;
        let arrives = self.occupy(now, label) + delay;
        self.packets[self.on_link as usize].arrives = arrives;
        self.on_link += 1;
        self.bytes -= label.frame();
        let packet = Parcel { place, label };
        let taken = Taken { packet, came_by: came_by >> 1, in_headroom: came_by & 1 == 1 };
        Some((taken, arrives))
    }

    /// Sends a packet, without it standing in the line, which is empty. Returns when it arrives.
    #[inline]
    pub(super) fn send(&mut self, now: u64, packet: Parcel, delay: u64) -> u64 {
        let Parcel { place, label } = packet;
        let arrives = self.occupy(now, label) + delay;
        self.packets.push_back(Queued { arrives, label, place, came_by: 0 });
        self.on_link += 1;
        arrives
    }

    /// Begins to send a packet. Returns when its last byte has left.
    #[inline]
    fn occupy(&mut self, now: u64, label: Label) -> u64 {
        self.free_at = now + self.picos(u64::from(label.wire()));
        self.free_at
    }

    /// When the first packet on the link arrives.
    #[inline]
    pub(super) fn first_arrival(&self) -> u64 {
        // Those in the line arrive never.
        self.packets.front().map_or(NEVER, |first| first.arrives)
    }

    /// Takes the packet off that arrives first.
    #[inline]
    pub(super) fn arrive(&mut self) -> Option<Parcel> {
        let Queued { label, place, .. } = self.packets.pop_front()?;
        self.on_link -= 1;
        if self.packets.is_empty() {
            // Has the line begin at the same place again, which is in the cache.
            self.packets.clear();
        }
        Some(Parcel { place, label })
    }

    /// Packets on the link that arrive before a time.
    #[inline]
    pub(super) fn arriving(&self, until: u64) -> impl Iterator<Item = Parcel> {
        let packets = self.packets.iter().take_while(move |packet| packet.arrives < until);
        packets.map(|packet| Parcel { place: packet.place, label: packet.label })
    }

    #[inline]
    pub(super) fn has_line(&self) -> bool {
        self.packets.len() > self.on_link as usize
    }

    /// Whether a packet that comes now need not stand in line.
    #[inline]
    pub(super) fn is_idle(&self, now: u64) -> bool {
        !self.has_line() && !self.paused && self.free_at <= now
    }

    /// Says whether the port `number` of `node` may send now. If its link is busy, an event will
    /// ask again.
    #[inline]
    pub(super) fn turn(
        &mut self,
        (node, number): (u32, u32),
        now: u64,
        events: &mut Events,
    ) -> Turn {
        if self.paused || self.armed {
            return Turn::Wait;
        }
        if self.free_at > now {
            self.armed = true;
            events.push_free(node, self.free_at, number);
            return Turn::Wait;
        }
        Turn::Send
    }

    /// The event has come that [`turn`](Self::turn) asked for.
    #[inline]
    pub(super) fn disarm(&mut self) {
        self.armed = false;
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
