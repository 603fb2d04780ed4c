//! Waits for answers about destinations: the hardware address of the next hop, and on InfiniBand
//! the address, the path and the multicast group.
//!
//! Owns the waits of a process. The worker's thread polls each wait and notifies its id at the
//! end: as soon as the answer is there, when the system has given up, or when the program's time
//! is over. (The kernel's `rdma_cm` waits for the program's time even if the system has given up.)
//! A group that is joined has a wait for the end of the membership, which is polled each second.
//!
//! Limits: one wait per id, and one per group that it joins or has joined.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libc::c_int;
use vernic_attach::GroupJoin;
use vernic_io::HopState;
use vernic_wire::Gid;
use vernic_wire::sa::{McMemberRecord, PathRecord};

use crate::id::Id;
use crate::key::IdKey;
use crate::sync::lock;

/// Time to the second poll: about as long as an answer on a local network takes.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
/// Longest time between polls. The time doubles with each poll, so the delay of a notice is in
/// proportion to the wait.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Time between polls of what may never come: that a membership is lost.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// What a wait was for.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The next hop is known.
    NextHop,
    /// The port with the destination's IP address, and the path to it.
    Address(Box<PathRecord>),
    /// The path for the connection.
    Route(Box<PathRecord>),
    /// The group is joined, for as long as this is kept.
    Group(Box<(McMemberRecord, GroupJoin)>),
}

/// The result of a poll.
pub(crate) enum Finding {
    /// No answer yet.
    Asked,
    /// The answer.
    Known(Answer),
    /// There is none, for this reason.
    Failed(c_int),
}

/// The poll of a wait.
pub(crate) type Poll = Box<dyn FnMut() -> Finding + Send>;

/// Returns the poll of a next hop.
pub(crate) fn poll_of_hop(state: impl Fn() -> HopState + Send + 'static) -> Poll {
    Box::new(move || match state() {
        HopState::Open => Finding::Known(Answer::NextHop),
        HopState::Absent => Finding::Failed(libc::EHOSTUNREACH),
        HopState::Asked => Finding::Asked,
    })
}

/// The purpose of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The id resolves its destination or its route.
    Destination,
    /// The id joins this group, or has joined it and would hear of its end.
    Group(Gid),
}

/// The number of a wait, which no other wait of the process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitNumber(u64);

/// A wait for one id.
struct Wait {
    number: WaitNumber,
    id: IdKey,
    purpose: Purpose,
    /// `None` while the worker polls.
    poll: Option<Poll>,
    /// When the program's time is over; `None` is never.
    until: Option<Instant>,
    pause: Duration,
    longest_pause: Duration,
    next: Instant,
}

impl Wait {
    /// Notes that a poll has found nothing yet. Returns whether the program's time is over.
    fn go_on(&mut self, now: Instant) -> bool {
        if self.until.is_some_and(|until| until <= now) {
            return true;
        }
        let next = now + self.pause;
        self.next = self.until.map_or(next, |until| until.min(next));
        self.pause = self.longest_pause.min(self.pause * 2);
        false
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, purpose) = (&self.id, &self.purpose);
        f.debug_struct("Wait").field("id", id).field("purpose", purpose).finish_non_exhaustive()
    }
}

/// The waits that are not over, those that are polled just now included.
#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<List>);

#[derive(Debug, Default)]
struct List {
    waits: Vec<Wait>,
    /// The number of the last wait.
    last: u64,
}

/// What [`Waits::progress`] polls.
struct Due {
    number: WaitNumber,
    id: IdKey,
    purpose: Purpose,
    poll: Poll,
}

impl Waits {
    /// Adds a wait for the id, which polls `poll` until there is an answer or `timeout` is over.
    pub(crate) fn add(&self, id: IdKey, purpose: Purpose, timeout: Duration, poll: Poll) {
        let now = Instant::now();
        let (until, pauses) = (now.checked_add(timeout), [FIRST_PAUSE, LONGEST_PAUSE]);
        self.push((id, purpose, poll), until, pauses, now);
    }

    /// Adds a wait for what may never come.
    pub(crate) fn watch(&self, id: IdKey, purpose: Purpose, poll: Poll) {
        let next = Instant::now() + WATCH_PAUSE;
        self.push((id, purpose, poll), None, [WATCH_PAUSE; 2], next);
    }

