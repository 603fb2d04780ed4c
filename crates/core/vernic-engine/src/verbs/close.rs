//! Closing a device while objects of it are left.
//!
//! A device closes with its last object. A program may forget some objects, or another language may
//! keep pointers to them for longer. [`Context::close`] ends the device before that, as the kernel
//! does when the descriptor of a device is closed. Afterwards nothing of the device moves, and its
//! objects can only be destroyed. Other threads may be inside any call meanwhile. Each such call
//! either ends before, or finds the closed device.

use std::sync::{Arc, Weak};

use crate::error::CreateError;
use crate::progress::engine::Engine;
use crate::streams::{CLOSE_PATIENCE, settle_orphans};
use crate::support::events::{CqId, EventQueue, lock};
use crate::verbs::context::Context;

impl Context {
    /// Ends the device, even if objects of it are left. When this returns:
    /// - The background thread has ended, the sockets are closed, and the process slots are free
    ///   for other processes.
    /// - No access to registered memory is in flight.
    /// - Queue pairs are in Error. What was posted is flushed to completion queues, which can still
    ///   be polled.
    /// - A thread that waited for an event has got EIO. The application's descriptors of
    ///   asynchronous events and of channels stay open until their object is destroyed, and are
    ///   readable.
    /// - Nothing can be made on the device or connected. Destroying works.
    ///
    /// For connections that were ended, the call waits until their peers have confirmed the end,
    /// for 200 ms at most. For iWARP connections, it waits until their peers have acknowledged what
    /// they were sent, for 2 s at most.
    ///
    /// Called when the last object goes, if not before. A second call does nothing, and neither
    /// does a call on an orphan ([`is_orphan`](Self::is_orphan)). The layers that use the device's
    /// [connection manager](Self::cm) end their work before this call.
    pub fn close(&self) {
        let engine = self.engine();
        if self.is_orphan() || engine.set_closed() {
            return;
        }
        if engine.port().is_up() {
            engine.hasten_farewells();
            engine.await_farewells();
        }
        self.stop_background();
        engine.put_down();
        engine.memory().revoke_all();
        engine.close_neighbours();
        engine.slots().close();
        engine.port().set_up(false);
        let channels = std::mem::take(&mut *lock(engine.channels()));
        channels.iter().filter_map(Weak::upgrade).for_each(|channel| channel.close());
        engine.events().close();
        tracing::debug!(device = engine.info().name, counters = %self.counters(), "device closed");
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.engine().is_closed()
    }

    /// Returns an error on an orphan or a closed device, where nothing may be made.
    pub(crate) fn alive(&self) -> Result<(), CreateError> {
        match () {
            () if self.is_orphan() => Err(CreateError::Orphan),
            () if self.is_closed() => Err(CreateError::Closed),
            () => Ok(()),
        }
    }
}

impl Engine {
    /// Closes the sockets, and moves every queue pair to Error.
    fn put_down(&self) {
        self.leave_port();
        let (sockets, orphans) = self.with_lane(|lane| {
            self.answer_doorbells(lane);
            // The application has seen the messages that were received, so peers must not be left
            // waiting for their ACKs.
            lane.transmit_all(self, self.now());
            let sockets = lane.put_down();
            lane.fail_all(self, self.now());
            lane.transmit_all(self, self.now());
            (sockets, lane.streams.as_mut().map(|streams| streams.close(self)))
        });
        // Dropped outside the lane: closing a descriptor passes the gate of forks (`vernic-io`),
        // and so may wait for a thread that forks.
        drop(sockets);
        settle_orphans(orphans.unwrap_or_default(), || self.now(), CLOSE_PATIENCE);
    }

    /// Lists a new channel, so that closing the device ends its waits.
    pub(crate) fn note_channel(&self, channel: &Arc<EventQueue<CqId>>) {
        let mut channels = lock(self.channels());
        channels.retain(|known| known.strong_count() != 0);
        channels.push(Arc::downgrade(channel));
        // `close` may have taken the list before the channel was on it.
        let is_closed = self.is_closed();
        drop(channels);
        if is_closed {
            channel.close();
        }
    }
}
