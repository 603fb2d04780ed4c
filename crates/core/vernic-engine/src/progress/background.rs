//! The background thread of an open device: progress when no application thread makes any.
//!
//! Owns the thread, and the descriptors that it polls in addition to those of the engine.
//! [`policy::Background`] decides when the thread backs off, polls or sleeps.
//! This module carries that out, and reports the result as an event. While the thread watches, it
//! sleeps in `ppoll` on the sockets, on changes of the network, and on the descriptor by which
//! other threads wake it, with the next timer as timeout. An idle device makes no system call at
//! all (unless queue pairs are connected to other processes of this host: `peers.rs`).
//!
//! While the thread watches, a holder of the lane wakes it in two cases ([`Engine::hand_over`]):
//! the holder leaves work that is due before the thread's next poll, or the link has descriptors
//! that the thread does not sleep on. While the thread backs off, it is woken if a completion queue
//! is armed, or if an application's thread is about to wait for something other than a completion
//! ([`Engine::caller_sleeps`]). It then checks whether any thread still polls.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use vernic_io::netdev::ChangeWatcher;
use vernic_io::{PortWatch, Sleeper, StatusSocket};
use vernic_proto::Time;

use crate::lane::protocol::Lane;
use crate::local::control::LocalControl;
use crate::policy::{self, Event, Next, TABLE};
use crate::progress::engine::Engine;
use crate::support::threads;

/// The descriptors that the background thread polls in addition to those of the engine.
pub(crate) struct WatchedFds {
    /// Changes of the network.
    watcher: Option<ChangeWatcher>,
    /// Changes of ports that a subnet manager sets up.
    ports: Option<Arc<dyn PortWatch>>,
    /// Requests for the device's status.
    status: Option<StatusSocket>,
}

impl WatchedFds {
    /// Returns the descriptors of a watcher of the network, of a watch over the link's ports, and
    /// of a socket for requests of the status. The thread does without those that are not there.
    pub(crate) fn new(
        watcher: Option<ChangeWatcher>,
        ports: Option<Arc<dyn PortWatch>>,
        status: Option<StatusSocket>,
    ) -> Self {
        Self { watcher, ports, status }
    }

    fn poll_fds(&self) -> impl Iterator<Item = RawFd> {
        let network = self.watcher.iter().map(ChangeWatcher::poll_fd);
        let network = network.chain(self.ports.iter().map(|ports| ports.raw_fd()));
        network.chain(self.status.iter().map(StatusSocket::raw_fd))
    }
}

/// The descriptors that the background thread sleeps on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watches {
    Nothing,
    /// All descriptors except those of the link.
    Beside,
    /// All descriptors, with those of the link as they were at this
    /// [`poll_generation`](vernic_io::Link::poll_generation).
    All(u64),
}

/// The state of the background thread.
pub(crate) struct Background {
    engine: Arc<Engine>,
    sleeper: Sleeper,
    watched_fds: WatchedFds,
    /// The descriptors of the link and of iWARP connections, as of the last plan.
    fds: Vec<RawFd>,
    watches: Watches,
    /// The latest time for the next [`serve_processes`](Engine::serve_processes).
    processes_due: Option<Time>,
    policy: policy::Background,
    /// How long the thread may sleep, as its last poll planned; `None` if no time limits the sleep.
    timeout: Option<Duration>,
    /// The time at which the thread last answered requests for the status and gave warnings
    /// although it had not slept.
    reported_at: Time,
}

impl Background {
    /// Starts the thread. To end the thread, set `engine.stop` and wake it.
    pub(crate) fn spawn(
        engine: Arc<Engine>,
        sleeper: Sleeper,
        watched_fds: WatchedFds,
    ) -> std::io::Result<JoinHandle<()>> {
        let policy = policy::Background::new(engine.patience());
        let mut this = Self {
            engine,
            sleeper,
            watched_fds,
            fds: Vec::new(),
            watches: Watches::Nothing,
            processes_due: None,
            policy,
            timeout: None,
            reported_at: Time(0),
        };
        let name = format!("{}-progress", this.engine.info().name);
        threads::spawn(&name, move || this.run())
    }

