//! Two connection managers with owners who do anything, over a network that loses, doubles and
//! reorders. Seeded: a failure names its seed, which begins the same game again.
//!
//! First chaos; then the network is perfect, every question is answered and time passes: each
//! connection has had one outcome, and both ends agree, unless a REJ of it was lost or too few
//! repeats were allowed; then everything is destroyed, and nothing is left.

use std::collections::{BTreeMap, BTreeSet};

use vernic_wire::cm::{CommId, SidrStatus};

use super::super::{Datagram, SidrReply};
use super::*;

pub(super) const SEEDS: u64 = if cfg!(miri) { 2 } else { 300 };
const STEPS: u32 = if cfg!(miri) { 150 } else { 600 };

/// Xorshift: a test needs variety, not quality.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..8 {
            random.next();
        }
        random
    }
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub(super) fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
    pub(super) fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }
    pub(super) fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// Where a connection is, as its owner knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Active: asked.
    Asked,
    /// Active: the reply is here.
    Replied,
    /// Passive: the request is here.
    Requested,
    /// Passive: accepted.
    Accepted,
    Up,
    DreqSent,
    DreqRcvd,
    /// Down, rejected or unreachable; TIMEWAIT may end.
    Over,
    SidrAsked,
    SidrRequested,
}

struct Peer {
    node: Node,
    conns: BTreeMap<ConnId, Phase>,
    /// Outcomes of what was asked: ready, rejected or unreachable.
    outcomes: BTreeSet<ConnId>,
    /// Ids of each connection that was up, ours and the peer's.
    theirs: BTreeMap<ConnId, CommId>,
    next_qpn: u32,
    /// Connections of which few repeats were allowed, so that their ends may be lost altogether.
    fragile: BTreeSet<CommId>,
}

impl Peer {
    fn new(name: char, gid: Gid, config: CmConfig, backlog: usize) -> Self {
        let mut node = Node::new(name, gid, config);
        node.cm.listen(SERVICE, None, backlog).unwrap();
        node.cm.listen(DATAGRAM_SERVICE, None, backlog).unwrap();
        let next_qpn = u32::from(gid.0[15]) << 16;
        let (conns, outcomes, theirs, fragile) = Default::default();
        Self { node, conns, outcomes, theirs, next_qpn, fragile }
    }

    /// A queue pair, now and then one that had a connection already.
    fn qpn(&mut self, random: &mut Random) -> Qpn {
        if random.percent(10) {
            return Qpn::new(self.next_qpn - random.below(4) as u32);
        }
        self.next_qpn += 1;
        Qpn::new(self.next_qpn)
    }

    /// Follows an event; a wrong one panics.
    fn follow(&mut self, event: Event) {
        let Event { conn, kind } = event;
        let before = self.conns.get(&conn).copied();
        let after = match (before, &kind) {
            (None, EventKind::Request { req, .. }) => {
                self.theirs.insert(conn, req.local_comm_id);
                Some(Phase::Requested)
            }
            (None, EventKind::SidrRequest { .. }) => Some(Phase::SidrRequested),
            (Some(Phase::Asked), EventKind::Reply { rep }) => {
                self.theirs.insert(conn, rep.local_comm_id);
                Some(Phase::Replied)
            }
            (Some(Phase::Asked), EventKind::Rejected { .. } | EventKind::Unreachable { .. }) => {
                assert!(self.outcomes.insert(conn), "a second outcome");
                None
            }
            (Some(Phase::Replied), EventKind::Rejected { .. }) => {
                assert!(self.outcomes.insert(conn), "a second outcome");
                Some(Phase::Over)
            }
            (Some(Phase::Requested), EventKind::Rejected { .. } | EventKind::HalfOpenDropped)
            | (Some(Phase::SidrRequested), EventKind::HalfOpenDropped)
            | (
                Some(Phase::SidrAsked),
                EventKind::SidrReply { .. } | EventKind::Unreachable { .. },
            )
            | (Some(Phase::Over), EventKind::TimewaitExit) => None,
            (
                Some(Phase::Accepted),
                EventKind::Rejected { reason: RejReason::STALE_CONNECTION, .. },
            ) => Some(Phase::Over),
            (
                Some(Phase::Accepted),
                EventKind::Rejected { .. }
                | EventKind::Unreachable { .. }
                | EventKind::HalfOpenDropped,
            ) => None,
            (Some(Phase::Up | Phase::DreqSent), EventKind::Unreachable { .. }) => Some(Phase::Over),
            (Some(Phase::Accepted), EventKind::Established { .. }) => Some(Phase::Up),
            (Some(Phase::Up), EventKind::DisconnectRequest { .. }) => Some(Phase::DreqRcvd),
            (Some(Phase::Up | Phase::DreqSent | Phase::DreqRcvd), EventKind::Disconnected) => {
                Some(Phase::Over)
            }
            (before, kind) => panic!("{} {conn}: {kind:?} in {before:?}", self.node.name),
        };
        match after {
            Some(phase) => self.conns.insert(conn, phase),
            None => self.conns.remove(&conn),
        };
    }

