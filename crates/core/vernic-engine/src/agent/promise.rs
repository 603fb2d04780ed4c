//! Guarantees that a call's message is sent when the call returns, and repeats DREQs when the
//! process ends.
//!
//! With a hardware device, the kernel has sent the message of a call when the call returns. So a
//! program may end by `_exit`, or be killed, in the next moment. Here the lane sends, and another
//! thread may hold it. So a call that has a message waits for the lane, and for room in the socket
//! ([`Engine::send_promised`]).
//!
//! For a message to port 4791 of this host, the kernel may choose any process's socket, even the
//! sender's. What lies in a socket is lost when its process ends. So the sender reads its sockets
//! before the call returns, and hands over what it finds. That applies with `force_wire`; otherwise
//! a message to a process of this host goes directly to that process.
//!
//! A kernel repeats a DREQ after the process is gone, until the peer answers. Here the process
//! waits for the answer when it ends by `exit`, or closes the device. It waits [`FAREWELL`] at
//! most, and repeats its DREQs soon ([`CmAgent::await_farewells`]). A process that is killed, or
//! ends by `_exit`, has sent its DREQ once if it disconnected, and otherwise never.
//!
//! Limits: a call waits [`PATIENCE`] at most. The lane's holder may be this very thread,
//! interrupted by a signal handler that makes the call.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vernic_proto::cm::Cm;

use super::CmAgent;
use crate::lane::core::Lane;
use crate::progress::engine::Engine;
use crate::support::events::lock;

/// The longest wait of a call for its message to be sent. The lane's holder needs only
/// microseconds, if it runs.
const PATIENCE: Duration = Duration::from_millis(100);

/// How soon a call tries again. By then a full socket has room, and a link polls sockets that had
/// no traffic lately.
const AGAIN: Duration = Duration::from_micros(60);

/// Polls in a row that must find nothing before all sockets of a link count as empty. A single poll
/// may leave out sockets that had no traffic lately.
const QUIET_LOOKS: u32 = 2;

/// The most batches that a call takes from the sockets. Its own datagram is in one of the first,
/// and ongoing traffic is not waited for.
const LOOKS_OF_A_CALL: u32 = 8;

/// The most batches taken at the end of a process, when nothing new comes: more than the sockets
/// hold.
const LOOKS_AT_THE_END: u32 = 4096;

/// How long the end of a process waits for peers to acknowledge it. The repeats of a DREQ within
/// this time reach a peer that receives nine of ten datagrams.
const FAREWELL: Duration = Duration::from_millis(200);

/// The interval at which the answers are checked; within a site, peers answer at once.
const FAREWELL_LOOK: Duration = Duration::from_micros(500);

impl CmAgent {
    /// Makes DREQs repeat soon from now on, for a process that ends. See
    /// [`await_farewells`](Self::await_farewells).
    pub fn hasten_farewells(&self) {
        self.engine.hasten_farewells();
    }

    /// Waits until each peer has answered its DREQ, or for 200 ms. A peer that is not there is
    /// waited for as long. Returns whether all have answered.
    pub fn await_farewells(&self) -> bool {
        self.engine.await_farewells()
    }
}

impl Engine {
    /// See [`CmAgent::hasten_farewells`].
    pub(crate) fn hasten_farewells(&self) {
        if self.is_orphan() || self.farewells() == 0 {
            return;
        }
        if let Some(machine) = &mut lock(&self.cm.state).machine {
            machine.hasten_farewells(self.now());
        }
        self.kick_cm();
    }

    /// See [`CmAgent::await_farewells`].
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
            // Another thread may hold the lane and make progress, which serves as well.
            self.progress_inline();
            std::thread::sleep(FAREWELL_LOOK);
        }
        true
    }

    /// Returns the number of our DREQs that are not answered.
    fn farewells(&self) -> usize {
        lock(&self.cm.state).machine.as_ref().map_or(0, Cm::farewells)
    }

    /// Hands the machine's messages to the kernel before the call returns, if that is possible
    /// soon.
    pub(super) fn send_promised(&self) {
        let sent_home = &self.cm.sent_home;
        let before = sent_home.load(Ordering::Acquire);
        // If the time runs out, the lane's holder still sends the messages.
        self.ring_cm();
        let until = Instant::now() + PATIENCE;
        if !self.patiently(until, |lane| lane.send_mads(self, self.now())) {
            let device = &self.info().name;
            tracing::debug!(device, "a message of the connection manager is still to be sent");
        }
        if sent_home.load(Ordering::Acquire) != before {
            // Sender and receivers share the port, so the messages may be in our own sockets.
            self.empty_sockets(until, LOOKS_OF_A_CALL);
        }
    }

    /// Leaves port 4791 to other processes of the host, because the process or the device ends.
    /// Handles what is in the sockets already, since some of it may belong to those processes. The
    /// sockets of an iWARP device are not read.
    pub(crate) fn leave_port(&self) {
        let until = Instant::now() + PATIENCE;
        let aside = self.with_lane_until(until, |lane| {
            lane.step_aside(self.now());
            lane.streams.is_none()
        });
        if aside == Some(true) {
            self.empty_sockets(until, LOOKS_AT_THE_END);
        }
    }

    /// Handles what lies in the sockets now, and hands over what belongs to other processes. Stops
    /// when there is nothing, or after `batches` batches, since more may come all the time. Gives
    /// up at `until`.
    fn empty_sockets(&self, until: Instant, batches: u32) {
        let (mut looks, mut quiet) = (0, 0);
        self.patiently(until, |lane| {
            looks += 1;
            quiet = if lane.empty_sockets(self, self.now()) { quiet + 1 } else { 0 };
            quiet >= QUIET_LOOKS || looks >= batches
        });
    }

    /// Calls `f` with the lane repeatedly, until `f` returns true or the time is up. Returns
    /// whether `f` returned true.
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
