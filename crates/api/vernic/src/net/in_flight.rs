//! Operations that are posted and not complete: which completion is whose.
//!
//! Owns a completion queue and a slot for each operation that its work queue holds. The slot's
//! number is the name of the work request, so a completion finds its operation without a search.
//! A slot keeps the memory of its operation registered. It is free again when the operation has
//! completed, also if nobody waits for it any more.
//!
//! Called by [`Connection`](super::Connection), whose futures look for completions themselves, at
//! first again and again between other tasks. What they sleep through, [`drive`] finds: a task that
//! the channel of the queues wakes. The queue is armed only while somebody sleeps, so an operation
//! that completes soon costs neither a sleep nor the task.
//!
//! Limits: as many slots as the work queue holds requests, all made with the connection; operations
//! beyond wait in line. Nothing is allocated later.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;
use tokio::sync::Semaphore;

use crate::asynchronous::next;
use crate::raw::Registered;
use crate::{CompChannel, Cq, Wc};

/// Completions that are taken with one poll.
const AT_ONCE: usize = 16;

/// Looks for a completion between two turns of other tasks, for which the runtime makes a system
/// call.
const LOOKS: usize = 4;

/// After so many operations in a row that looked in vain, most operations sleep at once.
const MOST_IN_VAIN: u32 = 4;

/// One operation of so many then looks all the same, and if it finds its completion the next do.
const TRY_AGAIN: u32 = 16;

/// An operation's place.
#[derive(Debug, Default)]
enum Slot {
    #[default]
    Free,
    /// Posted, or about to be. The waker is of the task that sleeps until it completes.
    Posted { kept: Option<Registered>, waker: Option<Waker> },
    /// Posted, and nobody waits: its completion is discarded.
    Abandoned { kept: Option<Registered> },
    /// Complete, and not yet looked at.
    Complete(Wc),
}

#[derive(Debug)]
struct Slots {
    slots: Box<[Slot]>,
    /// Numbers of free slots.
    free: Vec<u32>,
    /// Slots whose completion is still to come.
    due: usize,
}

/// What is posted to one work queue and not complete.
#[derive(Debug)]
pub(super) struct InFlight {
    cq: Cq,
    /// How long an operation looks for its completion before its task sleeps.
    spin: Duration,
    /// Operations in a row whose completion was not found while they looked.
    in_vain: AtomicU32,
    /// One permit for each free slot.
    room: Semaphore,
    slots: Mutex<Slots>,
}

impl InFlight {
    /// For a work queue that holds as many requests as `cq` holds completions.
    pub(super) fn new(cq: Cq, spin: Duration) -> Self {
        let depth = cq.depth();
        let slots = (0..depth).map(|_| Slot::Free).collect();
        let slots = Slots { slots, free: (0..depth).rev().collect(), due: 0 };
        Self {
            cq,
            spin,
            in_vain: AtomicU32::new(0),
            room: Semaphore::new(depth as usize),
            slots: Mutex::new(slots),
        }
    }

    pub(super) fn cq(&self) -> &Cq {
        &self.cq
    }

