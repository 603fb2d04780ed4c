//! The background thread of an open device: progress when no application thread makes any.
//!
//! It has two ways to wait:
//!
//! - *Backing off*, while application threads poll the device: it sleeps `takeover_us` at a
//!   time and only looks whether they still do. A thread woken per packet would cost them more than
//!   it gives.
//! - *Watching*, once they stopped, or while a completion queue is armed (its owner sleeps, or is
//!   about to): it drains the sockets and sleeps in `ppoll` on them, on changes of the network, and
//!   on its wake-up, with the next timer as timeout. An idle device makes no system call at all
//!   (unless it has connections to other processes of this host: `cm/neighbours.rs`).
//!
//! It is woken while it watches if a holder of the lane leaves work that is due before it would
//! look, or descriptors that it does not sleep on ([`Engine::hand_over`]), and while it backs off
//! if a completion queue is armed, or if a thread is about to wait for something that is no
//! completion ([`Engine::caller_rests`]): then it looks whether anybody polls still. If backing off
//! turns out wrong, because packets waited and nobody had called for a while (a program that polls
//! for its send and then looks at its memory, as `ib_write_lat` does), it watches for the next
//! [`DISTRUST`] rounds.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use vernic_io::netdev::ChangeWatcher;
use vernic_io::{Sleeper, StatusSocket};
use vernic_proto::Time;

use crate::lane::core::Lane;
use crate::local::control::NearControl;
use crate::policy::{LOOKS_BY_ITSELF, SLEEPS};
use crate::progress::engine::{Engine, give_way};
use crate::streams::Streams;
use crate::support::threads;

/// Calls since the last look that make inline progress "active" and end the watching. A program
/// that sleeps for its completions makes a few calls per completion; one that polls makes
/// thousands.
const ACTIVE_CALLS: u64 = 8;

/// Calls in one take-over time that keep this thread away. One that polls makes hundreds even where
/// each call does much. One that makes a few waits for something else meanwhile, such as its memory
/// to change, and waits for our next look if nobody watches the sockets.
const STAYING_CALLS: u64 = 16;

/// How long nobody has called when packets are found after a take-over time: the program polled
/// until it had what it polled for, then waited for something else. Far longer than between two
/// polls.
const SILENCE_NANOS: u64 = 50_000;

/// How often it watches after that whatever the calls: a take-over time in vain now and then costs
/// such a program little, and one that was only not scheduled gets rid of us soon.
const DISTRUST: u32 = 64;

/// How long it looks whether anybody polls after a thread went to rest: far longer than it takes to
/// poll twice, far shorter than anybody would notice.
const REST_PAUSE: Duration = Duration::from_micros(50);

/// Calls in that time that mean somebody polls.
const REST_CALLS: u64 = 2;

/// Rounds with packets before it looks again whether somebody else makes progress.
const ROUNDS: usize = 16;

/// How often it looks for changes of the network and what neighbours say while it does not sleep.
const LOOK_AROUND_NANOS: u64 = 1_000_000;

/// What a look at the lane found.
enum Look {
    /// Everything was done; sleep for this long at most.
    Idle(Option<Duration>),
    /// There is more to do.
    Busy,
    /// Another thread has the lane.
    Taken,
}

/// What the thread hears beside its engine.
pub(crate) struct Ears {
    /// Changes of the network.
    pub(crate) watcher: Option<ChangeWatcher>,
    /// Who asks for the device's status.
    pub(crate) status: Option<StatusSocket>,
}

impl Ears {
    fn poll_fds(&self) -> impl Iterator<Item = RawFd> {
        let network = self.watcher.iter().map(ChangeWatcher::poll_fd);
        network.chain(self.status.iter().map(StatusSocket::raw_fd))
    }
}

/// The thread's own state.
pub(crate) struct Background {
    engine: Arc<Engine>,
    sleeper: Sleeper,
    ears: Ears,
    /// Descriptors of the link as of `generation`.
    fds: Vec<RawFd>,
    generation: Option<u64>,
    calls_seen: u64,
    /// When other processes of this host must be seen to at the latest.
    processes_due: Option<Time>,
    /// Application threads called since the look before the last.
    called: bool,
    backed_off: bool,
    /// Times that it watches though application threads call.
    distrust: u32,
    /// The last look found packets.
    found: bool,
    /// When it looked around last though it never slept.
    looked_around: Time,
}

