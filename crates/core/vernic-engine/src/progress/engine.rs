//! Progress: which thread runs the lane, and when (the model in one page).
//!
//! Owns [`Engine`]: the lane of an open device behind its lock, and the doorbells. The calls of the
//! application move packets and fire timers; the background thread does so while no such call is
//! made. A program that wants several lanes opens the device several times.
//!
//! # Which thread runs the lane
//!
//! - `post_send` pushes into the send queue and *kicks*: if the lane is free, it sends on the
//!   caller's thread. Otherwise it leaves the queue pair in the doorbells and returns. So it does
//!   with a post behind many others that go through memory, which may wait for the next poll.
//! - `poll` with an empty ring sends what is pending (ACKs), receives a batch, fires timers, and
//!   checks the ring again. The ACKs of this batch are left to the next call, but for those of a
//!   long batch out of a ring. So the application
//!   sees its completions, and the bytes that were written to its memory, before any system call
//!   for an ACK, and its reply goes ahead of the ACK.
//! - The background thread (`background.rs`) sends, receives and fires timers when no other thread
//!   does.
//! - The control path waits for the lane and locks it, to change the table of queue pairs or as a
//!   barrier.
//!
//! No data-path thread waits for the lane.
//!
//! # No lost wake-up
//!
//! A thread that finds the lane taken may leave, because the holder checks the doorbells after it
//! has released the lane. In order:
//!
//! ```text
//!   poster                                  holder
//!   P1 doorbell.push(qp)                    H1 lane.unlock()
//!   P2 fence(SeqCst)                        H2 fence(SeqCst)
//!   P3 try_lock: fails                      H3 doorbell empty? no -> try_lock again, and send
//! ```
//!
//! Both fences are in one total order. If P2 comes first, H3 sees P1. If H2 comes first, P3 sees
//! H1, so its failure was caused by a later holder, to which the same argument applies. The last
//! holder of all has no holder after it, so P2 comes before its H2. A poster also leaves if a
//! control-path thread has announced in [`Engine::waiters`] that it waits for the lane. That thread
//! withdraws its announcement (in place of H1) after it has released the lane and before H2. A call
//! of communication management leaves its work to the holder in the same way ([`Engine::ring_cm`]).
//! If it has a message to send, it then waits for the lane for a while (`agent/flush.rs`).
//!
//! A holder leaves work behind on purpose when the bound of its call was reached, when a socket was
//! full, and while timers run. The background thread does that work: see [`Engine::hand_over`].

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use vernic_io::LinkCounters;
use vernic_proto::Time;

use crate::cm::CmShared;
use crate::device::opened::{Device, monotonic_ns};
use crate::lane::gsi::Gsi;
use crate::lane::protocol::{Lane, WireProtocol};
use crate::mad::MadShared;
use crate::policy::{AfterPoll, TABLE};
use crate::qp::completions::{CqRing, Wc};
use crate::qp::state::{QpCore, QpInner};
use crate::streams::{EXIT_PATIENCE, settle_lingering};
use crate::support::events::{lock, try_lock};

/// The number of times that a holder takes the lane again for doorbells, before it leaves them to
/// the background thread. This bounds how long other threads can keep one call busy.
const MAX_ROUNDS: usize = 8;

/// The engine of an open device: its lane, the doorbells, and its background thread. The state that
/// does not need the lane is in the [`Device`].
pub(crate) struct Engine {
    device: Arc<Device>,
    pub(crate) cm: Arc<CmShared>,
    pub(crate) mads: Arc<MadShared>,
    lane: Mutex<Lane>,
    /// The number of control-path threads that wait for the lane. While it is not 0, data-path
    /// threads do not take the lane.
    waiters: AtomicUsize,
    pub(crate) doorbells: Mutex<Vec<Arc<QpInner>>>,
    /// Queue pairs that were closed while they were in the doorbells. Such a queue pair may hold
    /// the last reference to its device, and dropping the device takes the lane. So these queue
    /// pairs are dropped after the lane is released.
    closed_doorbells: Mutex<Vec<Arc<QpInner>>>,
    has_closed_doorbells: AtomicBool,
    rung: AtomicBool,
    stop: AtomicBool,
}

impl Deref for Engine {
    type Target = Device;

    #[inline]
    fn deref(&self) -> &Device {
        &self.device
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({})", self.info().name)
    }
}

impl Engine {
    /// Makes the background thread end.
    pub(crate) fn stop_background(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker().wake();
    }

