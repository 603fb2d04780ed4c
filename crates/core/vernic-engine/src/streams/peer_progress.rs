//! Finds peers with hosts that no longer answer.
//!
//! If a host vanishes, TCP gives it up after a quarter of an hour if there is unacknowledged data,
//! and never if there is none. In the second case, the kernel probes silent peers (keep-alive, RFC
//! 9293, 3.8.4). In the first case, this module checks the connections, a few times per
//! [timeout](crate::Config::iwarp_peer_timeout_s). TCP_USER_TIMEOUT is not used, because it also
//! ends connections to a program that is stopped and reads nothing, although its TCP answers. Such
//! a peer is kept as long as its TCP acknowledges.
//!
//! If the peer has no room to receive, the kernel probes it at intervals that grow up to two
//! minutes. If the host of such a peer vanishes, that is noticed up to two minutes later.

use std::time::Duration;

use vernic_io::tcp::{Connection, Vitals};
use vernic_proto::Time;
use vernic_proto::iwarp::StreamEnd;

use super::{Conn, Streams, with_stream};
use crate::device::opened::Device;
use crate::sched::Scheduler;
use crate::support::events::lock;

/// The number of checks during the time after which a peer is given up. So the end of a peer is
/// noticed late by at most a quarter of that time.
const CHECKS: u64 = 4;

/// What is known of how long a peer has not acknowledged data.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerProgress {
    /// The time of the first of the last checks in a row that found unacknowledged data.
    silent_since: Option<Time>,
    is_gone: bool,
}

impl PeerProgress {
    /// Whether the peer was given up.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Takes what the kernel reports. Returns whether the peer has not answered for too long.
    fn check(&mut self, vitals: Vitals, now: Time, timeout: u64) -> bool {
        let silent = vitals.silent.as_nanos().min(u128::from(u64::MAX)) as u64;
        // If an answer came after the first check, the data that is unacknowledged now was sent
        // later.
        let since = self.silent_since.filter(|since| silent >= now.since(*since));
        self.silent_since = vitals.waits.then(|| since.unwrap_or(now));
        self.is_gone = self.silent_since.is_some_and(|since| now.since(since) >= timeout);
        self.is_gone
    }
}

/// Returns the nanoseconds after which a silent peer is given up; 0 for never.
fn timeout(engine: &Device) -> u64 {
    u64::from(engine.config().iwarp_peer_timeout_s) * 1_000_000_000
}

impl Streams {
    /// Starts to check the peer of a new connection.
    pub(super) fn expect_life(&mut self, engine: &Device, connection: &Connection, now: Time) {
        let timeout = timeout(engine);
        if timeout == 0 {
            return;
        }
        // If the kernel refuses keep-alive, which no known kernel does, the connection is still
        // checked here.
        let _ = connection.keep_alive(Duration::from_nanos(timeout));
        self.check_at.get_or_insert(now + timeout / CHECKS);
    }

    /// Returns the latest time at which [`check_peers`](Self::check_peers) must be called.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        [self.check_at, self.lingering.next_deadline()].into_iter().flatten().min()
    }

    /// Returns the queue pair numbers of connections with peers that have been silent for too long.
    fn find_gone(&mut self, engine: &Device, now: Time) -> Vec<u32> {
        let timeout = timeout(engine);
        let is_gone = |conn: &mut Conn| {
            let vitals = conn.connection.vitals();
            !conn.ended && vitals.is_ok_and(|vitals| conn.peer_progress.check(vitals, now, timeout))
        };
        let gone =
            self.connections.iter_mut().filter_map(|(key, conn)| is_gone(conn).then_some(*key));
        let gone = gone.collect();
        self.check_at = (!self.connections.is_empty()).then(|| now + timeout / CHECKS);
        gone
    }
}

impl Streams {
    /// Gives up peers that do not answer, and lingering connections with no time left.
    pub(crate) fn check_peers(&mut self, engine: &Device, sched: &mut Scheduler, now: Time) {
        if self.next_deadline().is_none_or(|next| next > now) {
            return;
        }
        let Self { watch, lingering, check_at, buffer, .. } = self;
        lingering.handle_timeout(watch, buffer, &engine.counts().streams, now);
        if check_at.is_none_or(|next| next > now) {
            return;
        }
        for key in self.find_gone(engine, now) {
            let Some(conn) = self.connections.get_mut(&key) else { continue };
            conn.ended = true;
            let qp = conn.qp.clone();
            let mut core = lock(&qp.core);
            with_stream(engine, &qp, now, &mut core, |machine, host| {
                machine.handle_end(now, StreamEnd::TimedOut, 0, host);
            });
            self.end_turn(engine, sched, &qp, &mut core, now, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_gone_that_leaves_one_question_without_an_answer_for_too_long() {
        let (mut peer_progress, second) = (PeerProgress::default(), 1_000_000_000);
        let mut check = |at: u64, waits, silent_s| {
            let vitals = Vitals { waits, silent: Duration::from_secs(silent_s) };
            peer_progress.check(vitals, Time(at * second), 10 * second)
        };
        // The peer has been silent for long, but only because nothing was sent to it.
        assert!(!check(100, false, 99));
        assert!(!check(101, true, 100));
        assert!(!check(110, true, 109));
        assert!(check(111, true, 110));
        // The peer answers and is sent data again, so it was not silent all the time.
        let mut peer_progress = PeerProgress::default();
        let mut check = |at: u64, waits, silent_s| {
            let vitals = Vitals { waits, silent: Duration::from_secs(silent_s) };
            peer_progress.check(vitals, Time(at * second), 10 * second)
        };
        for at in (0..100).step_by(9) {
            assert!(!check(at, true, 8), "{at}");
        }
        assert!(!check(100, false, 9));
        assert!(!check(109, true, 18));
        assert!(!check(118, true, 27));
    }
}