    fn run(&mut self) {
        // A program that spins on its memory may share a core with this thread, and wait for
        // packets that this thread moves.
        if let Err(error) = vernic_io::ask_for_short_slices() {
            tracing::debug!(%error, "no short slices of the processor for the background thread");
        }
        if let Err(error) = vernic_io::ask_for_exact_timeouts() {
            tracing::debug!(%error, "no exact timeouts for the background thread");
        }
        let mut next = Next::Judge;
        while !self.engine.is_stopped() {
            next = self.carry_out(next);
        }
        self.engine.policy().come_back();
    }

    /// Carries out an action of the policy, reports the result to the policy, and returns the next
    /// action.
    fn carry_out(&mut self, next: Next) -> Next {
        let shared = &self.engine.policy();
        let event = match next {
            Next::Judge => {
                shared.come_back();
                Event::Judged { calls: shared.calls(), is_armed: shared.has_armed() }
            }
            Next::BackOff => shared.back_off(),
            Next::Pause { nanos } => {
                self.pause(nanos);
                Event::Paused { caller_sleeps: self.engine.policy().take_caller_sleeps() }
            }
            Next::Stay { nanos } => {
                self.pause(nanos);
                Event::Stayed
            }
            Next::Count { nanos } => {
                let before = shared.calls();
                std::thread::sleep(Duration::from_nanos(nanos));
                Event::Counted { before, after: shared.calls() }
            }
            Next::Poll => self.poll(),
            Next::Watch => {
                self.sleep();
                Event::Slept
            }
            Next::Rest { nanos } => {
                std::thread::sleep(Duration::from_nanos(nanos));
                return Next::ServeOthers;
            }
            Next::ServeOthers => {
                self.serve_others();
                return Next::Judge;
            }
        };
        self.policy.after(&TABLE, event)
    }

    /// Sleeps for `nanos`, or until another thread wakes this one. Does not poll the link's
    /// sockets.
    fn pause(&mut self, nanos: u64) {
        if self.watches != Watches::Beside {
            let local = self.engine.local().map(LocalControl::raw_fd);
            self.sleeper.watch(self.watched_fds.poll_fds().chain(local));
            self.watches = Watches::Beside;
        }
        let woken = self.sleeper.sleep(Some(Duration::from_nanos(nanos)));
        self.handle_wake_up(woken.by_fd);
    }

    /// Whether the last time that requests for the status were answered without a sleep is more
    /// than [`report_nanos`](policy::Table::report_nanos) ago. If so, notes the present
    /// time as the last one.
    fn is_time_to_report(&mut self) -> bool {
        let now = self.engine.now();
        let is_time = now.since(self.reported_at) > TABLE.report_nanos;
        if is_time {
            self.reported_at = now;
        }
        is_time
    }

    /// Serves the other processes of this host and, now and then, requests for the status and
    /// warnings. Called while there is so much traffic that the thread does not sleep.
    fn serve_others(&mut self) {
        self.processes_due = self.engine.serve_processes();
        if self.is_time_to_report() {
            self.answer_status();
            self.report_alarms();
        }
    }

    /// Sleeps until the time that the last poll planned, until a descriptor is readable, or until
    /// another thread wakes this one.
    fn sleep(&mut self) {
        let woken = self.sleeper.sleep(self.timeout);
        if let Some(local) = &self.engine.local() {
            local.sleep_flag().awake();
        }
        self.engine.policy().forget_plan();
        self.handle_wake_up(woken.by_fd);
    }

    /// Does what is to be done after a sleep, other than packets: changes of the network, requests
    /// for the status, warnings, and other processes of this host. `by_fd` says that a descriptor
    /// ended the sleep.
    fn handle_wake_up(&mut self, by_fd: bool) {
        if by_fd {
            self.refresh_network();
            if self.watched_fds.status.as_ref().is_some_and(|s| self.sleeper.found(s.raw_fd())) {
                self.answer_status();
            }
        }
        self.report_alarms();
        let is_due = || self.processes_due.is_some_and(|due| due <= self.engine.now());
        if by_fd || self.engine.is_asked_for_processes() || is_due() {
            self.processes_due = self.engine.serve_processes();
        }
    }

