//! CM requests that come before a process listens for them.
//!
//! Often two programs agree by other means that one of them will connect, and the other one listens
//! only a moment later. For example, qperf announces its port before it listens there. perftest
//! stops listening after its first connection, and listens again for the next. With hardware this
//! works, because resolving an address and making a queue pair takes a millisecond. Here the
//! request comes sooner, and would be rejected.
//!
//! So if no process of this host listens for the service of a request, the request waits here. The
//! first check for a listener is after [`FIRST_TRY_NANOS`], and each further check after twice as
//! long, [`TRIES`] checks in all. If the last check finds no listener either, the request is
//! rejected, 127 ms after it came. By then the program would have listened if it intended to, and
//! the requester has not repeated the request yet (after 0.5 s unless it chooses otherwise).
//!
//! Limits: [`MAX_EARLY`] requests wait. If one more comes, the address that has the most of them is
//! found, and its oldest request is rejected at once. So a flood from one address does not drive
//! out requests of others.

use std::collections::VecDeque;

use vernic_io::{RxMeta, RxPacket};
use vernic_proto::{Shares, Source, Time};

/// Largest number of requests that wait: more than a program sends at once, and too few to do harm.
const MAX_EARLY: usize = 64;

/// Time in nanoseconds from the arrival of a request to the first check for a listener: as long as
/// a few system calls of a process that is about to listen.
const FIRST_TRY_NANOS: u64 = 1_000_000;

/// The number of checks for a listener, after which a request is rejected.
const TRIES: u32 = 7;

/// A request that waits for a listener.
#[derive(Debug)]
pub(crate) struct EarlyRequest {
    bytes: Box<[u8]>,
    meta: RxMeta,
    segment: u16,
    due: Time,
    tries: u32,
}

/// The result of an attempt to keep a request.
#[derive(Debug)]
pub(crate) enum EarlyOutcome {
    /// The request waits now.
    Here,
    /// The request waits now. This other request no longer does, and is to be rejected.
    Instead(EarlyRequest),
    /// The request cannot wait, and is to be rejected.
    Not,
}

impl EarlyRequest {
    /// Returns the address that the request came from, for the count of requests by address.
    fn source(&self) -> Source {
        source_of(&self.meta)
    }

    /// Returns the packet that the request came in.
    pub(crate) fn packet(&self) -> RxPacket<'_> {
        RxPacket { bytes: &self.bytes, meta: &self.meta, segment: self.segment }
    }

    /// Whether the last check for a listener has been made.
    pub(crate) fn is_late(&self) -> bool {
        self.tries >= TRIES
    }
}

/// The requests that wait for a listener, in the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct EarlyRequests(VecDeque<EarlyRequest>);

impl EarlyRequests {
    /// Keeps a request until it is time for a check.
    pub(crate) fn keep(&mut self, packet: &RxPacket<'_>, now: Time) -> EarlyOutcome {
        let &RxPacket { bytes, meta, segment } = packet;
        let mut kept = EarlyOutcome::Here;
        if self.0.len() >= MAX_EARLY {
            kept = match self.displace(source_of(meta)) {
                Some(early) => EarlyOutcome::Instead(early),
                None => return EarlyOutcome::Not,
            };
        }
        let due = now + FIRST_TRY_NANOS;
        let early = EarlyRequest { bytes: bytes.into(), meta: *meta, segment, due, tries: 0 };
        self.0.push_back(early);
        kept
    }

    /// Removes and returns a request to make room for one more of `source`. `None` if `source`
    /// itself has the most requests, so that its new request is refused.
    fn displace(&mut self, source: Source) -> Option<EarlyRequest> {
        let mut shares = Shares::default();
        for (age, early) in (0..).zip(&self.0) {
            shares.add(early.source(), age, age as usize);
        }
        let victim = shares.victim(source)?;
        if self.0.get(victim).is_some_and(|early| early.source() == source) {
            return None;
        }
        self.0.remove(victim)
    }

    /// Removes and returns the next request for which it is time to check.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<EarlyRequest> {
        let at = self.0.iter().position(|early| early.due <= now)?;
        let mut early = self.0.remove(at)?;
        early.tries += 1;
        Some(early)
    }

    /// Puts back a request that still has no listener. There is room, because the request was here
    /// before.
    pub(crate) fn put_back(&mut self, mut early: EarlyRequest, now: Time) {
        early.due = now + (FIRST_TRY_NANOS << early.tries);
        self.0.push_back(early);
    }

    /// Returns when it is time for the next check.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.0.iter().map(|early| early.due).min()
    }
}

fn source_of(meta: &RxMeta) -> Source {
    Source::of(meta.src.gid())
}

#[cfg(test)]
mod tests {
    use vernic_io::Icrc;

    use super::*;

    fn meta() -> RxMeta {
        let src = "192.0.2.1:50000".parse().unwrap();
        let dst = "192.0.2.2:4791".parse().unwrap();
        let icrc = Icrc::Good;
        RxMeta { icrc, ..vernic_io::udp::arrival(src, dst) }
    }

    #[test]
    fn a_request_is_looked_at_seven_times_within_127_ms() {
        let (mut early, meta) = (EarlyRequests::default(), meta());
        let packet = RxPacket { bytes: &[1, 2, 3], meta: &meta, segment: 4 };
        assert!(matches!(early.keep(&packet, Time(0)), EarlyOutcome::Here));
        let mut tries = Vec::new();
        loop {
            let due = early.next_due().unwrap();
            assert!(early.take_due(Time(due.nanos() - 1)).is_none());
            let taken = early.take_due(due).unwrap();
            assert_eq!((taken.packet().bytes, taken.packet().segment), (&[1, 2, 3][..], 4));
            tries.push(due.nanos() / 1_000_000);
            if taken.is_late() {
                break;
            }
            early.put_back(taken, due);
        }
        assert_eq!(tries, [1, 3, 7, 15, 31, 63, 127]);
        assert_eq!(early.next_due(), None);
    }

    #[test]
    fn no_more_wait_than_there_is_room_for() {
        let (mut early, meta) = (EarlyRequests::default(), meta());
        let packet = RxPacket { bytes: &[], meta: &meta, segment: 0 };
        let here = |_: &usize| matches!(early.keep(&packet, Time(0)), EarlyOutcome::Here);
        assert_eq!((0..2 * MAX_EARLY).filter(here).count(), MAX_EARLY);
        // A request of another address takes the place of the oldest, and so does a second one. A
        // further request of the flooding address does not.
        for last in 2..4 {
            let src = std::net::IpAddr::from([192, 0, 2, last]).into();
            let other = RxMeta { src, ..meta };
            let packet = RxPacket { bytes: &[last], meta: &other, segment: 0 };
            let EarlyOutcome::Instead(gone) = early.keep(&packet, Time(0)) else { panic!() };
            assert_eq!(gone.packet().meta.src, meta.src);
        }
        assert!(matches!(early.keep(&packet, Time(0)), EarlyOutcome::Not));
        assert_eq!(early.0.len(), MAX_EARLY);
    }
}
