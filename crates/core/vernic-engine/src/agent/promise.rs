//! What was sent when a call returns, and what is still repeated when the process ends.
//!
//! With a device of hardware the kernel has sent the message of a call when the call returns, so a
//! program may end by `_exit`, or be killed, in the next moment. Here the lane sends, and somebody
//! else may have it. So a call that has a message waits for the lane, and for room in the socket
//! ([`Engine::send_promised`]).
//!
//! The kernel may choose any process's socket for a message to port 4791 of this host, the sender's
//! among them, and what lies there ends with the sender. So the sender looks into its sockets
//! before the call returns, and hands over what it finds. That is the rule with `force_wire`; else
//! a message to a process of this host goes straight to that process.
//!
//! A kernel repeats a DREQ when the process is gone, until the peer answers. Here the process waits
//! for that when it ends by `exit`, or closes the device: [`FAREWELL`] at most, with repeats that
//! come soon ([`CmAgent::await_farewells`]). One that is killed, or ends by `_exit`, has sent its
//! DREQ once if it disconnected, else never.
//!
//! Limits: a call waits [`PATIENCE`] at most, since whoever has the lane may be what this very
//! thread was interrupted in, by a handler of a signal.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vernic_io::Nanos;
use vernic_proto::cm::Cm;

use super::CmAgent;
use crate::lane::core::Lane;
use crate::progress::engine::Engine;
use crate::support::events::lock;

/// Longest wait of a call for its message to be sent: whoever has the lane is done in microseconds,
/// if it runs.
const PATIENCE: Duration = Duration::from_millis(100);

/// How soon a call tries again what it could not do: a full socket has room then, and a link looks
/// at sockets that had no traffic lately.
const AGAIN: Duration = Duration::from_micros(60);

/// Looks in a row that find nothing, after which nothing is in any socket of a link: one may leave
/// out those that had no traffic lately.
const QUIET_LOOKS: u32 = 2;

/// Batches that a call takes from the sockets at most: its own datagram is in one of the first, and
/// traffic that goes on is not waited for.
const LOOKS_OF_A_CALL: u32 = 8;

/// The same at the end of a process, to which nothing new comes by then: more than the sockets
/// hold.
const LOOKS_AT_THE_END: u32 = 4096;

/// How long the end of a process waits for peers to say that they know of it: the repeats of a DREQ
/// within this time reach a peer that hears nine of ten datagrams.
const FAREWELL: Duration = Duration::from_millis(200);

/// How often it looks whether they did: within a site they answer at once.
const FAREWELL_LOOK: Duration = Duration::from_micros(500);

impl CmAgent {
    /// For a process that ends: what says that connections are over is repeated soon from now on.
    /// See [`await_farewells`](Self::await_farewells).
    pub fn hasten_farewells(&self) {
        self.engine.hasten_farewells();
    }

    /// Returns when each peer has answered that, or after 200 ms. A peer that is not there is
    /// waited for as long. True if all have answered.
    pub fn await_farewells(&self) -> bool {
        self.engine.await_farewells()
    }
}

impl Engine {
    /// As [`CmAgent::hasten_farewells`].
    pub(crate) fn hasten_farewells(&self) {
        if self.is_orphan() || self.farewells() == 0 {
            return;
        }
        if let Some(machine) = &mut lock(&self.cm.state).machine {
            machine.hasten_farewells(self.now());
        }
        self.kick_cm();
    }

    /// As [`CmAgent::await_farewells`].
    pub(crate) fn await_farewells(&self) -> bool {
        let until = Instant::now() + FAREWELL;
        while !self.is_orphan() && self.farewells() != 0 {
            if Instant::now() >= until {
                let (device, left) = (&self.info().name, self.farewells());
                tracing::debug!(
                    device,
                    left,
                    "peers have not said that they know of a connection's end"
                );
                return false;
            }
            // Another thread may be at it, which is as good.
            self.progress_inline();
            std::thread::sleep(FAREWELL_LOOK);
        }
        true
    }

    /// DREQs of ours that were not answered.
    fn farewells(&self) -> usize {
        lock(&self.cm.state).machine.as_ref().map_or(0, Cm::farewells)
    }

    /// The machine has messages: hands them to the kernel before this returns, if that is possible
    /// soon.
    pub(super) fn send_promised(&self) {
        let sent_home = &self.cm.sent_home;
        let before = sent_home.load(Ordering::Acquire);
        // If the time is up, whoever has the lane sends them all the same.
        self.ring_cm();
        let until = Instant::now() + PATIENCE;
        if !self.patiently(until, |lane| lane.send_mads(self)) {
            let device = &self.info().name;
            tracing::debug!(device, "a message of the connection manager is still to be sent");
        }
        if sent_home.load(Ordering::Acquire) != before {
            // They share the port.
            self.empty_sockets(until, LOOKS_OF_A_CALL);
        }
    }

    /// The process or the device ends: leaves what comes to port 4791 to other processes of the
    /// host, and handles what is there already, of which some may be theirs. Not for an iWARP
    /// device.
    pub(crate) fn leave_port(&self) {
        let until = Instant::now() + PATIENCE;
        let aside = self.with_lane_until(until, |lane| {
            lane.link.step_aside(Nanos(self.now().nanos()));
            lane.streams.is_none()
        });
        if aside == Some(true) {
            self.empty_sockets(until, LOOKS_AT_THE_END);
        }
    }

    /// Handles what lies in the sockets now, and hands over what is for other processes: until
    /// there is nothing, or so many batches were taken, since more may come all the time. Gives up
    /// at that time.
    fn empty_sockets(&self, until: Instant, batches: u32) {
        let (mut looks, mut quiet) = (0, 0);
        self.patiently(until, |lane| {
            looks += 1;
            quiet = if lane.look_at_sockets(self) { quiet + 1 } else { 0 };
            quiet >= QUIET_LOOKS || looks >= batches
        });
    }

    /// Calls `f` with the lane, again and again until it is true or the time is up; returns which.
    fn patiently(&self, until: Instant, mut f: impl FnMut(&mut Lane) -> bool) -> bool {
        loop {
            let done = self.with_lane_until(until, |lane| {
                self.answer_doorbells(lane);
                f(lane)
            });
            if done == Some(true) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(AGAIN);
        }
    }
}

impl Lane {
    /// Sends what the machine has to send; true if all of it is with the kernel.
    fn send_mads(&mut self, engine: &Engine) -> bool {
        self.transmit(engine, engine.now());
        !self.gsi.pending && self.tx.is_empty()
    }

    /// Handles a batch of what came to the sockets; true if there was nothing, and no datagram
    /// waits for another process.
    fn look_at_sockets(&mut self, engine: &Engine) -> bool {
        let now = engine.now();
        self.near.link_had(1);
        let received = self.receive(engine, now);
        self.gsi.fire_timers(engine, &mut self.table, now);
        self.transmit(engine, now);
        received == 0 && !self.gsi.has_waiting()
    }
}
