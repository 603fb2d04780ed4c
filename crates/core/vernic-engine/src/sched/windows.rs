//! Destination windows: how much RC has in flight towards one address and port, all queue pairs
//! together.
//!
//! The congestion window of a queue pair (`vernic_proto`'s `Congestion`) follows the queue pair's
//! own path. It knows nothing of a thousand others that fill the same socket: each may have its
//! least in flight, and the sum overruns the receiver. Go-back-N then repeats more packets than it
//! sends new ones. So the packets in flight to one address and port are counted. A queue pair that
//! has requests waits its turn while there are as many as the destination's [`Window`] allows. It
//! sends responses all the same. A queue pair that is alone never waits.
//!
//! The limit is that of a congestion controller, which all queue pairs of the destination share
//! (`control.rs`): by default that of `destination_aimd.rs`, else one of the owner's. The
//! controller hears the events of each of the queue pairs, as their own controllers do. A time
//! before which nothing may leave ([`Congestion::not_before`]) holds every queue pair back, for all
//! that is said of patience and retries below; what leaves when it has come is one turn.
//!
//! ```text
//!   turn of a queue pair: admits? -- no --> waiting --- room, and its turn ---> turn
//!                            | yes
//!                            v
//!                      packets leave      note: what it has in flight now, what was lost
//! ```
//!
//! No queue pair waits for longer than [`PATIENCE_NANOS`] behind others that came before it. The
//! others may have in flight what is never taken: a window is of all processes behind an address
//! and port, one of which may be stopped. A queue pair that left the list for a turn (its peer's
//! packets are answered meanwhile) and came back behind others may wait for twice as long. Where
//! queue pairs that do not wait are always ready, each batch of theirs admits one that waits. A
//! queue pair whose timer fired, or that went back, is admitted at once, for its retries are
//! counted.
//!
//! Owned by the scheduler. Limits: [`DESTINATIONS`] windows; destinations beyond that share them.

use vernic_io::TxPath;
use vernic_proto::congestion::Congestion;
use vernic_proto::{Qp, QpState, Time};

use super::control::Control;
use super::lists::{Entries, List, NONE};
use super::standing::Standing;
use crate::qp::state::QpCore;

/// The number of windows of a device.
const DESTINATIONS: usize = 256;
/// Turns that fill a window which queue pairs share.
const TURNS: u64 = 8;
/// Packets of a turn that a queue pair has though the window has no room, since it has waited or
/// lost packets: as many as an ordinary turn of the smallest windows. Sixteen queue pairs with
/// turns of 32 would hold 512 packets in flight, whatever the window.
const LATE_PACKETS: u64 = 8;
/// How long a queue pair waits for room at most, in nanoseconds. This is some of the round trips of
/// a thousand that take turns, and a fraction of an ACK timeout.
pub(super) const PATIENCE_NANOS: u64 = 20_000_000;

/// The destination windows of a device; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Windows {
    all: Vec<Window>,
    /// The number of queue pairs that wait, for all windows.
    waiting: usize,
    /// The window at which the search for a queue pair that may go on starts.
    next: usize,
}

/// The window of one destination, or of several that share it.
#[derive(Debug)]
pub(super) struct Window {
    control: Control,
    /// The newest destination that has told which packets it keeps ahead of a gap.
    keeps: Option<Destination>,
    in_flight: u64,
    waiting: List,
}

/// What a window is of, unless several share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Destination {
    address: u128,
    door: u16,
}

impl Windows {
    #[inline]
    pub(super) fn of(&mut self, window: u8) -> &mut Window {
        if self.all.is_empty() {
            self.all.resize_with(DESTINATIONS, Window::new);
        }
        &mut self.all[usize::from(window)]
    }

    /// Gives each window a controller of the owner's.
    pub(super) fn set_control(&mut self, make: impl Fn() -> Box<dyn Congestion>) {
        self.of(0);
        for window in &mut self.all {
            window.control = Control::Owners(make());
            window.tell_contention();
        }
    }

