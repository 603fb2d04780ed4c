//! Closing a device that still has objects.
//!
//! Usually a device is closed when its last object is dropped. But a program may forget some
//! objects, or a program in another language may keep pointers to them. [`Context::close`] closes
//! the device before that, as the kernel does when the descriptor of a device is closed. Afterwards
//! the device does nothing any more, and its objects can only be destroyed. Other threads may be
//! inside any call meanwhile. Each such call either ends before the device is closed, or finds it
//! closed.

use std::sync::{Arc, Weak};

use crate::device::port::Port;
use crate::error::CreateError;
use crate::progress::engine::Engine;
use crate::streams::{CLOSE_PATIENCE, settle_lingering};
use crate::support::events::{CqId, EventQueue, lock};
use crate::verbs::context::Context;

impl Context {
    /// Closes the device, even if it still has objects. When this returns:
    /// - The background thread has ended, the sockets are closed, and the process slots are free
    ///   for other processes.
    /// - No access to registered memory is in flight.
    /// - Queue pairs are in Error. Posted work requests are flushed to completion queues, which can
    ///   still be polled.
    /// - Threads that waited for an event have got EIO. The application's descriptors for
    ///   asynchronous events and channels stay open until their objects are destroyed, and are
    ///   readable.
    /// - Nothing can be created on the device or connected. Destroying works.
    ///
    /// If connections were still open, the call waits until their peers have confirmed the end, for
    /// 200 ms at most. For iWARP connections, it waits until the peers have acknowledged all that
    /// was sent to them, for 2 s at most.
    ///
    /// Called when the last object is dropped, unless it was called before. A second call does
    /// nothing, and neither does a call in a child of `fork` ([`is_orphan`](Self::is_orphan)). The
    /// layers that use the device's [connection manager](Self::cm) end their work before this call.
    pub fn close(&self) {
        let engine = self.engine();
        if self.is_orphan() || engine.set_closed() {
            return;
        }
        if engine.ports().iter().any(Port::is_up) {
            engine.hasten_farewells();
            engine.await_farewells();
        }
        self.stop_background();
        engine.release_lane();
        engine.memory().revoke_all();
        engine.close_local_peers();
        engine.slots().close();
        engine.ports().iter().for_each(|port| _ = port.set_up(false));
        let channels = std::mem::take(&mut *lock(engine.channels()));
        channels.iter().filter_map(Weak::upgrade).for_each(|channel| channel.close());
        engine.events().close();
        tracing::debug!(device = engine.info().name, counters = %self.counters(), "device closed");
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.engine().is_closed()
    }

    /// Returns an error if nothing may be created: in a child of `fork`, or on a closed device.
    pub(crate) fn alive(&self) -> Result<(), CreateError> {
        match () {
            () if self.is_orphan() => Err(CreateError::Orphan),
            () if self.is_closed() => Err(CreateError::Closed),
            () => Ok(()),
        }
    }
}

impl Engine {
    /// Closes the sockets, and moves all queue pairs to Error.
    fn release_lane(&self) {
        self.leave_port();
        let (sockets, lingering) = self.with_lane(|lane| {
            self.answer_doorbells(lane);
            // The application has seen the messages that were received, so their ACKs are sent
            // before the sockets are closed; otherwise peers would wait for them.
            lane.transmit_all(self, self.now());
            let sockets = lane.release();
            lane.fail_all(self, self.now());
            lane.transmit_all(self, self.now());
            (sockets, lane.close(self))
        });
        // Dropped without the lane. Closing a descriptor may have to wait for a thread that forks,
        // because `vernic-io` lets no descriptor be opened or closed during a fork.
        drop(sockets);
        settle_lingering(lingering, || self.now(), CLOSE_PATIENCE);
    }

    /// Remembers a new channel, so that closing the device ends the waiting of threads on it.
    pub(crate) fn note_channel(&self, channel: &Arc<EventQueue<CqId>>) {
        let mut channels = lock(self.channels());
        channels.retain(|known| known.strong_count() != 0);
        channels.push(Arc::downgrade(channel));
        // `close` may have taken the list before the channel was added to it.
        let is_closed = self.is_closed();
        drop(channels);
        if is_closed {
            channel.close();
        }
    }
}