    fn push(
        &self,
        (id, purpose, poll): (IdKey, Purpose, Poll),
        until: Option<Instant>,
        [pause, longest_pause]: [Duration; 2],
        next: Instant,
    ) {
        let mut list = lock(&self.0);
        list.last += 1;
        let (number, poll) = (WaitNumber(list.last), Some(poll));
        list.waits.push(Wait { number, id, purpose, poll, until, pause, longest_pause, next });
    }

    /// Drops all waits of an id that is destroyed. The caller has the id's lock.
    pub(crate) fn drop_all(&self, id: IdKey) {
        let gone: Vec<_> = lock(&self.0).waits.extract_if(.., |wait| wait.id == id).collect();
        drop(gone);
    }

    /// Drops the waits of an id for a group, if there are any: their outcome comes to nobody, and
    /// the port leaves the group. The caller has the id's lock.
    pub(crate) fn drop_group(&self, id: IdKey, gid: Gid) {
        let is_it = |wait: &mut Wait| wait.id == id && wait.purpose == Purpose::Group(gid);
        let gone: Vec<_> = lock(&self.0).waits.extract_if(.., is_it).collect();
        drop(gone);
    }

    /// Removes a wait that is over. Returns whether it was still there. The caller has the id's
    /// lock, if there is an id.
    pub(crate) fn remove(&self, number: WaitNumber) -> bool {
        let is_it = |wait: &mut Wait| wait.number == number;
        let gone: Vec<_> = lock(&self.0).waits.extract_if(.., is_it).collect();
        !gone.is_empty()
    }

    fn take_due(&self, now: Instant) -> Vec<Due> {
        let mut list = lock(&self.0);
        let due = list.waits.iter_mut().filter(|wait| wait.next <= now);
        due.filter_map(|wait| {
            let Wait { number, id, purpose, .. } = *wait;
            Some(Due { number, id, purpose, poll: wait.poll.take()? })
        })
        .collect()
    }

    /// Puts a poll back that has found nothing yet, unless the wait was dropped. Returns whether
    /// the program's time is over.
    fn put_back(&self, number: WaitNumber, poll: Poll, now: Instant) -> bool {
        let mut list = lock(&self.0);
        match list.waits.iter_mut().find(|wait| wait.number == number) {
            Some(wait) => {
                wait.poll = Some(poll);
                wait.go_on(now)
            }
            None => {
                // A question that is withdrawn takes a moment.
                drop(list);
                drop(poll);
                false
            }
        }
    }

