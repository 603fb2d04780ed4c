//! Hosts that have not answered a request for a connection by RoCE.
//!
//! An unanswered request is repeated for a minute. Where the host's UDP port of RoCE is closed, no
//! process there uses RoCE, and the host reports the closed port by ICMP: then the request is
//! refused here, as a process without such a service would refuse it. Owns the requests that are
//! watched. The worker's thread probes the host from [`FIRST_LOOK`] on, until ICMP reports a closed
//! port, the request is answered, or [`LONGEST`] is over. One probe is not enough, because hosts
//! limit their ICMP messages: Linux sends each peer one a second, and the repeats of the request
//! use some of these. After [`TELL_AFTER`] without any answer the log says so, for the programs
//! that do not: a firewall would keep them waiting for a minute. A peer at this end's own address
//! is not probed, since this process has the port open itself.
//!
//! Limits: one entry and one socket per request.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vernic_io::{PortProbe, ROCE_PORT};
use vernic_proto::cm::ConnId;

use crate::device::Agent;
use crate::route;
use crate::sync::lock;

/// Time from the request to the first probe: much longer than an answer on the same network takes.
const FIRST_LOOK: Duration = Duration::from_millis(400);
/// Time between polls of one probe.
const PAUSE: Duration = Duration::from_millis(50);
/// How long one probe waits for an answer before the next is sent: four probes fit into the second
/// in which a host sends one ICMP message.
const PATIENCE: Duration = Duration::from_millis(250);
/// The number of probes with this wait; for each further probe the wait doubles.
const EAGER: u32 = 16;
/// How long a request goes without an answer before the log says so.
const TELL_AFTER: Duration = Duration::from_secs(2);
/// How long a request is repeated by default.
const LONGEST: Duration = Duration::from_secs(62);

/// A request whose peer's host is watched.
struct Watch {
    agent: Arc<dyn Agent>,
    conn: ConnId,
    local: SocketAddr,
    peer: SocketAddr,
    /// The current probe, and when to give it up.
    probe: Option<(PortProbe, Instant)>,
    patience: Duration,
    probes: u32,
    /// When the log says that there is no answer; `None` once it has.
    tell_at: Option<Instant>,
    until: Instant,
    next: Instant,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("peer", &self.peer).field("conn", &self.conn).finish()
    }
}

fn is_own_host(local: SocketAddr, peer: SocketAddr) -> bool {
    peer.ip() == local.ip()
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// No result yet.
    Open,
    /// The host has reported the port as closed.
    Closed,
    /// The time is over, or the host cannot be probed.
    Nothing,
}

impl Watch {
    fn new(
        agent: &Arc<dyn Agent>,
        conn: ConnId,
        (local, peer): (SocketAddr, SocketAddr),
        now: Instant,
    ) -> Self {
        let first = if is_own_host(local, peer) { TELL_AFTER } else { FIRST_LOOK };
        Self {
            agent: agent.clone(),
            conn,
            local,
            peer,
            probe: None,
            patience: PATIENCE,
            probes: 0,
            tell_at: Some(now + TELL_AFTER),
            until: now + LONGEST,
            next: now + first,
        }
    }

    fn look(&mut self, now: Instant) -> Finding {
        self.next = now + PAUSE;
        if self.tell_at.is_some_and(|at| at <= now) {
            self.tell_at = None;
            self.tell();
        }
        match &self.probe {
            Some((probe, _)) if probe.is_refused() => Finding::Closed,
            Some((_, until)) if now < *until => Finding::Open,
            _ if now >= self.until => Finding::Nothing,
            _ if self.is_own_host() => Finding::Nothing,
            _ => {
                let peer = route::with_port(self.peer, ROCE_PORT);
                let probe = PortProbe::send(route::local(self.local), peer);
                self.probe = probe.ok().map(|probe| (probe, now + self.patience));
                self.probes += 1;
                if self.probes > EAGER {
                    self.patience *= 2;
                }
                let is_done = self.probe.is_none() && self.tell_at.is_none();
                if is_done { Finding::Nothing } else { Finding::Open }
            }
        }
    }

