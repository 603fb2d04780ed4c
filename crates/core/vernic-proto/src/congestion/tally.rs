//! What the controller of a queue pair was told, in sums, for a controller that queue pairs share.

use vernic_wire::Kind;

use super::{Acked, Congestion, Sent};
use crate::time::Time;

/// Sums of what the controller of one queue pair was told since the queue pair was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    sent: Amount,
    acked: u64,
    /// Round trips that were timed, and the last of them in nanoseconds.
    timed: u64,
    round_trip: u64,
    signs: Signs,
}

/// Packets and bytes, as [`Sent`] counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    packets: u64,
    bytes: u64,
}

/// The sums that change rarely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Signs {
    /// Changes of any of them.
    changes: u64,
    /// What was sent again.
    again: Amount,
    /// Responses to READs that came with a mark.
    marks: u64,
    losses: u64,
    needless: u64,
    silences: u64,
    cnps: u64,
}

impl Amount {
    #[inline]
    fn add(&mut self, sent: Sent) {
        self.packets += u64::from(sent.packets);
        self.bytes += u64::from(sent.bytes);
    }
}

impl Tally {
    #[inline]
    pub(crate) fn sent(&mut self, sent: Sent) {
        self.sent.add(sent);
        if sent.again {
            self.signs.again.add(sent);
            self.signs.changes += 1;
        }
    }

    #[inline]
    pub(crate) fn acked(&mut self, acked: Acked) {
        self.acked += u64::from(acked.packets);
        if let Some(nanos) = acked.round_trip {
            self.timed += 1;
            self.round_trip = nanos;
        }
    }

    pub(crate) fn marked(&mut self, kind: Kind) {
        // Marks on other packets say nothing of the path to the peer.
        if kind == Kind::ReadResponse {
            self.signs.marks += 1;
            self.signs.changes += 1;
        }
    }

    pub(crate) fn lost(&mut self) {
        self.signs.losses += 1;
        self.signs.changes += 1;
    }

    pub(crate) fn needless(&mut self) {
        self.signs.needless += 1;
        self.signs.changes += 1;
    }

    pub(crate) fn silent(&mut self) {
        self.signs.silences += 1;
        self.signs.changes += 1;
    }

    pub(crate) fn notified(&mut self) {
        self.signs.cnps += 1;
        self.signs.changes += 1;
    }

    /// Whether something but packets and acknowledgements was added since it was `told`.
    #[inline]
    pub fn has_signs_since(&self, told: &Self) -> bool {
        self.signs.changes != told.signs.changes
    }

    /// Tells a shared controller what was added since it was `told`, and notes that in `told`:
    /// packets first, then acknowledgements, then signs of congestion. `limited` is that of
    /// [`Acked`].
    #[inline]
    pub fn pass_on(
        &self,
        told: &mut Self,
        controller: &mut (impl Congestion + ?Sized),
        limited: bool,
        now: Time,
    ) {
        let packets = self.sent.packets - told.sent.packets;
        if packets != 0 {
            let bytes = self.sent.bytes - told.sent.bytes;
            self.pass_on_sent(told, controller, Amount { packets, bytes }, now);
            told.sent = self.sent;
        }
        let acked = (self.acked - told.acked) as u32;
        if acked != 0 {
            let round_trip = (self.timed != told.timed).then_some(self.round_trip);
            controller.on_ack(now, Acked { packets: acked, limited, round_trip });
            (told.acked, told.timed) = (self.acked, self.timed);
        }
        if self.has_signs_since(told) {
            self.pass_on_signs(told, controller, now);
        }
    }

    #[inline]
    fn pass_on_sent(
        &self,
        told: &Self,
        controller: &mut (impl Congestion + ?Sized),
        all: Amount,
        now: Time,
    ) {
        let (new, old) = (self.signs.again, told.signs.again);
        let again = Amount { packets: new.packets - old.packets, bytes: new.bytes - old.bytes };
        let first = Amount { packets: all.packets - again.packets, bytes: all.bytes - again.bytes };
        for (Amount { packets, bytes }, again) in [(again, true), (first, false)] {
            if packets != 0 {
                let (packets, bytes) = (packets as u32, bytes as u32);
                controller.on_sent(now, Sent { packets, bytes, again });
            }
        }
    }

    #[cold]
    fn pass_on_signs(
        &self,
        told: &mut Self,
        controller: &mut (impl Congestion + ?Sized),
        now: Time,
    ) {
        let (new, old) = (&self.signs, &told.signs);
        // Bounded: a queue pair's events are passed on one at a time, or a batch of packets.
        (old.marks..new.marks).for_each(|_| controller.on_mark(now, Kind::ReadResponse));
        (old.losses..new.losses).for_each(|_| controller.on_loss(now));
        (old.needless..new.needless).for_each(|_| controller.on_needless(now));
        (old.silences..new.silences).for_each(|_| controller.on_silence(now));
        (old.cnps..new.cnps).for_each(|_| controller.on_cnp(now));
        told.signs = self.signs;
    }
}