    /// Polls the waits that are due, and notifies the ids, found by `id`, of those that are
    /// over. Returns the time until the next is due.
    pub(crate) fn progress(&self, id: impl Fn(IdKey) -> Option<Arc<Id>>) -> Option<Duration> {
        let now = Instant::now();
        for Due { number, id: key, purpose, mut poll } in self.take_due(now) {
            // An id that is gone needs no outcome.
            let Some(id) = id(key) else {
                self.remove(number);
                continue;
            };
            let outcome = match poll() {
                Finding::Known(answer) => Ok(answer),
                Finding::Failed(errno) => Err(errno),
                Finding::Asked if self.put_back(number, poll, now) => Err(libc::ETIMEDOUT),
                Finding::Asked => continue,
            };
            id.end_wait(number, purpose, outcome);
        }
        let next = lock(&self.0).waits.iter().map(|wait| wait.next).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::id::multicast::{JoinState, Membership};
    use crate::testing::{HOME, Lab};
    use crate::{EventKind, State};

    const LONG: Duration = Duration::from_secs(60);

    /// An id that waits for a next hop whose state takes these values in turn, and the number of
    /// polls.
    fn waiting(
        lab: &Lab,
        timeout: Duration,
        states: &'static [HopState],
    ) -> (Arc<Id>, Arc<AtomicUsize>) {
        let id = lab.id();
        id.bind_addr(HOME.parse().unwrap()).unwrap();
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = polls.clone();
        let poll = move || {
            let looked = counted.fetch_add(1, Ordering::Relaxed);
            states[looked.min(states.len() - 1)]
        };
        let mut inner = id.enter("search").unwrap();
        id.begin_wait(&mut inner, State::AddrQuery, timeout, poll_of_hop(poll)).unwrap();
        drop(inner);
        (id, polls)
    }

    /// The kind and status of the next event, which must come.
    fn next(lab: &Lab) -> (EventKind, i32) {
        let event = lab.channel.wait().unwrap();
        (event.kind, event.status)
    }

    #[test]
    fn a_neighbour_that_answers_is_resolved_then() {
        let lab = Lab::new();
        let states = &[HopState::Asked, HopState::Asked, HopState::Open];
        let (id, polls) = waiting(&lab, LONG, states);
        assert_eq!(next(&lab), (EventKind::AddrResolved, 0));
        assert_eq!((id.state(), polls.load(Ordering::Relaxed)), (State::AddrResolved, 3));
    }

    #[test]
    fn a_neighbour_that_is_not_there_is_an_error_of_the_address_and_may_be_tried_again() {
        let lab = Lab::new();
        let (id, _) = waiting(&lab, LONG, &[HopState::Asked, HopState::Absent]);
        assert_eq!(next(&lab), (EventKind::AddrError, -libc::EHOSTUNREACH));
        assert_eq!(id.state(), State::Bound);
        let place = "127.0.0.1:7471".parse().unwrap();
        id.resolve_addr(None, place, LONG).unwrap();
        assert_eq!(next(&lab), (EventKind::AddrResolved, 0));
    }

    #[test]
    fn a_neighbour_that_is_silent_for_the_programs_time_is_a_timeout() {
        let lab = Lab::new();
        let (id, polls) = waiting(&lab, Duration::from_millis(20), &[HopState::Asked]);
        assert_eq!(next(&lab), (EventKind::AddrError, -libc::ETIMEDOUT));
        assert_eq!(id.state(), State::Bound);
        // Polls at the start, at the end, and at doubling times between.
        let polls = polls.load(Ordering::Relaxed);
        assert!(polls <= 8, "{polls}");
    }

    #[test]
    fn an_id_that_searches_allows_no_further_step_and_may_be_destroyed() {
        let lab = Lab::new();
        let (id, _) = waiting(&lab, LONG, &[HopState::Asked]);
        assert_eq!(id.state(), State::AddrQuery);
        let error = id.resolve_route(LONG).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
        let place = "127.0.0.1:7471".parse().unwrap();
        assert_eq!(id.resolve_addr(None, place, LONG).unwrap_err().errno(), libc::EINVAL);
        id.destroy();
        assert!(lab.kinds().is_empty());
        drop(id);
        // The wait is removed.
        let waits = &lab.channel.shared.waits;
        let until = Instant::now() + LONG;
        while !lock(&waits.0).waits.is_empty() {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_wait_that_is_dropped_while_it_is_polled_ends_nothing() {
        for at_once in [true, false] {
            let lab = Lab::new();
            let id = lab.id();
            let addr = "239.1.2.3:0".parse().unwrap();
            let (key, gid) = (id.key(), Gid::from_ip("239.1.2.3".parse().unwrap()));
            let shared = lab.channel.shared.clone();
            // The program leaves the group at this moment, and joins it again.
            let leaves = {
                let shared = shared.clone();
                move || {
                    shared.waits.drop_group(key, gid);
                    let silent = Box::new(|| Finding::Asked);
                    shared.waits.add(key, Purpose::Group(gid), LONG, silent);
                    if at_once { Finding::Failed(libc::EACCES) } else { Finding::Asked }
                }
            };
            shared.waits.add(key, Purpose::Group(gid), LONG, Box::new(leaves));
            let again = Membership::asked(addr, gid, JoinState::FullMember, 2);
            lock(&id.inner).groups.push(again);
            // The worker has not begun: this thread polls.
            shared.waits.progress(|_| Some(id.clone()));
            assert_eq!(lock(&id.inner).groups.len(), 1);
            assert!(lab.kinds().is_empty());
            assert_eq!(lock(&shared.waits.0).waits.len(), 1, "that of the second membership");
            // Breaks the cycle of the poll and the channel that has it.
            shared.waits.drop_group(key, gid);
        }
    }

    #[test]
    fn what_an_id_watches_ends_with_it() {
        let lab = Lab::new();
        let id = lab.id();
        let waits = &lab.channel.shared.waits;
        let held = Arc::new(());
        let kept = held.clone();
        let poll: Poll = Box::new(move || {
            let _ = &kept;
            Finding::Asked
        });
        waits.watch(id.key(), Purpose::Group(Gid([0xFF; 16])), poll);
        let next = waits.progress(|_| None).unwrap();
        assert!(next > LONGEST_PAUSE && next <= WATCH_PAUSE, "{next:?}");
        assert_eq!(Arc::strong_count(&held), 2);
        id.destroy();
        assert_eq!(Arc::strong_count(&held), 1, "the membership has ended");
    }
}
