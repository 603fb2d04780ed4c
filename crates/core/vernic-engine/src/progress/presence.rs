//! Whether an engine of a device is inside memory, as the device's other engines see it.
//!
//! A local invalidate, or a bind that takes the place of another, must not complete while any
//! engine still moves a packet that came with the dead key. Who carries it out has the lane of one
//! engine only; it makes the key invalid and then waits until each other engine was seen without
//! its lane ([`Engine::wait_out_others`]). In order:
//!
//! ```text
//!   holder of another lane            who invalidates
//!   H1 turn becomes odd               I1 the key is dead
//!   H2 fence(SeqCst)                  I2 fence(SeqCst)
//!   H3 looks at the key, copies       I3 turn is even, or waits until it has changed
//!   H4 turn becomes even
//! ```
//!
//! Both fences are in one total order. If H2 comes first, I3 sees H1 and waits for H4; if I2 does,
//! H3 sees I1.
//!
//! Who waits holds a lane itself, but is not inside: its turn is even meanwhile, so two that wait
//! for each other pass. A holder waits for nobody beside that, so the wait is over after one turn
//! of the slowest: some packets, or a time slice where there are more threads than cores.
//!
//! A device with one engine has nobody to wait for, and none of this.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::lane::core::Lane;
use crate::progress::engine::Engine;

/// Looks at another's turn between two offers of the core.
const LOOKS_PER_YIELD: u32 = 64;

/// Turns that an engine's lane was taken and let go of: odd while it is held. Written by its holder
/// only.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    turn: AtomicU64,
}

impl Presence {
    /// Steps H1 and H2, by who holds the lane.
    fn enter(&self) {
        self.turn.store(self.turn.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Step H4.
    fn leave(&self) {
        // Only from odd: it may have left before, to wait.
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(turn & 1), Ordering::Release);
    }

    /// Step I3.
    fn wait_out(&self) {
        let turn = self.turn.load(Ordering::Acquire);
        let mut looks = 0_u32;
        while turn & 1 == 1 && self.turn.load(Ordering::Acquire) == turn {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS_PER_YIELD) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// The lane of an engine, held.
pub(crate) struct HeldLane<'a> {
    engine: &'a Engine,
    lane: MutexGuard<'a, Lane>,
}

impl<'a> HeldLane<'a> {
    pub(crate) fn new(engine: &'a Engine, lane: MutexGuard<'a, Lane>) -> Self {
        if engine.has_fellows() {
            engine.presence.enter();
        }
        Self { engine, lane }
    }
}

impl Drop for HeldLane<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.engine.has_fellows() {
            self.engine.presence.leave();
        }
    }
}

impl std::ops::Deref for HeldLane<'_> {
    type Target = Lane;

    #[inline]
    fn deref(&self) -> &Lane {
        &self.lane
    }
}

impl std::ops::DerefMut for HeldLane<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Lane {
        &mut self.lane
    }
}

impl Engine {
    /// Whether its device has other engines.
    #[inline]
    fn has_fellows(&self) -> bool {
        self.config.engine_threads > 1
    }

    /// Returns when no other engine of the device moves anything with a key that was invalid
    /// before. For who holds this engine's lane, and is in no memory.
    pub(crate) fn wait_out_others(&self) {
        if !self.has_fellows() {
            return;
        }
        fence(Ordering::SeqCst);
        self.presence.leave();
        let others = self.engines().filter(|other| other.place != self.place);
        others.for_each(|other| other.presence.wait_out());
        self.presence.enter();
    }
}