    fn connect(&mut self, now: Time, to: Gid, random: &mut Random) {
        let params = ConnectParams {
            local_qpn: self.qpn(random),
            max_retries: random.one_of(&[None, None, Some(0), Some(3)]),
            qp_type: random.one_of(&[QpType::Rc, QpType::Uc, QpType::XrcIni]),
            service: random.one_of(&[SERVICE, SERVICE, SERVICE, ServiceId(1)]),
            ..params(self.node.gid, to)
        };
        if let Ok(conn) = self.node.cm.connect(now, &params) {
            self.conns.insert(conn, Phase::Asked);
            if params.max_retries.is_some() {
                self.fragile.insert(conn.0);
            }
        }
    }

    /// Answers what waits for the owner, or ends what does not. `calm`: only the former.
    fn act(&mut self, now: Time, conn: ConnId, calm: bool, random: &mut Random) {
        let qpn = self.qpn(random);
        let Some(phase) = self.conns.get(&conn).copied() else { return };
        let cm = &mut self.node.cm;
        let whim = if calm { 0 } else { random.below(10) };
        let after = match (phase, whim) {
            (Phase::Over, _) if calm => return,
            (_, 9) | (Phase::Over, _) => {
                cm.destroy(now, conn);
                None
            }
            (Phase::Requested | Phase::Replied | Phase::Accepted, 8) => {
                cm.reject(now, conn, RejReason::CONSUMER, b"", b"").unwrap();
                None
            }
            (Phase::Requested, _) => {
                let params = AcceptParams { local_qpn: qpn, ..accept_params(self.node.gid) };
                cm.accept(now, conn, &params).unwrap();
                Some(Phase::Accepted)
            }
            (Phase::Replied, _) => {
                cm.ready_to_use(conn, b"").unwrap();
                assert!(self.outcomes.insert(conn), "a second outcome");
                Some(Phase::Up)
            }
            (Phase::Accepted, 7) => {
                cm.notify_established(conn).unwrap();
                return;
            }
            (Phase::Up, 5..) => match cm.disconnect(now, conn, b"") {
                Ok(()) => Some(Phase::DreqSent),
                // It is being ended as stale.
                Err(_) => return,
            },
            (Phase::DreqRcvd, _) => {
                cm.disconnect(now, conn, b"").unwrap();
                Some(Phase::Over)
            }
            (Phase::SidrRequested, _) => {
                let (status, qkey) = (SidrStatus::SUCCESS, Qkey(1));
                let reply = SidrReply { status, qpn, qkey, private_data: b"" };
                cm.sidr_reply(now, conn, &reply).unwrap();
                None
            }
            _ => return,
        };
        match after {
            Some(phase) => self.conns.insert(conn, phase),
            None => self.conns.remove(&conn),
        };
    }
}