impl Background {
    /// Starts the thread. It ends soon after `engine.stop` is set and it is woken.
    pub(crate) fn spawn(
        engine: Arc<Engine>,
        sleeper: Sleeper,
        ears: Ears,
    ) -> std::io::Result<JoinHandle<()>> {
        let mut this = Self {
            engine,
            sleeper,
            ears,
            fds: Vec::new(),
            generation: None,
            calls_seen: 0,
            processes_due: None,
            called: false,
            backed_off: false,
            distrust: 0,
            found: false,
            looked_around: Time(0),
        };
        let name = format!("{}-progress", this.engine.info.name);
        threads::spawn(&name, move || this.run())
    }

    fn run(&mut self) {
        // A program that spins on its memory may share this thread's core, and wait for its
        // packets.
        if let Err(error) = vernic_io::ask_for_short_slices() {
            tracing::debug!(%error, "no short slices of the processor for the background thread");
        }
        while !self.engine.stop.load(Ordering::Acquire) {
            if self.others_are_active() {
                self.back_off();
            } else {
                self.watch();
            }
        }
    }

    /// Whether application threads make the progress, so that this one need not.
    fn others_are_active(&mut self) -> bool {
        let calls = self.engine.inline_calls.load(Ordering::Relaxed);
        let made = calls.wrapping_sub(self.calls_seen);
        self.calls_seen = calls;
        self.called = made != 0;
        if self.distrust != 0 {
            self.distrust -= 1;
            return false;
        }
        let enough = if self.backed_off { STAYING_CALLS } else { ACTIVE_CALLS };
        made >= enough && !self.engine.has_armed()
    }

    fn back_off(&mut self) {
        let engine = self.engine.clone();
        engine.policy.backs_off.store(true, Ordering::SeqCst);
        // A queue armed before that store was not announced to us; one armed after it is.
        if !engine.has_armed() {
            if !self.backed_off {
                let near = engine.near.as_ref().map(NearControl::raw_fd);
                self.sleeper.watch(self.ears.poll_fds().chain(near));
                self.generation = None;
                self.backed_off = true;
            }
            let pause = Duration::from_micros(engine.config.takeover_us);
            // Somebody who went to rest before that store was not announced to us either.
            let rested = engine.rested.swap(false, Ordering::SeqCst);
            if !rested {
                let woken = self.sleeper.sleep(Some(pause));
                self.look_around(woken.by_fd);
            }
            if rested || engine.rested.swap(false, Ordering::SeqCst) {
                self.look_who_polls(pause);
            }
        }
        engine.policy.backs_off.store(false, Ordering::SeqCst);
    }

    /// A thread that may have been the one that polls does so no longer: takes over at once if
    /// nobody else does, or else leaves the others alone for another `pause`.
    fn look_who_polls(&mut self, pause: Duration) {
        let before = self.engine.inline_calls.load(Ordering::Relaxed);
        std::thread::sleep(REST_PAUSE);
        let calls = self.engine.inline_calls.load(Ordering::Relaxed);
        if calls.wrapping_sub(before) < REST_CALLS {
            self.calls_seen = calls;
        } else {
            let woken = self.sleeper.sleep(Some(pause));
            self.look_around(woken.by_fd);
        }
    }

    /// Whether it has not looked around for a while, and does so now.
    fn is_time_to_look_around(&mut self) -> bool {
        let now = self.engine.now();
        let is_time = now.since(self.looked_around) > LOOK_AROUND_NANOS;
        if is_time {
            self.looked_around = now;
        }
        is_time
    }

    fn watch(&mut self) {
        let mut was_away = std::mem::replace(&mut self.backed_off, false);
        let mut taken = 0;
        for _ in 0..ROUNDS {
            let called_at = Time(self.engine.policy.called_at.load(Ordering::Relaxed));
            let looked = self.look();
            if std::mem::replace(&mut was_away, false)
                && self.found
                && self.engine.now().since(called_at) > SILENCE_NANOS
            {
                self.distrust = DISTRUST;
            }
            match looked {
                Look::Busy => {}
                Look::Taken => {
                    taken += 1;
                    // Whoever has it moves packets, and is done in some microseconds, if it runs.
                    if taken < ROUNDS { std::thread::yield_now() } else { give_way() }
                }
                Look::Idle(timeout) => {
                    self.sleep(timeout);
                    return;
                }
            }
        }
        // So much traffic that it does not sleep: neighbours are served all the same.
        self.processes_due = self.engine.see_to_processes();
        if self.is_time_to_look_around() {
            self.tell_status();
            self.tell_alarms();
        }
    }

    fn sleep(&mut self, timeout: Option<Duration>) {
        let woken = self.sleeper.sleep(timeout);
        if let Some(near) = &self.engine.near {
            near.alarm().awake();
        }
        self.engine.policy.looks_at.store(LOOKS_BY_ITSELF, Ordering::Release);
        self.look_around(woken.by_fd);
    }

