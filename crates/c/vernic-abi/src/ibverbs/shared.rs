//! What C objects keep of the engine.
//!
//! An object of C is a box that starts with the struct of C and holds the engine's object behind
//! it. Owned here: [`Shared`], which the objects of an open device hang on, and the map from engine
//! objects to C objects, for events ([`Registry`]).
//!
//! A context of C may be closed before its objects are destroyed. Its struct then stays where it
//! is, because the others point to it, until the last of them is gone ([`Shared::close`]); the
//! device itself ends with its last context, and calls on what is left fail, but for those that
//! destroy it.
//!
//! A process that was forked has a copy of every object, but not the threads that hold their locks
//! and do their work: [`Shared::check`] refuses them in the child, without taking any lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use libc::EIO;
use vernic_engine::{AsyncEvent, Context, CqId, DeviceMemory, Element, Pd, Qp, Qpn, SrqId};

use super::refusals::Refusals;
use crate::failure::Failure;
use crate::layout::context::ibv_context;
use crate::layout::cq::ibv_cq;
use crate::layout::memory::ibv_mr;
use crate::layout::qp::ibv_qp;
use crate::layout::srq::ibv_srq;
use crate::object::lock;
use crate::pointer::Handle;

/// A protection domain, as its imports and parent domains share it.
pub(crate) struct Domain {
    pub(crate) engine: Arc<Pd>,
    pub(crate) handle: u32,
}

/// Which objects of C exist on a device.
#[derive(Default)]
pub(crate) struct Registry {
    /// A list per number: of an XRC target, a program may have several.
    pub(crate) qps: HashMap<Qpn, Vec<Handle<ibv_qp>>>,
    pub(crate) cqs: HashMap<CqId, Handle<ibv_cq>>,
    pub(crate) srqs: HashMap<SrqId, Handle<ibv_srq>>,
    /// By the handle that programs name them with, to import them.
    pub(crate) pds: HashMap<u32, Weak<Domain>>,
    /// As `pds`.
    pub(crate) mrs: HashMap<u32, Handle<ibv_mr>>,
    /// As `pds`.
    pub(crate) dms: HashMap<u32, Weak<DeviceMemory>>,
    /// Events that were put back into the engine's queue, for further handles of a target. As many
    /// as wait there at most.
    repeats: Vec<Repeat>,
}

/// An event that waits in the engine's queue once more.
struct Repeat {
    event: AsyncEvent,
    /// Whom to tell; nobody, if the handle was destroyed meanwhile.
    handle: Option<Handle<ibv_qp>>,
}

impl Registry {
    /// Whom to tell of an event of a queue pair; nobody, if it was destroyed. Where there are
    /// several handles of it the event goes back into the queue for each further one, so that the
    /// descriptor stays readable until all have been told.
    pub(crate) fn qp_to_tell(
        &mut self,
        engine: &Context,
        event: AsyncEvent,
        qpn: Qpn,
    ) -> Option<Handle<ibv_qp>> {
        // Events that are equal need not be told apart: it is their number that counts.
        if let Some(at) = self.repeats.iter().position(|repeat| repeat.event == event) {
            return self.repeats.remove(at).handle;
        }
        let (&first, further) = self.qps.get(&qpn)?.split_first()?;
        for &handle in further {
            if engine.repeat_async_event(event) {
                self.repeats.push(Repeat { event, handle: Some(handle) });
            }
        }
        Some(first)
    }

    /// Shows the state that a queue pair has now in its objects, as far as they were not destroyed.
    pub(crate) fn show_state(&self, qp: &Arc<Qp>) {
        for handle in self.qps.get(&qp.qpn()).into_iter().flatten() {
            let object = handle.find().filter(|object| Arc::ptr_eq(&object.engine, qp));
            object.inspect(|object| object.set_state(qp.state()));
        }
    }

    /// Nobody is told of `qp` any more.
    pub(crate) fn forget_repeats(&mut self, qpn: Qpn, qp: Handle<ibv_qp>) {
        // The engine has taken its events off the queue together with the last handle.
        let is_gone = !self.qps.contains_key(&qpn);
        self.repeats.retain_mut(|repeat| {
            repeat.handle = repeat.handle.filter(|&handle| handle != qp);
            !(is_gone && repeat.event.element == Element::Qp(qpn))
        });
    }
}

