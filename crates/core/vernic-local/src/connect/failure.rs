//! Failed connects to local peers: why they failed, and when they are tried again.

use std::fmt;
use std::io;

use vernic_io::Nanos;
use vernic_io::host::Slot;

use super::PATIENCE;
use crate::process::MAX_LOCAL_PEERS;

/// How long after the first failure a connect is tried again: a second, twice as long each time.
const FIRST_PAUSE_NANOS: u64 = 1_000_000_000;

/// Pauses do not get longer than 64 s.
const MOST_DOUBLINGS: u32 = 6;

/// Tries of one connect, some two minutes in all. After that the connect is tried again only when a
/// new queue pair wants it: the process may never share memory, and an idle engine should sleep.
const MAX_TRIES: u32 = 8;

/// The reason why a process of this host is no local peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// This process has no descriptor left (`EMFILE`, `ENFILE`).
    Descriptors,
    /// The system has no memory to share, or does not allow so much.
    Memory,
    /// There are as many local peers as can be.
    TooManyPeers,
    /// There are as many connects under way as can be. Each is over within a second.
    TooManyConnects,
    /// The process is of another user.
    User,
    /// The process does not take calls: it shares no memory, or has no descriptor left.
    NoListener,
    /// The process takes the call and does not answer.
    Silent,
    /// The process hung up: it has no descriptor or memory left, has as many local peers as can be,
    /// or is of another version.
    HungUp,
    /// The process's messages are not understood, or the system refused something else.
    Other,
}

impl ConnectFailure {
    /// Returns the reason that an error means. The error is of a connect, or of making shared
    /// memory.
    pub fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => Self::Descriptors,
            Some(libc::ENOMEM | libc::ENOBUFS | libc::ENOSPC | libc::EFBIG) => Self::Memory,
            _ => match error.kind() {
                io::ErrorKind::QuotaExceeded => Self::TooManyPeers,
                io::ErrorKind::ResourceBusy => Self::TooManyConnects,
                io::ErrorKind::PermissionDenied => Self::User,
                io::ErrorKind::ConnectionRefused => Self::NoListener,
                // A full list of calls that are not accepted is silence, too.
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::Silent,
                io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => Self::HungUp,
                _ => Self::Other,
            },
        }
    }

    /// Returns the number of failures of one connect after which users are warned. A shortage on
    /// this side is reported at once, and a reason that may pass when it has not passed. A reason
    /// that is a choice, or that always passes, is never reported. (A peer without descriptors for
    /// its socket reports that itself.)
    pub(super) const fn tries_to_warn(self) -> u32 {
        match self {
            Self::Descriptors | Self::Memory => 1,
            Self::TooManyPeers | Self::Silent | Self::HungUp | Self::Other => 2,
            Self::User | Self::NoListener | Self::TooManyConnects => u32::MAX,
        }
    }

    /// Whether something ran out on this side.
    pub(super) const fn is_shortage(self) -> bool {
        matches!(self, Self::Descriptors | Self::Memory)
    }
}

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Descriptors => "this process has no file descriptor left (raise `ulimit -n`)",
            Self::Memory => "the system has no memory to share with the peer's process (free it, or raise `ulimit -f` or `-v`)",
            Self::TooManyPeers => "too many processes share memory with this one",
            Self::TooManyConnects => "this process meets too many others just now",
            Self::User => "the peer's process is of another user",
            Self::NoListener => "the peer's process shares no memory (its setting same_host, or its descriptors)",
            Self::Silent => "the peer's process does not answer",
            Self::HungUp => "the peer's process hung up (its descriptors, memory or number of local peers, or another version)",
            Self::Other => "the peer's process or the system refused it (`VERNIC_LOG=debug` says why)",
        })
    }
}

/// A connect that failed.
#[derive(Debug)]
struct Failed {
    slot: Slot,
    why: ConnectFailure,
    tries: u32,
    since: Nanos,
}

impl Failed {
    /// The time at which the connect is tried again by itself or, after all tries, may be tried
    /// again.
    fn pause_ends(&self) -> Nanos {
        let doublings = (self.tries - 1).min(MOST_DOUBLINGS);
        self.since.plus(FIRST_PAUSE_NANOS << doublings)
    }

    fn is_given_up(&self) -> bool {
        self.tries >= MAX_TRIES
    }
}

/// The failed connects: one per slot at most.
#[derive(Debug, Default)]
pub(super) struct ConnectFailures(Vec<Failed>);

impl ConnectFailures {
    /// Notes that a connect to the process that has `slot` failed. Returns how many times it has by
    /// now.
    pub(super) fn note(&mut self, slot: Slot, why: ConnectFailure, now: Nanos) -> u32 {
        match self.0.iter_mut().find(|failed| failed.slot == slot) {
            Some(failed) => {
                let tries = failed.tries.saturating_add(1);
                *failed = Failed { slot, why, tries, since: now };
                tries
            }
            None => {
                self.0.push(Failed { slot, why, tries: 1, since: now });
                1
            }
        }
    }