    /// What there is to do beside packets: changes of the network, and neighbours.
    fn look_around(&mut self, by_fd: bool) {
        if by_fd {
            self.look_at_network();
            if self.ears.status.as_ref().is_some_and(|s| self.sleeper.found(s.raw_fd())) {
                self.tell_status();
            }
        }
        self.tell_alarms();
        let is_due = || self.processes_due.is_some_and(|due| due <= self.engine.now());
        if by_fd || self.engine.is_asked_for_processes() || is_due() {
            self.processes_due = self.engine.see_to_processes();
        }
    }

    /// Answers who asks for the device's status.
    fn tell_status(&self) {
        if let Some(status) = &self.ears.status {
            status.serve(|| self.engine.status());
        }
    }

    /// Warns of peers that did something since the last warning, if it is time.
    fn tell_alarms(&self) {
        self.engine.alarms.tell_due(&self.engine.info.name, self.engine.now());
    }

    /// Makes progress once, and plans the next look if there is nothing more to do.
    fn look(&mut self) -> Look {
        let engine = self.engine.clone();
        let Some(mut lane) = engine.try_lane() else { return Look::Taken };
        let now = engine.now();
        engine.answer_doorbells(&mut lane);
        lane.transmit(&engine, now);
        // It sleeps on what is ready, so it must see all of it.
        let received = match lane.streams {
            Some(_) => lane.receive_streams(&engine, now, true),
            None => lane.receive(&engine, now),
        };
        self.found = received != 0;
        lane.fire_timers(&engine, now);
        lane.transmit_all(&engine, now);
        // While applications call now and then, look now and then: they need not wake us for
        // what they leave behind.
        let look = self.called.then(|| now + engine.patience());
        let due = [look, self.processes_due, engine.alarms.due()];
        let next = due.into_iter().chain([lane.next_work(now, 0)]).flatten().min();
        if let Some(near) = engine.near.as_ref().filter(|_| lane.near.is_pending()) {
            near.ring();
        }
        let serves = engine.is_asked_for_processes();
        let rests = received == 0 && !serves && next.is_none_or(|next| next > now);
        let busy = !rests || !self.lies_down(&lane);
        if !busy {
            if self.generation != Some(lane.link.poll_generation()) {
                let generation = lane.link.poll_generation();
                self.generation = Some(generation);
                engine.watched.store(generation, Ordering::Relaxed);
                self.fds.clear();
                self.fds.extend_from_slice(lane.link.poll_fds());
                self.fds.extend(lane.streams.as_ref().map(Streams::raw_fd));
                let near = engine.near.as_ref().map(NearControl::raw_fd);
                let beside = self.ears.poll_fds().chain(near);
                self.sleeper.watch(self.fds.iter().copied().chain(beside));
            }
            // Under the lane's lock: a holder after us compares its work with this plan.
            let looks_at = next.map_or(SLEEPS, |next| next.nanos());
            engine.policy.looks_at.store(looks_at, Ordering::Release);
        }
        drop(lane);
        engine.after_release();
        if serves || self.processes_due.is_some_and(|due| due <= now) {
            self.processes_due = engine.see_to_processes();
        }
        if busy {
            return Look::Busy;
        }
        Look::Idle(next.map(|next| Duration::from_nanos(next.since(now))))
    }

    /// Says to the neighbours that this thread sleeps; false, and nothing said, if one has sent
    /// something meanwhile. The other half of the proof in `vernic_io::neighbour`.
    fn lies_down(&self, lane: &Lane) -> bool {
        let Some(near) = &self.engine.near else { return true };
        near.alarm().announce();
        if lane.near.has_news() {
            near.alarm().awake();
            return false;
        }
        true
    }

    fn look_at_network(&self) {
        if self.ears.watcher.as_ref().is_some_and(ChangeWatcher::has_changed) {
            self.engine.refresh_addresses();
        }
    }
}

impl Engine {
    /// Whether [`see_to_processes`](Self::see_to_processes) has something to do though no
    /// descriptor is readable.
    fn is_asked_for_processes(&self) -> bool {
        self.watch.is_rung() || self.near.as_ref().is_some_and(NearControl::is_rung)
    }

    /// Serves the neighbours, and looks for processes that are gone. Returns when it must be called
    /// at the latest.
    fn see_to_processes(&self) -> Option<Time> {
        let near = self.serve_neighbours();
        [near, self.look_after_peers()].into_iter().flatten().min()
    }
}