struct World {
    peers: [Peer; 2],
    now: Time,
    random: Random,
    /// Datagrams under way, by arrival: to whom, over which path.
    network: BTreeMap<(Time, u64), (usize, CmPath, Mad)>,
    order: u64,
    /// Percent of datagrams.
    loss: u64,
    doubling: u64,
    /// Both ids of connections of which a REJ was lost.
    lost_rejections: BTreeSet<CommId>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut config = |base: u32| CmConfig {
            max_half_open: random.one_of(&[2, 8, 1024]),
            max_connections: random.one_of(&[4, 64, 65_536]),
            max_timewait: random.one_of(&[1, 8, 16_384]),
            ..CmConfig::new(base, 24, base.into())
        };
        let peer = |name, last: u8, config| Peer::new(name, gid(last), config, 8);
        let peers = [peer('A', 1, config(0x0A00_0000)), peer('B', 2, config(0x0B00_0000))];
        let (loss, doubling) = (random.one_of(&[0, 5, 30]), random.one_of(&[0, 5, 30]));
        let (network, lost_rejections) = Default::default();
        Self { peers, now: Time(0), random, network, order: 0, loss, doubling, lost_rejections }
    }

    fn send(&mut self, to: usize, path: CmPath, mad: &Mad) {
        let delay = match self.random.below(20) {
            0 => self.random.below(2_000 * MS),
            1..10 => self.random.below(20 * MS),
            _ => 0,
        };
        self.order += 1;
        self.network.insert((self.now + delay, self.order), (to, path, *mad));
    }

    /// Takes what the peers have to send and to tell.
    fn collect(&mut self) {
        for from in 0..2 {
            while let Some(sent) = self.peers[from].node.cm.poll_transmit() {
                let Datagram { path, mad, .. } = sent;
                if self.random.percent(self.loss) {
                    if let CmMessage::Rej(rej) = CmMessage::parse(&mad).unwrap().1 {
                        self.lost_rejections.extend([rej.local_comm_id, rej.remote_comm_id]);
                    }
                    continue;
                }
                self.send(1 - from, path, &mad);
                while self.random.percent(self.doubling) {
                    self.send(1 - from, path, &mad);
                }
            }
            while let Some(event) = self.peers[from].node.cm.poll_event() {
                self.peers[from].follow(event);
            }
            self.peers[from].node.cm.table.assert_consistent();
        }
    }

    fn next_time(&self) -> Option<Time> {
        let arrival = self.network.first_key_value().map(|((at, _), _)| *at);
        let timers = self.peers.iter().map(|peer| peer.node.cm.next_deadline());
        timers.chain([arrival]).flatten().min()
    }

    /// Goes on to `until`, or to where nothing is under way.
    fn run(&mut self, until: Time, calm: bool) {
        let mut turns = 0;
        self.collect();
        while let Some(at) = self.next_time().filter(|at| *at <= until) {
            turns += 1;
            assert!(turns < 200_000, "it never ends");
            self.now = self.now.max(at);
            while let Some(entry) = self.network.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let (to, path, mad) = entry.remove();
                let _ = self.peers[to].node.cm.handle_mad(self.now, turned(path), &mad);
            }
            for peer in &mut self.peers {
                peer.node.cm.handle_timeout(self.now);
            }
            self.collect();
            if calm {
                self.act_on_all(true);
            }
        }
        self.now = self.now.max(until);
    }

    fn act_on_all(&mut self, calm: bool) {
        for peer in &mut self.peers {
            for conn in peer.conns.keys().copied().collect::<Vec<_>>() {
                peer.act(self.now, conn, calm, &mut self.random);
            }
        }
        self.collect();
    }

    fn chaos(&mut self) {
        for _ in 0..STEPS {
            let (who, random) = (self.random.below(2) as usize, &mut self.random);
            let (peer, to) = (&mut self.peers[who], gid(2 - who as u8));
            match random.below(8) {
                0 | 1 => peer.connect(self.now, to, random),
                2 => {
                    let params = sidr_params(peer.node.gid, to);
                    if let Ok(conn) = peer.node.cm.sidr_request(self.now, &params) {
                        peer.conns.insert(conn, Phase::SidrAsked);
                    }
                }
                _ => {
                    let conns = peer.conns.keys().copied().collect::<Vec<_>>();
                    if !conns.is_empty() {
                        let conn = random.one_of(&conns);
                        peer.act(self.now, conn, false, random);
                    }
                }
            }
            let pause = self.random.one_of(&[0, 0, 1, 10, 100, 1_000, 9_000]);
            self.run(self.now + pause * MS, false);
        }
    }

    /// Every connection that is up is up at the other end, or a REJ of it was lost.
    fn assert_agreement(&self) {
        for (here, there) in [(0, 1), (1, 0)] {
            let (here, there) = (&self.peers[here], &self.peers[there]);
            for (conn, phase) in &here.conns {
                assert!(
                    matches!(phase, Phase::Up),
                    "{} {conn} is in {phase:?} when all is quiet",
                    here.node.name
                );
                let theirs = here.theirs[conn];
                let other = there.conns.keys().find(|other| other.0 == theirs);
                let mutual = other.is_some_and(|other| {
                    there.conns[other] == Phase::Up && there.theirs[other] == conn.0
                });
                let excused = [theirs, conn.0].iter().any(|id| {
                    self.lost_rejections.contains(id)
                        || here.fragile.contains(id)
                        || there.fragile.contains(id)
                });
                assert!(
                    mutual || excused,
                    "{} believes in {conn}, the peer not in {theirs}",
                    here.node.name
                );
            }
        }
    }
}

fn play(seed: u64) {
    let mut world = World::new(seed);
    world.chaos();
    (world.loss, world.doubling) = (0, 0);
    world.act_on_all(true);
    world.run(world.now + 3_600_000 * MS, true);
    world.assert_agreement();
    for peer in &mut world.peers {
        for conn in std::mem::take(&mut peer.conns).into_keys() {
            peer.node.cm.destroy(world.now, conn);
        }
    }
    world.run(world.now + 3_600_000 * MS, true);
    for peer in &world.peers {
        let left = peer.node.cm.occupancy();
        assert_eq!((left.live, left.half_open, left.timewait), (0, 0, 0));
        assert_eq!(peer.node.cm.counters().outbox_full, 0);
    }
}

#[test]
fn two_managers_agree_whatever_the_network_does() {
    for seed in 0..SEEDS {
        let result = std::panic::catch_unwind(|| play(seed));
        assert!(result.is_ok(), "seed {seed}");
    }
}
