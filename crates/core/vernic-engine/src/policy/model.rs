//! A model of a machine that runs the policy: cores, time slices, sleeps and yields, in virtual
//! time.
//!
//! Threads share cores as a plain scheduler lets them. Each thread has a core, on which it takes
//! turns with others, those of high priority first, a time slice each. A thread that is woken waits
//! for its turn (a real scheduler is kinder). A core without a thread of its own takes one that
//! waits for another core. A thread is a function of its last step that returns the next step: a
//! time on the core, a yield, or a sleep. A thread may lose its core between any two steps, also
//! while it has the lane.
//!
//! A device of the model has only what the policy sees of a real device. It has the shared
//! [`Cells`], a lane that one thread at a time has, packets that arrived in its sockets, posts that
//! gather in the batch, and timers. The model notes how long each packet, post and timer waited.
//! What the holder of a lane does at the end, and which thread it wakes, is `progress/engine.rs` in
//! short.

use std::collections::VecDeque;

use vernic_proto::Time;

use super::{AfterPoll, Background, Cells, Event, Gathered, Next, Post, Table};

/// Longest time slice of the scheduler, in nanoseconds; the shortest is half of it.
pub(super) const SLICE: u64 = 3_000_000;
/// Take-over time of the devices, in nanoseconds.
pub(super) const TAKEOVER: u64 = 500_000;
/// The time that a poll takes with the lane, and (`VAIN`) without it, in nanoseconds.
const POLL: u64 = 300;
const VAIN: u64 = 30;
/// The time to give a core to another thread, in nanoseconds.
const SWITCH: u64 = 2_000;
/// The time of a packet from a device to another, in nanoseconds.
const WIRE: u64 = 1_000;

/// The part that is broken on purpose, beside values of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Broken {
    #[default]
    Nothing,
    /// A holder of the lane wakes no thread for what it leaves behind.
    HandOver,
    /// The background thread is not woken when a completion queue is armed, nor when a thread
    /// announces that it will wait for something other than a completion.
    Wakes,
}

/// The content of a packet that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packet {
    /// A completion: a message, or the end of a send.
    Completion,
    /// Bytes for memory, without a completion.
    Write,
    /// Nothing that a program sees.
    Ack,
}

/// A device, as the policy sees it.
#[derive(Debug, Default)]
pub(super) struct Device {
    pub(super) cells: Cells,
    lane: Option<usize>,
    /// The packets that wait, and when each arrived.
    socket: VecDeque<(u64, Packet)>,
    /// The time of each post that gathers in the batch, and of each that is in the doorbells.
    batch: Vec<u64>,
    doorbells: Vec<u64>,
    timers: Vec<u64>,
    /// The number of completions, and of WRITEs in memory, so far.
    pub(super) completions: u64,
    pub(super) writes: u64,
    /// The number of posts, and of calls into the kernel to send them.
    pub(super) posted: u64,
    pub(super) sends: u64,
    background: usize,
    /// The thread that sleeps until a completion, if any.
    sleeper: Option<usize>,
    /// The device to which this device sends.
    peer: Option<usize>,
    /// The longest waits of the packets, posts and timers that have been served, in nanoseconds.
    longest: [u64; 3],
    /// How long each WRITE waited until it was in memory, in nanoseconds.
    pub(super) latencies: Vec<u64>,
}

/// The next step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Run(u64),
    Yield,
    /// Sleeps until `until` at the latest; a wake-up ends the sleep if `wakes`.
    Sleep {
        until: u64,
        wakes: bool,
    },
    End,
}

/// The kind of a thread.
#[derive(Clone, Debug)]
pub(super) enum Role {
    /// The background thread of the device.
    Background { policy: Background, next: Next, looking: bool, before: u64, until: u64 },
    /// Polls all the time, and answers each completion with a message.
    PingPong { seen: u64 },
    /// Polls for its send, then only reads its memory, as `ib_write_lat` does.
    MemorySpinner { seen: u64, polls: u32, completions: u64 },
    /// Posts and computes by turns. After `batch` posts, unless that is 0, it polls as many times.
    Poster { gap: u64, batch: u64, turn: u64 },
    /// Makes `polls` polls, then sleeps for `pause`, or until a completion, again and again.
    Sleeper { polls: u64, left: u64, pause: Option<u64> },
    /// Polls until `until`, then announces to the device that it will wait for something other than
    /// a completion, and ends.
    Rests { until: u64 },
    /// Holds the lane of its device for `nanos`, once.
    Holder { nanos: u64 },
    /// Computes.
    Computes,
}