    /// Whether a slot that is to be connected to must be left alone for a while.
    pub(super) fn is_paused(&mut self, slot: Slot, now: Nanos) -> bool {
        let Some(at) = self.0.iter().position(|failed| failed.slot == slot) else { return false };
        if self.0[at].pause_ends() > now {
            return true;
        }
        if self.0[at].is_given_up() {
            self.0.swap_remove(at);
        }
        false
    }

    /// Notes that a slot is tried again now: no further try begins until this one is decided.
    pub(super) fn begin(&mut self, slot: Slot, now: Nanos) {
        if let Some(failed) = self.0.iter_mut().find(|failed| failed.slot == slot) {
            failed.since = now;
        }
    }

    /// Returns the slots that are to be tried again now. Another process may have the slot by now
    /// than the one that could not be connected to.
    pub(super) fn due(&self, now: Nanos) -> Vec<Slot> {
        let due = self.0.iter().filter(|f| !f.is_given_up() && f.pause_ends() <= now);
        due.map(|failed| failed.slot).collect()
    }

    /// The time of the next try.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.0.iter().filter(|failed| !failed.is_given_up()).map(Failed::pause_ends).min()
    }

    /// Forgets failures of these slots: they are connected now, or not wanted any more.
    pub(super) fn forget(&mut self, slots: &[Slot]) {
        self.0.retain(|failed| !slots.contains(&failed.slot));
    }

    pub(super) fn why(&self, slot: Slot) -> Option<ConnectFailure> {
        self.0.iter().find(|failed| failed.slot == slot).map(|failed| failed.why)
    }
}

/// A shortage on this side during a connect to a process: what ran out, and when.
#[derive(Debug)]
struct Shortage {
    pid: u32,
    why: ConnectFailure,
    at: Nanos,
}

impl Shortage {
    /// How long the peer's call of the same two may take to fail.
    const LIFE_NANOS: u64 = 2 * PATIENCE.as_nanos() as u64;

    fn is_fresh(&self, now: Nanos) -> bool {
        self.at.plus(Self::LIFE_NANOS) > now
    }
}

/// The latest shortages: one per process, and at most as many as there can be local peers.
#[derive(Debug, Default)]
pub(super) struct Shortages(Vec<Shortage>);

impl Shortages {
    /// Notes that something ran out during a connect to the process `pid`.
    pub(super) fn note(&mut self, pid: u32, why: ConnectFailure, now: Nanos) {
        self.0.retain(|known| known.pid != pid && known.is_fresh(now));
        if self.0.len() == MAX_LOCAL_PEERS {
            self.0.remove(0);
        }
        self.0.push(Shortage { pid, why, at: now });
    }

    /// Returns what ran out just now during a connect to the process `pid`.
    pub(super) fn of(&self, pid: u32, now: Nanos) -> Option<ConnectFailure> {
        let own = self.0.iter().find(|known| known.pid == pid && known.is_fresh(now))?;
        Some(own.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_of_the_process_that_was_met_and_of_two_seconds() {
        let mut shortages = Shortages::default();
        let (start, now) = (Nanos(5), Nanos(1_000_000_005));
        shortages.note(7, ConnectFailure::Descriptors, start);
        shortages.note(8, ConnectFailure::Memory, now);
        assert_eq!(shortages.of(7, now), Some(ConnectFailure::Descriptors));
        assert_eq!(shortages.of(8, now), Some(ConnectFailure::Memory));
        assert_eq!(shortages.of(9, now), None);
        assert_eq!(shortages.of(7, start.plus(2_000_000_000)), None);
        for pid in 0..10 * MAX_LOCAL_PEERS as u32 {
            shortages.note(pid, ConnectFailure::Memory, now);
        }
        assert_eq!(shortages.0.len(), MAX_LOCAL_PEERS);
    }

    #[test]
    fn a_meeting_that_fails_is_tried_again_later_and_later_and_not_for_ever() {
        let slot = Slot::FIRST;
        let mut failures = ConnectFailures::default();
        let (mut now, mut tries) = (Nanos(5), 0);
        failures.note(slot, ConnectFailure::NoListener, now);
        while let Some(next) = failures.next() {
            assert!(failures.is_paused(slot, now) && failures.due(now).is_empty());
            assert!(next.0 - now.0 >= FIRST_PAUSE_NANOS && next.0 - now.0 <= 64_000_000_000);
            now = next;
            assert_eq!(failures.due(now), [slot]);
            failures.begin(slot, now);
            assert!(failures.due(now).is_empty(), "one try at a time");
            failures.note(slot, ConnectFailure::Descriptors, now);
            tries += 1;
        }
        assert_eq!((tries, failures.why(slot)), (MAX_TRIES - 1, Some(ConnectFailure::Descriptors)));
        // A caller that wants the connect later begins with the first try.
        assert!(failures.is_paused(slot, now));
        let later = now.plus(64_000_000_000);
        assert!(!failures.is_paused(slot, later));
        failures.note(slot, ConnectFailure::NoListener, later);
        assert_eq!(failures.next(), Some(later.plus(FIRST_PAUSE_NANOS)));
    }
}
