//! Peers that send what they must not: counted for each peer, and reported in the log.
//!
//! Owns [`Alarms`]. The holder of a lane calls it where a packet is dropped or refused anyway, so
//! it costs nothing where all is well. The log has at most one line a second ([`QUIET_NANOS`]), a
//! warning if there are [`MANY`]. The line names the peer with the most offences that were not
//! reported before, what they were and how many. What comes within that second is reported after
//! it, at the latest by the background thread.
//!
//! A source address is what the packet says. A sender that forges packets forges the address, too.
//! So a name here says where to begin to search, and proves nothing.
//!
//! Limit: [`MAX_OFFENDERS`] peers. A further peer replaces the one that was quiet for the longest.

use std::fmt;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use vernic_proto::{DropReason, ErrorClass, Time};

use crate::support::events::lock;

/// Largest number of peers that are counted one by one.
const MAX_OFFENDERS: usize = 64;

/// How long nothing is logged after a line.
const QUIET_NANOS: u64 = 1_000_000_000;

/// So many in one report are worth a warning. A program that is wrong makes one or two, each of
/// which has a warning of its own.
const MANY: u64 = 10;

/// The time if nothing is to be logged.
const NEVER: u64 = u64::MAX;

/// An offence of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offence {
    /// A packet for a queue pair that is connected to another peer.
    WrongSource,
    /// A packet, or a connection of TCP, from outside of the setting `peers`.
    NotAllowed,
    /// A P_Key, Q_Key or R_Key that is wrong, or bounds or rights that the key does not have.
    BadKey,
    /// A request that was refused for good: the queue pair is in error.
    FatalNak,
}

/// The number of offences.
const OFFENCES: usize = 4;

impl Offence {
    /// Returns the offence for which a packet was dropped, if it was one.
    pub(crate) const fn of_drop(reason: DropReason) -> Option<Self> {
        match reason {
            DropReason::WrongSource => Some(Self::WrongSource),
            DropReason::PeerNotAllowed => Some(Self::NotAllowed),
            DropReason::Pkey | DropReason::Qkey | DropReason::AccessRefused => Some(Self::BadKey),
            _ => None,
        }
    }

    /// Whether a request was refused for its key.
    pub(crate) const fn is_of_key(class: ErrorClass) -> bool {
        matches!(class, ErrorClass::RemoteAccess | ErrorClass::Invalidate)
    }
}

/// A peer that sent what it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offender {
    /// The peer's address, as its packets say.
    pub peer: IpAddr,
    /// Packets for queue pairs that are connected to other peers.
    pub wrong_sources: u64,
    /// Packets, and connections of TCP, from outside of the setting `peers`.
    pub not_allowed: u64,
    /// Wrong keys, bounds and rights.
    pub bad_keys: u64,
    /// Requests that were refused for good.
    pub fatal_naks: u64,
}

/// The number of times that a peer committed each offence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts([u64; OFFENCES]);