/// A thread.
#[derive(Debug)]
struct Thread {
    device: usize,
    role: Role,
    /// The call that the thread is in the middle of.
    inside: Inside,
    is_high: bool,
    /// The end of its time slice, while it has a core.
    slice_end: u64,
    is_woken: bool,
    sleeps: Option<(u64, bool)>,
    /// The number of times that the thread has slept.
    naps: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    Nothing,
    /// A poll with the lane is over.
    Poll,
    /// The thread yielded its core at this time.
    Offer(u64),
}

/// The machine.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) now: u64,
    pub(super) devices: Vec<Device>,
    threads: Vec<Thread>,
    /// The thread of each core, and the end of its step.
    cores: Vec<Option<(usize, u64)>>,
    ready: VecDeque<usize>,
    table: Table,
    broken: Broken,
    seed: u64,
    /// The packets that will arrive from outside: when, and at which device.
    arrivals: Vec<(u64, usize, Packet)>,
}

impl Machine {
    pub(super) fn new(cores: usize, seed: u64, table: &Table, broken: Broken) -> Self {
        Self {
            now: 1_000,
            devices: Vec::new(),
            threads: Vec::new(),
            cores: vec![None; cores],
            ready: VecDeque::new(),
            table: table.clone(),
            broken,
            seed: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            arrivals: Vec::new(),
        }
    }

    /// Returns a random number below `bound`.
    pub(super) fn random(&mut self, bound: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % bound.max(1)
    }

    /// Adds a device with its background thread.
    pub(super) fn device(&mut self) -> usize {
        let device = self.devices.len();
        self.devices.push(Device::default());
        let (policy, next) = (Background::new(TAKEOVER), Next::Judge);
        let role = Role::Background { policy, next, looking: false, before: 0, until: 0 };
        self.devices[device].background = self.thread(device, role, false);
        device
    }

    pub(super) fn connect(&mut self, a: usize, b: usize) {
        (self.devices[a].peer, self.devices[b].peer) = (Some(b), Some(a));
    }

    pub(super) fn thread(&mut self, device: usize, role: Role, is_high: bool) -> usize {
        let thread = Thread {
            device,
            role,
            inside: Inside::Nothing,
            is_high,
            slice_end: 0,
            is_woken: false,
            sleeps: None,
            naps: 0,
        };
        self.threads.push(thread);
        self.ready.push_back(self.threads.len() - 1);
        self.threads.len() - 1
    }

    /// Returns how often a device's background thread has slept so far.
    pub(super) fn naps(&self, device: usize) -> u64 {
        self.threads[self.devices[device].background].naps
    }

    /// Returns the longest that packets, posts and timers of a device have waited, those that still
    /// wait among them.
    pub(super) fn longest(&self, device: usize) -> [u64; 3] {
        let (state, now) = (&self.devices[device], self.now);
        let packets = state.socket.front().map(|(at, _)| *at);
        let posts = state.batch.iter().chain(&state.doorbells).copied().min();
        let timers = state.timers.iter().copied().filter(|at| *at <= now).min();
        let [a, b, c] = state.longest;
        let waits = |served: u64, oldest: Option<u64>| served.max(oldest.map_or(0, |at| now - at));
        [waits(a, packets), waits(b, posts), waits(c, timers)]
    }

    /// Has a packet arrive from outside.
    pub(super) fn arrives(&mut self, at: u64, device: usize, packet: Packet) {
        self.arrivals.push((at, device, packet));
    }

    /// Adds a timer that is due at `at`, as if the holder of the device's lane had left it behind.
    pub(super) fn leave_timer(&mut self, device: usize, at: u64) {
        self.devices[device].timers.push(at);
        self.hand_over(device);
    }

    fn deliver(&mut self, device: usize, at: u64, packet: Packet) {
        self.devices[device].socket.push_back((at, packet));
        let background = self.devices[device].background;
        let Role::Background { next, .. } = &self.threads[background].role else { return };
        // The packet makes a descriptor readable that the background thread sleeps on.
        if *next == Next::Watch {
            self.wake(background);
        }
    }

    fn wake(&mut self, thread: usize) {
        if self.threads[thread].sleeps.take_if(|(_, wakes)| *wakes).is_some() {
            self.ready.push_back(thread);
        } else {
            self.threads[thread].is_woken = true;
        }
    }