    /// Whether the background thread shall end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn new(
        device: Arc<Device>,
        link: Box<dyn vernic_io::Link>,
        protocol: Box<dyn WireProtocol>,
    ) -> Self {
        let cm = Arc::new(CmShared::new(device.clone()));
        let mads = Arc::new(MadShared::new(device.clone()));
        let gsi = Gsi::new(cm.clone(), mads.clone());
        let lane = Lane::new(&device, link, protocol, gsi, Time(0));
        Self {
            device,
            cm,
            mads,
            lane: Mutex::new(lane),
            waiters: AtomicUsize::new(0),
            doorbells: Mutex::default(),
            closed_doorbells: Mutex::default(),
            has_closed_doorbells: AtomicBool::new(false),
            rung: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        }
    }

    /// Returns the device, which the engine shares with the objects of the device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Sends what was posted to `qp`: on this thread if the lane is free, otherwise on the thread
    /// that holds the lane.
    pub(crate) fn kick(&self, qp: &Arc<QpInner>) {
        self.kick_locked(qp, lock(&qp.core));
    }

    /// Sends as [`kick`](Self::kick) does, for a thread that has locked the queue pair to post: one
    /// lock is enough for the post and the turn. The lane comes before the queue pair in the lock
    /// order, but it is only tried here, so this thread waits for nobody.
    #[inline]
    pub(crate) fn kick_locked(&self, qp: &Arc<QpInner>, core: MutexGuard<'_, QpCore>) {
        match self.try_lane() {
            Some(lane) => self.run(lane, |lane, now| lane.transmit_posted(self, qp, core, now)),
            None => {
                drop(core);
                self.ring(qp);
            }
        }
    }

    /// Leaves what was posted to `qp` in the doorbells, for a post that may wait
    /// ([`Post::Gather`](crate::policy::Post)): a thread has polled a moment ago, or the background
    /// thread has planned to poll soon. Should that thread have planned a later poll meanwhile, the
    /// post is sent here. The fence stands in for P2 and P3: if it comes before the background
    /// thread's H2, H3 sees the doorbell. Otherwise this thread sees the plan, which was made
    /// before H1.
    #[inline]
    pub(crate) fn leave_post(&self, qp: &Arc<QpInner>) {
        if !self.push_doorbell(qp) {
            return;
        }
        fence(Ordering::SeqCst);
        let soon = self.now() + self.patience();
        if self.policy().plan().is_some_and(|plan| plan.is_late_for(soon)) {
            self.run_inline(|lane, now| lane.transmit(self, now));
        }
    }

    /// Puts `qp` into the doorbells; false if it is there, or if the lane is about to give it a
    /// turn.
    #[inline]
    fn push_doorbell(&self, qp: &Arc<QpInner>) -> bool {
        let is_new = qp.mark.attend();
        if is_new {
            lock(&self.doorbells).push(qp.clone());
            self.rung.store(true, Ordering::Release);
        }
        is_new
    }

    /// Sends the messages of communication management after its state machine has changed, and
    /// plans its next deadline. This happens on the calling thread if the lane is free, otherwise
    /// on the thread that holds the lane.
    pub(crate) fn kick_cm(&self) {
        self.ring_cm();
        self.run_inline(|lane, now| lane.transmit(self, now));
    }

    /// Leaves the work of communication management to the next holder of the lane: steps P1 and P2
    /// of the proof in the module documentation.
    pub(crate) fn ring_cm(&self) {
        self.cm.leave_work();
        self.rung.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Sends what the management agents have to send, on this thread if the lane is free.
    pub(crate) fn kick_mads(&self) {
        self.mads.leave_work();
        self.rung.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.run_inline(|lane, now| lane.transmit(self, now));
    }

    /// Leaves `qp` in the doorbells, and then tries to take the lane once more, in case the holder
    /// has just released it: steps P1 to P3 of the proof in the module documentation.
    fn ring(&self, qp: &Arc<QpInner>) {
        self.push_doorbell(qp);
        fence(Ordering::SeqCst);
        self.run_inline(|lane, now| lane.transmit(self, now));
    }

    /// Makes progress for a call that polls a completion queue whose ring `cq` was empty: see the
    /// module documentation. Takes completions, oldest first, and returns how many.
    pub(crate) fn poll_inline<T: From<Wc>>(&self, cq: &CqRing, out: &mut [T]) -> usize {
        let (mut taken, mut after) = (0, AfterPoll::Return);
        let done = self.run_inline(|lane, now| {
            self.policy().called(now);
            lane.transmit(self, now);
            lane.arrivals().begin(cq, out.len());
            let received = lane.receive(self, now);
            taken = lane.arrivals().take(out);
            self.count_pulled(lane);
            lane.fire_timers(self, now);
            taken += cq.take(&mut out[taken..]);
            after = self.policy().polled(taken != 0 || received != 0, now);
        });
        if !done {
            taken = cq.take(out);
            if taken == 0 {
                after = self.policy().polled_without_lane(&TABLE);
            }
        }
        match after {
            AfterPoll::Return => {}
            AfterPoll::OfferCore => self.offer_core(),
            AfterPoll::Rest => sleep_briefly(),
        }
        taken
    }

    /// Yields the core to other threads, and reports to the policy how long that took.
    #[cold]
    fn offer_core(&self) {
        let before = monotonic_ns();
        std::thread::yield_now();
        self.policy().offered(&TABLE, monotonic_ns().saturating_sub(before));
    }

    /// Sends and receives on this thread, if the lane is free; false if it is not.
    pub(crate) fn progress_inline(&self) -> bool {
        self.run_inline(|lane, now| {
            self.policy().called(now);
            lane.transmit(self, now);
            lane.receive(self, now);
            self.count_pulled(lane);
            lane.fire_timers(self, now);
            lane.transmit_all(self, now);
        })
    }

    /// Reports to the policy if a thread of the application has pulled payload.
    #[inline]
    fn count_pulled(&self, lane: &mut Lane) {
        if lane.take_pulled() != 0 {
            self.policy().pulled(&TABLE);
        }
    }

    /// Makes progress for the last time before the process ends, as
    /// [`progress_inline`](Self::progress_inline) does. In addition:
    ///
    /// - Packets that the capture still has in memory are written to its file.
    /// - Packets for other processes that are in sockets of this process are handed over to them.
    /// - Local peers are notified that this process ends in order, so that they do not take its end
    ///   for a crash.
    /// - For half a second at most, iWARP connections deliver what was sent on them. The kernel
    ///   would reset a closed connection if the peer sent something more.
    ///
    /// Returns false if the lane or the local peers are in use.
    pub(crate) fn last_progress(&self) -> bool {
        let mut lingering = Vec::new();
        let mut is_done =
            self.progress_inline() && self.run_inline(|lane, _| lingering = lane.leave(self));
        if is_done {
            self.leave_port();
            self.slots().leave();
            is_done = self.try_close_local_peers();
            settle_lingering(lingering, || self.now(), EXIT_PATIENCE);
        }
        is_done
    }

    /// Returns the counters of the link; `None` if the lane is taken.
    pub(crate) fn try_link_counters(&self) -> Option<LinkCounters> {
        let mut counters = None;
        self.run_inline(|lane, _| counters = Some(lane.link().counters()));
        counters
    }

    /// Runs `f` with the lane, for a thread of the application. Returns false, and does not run
    /// `f`, if the lane is taken.
    fn run_inline(&self, f: impl FnOnce(&mut Lane, Time)) -> bool {
        let Some(lane) = self.try_lane() else { return false };
        self.run(lane, f);
        true
    }

    /// Runs `f` with the lane, for a thread of the application that has just taken it.
    #[inline]
    fn run(&self, mut lane: MutexGuard<'_, Lane>, f: impl FnOnce(&mut Lane, Time)) {
        let now = self.now_by(lane.clock());
        self.answer_doorbells(&mut lane);
        f(&mut lane, now);
        self.hand_over(&lane, now);
        drop(lane);
        self.after_release();
    }

    /// Runs `f` while the calling thread, a thread of the application, holds the lane. Does not run
    /// `f` if the lane is taken.
    pub(crate) fn with_free_lane(&self, f: impl FnOnce(Time)) {
        self.run_inline(|_, now| f(now));
    }

    /// Takes the lane if it is free and no control-path thread waits for it.
    pub(crate) fn try_lane(&self) -> Option<MutexGuard<'_, Lane>> {
        if self.waiters.load(Ordering::SeqCst) != 0 {
            return None;
        }
        try_lock(&self.lane)
    }

    /// Waits until every access to registered memory that the lane had begun before this call is
    /// over.
    pub(crate) fn barrier(&self) {
        self.with_lane(|_| ());
    }

    /// Waits for the lane and runs `f` with it. Only the control path calls it.
    pub(crate) fn with_lane<T>(&self, f: impl FnOnce(&mut Lane) -> T) -> T {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let mut lane = lock(&self.lane);
        let result = f(&mut lane);
        self.hand_over(&lane, self.now());
        drop(lane);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        self.after_release();
        result
    }

    /// Does the same as [`with_lane`](Self::with_lane), but waits for the lane until `until` at
    /// most, and returns `None` if it does not get it. The holder of the lane may be the calling
    /// thread itself, interrupted while it holds the lane.
    pub(crate) fn with_lane_until<T>(
        &self,
        until: Instant,
        f: impl FnOnce(&mut Lane) -> T,
    ) -> Option<T> {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let mut taken = try_lock(&self.lane);
        while taken.is_none() && Instant::now() < until {
            sleep_briefly();
            taken = try_lock(&self.lane);
        }
        let result = taken.map(|mut lane| {
            let result = f(&mut lane);
            self.hand_over(&lane, self.now());
            result
        });
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        self.after_release();
        result
    }

    /// Moves the queue pairs in the doorbells to the ready list.
    pub(crate) fn answer_doorbells(&self, lane: &mut Lane) {
        if self.rung.load(Ordering::Acquire) {
            let mut doorbells = lock(&self.doorbells);
            self.rung.store(false, Ordering::Relaxed);
            for qp in doorbells.drain(..) {
                if !lane.answer(&qp) {
                    lock(&self.closed_doorbells).push(qp);
                    self.has_closed_doorbells.store(true, Ordering::Relaxed);
                }
            }
            let has_messages = self.cm.take_work();
            lane.note_mads(self.mads.take_work() || has_messages);
        }
    }

    /// Handles the doorbells that were rung while the lane was taken: steps H2 and H3 of the proof
    /// in the module documentation. The caller has just released the lane.
    pub(crate) fn after_release(&self) {
        if self.has_closed_doorbells.load(Ordering::Relaxed)
            && self.has_closed_doorbells.swap(false, Ordering::Relaxed)
        {
            drop(std::mem::take(&mut *lock(&self.closed_doorbells)));
        }
        for _ in 0..MAX_ROUNDS {
            fence(Ordering::SeqCst);
            if !self.rung.load(Ordering::Acquire) {
                return;
            }
            // If another thread has taken the lane, it checks the doorbells after its release, as
            // proven.
            let Some(mut lane) = self.try_lane() else { return };
            let now = self.now();
            self.answer_doorbells(&mut lane);
            lane.transmit(self, now);
            self.hand_over(&lane, now);
        }
        self.waker().wake();
    }

    /// Makes sure that the background thread polls in time for the work that is left in the lane,
    /// and that it sleeps on the descriptors that the link has now: receiving may have opened a
    /// socket for a steered flow. Every holder calls it before it releases the lane.
    #[inline]
    pub(crate) fn hand_over(&self, lane: &Lane, now: Time) {
        let local = self.local().filter(|_| lane.local_peers().is_pending());
        if let Some(local) = local {
            local.ring();
        }
        let Some(plan) = self.policy().plan() else { return };
        let blind = lane.link().poll_generation() != self.policy().watched();
        let late =
            || lane.next_work(now, self.patience()).is_some_and(|next| plan.is_late_for(next));
        if local.is_some() || blind || late() {
            // One wake-up is enough: the background thread makes a new plan when it is awake.
            self.policy().forget_plan();
            self.waker().wake();
        }
    }

    /// Notes that a completion queue was armed. Its owner is about to sleep, so everything that is
    /// ready to be sent is sent, and the background thread is woken if it backs off.
    pub(crate) fn cq_armed(&self) {
        self.run_inline(|lane, now| lane.transmit_all(self, now));
        if self.policy().arm() {
            self.waker().wake();
        }
    }

    /// Notes that the calling thread is about to wait for something other than a completion. If the
    /// background thread has left the sockets to polling threads, it is woken and checks again
    /// whether any thread polls, because the caller may have been the only one.
    pub(crate) fn caller_sleeps(&self) {
        if self.policy().note_caller_sleeps() {
            self.waker().wake();
        }
    }
}

/// Sleeps briefly, so that any other thread can run on this core, even one of a lower priority.
#[cold]
pub(crate) fn sleep_briefly() {
    std::thread::sleep(Duration::from_nanos(TABLE.rest_nanos));
}

#[cfg(test)]
mod tests;