/// An open device, as its objects share it.
pub(crate) struct Shared {
    pub(crate) engine: Arc<Context>,
    registry: Mutex<Registry>,
    /// What its user was told of requests that were refused.
    pub(crate) refusals: Refusals,
    handles: AtomicU32,
    acks: Acks,
    /// Contexts that are open.
    contexts: AtomicU32,
    /// Contexts that are closed, and that objects still point to.
    closed: Mutex<Vec<Handle<ibv_context>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let closed = self.closed.get_mut().unwrap_or_else(PoisonError::into_inner);
        for context in closed.drain(..) {
            // SAFETY: closed once (`close`), and with this goes the last of the objects that
            // pointed to it: each of them holds the `Shared`.
            drop(unsafe { context.take_back() });
        }
    }
}

impl Shared {
    pub(crate) fn new(engine: Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            engine,
            registry: Mutex::default(),
            refusals: Refusals::default(),
            handles: AtomicU32::new(1),
            acks: Acks::default(),
            contexts: AtomicU32::new(0),
            closed: Mutex::default(),
        })
    }

    /// Whether it was opened by the process that this one was forked from.
    pub(crate) fn is_orphan(&self) -> bool {
        self.engine.is_orphan()
    }

    /// Whether nothing will happen on it any more: it is another process's, or closed.
    pub(crate) fn is_over(&self) -> bool {
        self.is_orphan() || self.engine.is_closed()
    }

    /// # Errors
    /// `EIO` in a process that was forked after the device had been opened, and once it is closed.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let why = match () {
            () if self.is_orphan() => "opened before fork(): open the device again in this process",
            () if self.engine.is_closed() => "the device was closed: destroy what is left of it",
            () => return Ok(()),
        };
        Err(Failure::new(EIO, why))
    }

    /// One more context is open.
    pub(crate) fn note_context(&self) {
        self.contexts.fetch_add(1, Ordering::AcqRel);
    }

    /// An open context is closed, once for each. With the last the device ends, whatever objects
    /// are left: the context stays for those that point to it, until nothing does any more.
    pub(crate) fn close(&self, context: Handle<ibv_context>) {
        lock(&self.closed).push(context);
        if self.contexts.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.engine.close();
        }
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }

    /// A number for the `handle` field of a new object.
    pub(crate) fn next_handle(&self) -> u32 {
        self.handles.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until all events that were reported for an object are acknowledged: its destruction
    /// waits for that, as the manual pages say. Nothing bounds the wait but the program.
    pub(crate) fn wait_acked(&self, is_acked: impl Fn() -> bool) {
        self.acks.wait(is_acked);
    }

    /// Acknowledges an event: `count` counts it, and is the last to look at the object that it is
    /// about, which may be gone when this returns. So the caller calls with a reference of its own.
    pub(crate) fn acknowledge(&self, count: impl FnOnce()) {
        match self.is_orphan() {
            true => count(),
            false => self.acks.add(count),
        }
    }
}

/// Where acknowledgements are counted and waited for.
#[derive(Default)]
struct Acks {
    counting: Mutex<()>,
    counted: Condvar,
}

impl Acks {
    /// Counts, while nobody looks.
    fn add(&self, count: impl FnOnce()) {
        let guard = lock(&self.counting);
        count();
        drop(guard);
        self.counted.notify_all();
    }

    /// Waits until `is_acked`, with nobody still counting.
    fn wait(&self, is_acked: impl Fn() -> bool) {
        let mut guard = lock(&self.counting);
        while !is_acked() {
            guard = self.counted.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn who_waits_for_an_acknowledgement_waits_until_its_counting_is_over() {
        for _ in 0..1000 {
            let acks = Acks::default();
            let (counted, over) = (AtomicBool::new(false), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    acks.add(|| {
                        counted.store(true, Ordering::Release);
                        std::thread::yield_now();
                        over.store(true, Ordering::Release);
                    });
                });
                acks.wait(|| counted.load(Ordering::Acquire));
                assert!(
                    over.load(Ordering::Acquire),
                    "the object was freed under the other's feet"
                );
            });
        }
    }
}