    /// Runs until `end`.
    pub(super) fn run(&mut self, end: u64) {
        while self.now < end {
            self.dispatch();
            let steps = self.cores.iter().flatten().map(|&(_, until)| until);
            let sleeps = self.threads.iter().filter_map(|t| t.sleeps.map(|(until, _)| until));
            let arrivals = self.arrivals.iter().map(|&(at, ..)| at);
            self.now = steps.chain(sleeps).chain(arrivals).min().unwrap_or(end).min(end);
            self.arrive();
            for thread in 0..self.threads.len() {
                if self.threads[thread].sleeps.is_some_and(|(until, _)| until <= self.now) {
                    self.threads[thread].sleeps = None;
                    self.ready.push_back(thread);
                }
            }
            for core in 0..self.cores.len() {
                if let Some((thread, until)) = self.cores[core]
                    && until <= self.now
                {
                    self.step(core, thread);
                }
            }
        }
    }

    fn arrive(&mut self) {
        let now = self.now;
        let due: Vec<_> = self.arrivals.extract_if(.., |(at, ..)| *at <= now).collect();
        due.into_iter().for_each(|(at, device, packet)| self.deliver(device, at, packet));
    }

    /// Gives free cores to threads that can run.
    fn dispatch(&mut self) {
        for core in 0..self.cores.len() {
            if self.cores[core].is_none() {
                let first = |by: &dyn Fn(usize, &Thread) -> bool| {
                    self.ready.iter().position(|&thread| by(thread, &self.threads[thread]))
                };
                let count = self.cores.len();
                let at = first(&|thread, state| thread % count == core && state.is_high)
                    .or_else(|| first(&|thread, _| thread % count == core));
                let Some(thread) = self.ready.remove(at.unwrap_or(0)) else { return };
                let slice = SLICE / 2 + self.random(SLICE / 2);
                self.threads[thread].slice_end = self.now + slice;
                self.cores[core] = Some((thread, self.now + SWITCH));
            }
        }
    }

    /// Whether a thread of this priority, or a higher one, waits for the core.
    fn is_wanted(&self, core: usize, is_high: bool) -> bool {
        let waits = |&thread: &usize| {
            thread % self.cores.len() == core && self.threads[thread].is_high >= is_high
        };
        self.ready.iter().any(waits)
    }

    fn step(&mut self, core: usize, thread: usize) {
        let is_high = self.threads[thread].is_high;
        let expired = self.now >= self.threads[thread].slice_end && self.is_wanted(core, is_high);
        if expired || !is_high && self.is_wanted(core, true) {
            self.ready.push_back(thread);
            self.cores[core] = None;
            return;
        }
        match self.next(thread) {
            Step::Run(nanos) => self.cores[core] = Some((thread, self.now + nanos)),
            // Only threads of the yielding thread's priority, or of a higher one, get the core.
            Step::Yield if self.is_wanted(core, is_high) => {
                self.ready.push_back(thread);
                self.cores[core] = None;
            }
            Step::Yield => self.cores[core] = Some((thread, self.now + POLL)),
            Step::Sleep { wakes: true, .. }
                if std::mem::take(&mut self.threads[thread].is_woken) =>
            {
                self.cores[core] = Some((thread, self.now + POLL));
            }
            Step::Sleep { until, wakes } => {
                self.threads[thread].naps += 1;
                self.threads[thread].sleeps = Some((until, wakes));
                self.cores[core] = None;
            }
            Step::End => self.cores[core] = None,
        }
    }

    fn next(&mut self, thread: usize) -> Step {
        let device = self.threads[thread].device;
        match std::mem::replace(&mut self.threads[thread].inside, Inside::Nothing) {
            Inside::Offer(before) => {
                let took = self.now - before;
                self.devices[device].cells.offered(&self.table, took);
                return Step::Run(VAIN);
            }
            Inside::Poll => return self.end_poll(thread),
            Inside::Nothing => {}
        }
        let mut role = self.threads[thread].role.clone();
        let step = self.act(thread, device, &mut role);
        self.threads[thread].role = role;
        step
    }