    /// Puts a queue pair that was refused on the list of its window.
    pub(super) fn push(&mut self, entries: &mut Entries, index: u32) {
        let Some(entry) = entries.get(index) else { return };
        let (window, since) = (entry.window, entry.since);
        let list = &mut self.of(window).waiting;
        let oldest = entries.get(list.first()).and_then(|first| first.since);
        // A queue pair that was on the list, and left it for a turn, does not wait longer for that.
        if oldest.is_some_and(|oldest| since.is_some_and(|since| since < oldest)) {
            entries.push_first(list, index, Standing::WaitsForWindow);
        } else {
            entries.push(list, index, Standing::WaitsForWindow);
        }
        self.waiting += 1;
        self.of(window).tell_contention();
    }

    /// Takes a queue pair off the list of its window.
    pub(super) fn unlink(&mut self, entries: &mut Entries, index: u32) {
        let Some(window) = entries.get(index).map(|entry| entry.window) else { return };
        let window = self.of(window);
        entries.unlink(&mut window.waiting, index);
        window.tell_contention();
        self.waiting -= 1;
    }

    /// Counts what a queue pair has in flight, and tells the controller of its events, after
    /// anything that may have been one.
    #[inline]
    pub(super) fn note(&mut self, core: &mut QpCore, now: Time) {
        let QpCore { machine, side } = core;
        let Some(window) = side.in_flight.window() else { return };
        let Some(machine) = machine.packets() else { return };
        let Some(tally) = machine.tally() else { return };
        // What goes through memory is in nobody's way on the path.
        let in_flight = if side.peer.route().is_ring() { 0 } else { in_flight(machine) };
        if !side.in_flight.has_news(in_flight, tally) {
            return;
        }
        let window = self.of(window);
        let (before, heard) = side.in_flight.count(in_flight);
        window.in_flight = window.in_flight - before + in_flight;
        let limited = !window.waiting.is_empty();
        window.control.tell(heard, tally, limited, now);
        if machine.peer_keeps() {
            window.keeps = side.peer.path().and_then(Destination::of);
        }
    }

    /// The destination of a path keeps packets ahead of a gap.
    #[cfg(test)]
    pub(super) fn learn(&mut self, path: &TxPath) {
        self.of(window_of(path)).keeps = Destination::of(path);
    }

    /// Forgets the `counted` packets in flight of a queue pair that is gone.
    pub(super) fn forget(&mut self, window: u8, counted: u64) {
        self.of(window).in_flight -= counted;
    }

    /// Whether a queue pair waits.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting != 0
    }

    /// Returns when the next of the queue pairs that wait may send at the latest.
    #[inline]
    pub(super) fn next_at(&self, entries: &Entries, now: Time) -> Option<Time> {
        if self.waiting == 0 {
            return None;
        }
        self.all.iter().filter_map(|window| window.next_at(entries, now)).min()
    }

    /// Takes the next of the queue pairs that wait off its list, if there is room for it, or if it
    /// has waited for long enough.
    pub(super) fn admit_waiting(&mut self, entries: &mut Entries, now: Time) -> Option<u32> {
        for step in 0..self.all.len() {
            let at = (self.next + step) % self.all.len();
            let window = &mut self.all[at];
            if window.next_at(entries, now).is_none_or(|at| at > now) {
                continue;
            }
            let index = entries.pop(&mut window.waiting)?;
            window.tell_contention();
            self.waiting -= 1;
            self.next = at + 1;
            return Some(index);
        }
        None
    }

    /// Returns the packets in flight, and the number of queue pairs that wait.
    #[cfg(test)]
    pub(crate) fn totals(&self) -> (u64, usize) {
        (self.all.iter().map(|window| window.in_flight).sum(), self.waiting)
    }
}

impl Window {
    const fn new() -> Self {
        Self { control: Control::new(), keeps: None, in_flight: 0, waiting: List::EMPTY }
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.in_flight < self.control.window()
    }

