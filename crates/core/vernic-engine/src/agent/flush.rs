//! Sends the messages of a CM call before the call returns, and repeats DREQs when the process
//! ends.
//!
//! With a hardware device, the kernel has sent the message of a call when the call returns, so a
//! program may end by `_exit`, or be killed, right after it. Here the lane sends, and another
//! thread may have the lane. So a call with a message waits for the lane, and for room in the
//! socket ([`Engine::send_promised`]).
//!
//! If a message goes to port 4791 of this host, the kernel may put it into the socket of any
//! process that shares the port, even of the sender. What is in a socket is lost when its process
//! ends. So the sender reads its own sockets before the call returns, and hands over the messages
//! of other processes. This is needed with `force_wire` only; otherwise a message to a process of
//! this host is sent to that process's own port.
//!
//! With a hardware device, the kernel repeats a DREQ until the peer answers, even if the process is
//! gone. Here the process itself waits for the answers when it ends by `exit` or closes the device.
//! It waits [`FAREWELL`] at most, and repeats its DREQs at short intervals meanwhile
//! ([`CmAgent::await_farewells`]). A process that is killed, or ends by `_exit`, has sent its DREQ
//! once if it had disconnected before, and otherwise never.
//!
//! Limits: a call waits [`PATIENCE`] at most. Waiting longer would be in vain if the lane belongs
//! to this same thread, which a signal handler has interrupted to make the call.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vernic_proto::cm::Cm;

use super::CmAgent;
use crate::lane::protocol::Lane;
use crate::progress::engine::Engine;
use crate::support::events::lock;

/// How long a call waits at most for its message to be sent. The thread that has the lane needs
/// only microseconds, if it runs.
const PATIENCE: Duration = Duration::from_millis(100);

/// The pause until a call tries again to send. After it, a full socket has room, and a link polls
/// those of its sockets again that had no packets lately.
const AGAIN: Duration = Duration::from_micros(60);

/// The number of polls in a row that must find nothing before all sockets of a link count as empty.
/// One poll may skip sockets that had no packets lately.
const QUIET_POLLS: u32 = 2;

/// Largest number of batches that a call reads from the sockets. The datagram that it sent is in
/// one of the first, and the call must not go on for as long as others send.
const POLLS_OF_A_CALL: u32 = 8;

/// Largest number of batches that are read at the end of a process, when nothing new comes. It is
/// more than the sockets hold.
const POLLS_AT_THE_END: u32 = 4096;

/// How long a process that ends waits for its peers to answer its DREQs. It is long enough for so
/// many repetitions that a path which loses one datagram in ten delivers one.
const FAREWELL: Duration = Duration::from_millis(200);

/// The interval at which a process that ends polls for answers. Within one site, peers answer at
/// once.
const FAREWELL_LOOK: Duration = Duration::from_micros(500);

impl CmAgent {
    /// Makes DREQs repeat at short intervals from now on, because the process ends. See
    /// [`await_farewells`](Self::await_farewells).
    pub fn hasten_farewells(&self) {
        self.engine.hasten_farewells();
    }

    /// Waits until all peers have answered this process's DREQs, for 200 ms at most. A peer that is
    /// not there never answers. Returns whether all have answered.
    pub fn await_farewells(&self) -> bool {
        self.engine.await_farewells()
    }
}

impl Engine {
    /// Makes DREQs repeat at short intervals; see [`CmAgent::hasten_farewells`].
    pub(crate) fn hasten_farewells(&self) {
        if self.is_orphan() || self.farewells() == 0 {
            return;
        }
        if let Some(machine) = &mut lock(&self.cm.state).machine {
            machine.hasten_farewells(self.now());
        }
        self.kick_cm();
    }

    /// Waits until all peers have answered; see [`CmAgent::await_farewells`].
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
            // If another thread has the lane, that thread makes the progress instead.
            self.progress_inline();
            std::thread::sleep(FAREWELL_LOOK);
        }
        true
    }

    /// Returns the number of DREQs of this process that are not answered yet.
    fn farewells(&self) -> usize {
        lock(&self.cm.state).machine.as_ref().map_or(0, Cm::farewells)
    }

    /// Gives the machine's messages to the kernel before the call returns, if that is possible
    /// within [`PATIENCE`].
    pub(super) fn send_promised(&self) {
        let sent_home = &self.cm.sent_home;
        let before = sent_home.load(Ordering::Acquire);
        // If the time is not enough, the thread that has the lane sends the messages later.
        self.ring_cm();
        let until = Instant::now() + PATIENCE;
        if !self.patiently(until, |lane| lane.send_mads(self, self.now())) {
            let device = &self.info().name;
            tracing::debug!(device, "a message of the connection manager is still to be sent");
        }
        if sent_home.load(Ordering::Acquire) != before {
            // The messages went to a port that this process shares with others, so they may be in
            // its own sockets.
            self.empty_sockets(until, POLLS_OF_A_CALL);
        }
    }

    /// Stops receiving from the shared port 4791, because the process or the device ends. Handles
    /// what is in the sockets already, because it may belong to other processes of the host. The
    /// sockets of an iWARP device are not read.
    pub(crate) fn leave_port(&self) {
        let until = Instant::now() + PATIENCE;
        let aside = self.with_lane_until(until, |lane| lane.leave_shared_port(self.now()));
        if aside == Some(true) {
            self.empty_sockets(until, POLLS_AT_THE_END);
        }
    }

    /// Handles what is in the sockets now, and hands over what belongs to other processes. Stops
    /// when the sockets are empty, after `batches` batches (because more may come all the time), or
    /// at `until`.
    fn empty_sockets(&self, until: Instant, batches: u32) {
        let (mut polls, mut quiet) = (0, 0);
        self.patiently(until, |lane| {
            polls += 1;
            quiet = if lane.empty_sockets(self, self.now()) { quiet + 1 } else { 0 };
            quiet >= QUIET_POLLS || polls >= batches
        });
    }

    /// Calls `f` with the lane repeatedly, until it returns true or the time `until` is reached.
    /// Returns whether `f` returned true.
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