    /// Answers requests for the device's status.
    fn answer_status(&self) {
        if let Some(status) = &self.watched_fds.status {
            status.serve(|question| self.engine.tell(question));
        }
    }

    /// Logs the warnings about peers that are due.
    fn report_alarms(&self) {
        self.engine.alarms().report_due(&self.engine.info().name, self.engine.now());
    }

    /// Moves packets and fires timers once, and plans the next poll if nothing is left to do.
    fn poll(&mut self) -> Event {
        let engine = self.engine.clone();
        let called_at = engine.policy().called_at();
        let Some(mut lane) = engine.try_lane() else { return Event::Taken };
        let now = engine.now();
        engine.answer_doorbells(&mut lane);
        lane.transmit(&engine, now);
        let received = lane.receive_before_sleep(&engine, now);
        // Only what applications' threads pull counts as calls.
        lane.take_pulled();
        lane.fire_timers(&engine, now);
        lane.transmit_all(&engine, now);
        let due = [self.policy.polls_by(now), self.processes_due, engine.alarms().due()];
        let next = due.into_iter().chain([lane.next_work(now, 0)]).flatten().min();
        if let Some(local) = engine.local().filter(|_| lane.local_peers().is_pending()) {
            local.ring();
        }
        let serves = engine.is_asked_for_processes();
        let rests = received == 0 && !serves && next.is_none_or(|next| next > now);
        let is_done = rests && self.may_sleep(&lane);
        if is_done {
            let generation = lane.link().poll_generation();
            if self.watches != Watches::All(generation) {
                self.watches = Watches::All(generation);
                engine.policy().watch(generation);
                self.fds.clear();
                lane.add_fds(&mut self.fds);
                let local = engine.local().map(LocalControl::raw_fd);
                let beside = self.watched_fds.poll_fds().chain(local);
                self.sleeper.watch(self.fds.iter().copied().chain(beside));
            }
            // The lane is still held: a later holder compares its work with this plan.
            engine.policy().plan_poll(next);
        }
        drop(lane);
        engine.after_release();
        if serves || self.processes_due.is_some_and(|due| due <= now) {
            self.processes_due = engine.serve_processes();
        }
        self.timeout = next.map(|next| Duration::from_nanos(next.since(now)));
        let (found, silent_nanos) = (received != 0, engine.now().since(called_at));
        Event::Polled { found, is_done, silent_nanos }
    }

    /// Announces to the local peers that this thread will sleep, so that they wake it when they
    /// send. Returns false, and takes the announcement back, if a peer has sent something
    /// meanwhile. `vernic_local` has the peer's half of the proof that no packet is missed.
    fn may_sleep(&self, lane: &Lane) -> bool {
        let Some(local) = &self.engine.local() else { return true };
        local.sleep_flag().announce();
        if lane.local_peers().has_news() {
            local.sleep_flag().awake();
            return false;
        }
        true
    }

    fn refresh_network(&self) {
        if self.watched_fds.watcher.as_ref().is_some_and(ChangeWatcher::has_changed) {
            self.engine.refresh_addresses();
        }
        if let Some(ports) = &self.watched_fds.ports
            && self.sleeper.found(ports.raw_fd())
        {
            self.engine.refresh_link_ports(ports.take());
        }
    }
}

impl Engine {
    /// Whether [`serve_processes`](Self::serve_processes) has something to do although no
    /// descriptor is readable: another thread has left work for it.
    fn is_asked_for_processes(&self) -> bool {
        self.watch().is_rung() || self.local().is_some_and(LocalControl::is_rung)
    }

    /// Serves the local peers, and checks which processes of this host are gone. Returns the latest
    /// time for the next call.
    fn serve_processes(&self) -> Option<Time> {
        let local = self.serve_local_peers();
        [local, self.check_peers()].into_iter().flatten().min()
    }
}