    /// A slot for an operation, which waits for its turn if there is none. `kept` stays registered
    /// until the operation is complete.
    pub(super) async fn reserve(&self, kept: Option<Registered>) -> Ticket<'_> {
        let mut acquiring = pin!(self.room.acquire());
        let acquired = std::future::poll_fn(|cx| {
            let acquired = acquiring.as_mut().poll(cx);
            if acquired.is_pending() {
                // A completion is what it waits for. One that is found here wakes this task.
                self.collect_or_arm();
            }
            acquired
        });
        match acquired.await {
            Ok(permit) => permit.forget(),
            Err(error) => unreachable!("the semaphore is never closed: {error}"),
        }
        self.enter(kept)
    }

    /// As [`reserve`](Self::reserve), if nothing is posted now: for what is of no use beside other
    /// operations.
    pub(super) fn reserve_if_idle(&self) -> Option<Ticket<'_>> {
        self.collect();
        if self.lock().due != 0 {
            return None;
        }
        self.room.try_acquire().ok()?.forget();
        Some(self.enter(None))
    }

    /// Fills a free slot. The caller has a permit, so there is one.
    fn enter(&self, kept: Option<Registered>) -> Ticket<'_> {
        let mut slots = self.lock();
        let Some(index) = slots.free.pop() else {
            unreachable!("there are as many permits as free slots");
        };
        slots.slots[index as usize] = Slot::Posted { kept, waker: None };
        slots.due += 1;
        Ticket { of: self, index }
    }

    /// Looks whether an operation is complete; if not, its task is woken when it is.
    fn poll(&self, index: u32, cx: &Context<'_>) -> Poll<Wc> {
        if let Some(wc) = self.completion(index, None) {
            return Poll::Ready(wc);
        }
        self.collect();
        if let Some(wc) = self.completion(index, Some(cx.waker())) {
            return Poll::Ready(wc);
        }
        self.collect_or_arm();
        self.completion(index, None).map_or(Poll::Pending, Poll::Ready)
    }

    /// The completion of an operation, or `None`; then `waker` is the one to be woken.
    fn completion(&self, index: u32, waker: Option<&Waker>) -> Option<Wc> {
        let mut slots = self.lock();
        let old = match (&mut slots.slots[index as usize], waker) {
            (Slot::Complete(wc), _) => return Some(*wc),
            (Slot::Posted { waker: Some(old), .. }, Some(new)) if old.will_wake(new) => None,
            (Slot::Posted { waker, .. }, Some(new)) => waker.replace(new.clone()),
            _ => None,
        };
        drop(slots);
        // Without the lock: this may be the last of a task, whose own operations end with it.
        drop(old);
        None
    }

    /// Takes the completions that wait. Then the next one makes the channel report.
    fn collect_or_arm(&self) {
        self.cq.arm();
        self.collect();
    }

    /// Takes the completions that wait to the slots of their operations.
    fn collect(&self) {
        let mut wcs = [Wc::default(); AT_ONCE];
        // Each turn but the last takes completions of some of the slots.
        loop {
            // The queue does not overflow: it holds a completion for each slot.
            let Ok(taken) = self.cq.poll(&mut wcs) else { return };
            self.complete(taken);
            if taken.len() < AT_ONCE {
                return;
            }
        }
    }

    fn complete(&self, wcs: &[Wc]) {
        if wcs.is_empty() {
            return;
        }
        // Wakers and registrations, which are used and dropped without the lock.
        let mut ended: [(Option<Waker>, Option<Registered>); AT_ONCE] = Default::default();
        let mut freed = 0;
        let mut locked = self.lock();
        let slots = &mut *locked;
        for (wc, ended) in wcs.iter().zip(&mut ended) {
            let index = wc.wr_id().0 as u32;
            let Some(slot) = slots.slots.get_mut(index as usize) else { continue };
            match std::mem::take(slot) {
                Slot::Posted { kept, waker } => {
                    *slot = Slot::Complete(*wc);
                    *ended = (waker, kept);
                }
                Slot::Abandoned { kept } => {
                    slots.free.push(index);
                    freed += 1;
                    ended.1 = kept;
                }
                // No operation has two completions.
                other => {
                    *slot = other;
                    continue;
                }
            }
            slots.due -= 1;
        }
        drop(locked);
        self.room.add_permits(freed);
        for (waker, _) in &mut ended {
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }

    /// What the driver does when the channel has reported.
    fn attend(&self) {
        self.collect();
        if self.lock().due != 0 {
            self.collect_or_arm();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slot of one operation. Dropping it before the operation is complete abandons the operation.
#[derive(Debug)]
pub(super) struct Ticket<'f> {
    of: &'f InFlight,
    index: u32,
}

impl Ticket<'_> {
    /// The number of the slot, which is the name of the work request.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Waits for the completion. Other tasks run while this one looks for it.
    pub(super) async fn completed(&self) -> Wc {
        let in_vain = self.of.in_vain.load(Relaxed);
        let may_look = in_vain < MOST_IN_VAIN || in_vain.is_multiple_of(TRY_AGAIN);
        let spin = if may_look { self.of.spin } else { Duration::ZERO };
        let began = Instant::now();
        // Ends with the completion, or when the time is over.
        while began.elapsed() < spin {
            for _ in 0..LOOKS {
                self.of.collect();
                if let Some(wc) = self.of.completion(self.index, None) {
                    self.of.in_vain.store(0, Relaxed);
                    return wc;
                }
            }
            tokio::task::yield_now().await;
        }
        self.of.in_vain.fetch_add(1, Relaxed);
        std::future::poll_fn(|cx| self.of.poll(self.index, cx)).await
    }

    /// Gives the slot back: the request was refused, and never completes.
    pub(super) fn withdraw(self) {
        let mut slots = self.of.lock();
        // As if it were complete, which the drop of the ticket frees.
        let kept =
            std::mem::replace(&mut slots.slots[self.index as usize], Slot::Complete(Wc::default()));
        slots.due -= 1;
        drop(slots);
        drop(kept);
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut slots = self.of.lock();
        let slot = &mut slots.slots[self.index as usize];
        let waker = match std::mem::take(slot) {
            Slot::Posted { kept, waker } => {
                *slot = Slot::Abandoned { kept };
                waker
            }
            _ => {
                slots.free.push(self.index);
                drop(slots);
                self.of.room.add_permits(1);
                return;
            }
        };
        drop(slots);
        drop(waker);
    }
}

/// What is posted to both work queues of a queue pair.
#[derive(Debug)]
pub(super) struct Queues {
    pub(super) send: InFlight,
    pub(super) recv: InFlight,
}

/// Takes completions to those who sleep, until the runtime ends.
pub(super) async fn drive(channel: AsyncFd<CompChannel>, queues: Arc<Queues>) {
    while next(&channel, CompChannel::try_next).await.is_ok() {
        queues.send.attend();
        queues.recv.attend();
    }
}