    /// Whether there is room, and nobody waits for it.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.has_room() && self.waiting.is_empty()
    }

    /// Returns the packets that a queue pair with `counted` packets in flight may send in a turn: 0
    /// if it may have to wait.
    #[inline]
    pub(super) fn turn(&self, counted: u64, now: Time) -> u32 {
        if self.is_open() && !self.is_paced(now) { self.share(counted) } else { 0 }
    }

    /// Returns the packets that a queue pair with `counted` packets in flight sends in a turn: any
    /// number while it is alone. Else it is a part of the window, so that the window is not overrun
    /// by more than that, and the others need not wait for a whole window's time. A turn without
    /// room has [`LATE_PACKETS`] at most.
    #[inline]
    pub(super) fn share(&self, counted: u64) -> u32 {
        if self.is_alone(counted) && self.waiting.is_empty() {
            return u32::MAX;
        }
        let most = if self.has_room() { u64::from(u32::MAX) } else { LATE_PACKETS };
        (self.control.window() / TURNS).clamp(1, most) as u32
    }

    /// Whether no queue pair may send, whatever it has waited or lost.
    #[inline]
    pub(super) fn is_paced(&self, now: Time) -> bool {
        self.control.opens_at(now).is_some()
    }

    /// Whether the destination of a path keeps packets ahead of a gap, as far as is known.
    pub(super) fn keeps(&self, path: &TxPath) -> bool {
        self.keeps.is_some() && self.keeps == Destination::of(path)
    }

    fn tell_contention(&mut self) {
        self.control.on_contention(!self.waiting.is_empty());
    }

    /// Whether nothing is in flight but the `counted` packets of one queue pair.
    #[inline]
    pub(super) fn is_alone(&self, counted: u64) -> bool {
        self.in_flight == counted
    }

    /// Returns when the first of the queue pairs that wait may send at the latest.
    #[inline]
    fn next_at(&self, entries: &Entries, now: Time) -> Option<Time> {
        let first = self.waiting.first();
        if first == NONE {
            return None;
        }
        let since = entries.since(first).unwrap_or(now);
        let at = if self.has_room() { now } else { since + PATIENCE_NANOS };
        Some(self.control.opens_at(now).map_or(at, |opens| at.max(opens)))
    }
}

impl Destination {
    /// `None` where the path has no address: without GRH an InfiniBand path names a LID.
    fn of(path: &TxPath) -> Option<Self> {
        let (_, address) = path.gid_bits();
        (address != 0).then(|| Self { address, door: path.door() })
    }
}

/// Returns how many packets of a machine wait for an acknowledgement.
#[inline]
fn in_flight(machine: &Qp) -> u64 {
    match machine.state() {
        QpState::Rts | QpState::Sqd => machine.packets_in_flight(),
        _ => 0,
    }
}

/// Returns the number of the window that a path counts in.
#[inline]
pub(super) fn window_of(path: &TxPath) -> u8 {
    let (_, address) = path.gid_bits();
    let mixed = (address as u64 ^ (address >> 64) as u64 ^ u64::from(path.door()) << 32)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as u8
}

#[cfg(test)]
mod tests {
    use vernic_proto::congestion::{Acked, Sent};

    use super::*;

    /// A window of so many packets.
    #[derive(Debug)]
    struct Fixed(u32);

    impl Congestion for Fixed {
        fn reset(&mut self) {}
        fn on_sent(&mut self, _: Time, _: Sent) {}
        fn on_ack(&mut self, _: Time, _: Acked) {}
        fn on_loss(&mut self, _: Time) {}
        fn on_mark(&mut self, _: Time, _: vernic_wire::Kind) {}
        fn on_cnp(&mut self, _: Time) {}
        fn on_silence(&mut self, _: Time) {}
        fn window(&self) -> u32 {
            self.0
        }
        fn not_before(&self) -> Option<Time> {
            None
        }
    }

    #[test]
    fn turns_are_parts_of_the_window_and_short_where_it_has_no_room() {
        for (size, in_flight, counted, expected) in [
            (1024, 10, 10, u32::MAX),
            (1024, 10, 0, 128),
            (1024, 1023, 0, 128),
            (1024, 1024, 0, 8),
            (1024, 5000, 40, 8),
            (24, 24, 0, 3),
            (4, 0, 1, 1),
        ] {
            let control = Control::Owners(Box::new(Fixed(size)));
            let window = Window { control, in_flight, ..Window::new() };
            assert_eq!(window.share(counted), expected, "{counted} of {in_flight} in {size}");
        }
    }
}