    fn act(&mut self, thread: usize, device: usize, role: &mut Role) -> Step {
        let now = self.now;
        match role {
            Role::Background { policy, next, looking, before, until } => {
                self.background(thread, policy, next, (looking, before, until))
            }
            Role::PingPong { seen } if self.devices[device].completions > *seen => {
                *seen += 1;
                if let Some(peer) = self.devices[device].peer {
                    self.arrives(now + WIRE, peer, Packet::Completion);
                }
                Step::Run(VAIN)
            }
            Role::PingPong { .. } => self.poll(thread),
            Role::MemorySpinner { seen, polls, completions } => {
                if *completions > self.devices[device].completions || *polls != 0 {
                    *polls = polls.saturating_sub(1);
                    return self.poll(thread);
                }
                if self.devices[device].writes > *seen {
                    *seen = self.devices[device].writes;
                    // The thread replies. The completion of the reply comes back at once.
                    *completions = self.devices[device].completions + 1;
                    *polls = 60;
                    self.arrives(now + 2 * WIRE, device, Packet::Completion);
                    let next = now + 5 * WIRE + self.random(30_000);
                    self.arrives(next, device, Packet::Write);
                }
                Step::Run(2 * VAIN)
            }
            Role::Poster { batch, turn, .. } if *turn > *batch => {
                *turn = (*turn + 1) % (2 * *batch + 1);
                self.poll(thread)
            }
            Role::Poster { gap, batch, turn } => {
                *turn += u64::from(*batch != 0);
                let gap = 100 + *gap;
                self.post(thread);
                Step::Run(gap / 2 + self.random(gap))
            }
            Role::Sleeper { left, .. } if *left != 0 => {
                *left -= 1;
                self.poll(thread)
            }
            Role::Sleeper { polls, left, pause: Some(pause) } => {
                *left = *polls;
                Step::Sleep { until: now + *pause, wakes: false }
            }
            Role::Sleeper { polls, left, pause: None } => {
                *left = *polls;
                if self.devices[device].cells.arm() && self.broken != Broken::Wakes {
                    self.wake(self.devices[device].background);
                }
                self.devices[device].sleeper = Some(thread);
                Step::Sleep { until: u64::MAX, wakes: true }
            }
            Role::Rests { until } if now < *until => self.poll(thread),
            Role::Rests { .. } => {
                if self.devices[device].cells.note_caller_sleeps() && self.broken != Broken::Wakes {
                    self.wake(self.devices[device].background);
                }
                Step::End
            }
            Role::Holder { nanos } => {
                self.devices[device].lane = Some(thread);
                let step = POLL.min(*nanos);
                *nanos -= step;
                if step == 0 {
                    self.release(device);
                    return Step::End;
                }
                Step::Run(step)
            }
            Role::Computes => Step::Run(10_000),
        }
    }

    /// Begins a poll.
    fn poll(&mut self, thread: usize) -> Step {
        let device = self.threads[thread].device;
        if self.devices[device].lane.is_none() {
            self.devices[device].lane = Some(thread);
            self.threads[thread].inside = Inside::Poll;
            return Step::Run(POLL);
        }
        let after = self.devices[device].cells.polled_without_lane(&self.table);
        self.after_poll(thread, after)
    }

    fn after_poll(&mut self, thread: usize, after: AfterPoll) -> Step {
        match after {
            AfterPoll::Return => Step::Run(VAIN),
            AfterPoll::OfferCore => {
                self.threads[thread].inside = Inside::Offer(self.now);
                Step::Yield
            }
            AfterPoll::Rest => {
                Step::Sleep { until: self.now + self.table.rest_nanos, wakes: false }
            }
        }
    }

    fn end_poll(&mut self, thread: usize) -> Step {
        let (device, now) = (self.threads[thread].device, Time(self.now));
        self.devices[device].cells.called(now);
        let received = self.progress(device);
        let after = self.devices[device].cells.polled(received != 0, now);
        self.hand_over(device);
        self.release(device);
        self.after_poll(thread, after)
    }

    /// Posts a message behind many others.
    fn post(&mut self, thread: usize) {
        let (device, now) = (self.threads[thread].device, self.now);
        let state = &mut self.devices[device];
        state.posted += 1;
        if state.lane.is_some() {
            state.doorbells.push(now);
            return;
        }
        state.batch.push(now);
        let gathered = || Gathered::new(state.batch.len(), 64 * state.batch.len());
        match state.cells.posted(&self.table, 64, gathered, Time(now), TAKEOVER) {
            Post::Gather => {}
            Post::SendNow => self.send(device),
        }
        self.hand_over(device);
    }

    fn send(&mut self, device: usize) {
        let now = self.now;
        let state = &mut self.devices[device];
        let longest = state.batch.drain(..).map(|at| now - at).max();
        if let Some(longest) = longest {
            state.sends += 1;
            state.longest[1] = state.longest[1].max(longest);
            self.arrives(now + 2 * WIRE, device, Packet::Ack);
        }
    }