impl Counts {
    fn sum(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// Writes the counts as `3 packets from a wrong source, 1 wrong key`.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WORDS: [&str; OFFENCES] = [
            "packets for queue pairs of other peers",
            "packets or connections from outside of the setting peers",
            "wrong keys, bounds or rights",
            "fatal NAKs sent",
        ];
        let some = WORDS.iter().zip(self.0).filter(|(_, count)| *count != 0);
        for (i, (words, count)) in some.enumerate() {
            write!(f, "{}{count} {words}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Row {
    peer: IpAddr,
    total: Counts,
    untold: Counts,
    last: Time,
}

/// A warning that is to be logged.
#[derive(Debug, PartialEq, Eq)]
struct Warning {
    peer: IpAddr,
    counts: Counts,
    /// Offences of other peers meanwhile.
    others: u64,
}

#[derive(Debug, Default)]
struct Table {
    rows: Vec<Row>,
    /// The time before which nothing is logged.
    quiet_until: Time,
    /// Offences that were not logged yet, of peers that have no row any more.
    forgotten: u64,
}

impl Table {
    fn note(&mut self, peer: IpAddr, offence: Offence, now: Time) {
        let at = self.rows.iter().position(|row| row.peer == peer);
        let at = at.unwrap_or_else(|| self.make_row(peer, now));
        let row = &mut self.rows[at];
        row.total.0[offence as usize] += 1;
        row.untold.0[offence as usize] += 1;
        row.last = now;
    }

    /// Returns a row for another peer: a free one, or else that of the peer that was quiet for the
    /// longest.
    fn make_row(&mut self, peer: IpAddr, now: Time) -> usize {
        let (total, untold) = (Counts::default(), Counts::default());
        let row = Row { peer, total, untold, last: now };
        let oldest = (0..self.rows.len()).min_by_key(|&at| self.rows[at].last);
        match oldest.filter(|_| self.rows.len() == MAX_OFFENDERS) {
            Some(at) => {
                self.forgotten += self.rows[at].untold.sum();
                self.rows[at] = row;
                at
            }
            None => {
                self.rows.push(row);
                self.rows.len() - 1
            }
        }
    }

    /// Takes the warning that is to be logged now, if it is time.
    fn take(&mut self, now: Time) -> Option<Warning> {
        if now < self.quiet_until {
            return None;
        }
        let all = self.forgotten + self.rows.iter().map(|row| row.untold.sum()).sum::<u64>();
        let worst = self.rows.iter().max_by_key(|row| row.untold.sum())?;
        let (peer, counts) = (worst.peer, worst.untold);
        if all == 0 {
            return None;
        }
        self.rows.iter_mut().for_each(|row| row.untold = Counts::default());
        self.forgotten = 0;
        self.quiet_until = now + QUIET_NANOS;
        Some(Warning { peer, counts, others: all - counts.sum() })
    }

    fn has_untold(&self) -> bool {
        self.forgotten != 0 || self.rows.iter().any(|row| row.untold.sum() != 0)
    }
}

/// Peers that send what they must not, with the warnings that are due.
#[derive(Debug)]
pub(crate) struct Alarms {
    table: Mutex<Table>,
    /// When something is to be logged, in nanoseconds, or [`NEVER`].
    due: AtomicU64,
}

impl Default for Alarms {
    fn default() -> Self {
        Self { table: Mutex::default(), due: AtomicU64::new(NEVER) }
    }
}

impl Alarms {
    /// Counts an offence of a peer.
    #[cold]
    pub(crate) fn note(&self, device: &str, peer: IpAddr, offence: Offence, now: Time) {
        let mut table = lock(&self.table);
        table.note(peer.to_canonical(), offence, now);
        self.report(device, table.take(now));
        let due = if table.has_untold() { table.quiet_until.nanos() } else { NEVER };
        self.due.store(due, Ordering::Relaxed);
    }

    /// Returns when something is to be logged.
    pub(crate) fn due(&self) -> Option<Time> {
        let due = self.due.load(Ordering::Relaxed);
        (due != NEVER).then_some(Time(due))
    }

    /// Logs what is due.
    pub(crate) fn report_due(&self, device: &str, now: Time) {
        if self.due().is_some_and(|due| due <= now) {
            let mut table = lock(&self.table);
            self.report(device, table.take(now));
            self.due.store(NEVER, Ordering::Relaxed);
        }
    }

    fn report(&self, device: &str, warning: Option<Warning>) {
        let Some(Warning { peer, counts, others }) = warning else { return };
        // A few have lines of their own, which say more.
        if counts.sum() + others < MANY {
            tracing::info!(device, %peer, others, "refused of this peer: {counts}");
            return;
        }
        tracing::warn!(
            device, %peer, others,
            "refused of this peer within a second: {counts} (others: as much of other peers)"
        );
    }

    /// Returns the known peers, and what each did since the device was opened.
    pub(crate) fn offenders(&self) -> Vec<Offender> {
        let offender = |row: &Row| {
            let Counts([wrong_sources, not_allowed, bad_keys, fatal_naks]) = row.total;
            Offender { peer: row.peer, wrong_sources, not_allowed, bad_keys, fatal_naks }
        };
        lock(&self.table).rows.iter().map(offender).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u32) -> IpAddr {
        IpAddr::V4((0x0A00_0000 + last).into())
    }

    #[test]
    fn the_first_is_told_at_once_and_the_rest_after_a_second_of_the_worst() {
        let (mut table, now) = (Table::default(), Time(5));
        table.note(ip(1), Offence::WrongSource, now);
        let first = table.take(now).unwrap();
        assert_eq!((first.peer, first.counts, first.others), (ip(1), Counts([1, 0, 0, 0]), 0));
        assert!(table.take(now).is_none(), "nothing is left to be told");
        table.note(ip(1), Offence::BadKey, now + 1);
        for _ in 0..3 {
            table.note(ip(2), Offence::FatalNak, now + 2);
        }
        assert!(table.take(now + (QUIET_NANOS - 1)).is_none(), "one a second");
        let second = table.take(now + QUIET_NANOS).unwrap();
        assert_eq!((second.peer, second.counts, second.others), (ip(2), Counts([0, 0, 0, 3]), 1));
        assert_eq!(second.counts.to_string(), "3 fatal NAKs sent");
        assert_eq!(table.rows[0].total, Counts([1, 0, 1, 0]), "totals stay");
        assert!(!table.has_untold());
    }

    #[test]
    fn a_flood_from_many_sources_takes_no_more_than_the_table_and_all_is_told() {
        let mut table = Table::default();
        for i in 0..1000 {
            table.note(ip(i), Offence::WrongSource, Time(u64::from(i)));
        }
        assert_eq!(table.rows.len(), MAX_OFFENDERS);
        assert!(table.rows.iter().all(|row| row.peer >= ip(1000 - MAX_OFFENDERS as u32)));
        let warning = table.take(Time(2 * QUIET_NANOS)).unwrap();
        assert_eq!(warning.counts.sum() + warning.others, 1000);
    }

    #[test]
    fn what_was_not_told_is_due_after_the_pause() {
        let alarms = Alarms::default();
        assert_eq!(alarms.due(), None);
        alarms.note("vernic0", ip(1), Offence::NotAllowed, Time(QUIET_NANOS));
        assert_eq!(alarms.due(), None, "told at once");
        alarms.note("vernic0", ip(1), Offence::NotAllowed, Time(QUIET_NANOS + 1));
        assert_eq!(alarms.due(), Some(Time(2 * QUIET_NANOS)));
        alarms.report_due("vernic0", Time(2 * QUIET_NANOS));
        assert_eq!(alarms.due(), None);
        let Offender { peer, not_allowed, .. } = alarms.offenders()[0];
        assert_eq!((peer, not_allowed), (ip(1), 2));
    }
}