    /// Whether the peer is at the address that the request comes from.
    fn is_own_host(&self) -> bool {
        is_own_host(self.local, self.peer)
    }

    /// Says that nothing has answered the request yet, unless something has meanwhile.
    fn tell(&self) {
        let Ok(Some(times)) = self.agent.sent_unanswered(self.conn) else { return };
        if self.is_own_host() {
            let (peer, seconds) = (self.peer, TELL_AFTER.as_secs());
            tracing::warn!(
                %peer,
                "no answer to the connection request for {seconds} s, sent {times} times to a process of this \
                 host: is it stopped, or short of cores, or are packets lost on purpose (VERNIC_FAULT, --loss)? \
                 The request is repeated, for a minute unless the program says otherwise"
            );
            return;
        }
        let (peer, seconds, host) = (self.peer, TELL_AFTER.as_secs(), self.peer.ip());
        tracing::warn!(
            %peer,
            "no answer to the connection request for {seconds} s, sent {times} times: is the host up, and do \
             both hosts' firewalls let UDP port {ROCE_PORT} through? `vernic doctor {host}` looks. The request \
             is repeated, for a minute unless the program says otherwise"
        );
    }

    /// Refuses the request, unless it was answered meanwhile.
    fn refuse(&self) {
        if self.agent.refuse(self.conn) == Ok(true) {
            let peer = self.peer;
            tracing::warn!(
                %peer,
                "connection refused: the peer's host takes no RoCEv2, its UDP port {ROCE_PORT} is closed (no \
                 program there has a RoCE device open). If the peer listens by iWARP, run this program with \
                 `vernic run --iwarp` (VERNIC_TRANSPORT=iwarp), or VERNIC_TRANSPORT=both to find out"
            );
        }
    }
}

/// The requests that are watched.
#[derive(Debug, Default)]
pub(crate) struct SilentHosts(Mutex<Vec<Watch>>);

impl SilentHosts {
    /// Watches the host of `peer` for this request.
    pub(crate) fn add(
        &self,
        agent: &Arc<dyn Agent>,
        conn: ConnId,
        local: SocketAddr,
        peer: SocketAddr,
    ) {
        lock(&self.0).push(Watch::new(agent, conn, (local, peer), Instant::now()));
    }

    /// Ends the watch of a request that was answered, or whose id is gone.
    pub(crate) fn remove(&self, conn: ConnId) {
        lock(&self.0).retain(|watch| watch.conn != conn);
    }

    /// Polls the watches that are due. Returns the time until the next is due.
    pub(crate) fn progress(&self) -> Option<Duration> {
        let now = Instant::now();
        let is_due = |watch: &mut Watch| watch.next <= now;
        let due: Vec<_> = lock(&self.0).extract_if(.., is_due).collect();
        for mut watch in due {
            match watch.look(now) {
                Finding::Open => lock(&self.0).push(watch),
                Finding::Closed => watch.refuse(),
                Finding::Nothing => {}
            }
        }
        let next = lock(&self.0).iter().map(|watch| watch.next).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use vernic_wire::cm::CommId;

    use super::*;
    use crate::testing::FakeAgent;

    #[test]
    fn a_request_to_this_host_is_told_of_when_nothing_answers_and_nothing_is_probed() {
        let fake = Arc::new(FakeAgent::default());
        let agent: Arc<dyn Agent> = fake.clone();
        let ends = ("127.0.0.1:0".parse().unwrap(), "127.0.0.1:7174".parse().unwrap());
        let now = Instant::now();
        let mut watch = Watch::new(&agent, ConnId(CommId(7), 0), ends, now);
        assert_eq!(watch.next, now + TELL_AFTER);
        assert_eq!(watch.look(now + TELL_AFTER), Finding::Nothing);
        assert_eq!(fake.asked(), ["sent unanswered 7"]);
        assert_eq!(watch.probes, 0);
    }
}