    /// Sends, receives and fires timers; returns how many packets it found.
    fn progress(&mut self, device: usize) -> usize {
        let now = self.now;
        let rung = std::mem::take(&mut self.devices[device].doorbells);
        self.devices[device].batch.extend(rung);
        self.send(device);
        let state = &mut self.devices[device];
        let packets: Vec<_> = state.socket.drain(..).collect();
        for &(at, packet) in &packets {
            state.longest[0] = state.longest[0].max(now - at);
            match packet {
                Packet::Completion => state.completions += 1,
                Packet::Write => {
                    state.writes += 1;
                    state.latencies.push(now - at);
                }
                Packet::Ack => {}
            }
        }
        let due = state.timers.extract_if(.., |at| *at <= now).map(|at| now - at).max();
        state.longest[2] = state.longest[2].max(due.unwrap_or(0));
        if packets.iter().any(|(_, packet)| *packet == Packet::Completion)
            && let Some(sleeper) = state.sleeper.take()
        {
            state.cells.disarm();
            self.wake(sleeper);
        }
        packets.len()
    }

    /// Returns when there is something to do next; a batch that gathers waits for `patience`.
    fn next_work(&self, device: usize, patience: u64) -> Option<Time> {
        let state = &self.devices[device];
        let batch = (!state.batch.is_empty()).then_some(self.now + patience);
        state.timers.iter().copied().chain(batch).min().map(Time)
    }

    fn hand_over(&mut self, device: usize) {
        let cells = &self.devices[device].cells;
        let Some(plan) = cells.plan() else { return };
        let late = self.next_work(device, TAKEOVER).is_some_and(|next| plan.is_late_for(next));
        if late && self.broken != Broken::HandOver {
            cells.forget_plan();
            self.wake(self.devices[device].background);
        }
    }

    fn release(&mut self, device: usize) {
        let rung = std::mem::take(&mut self.devices[device].doorbells);
        if !rung.is_empty() {
            self.devices[device].batch.extend(rung);
            self.send(device);
        }
        self.devices[device].lane = None;
    }

    /// Makes a step of the background thread, as `progress/background.rs` carries it out.
    fn background(
        &mut self,
        thread: usize,
        policy: &mut Background,
        next: &mut Next,
        (looking, before, until): (&mut bool, &mut u64, &mut u64),
    ) -> Step {
        let (device, now) = (self.threads[thread].device, self.now);
        let cells = &self.devices[device].cells;
        // An action that takes time begins in one call of this function and is reported in the
        // next.
        let begins = !std::mem::replace(looking, false);
        let event = match *next {
            Next::Judge => {
                cells.come_back();
                Event::Judged { calls: cells.calls(), is_armed: cells.has_armed() }
            }
            Next::BackOff => cells.back_off(),
            Next::Pause { nanos } | Next::Stay { nanos } if begins => {
                *looking = true;
                return Step::Sleep { until: now + nanos, wakes: true };
            }
            Next::Pause { .. } => Event::Paused { caller_sleeps: cells.take_caller_sleeps() },
            Next::Stay { .. } => Event::Stayed,
            Next::Count { nanos } if begins => {
                (*looking, *before) = (true, cells.calls());
                return Step::Sleep { until: now + nanos, wakes: false };
            }
            Next::Count { .. } => Event::Counted { before: *before, after: cells.calls() },
            Next::Poll if begins => match self.devices[device].lane {
                Some(_) => Event::Taken,
                None => {
                    *looking = true;
                    self.devices[device].lane = Some(thread);
                    return Step::Run(POLL);
                }
            },
            Next::Poll => {
                let called_at = cells.called_at();
                let found = self.progress(device) != 0;
                let due = [policy.polls_by(Time(now)), self.next_work(device, 0)];
                let planned = due.into_iter().flatten().min();
                let is_done = !found && planned.is_none_or(|at| at.nanos() > now);
                if is_done {
                    self.devices[device].cells.plan_poll(planned);
                    *until = planned.map_or(u64::MAX, Time::nanos);
                }
                self.release(device);
                Event::Polled { found, is_done, silent_nanos: Time(now).since(called_at) }
            }
            Next::Watch if begins && self.devices[device].socket.is_empty() => {
                *looking = true;
                return Step::Sleep { until: *until, wakes: true };
            }
            Next::Watch => {
                cells.forget_plan();
                Event::Slept
            }
            Next::Rest { nanos } => {
                *next = Next::ServeOthers;
                return Step::Sleep { until: now + nanos, wakes: false };
            }
            Next::ServeOthers => {
                *next = Next::Judge;
                return Step::Run(POLL);
            }
        };
        *next = policy.after(&self.table, event);
        Step::Run(VAIN)
    }
}
