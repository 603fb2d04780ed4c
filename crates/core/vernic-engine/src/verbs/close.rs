//! Closing a device while objects of it are left.
//!
//! A device closes with its last object. Where a program forgets some, or other languages have
//! pointers to them for longer, [`Context::close`] ends the device before, as the kernel does when
//! the descriptor of a device is closed: afterwards nothing of it moves, and its objects are only
//! there to be destroyed. Other threads may be inside any call meanwhile; each is over before, or
//! finds what is left.

use std::sync::{Arc, Weak};

use vernic_io::host::Intake;
use vernic_io::{ClosedLink, Link};
use vernic_proto::{AttrMask, QpAttr, QpState};

use crate::error::CreateError;
use crate::lane::core::Lane;
use crate::lane::pacer::Pacer;
use crate::progress::engine::Engine;
use crate::sched::Event;
use crate::streams::{CLOSE_PATIENCE, settle_orphans};
use crate::support::events::{CqId, EventQueue, lock};
use crate::verbs::context::Context;

impl Context {
    /// Ends the device, whatever objects of it are left: its thread is over, its sockets are
    /// closed, its process slots are others', and nobody is inside registered memory any more, when
    /// this returns. Peers of connections that were ended are waited for, until they say that they
    /// know of it, for 200 ms at most. Connections of iWARP whose peers have not acknowledged what
    /// they were sent are waited for, for 2 s at most. Queue pairs are in Error, and what was
    /// posted is flushed to completion queues, which can still be polled. Who waits for an event is
    /// told EIO; two descriptors of the application's stay open until their object is destroyed,
    /// that of asynchronous events and those of channels, and are readable. Nothing can be made on
    /// the device or connected; destroying works.
    ///
    /// Called when the last object goes, if not before. A second call does nothing, and so does one
    /// on an orphan ([`is_orphan`](Self::is_orphan)). The layers that use the device's [connection
    /// manager](Self::cm) end their work before.
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

    /// Refuses to make anything on an orphan or a closed device.
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
            // The application has seen what it was sent: peers must not wait for the ACKs.
            lane.transmit_all(self, self.now());
            let sockets = lane.put_down();
            lane.fail_all(self);
            lane.transmit_all(self, self.now());
            (sockets, lane.streams.as_mut().map(|streams| streams.close(self)))
        });
        // Outside the lane: closing passes the gate of forks.
        drop(sockets);
        settle_orphans(orphans.unwrap_or_default(), || self.now(), CLOSE_PATIENCE);
    }

    /// A new channel: its waiters are told when the device is closed.
    pub(crate) fn note_channel(&self, channel: &Arc<EventQueue<CqId>>) {
        let mut channels = lock(self.channels());
        channels.retain(|known| known.strong_count() != 0);
        channels.push(Arc::downgrade(channel));
        // Closing may have looked at the list before.
        let is_closed = self.is_closed();
        drop(channels);
        if is_closed {
            channel.close();
        }
    }
}

impl Lane {
    /// Moves every queue pair to Error, which flushes what was posted to it.
    fn fail_all(&mut self, engine: &Engine) {
        let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
        let now = engine.now();
        let Self { table, srqs, sched, .. } = self;
        for qp in table.iter() {
            let mut core = lock(&qp.core);
            // Error can be entered from every state.
            let _ = qp.with_lane_host(engine, Some(srqs), now, &mut core, |machine, host| {
                machine.modify(&attr, AttrMask::STATE, now, host)
            });
            sched.after(engine, qp, &mut core, Event::Changed, now);
        }
    }

    /// Lets go of all that it shares with other processes, and of packets that the sockets had no
    /// room for. Returns what is to be dropped.
    fn put_down(&mut self) -> (Box<dyn Link>, Pacer, Option<Arc<Intake>>) {
        self.tx.clear();
        self.groups.iter_mut().for_each(|group| group.local = None);
        let closed: Box<dyn Link> = Box::new(ClosedLink::after(self.link.as_ref()));
        let link = std::mem::replace(&mut self.link, closed);
        let pacer = std::mem::replace(&mut self.pacer, Pacer::new(false));
        (link, pacer, self.intake.take())
    }
}
