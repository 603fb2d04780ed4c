//! All connections and exchanges, and the ways to find them. Keeps the indices, the timers and the
//! counts of the limits in step with the states; knows no message.

use std::collections::{BTreeMap, BTreeSet};

use vernic_wire::cm::{CmAttribute, CommId, Req, ServiceId};
use vernic_wire::mad::MAD_LEN;
use vernic_wire::{Gid, Psn, Qpn};

use super::exchange::{Exchange, Progress};
use super::ids::Permutation;
use super::listener::Turn;
use super::params::{CmConfig, CmPath, ConnId, ListenerId};
use super::state::{Group, State};
use crate::shares::{Shares, Source};
use crate::time::Time;

/// A datagram.
pub(super) type Mad = [u8; MAD_LEN];

/// What two copies of one REQ have in common, and another REQ of the same id has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReqIdentity {
    service: ServiceId,
    ca_guid: u64,
    qpn: Qpn,
    psn: Psn,
}

impl ReqIdentity {
    pub(super) fn of(req: &Req) -> Self {
        let (service, ca_guid) = (req.service_id, req.local_ca_guid);
        Self { service, ca_guid, qpn: req.local_qpn, psn: req.starting_psn }
    }
}

/// A queue pair of a peer: its address, the GUID of its device, its number. GUID and number are
/// what the peer says, so they mean something beside its address only: a stranger's words are about
/// nobody else.
pub(super) type RemoteQp = (Gid, u64, Qpn);

/// A connection, or an exchange of SIDR messages.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) state: State,
    /// The owner is told what happens, and may give commands.
    pub(super) owned: bool,
    pub(super) path: CmPath,
    /// The peer's id, [`CommId::NONE`] while unknown. The request id of a SIDR_REQ that came.
    pub(super) remote_id: CommId,
    /// Transaction id of what is being asked or answered.
    pub(super) transaction_id: u64,
    pub(super) service: ServiceId,
    pub(super) local_qpn: Qpn,
    /// The peer's queue pair; 0 while unknown.
    pub(super) remote_qpn: Qpn,
    pub(super) local_guid: u64,
    pub(super) remote_guid: u64,
    /// Of a connection that was asked for.
    pub(super) req: Option<ReqIdentity>,
    /// Of XRC queue pairs.
    pub(super) xrc: bool,
    /// Alternate path of the REQ, until the connection is up.
    pub(super) offered: Option<CmPath>,
    /// Alternate paths that both ends have agreed on, the last one first.
    pub(super) others: [Option<CmPath>; 2],
    /// The exchange about an alternate path, of a connection that is up.
    pub(super) lap: Option<Box<Exchange>>,
    /// The listener in whose backlog it counts.
    pub(super) backlog: Option<ListenerId>,
    /// Nanoseconds between two repeats of a message.
    pub(super) wait: u64,
    /// How long the peer waits for our answer to its REQ or REP; exponent, cut.
    pub(super) peer_waits: u8,
    pub(super) max_retries: u8,
    /// How often the present message was repeated for want of an answer.
    pub(super) retries: u8,
    /// And how often in all, with the repeats that duplicates of the peer's asked for.
    pub(super) repeats: u8,
    /// How often the peer asked for time for it.
    pub(super) mras: u8,
    /// Nanoseconds by which that has put off the next repeat, in all.
    pub(super) extended: u64,
    /// Since when it may be stale, though its queue pair had just heard the peer.
    pub(super) doubted: Option<Time>,
    /// Nanoseconds of TIMEWAIT.
    pub(super) timewait: u64,
    /// The message that the timer repeats and duplicates of what it answers get.
    pub(super) last: Option<Box<Mad>>,
    deadline: Option<Time>,
    /// The how-manieth entry it is; counted round.
    number: u32,
    /// Place in its group.
    age: u64,
}

impl Conn {
    /// A new one in `state`; the owner's.
    pub(super) fn new(state: State, path: CmPath, service: ServiceId) -> Self {
        Self {
            state,
            owned: true,
            path,
            remote_id: CommId::NONE,
            transaction_id: 0,
            service,
            local_qpn: Qpn::new(0),
            remote_qpn: Qpn::new(0),
            local_guid: 0,
            remote_guid: 0,
            req: None,
            xrc: false,
            offered: None,
            others: [None; 2],
            lap: None,
            backlog: None,
            wait: 0,
            peer_waits: 0,
            max_retries: 0,
            retries: 0,
            repeats: 0,
            mras: 0,
            extended: 0,
            doubted: None,
            timewait: 0,
            last: None,
            deadline: None,
            number: 0,
            age: 0,
        }
    }
    /// How long the answer to the present message is waited for, at most: as the fields say, but
    /// less at first and then twice as long each time, since what was lost in the network is not
    /// coming.
    pub(super) fn answer_wait(&self, first: u64) -> u64 {
        self.wait.min(first << self.retries.min(8))
    }
    /// When its timer fires.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }
    /// Whether a datagram has the ends of one of the connection's paths, or of one that was
    /// offered: the other end may have agreed before we know.
    pub(super) fn is_on(&self, path: &CmPath) -> bool {
        let loading = self.lap.as_ref().filter(|lap| lap.progress == Progress::Sent);
        let mut may_be = [self.offered, loading.map(|lap| lap.alternate)].into_iter().flatten();
        self.has_agreed_on(path) || may_be.any(|own| own.same_ends(path))
    }
    fn has_agreed_on(&self, path: &CmPath) -> bool {
        self.path.same_ends(path) || self.others.iter().flatten().any(|own| own.same_ends(path))
    }
    /// Both ends have agreed on one more path.
    pub(super) fn agree_on(&mut self, path: CmPath) {
        if !self.has_agreed_on(&path) {
            self.others = [Some(path), self.others[0]];
        }
    }
    /// Which path a message takes that was sent `repeats` times: all of them in turn, since one
    /// may have failed.
    pub(super) fn way(&self, repeats: u8) -> CmPath {
        let ways = self.others.iter().flatten().count() + 1;
        match usize::from(repeats) % ways {
            0 => self.path,
            other => self.others.iter().flatten().nth(other - 1).copied().unwrap_or(self.path),
        }
    }
    /// Which message `last` is.
    pub(super) fn last_attribute(&self) -> Option<CmAttribute> {
        let last = self.last.as_ref()?;
        Some(CmAttribute(u16::from_be_bytes([last[16], last[17]])))
    }
    /// What it is in the backlog of its listener.
    pub(super) fn turn(&self) -> Turn {
        (self.source(), self.number.into())
    }
    /// Whom it counts for.
    fn source(&self) -> Source {
        Source::of(self.path.peer())
    }
    fn remote_key(&self) -> (Gid, CommId) {
        (self.path.peer(), self.remote_id)
    }
    fn qp_key(&self) -> Option<RemoteQp> {
        let key = (self.path.peer(), self.remote_guid, self.remote_qpn);
        (self.remote_qpn.value() != 0).then_some(key)
    }
    /// Whether the peer began it, so that it is found by the peer's id.
    fn is_passive(&self) -> bool {
        self.req.is_some()
    }
    fn is_sidr_server(&self) -> bool {
        matches!(self.state, State::SidrReqRcvd | State::SidrDone)
    }
}

#[derive(Debug)]
pub(super) struct Table {
    conns: BTreeMap<CommId, Conn>,
    /// Connections that were asked for, by the peer's GID and communication id.
    by_remote: BTreeMap<(Gid, CommId), CommId>,
    /// Connections by the queue pair of the peer.
    by_remote_qp: BTreeMap<RemoteQp, CommId>,
    /// SIDR_REQs that came, by the peer's GID and request id.
    by_request: BTreeMap<(Gid, CommId), CommId>,
    timers: BTreeSet<(Time, CommId)>,
    /// Timers of exchanges about alternate paths.
    lap_timers: BTreeSet<(Time, CommId)>,
    /// LAPs of ours that ended with their connections: the owner has not heard of it.
    cut_laps: Vec<CommId>,
    half_open: Shares<CommId>,
    remembered: BTreeMap<u64, CommId>,
    next_age: u64,
    id_base: u32,
    id_mask: u32,
    ids: Permutation,
    /// The next number that goes through the permutation.
    next_id: u32,
    next_number: u32,
}

impl Table {
    pub(super) fn new(config: &CmConfig) -> Self {
        let id_mask = u32::MAX >> (32 - config.id_bits.clamp(8, 32));
        Self {
            conns: BTreeMap::new(),
            by_remote: BTreeMap::new(),
            by_remote_qp: BTreeMap::new(),
            by_request: BTreeMap::new(),
            timers: BTreeSet::new(),
            lap_timers: BTreeSet::new(),
            cut_laps: Vec::new(),
            half_open: Shares::default(),
            remembered: BTreeMap::new(),
            next_age: 0,
            id_base: config.id_base & !id_mask,
            id_mask,
            ids: Permutation::new(config.seed, id_mask.count_ones()),
            next_id: 0,
            next_number: 0,
        }
    }

    /// Entries that the limit on connections counts.
    pub(super) fn live(&self) -> usize {
        self.conns.len() - self.remembered.len()
    }
    pub(super) fn half_open(&self) -> usize {
        self.half_open.len()
    }
    pub(super) fn remembered(&self) -> usize {
        self.remembered.len()
    }
    /// Which request goes where there is no room for one more of a peer: the oldest of whose there
    /// are most.
    pub(super) fn half_open_too_many(&self, remote: Gid) -> Option<CommId> {
        self.half_open.victim(Source::of(remote))
    }
    pub(super) fn oldest_remembered(&self) -> Option<CommId> {
        self.remembered.values().next().copied()
    }

    pub(super) fn conn(&self, id: CommId) -> Option<&Conn> {
        self.conns.get(&id)
    }
    /// The same, if the id's present entry is this one.
    pub(super) fn entry(&self, conn: ConnId) -> Option<&Conn> {
        self.conns.get(&conn.0).filter(|entry| entry.number == conn.1)
    }
    /// What the owner knows an entry by.
    pub(super) fn conn_id(&self, id: CommId) -> ConnId {
        ConnId(id, self.conns.get(&id).map_or(0, |entry| entry.number))
    }
    /// All entries.
    pub(super) fn iter(&self) -> impl Iterator<Item = (CommId, &Conn)> {
        self.conns.iter().map(|(id, conn)| (*id, conn))
    }
    /// The fields that indices and groups depend on have setters of their own.
    pub(super) fn conn_mut(&mut self, id: CommId) -> Option<&mut Conn> {
        self.conns.get_mut(&id)
    }
    pub(super) fn by_remote(&self, remote: Gid, id: CommId) -> Option<CommId> {
        self.by_remote.get(&(remote, id)).copied()
    }
    pub(super) fn by_remote_qp(&self, peer: RemoteQp) -> Option<CommId> {
        self.by_remote_qp.get(&peer).copied()
    }
    pub(super) fn by_request(&self, remote: Gid, id: CommId) -> Option<CommId> {
        self.by_request.get(&(remote, id)).copied()
    }

    /// An id that names nothing, or `None` if all are taken. All have their turn, so that one
    /// that was used comes back as late as possible.
    fn allocate(&mut self) -> Option<CommId> {
        // One of these many numbers is free, 0 not counted; unless all ids are taken.
        for _ in 0..=self.conns.len() + 1 {
            let id = CommId(self.id_base | self.ids.apply(self.next_id & self.id_mask));
            self.next_id = self.next_id.wrapping_add(1);
            if id != CommId::NONE && !self.conns.contains_key(&id) {
                return Some(id);
            }
        }
        None
    }

    /// Adds an entry under a new id; `None` if there is none.
    pub(super) fn insert(&mut self, conn: Conn) -> Option<CommId> {
        let id = self.allocate()?;
        self.insert_as(id, conn);
        Some(id)
    }
    /// Adds an entry under an id that names nothing.
    pub(super) fn insert_as(&mut self, id: CommId, mut conn: Conn) {
        conn.number = self.next_number;
        self.next_number = self.next_number.wrapping_add(1);
        conn.age = self.enter(id, conn.state.group(), conn.source());
        if conn.is_passive() {
            self.by_remote.insert(conn.remote_key(), id);
        }
        if conn.is_sidr_server() {
            self.by_request.insert(conn.remote_key(), id);
        }
        if let Some(key) = conn.qp_key() {
            self.by_remote_qp.insert(key, id);
        }
        self.conns.insert(id, conn);
    }

    /// Takes the entry out, with all that points to it.
    pub(super) fn remove(&mut self, id: CommId) -> Option<Conn> {
        self.end_lap(id);
        let conn = self.conns.remove(&id)?;
        self.leave(conn.state.group(), conn.age, conn.source());
        if let Some(deadline) = conn.deadline {
            self.timers.remove(&(deadline, id));
        }
        // Another entry may have taken the key over.
        if self.by_remote.get(&conn.remote_key()) == Some(&id) {
            self.by_remote.remove(&conn.remote_key());
        }
        if self.by_request.get(&conn.remote_key()) == Some(&id) {
            self.by_request.remove(&conn.remote_key());
        }
        if let Some(key) = conn.qp_key()
            && self.by_remote_qp.get(&key) == Some(&id)
        {
            self.by_remote_qp.remove(&key);
        }
        Some(conn)
    }

    pub(super) fn set_state(&mut self, id: CommId, state: State) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (before, age, source) = (conn.state.group(), conn.age, conn.source());
        conn.state = state;
        if state != State::Established {
            if conn.lap.as_ref().is_some_and(|lap| lap.progress == Progress::Sent) {
                self.cut_laps.push(id);
            }
            self.end_lap(id);
        }
        if before != state.group() {
            self.leave(before, age, source);
            let age = self.enter(id, state.group(), source);
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.age = age;
            }
        }
    }

    /// The peer's end of a connection that we asked for.
    pub(super) fn set_remote(&mut self, id: CommId, remote_id: CommId, guid: u64, qpn: Qpn) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        (conn.remote_id, conn.remote_guid, conn.remote_qpn) = (remote_id, guid, qpn);
        if let Some(key) = conn.qp_key() {
            self.by_remote_qp.insert(key, id);
        }
    }

    /// The peer's queue pair may have another connection.
    pub(super) fn release_qp(&mut self, id: CommId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Some(key) = conn.qp_key()
            && self.by_remote_qp.get(&key) == Some(&id)
        {
            self.by_remote_qp.remove(&key);
        }
        conn.remote_qpn = Qpn::new(0);
    }

    pub(super) fn set_deadline(&mut self, id: CommId, deadline: Option<Time>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Some(before) = conn.deadline.take() {
            self.timers.remove(&(before, id));
        }
        if let Some(deadline) = deadline {
            conn.deadline = Some(deadline);
            self.timers.insert((deadline, id));
        }
    }
    /// Puts an exchange about an alternate path in the place of the one that the connection had.
    pub(super) fn begin_lap(&mut self, id: CommId, exchange: Exchange, deadline: Time) {
        self.end_lap(id);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        self.lap_timers.insert((deadline, id));
        conn.lap = Some(Box::new(Exchange { deadline, ..exchange }));
    }
    /// Forgets the exchange about an alternate path.
    pub(super) fn end_lap(&mut self, id: CommId) {
        let exchange = self.conns.get_mut(&id).and_then(|conn| conn.lap.take());
        if let Some(exchange) = exchange {
            self.lap_timers.remove(&(exchange.deadline, id));
        }
    }
    /// A LAP of ours that ended with its connection.
    pub(super) fn take_cut_lap(&mut self) -> Option<CommId> {
        self.cut_laps.pop()
    }
    pub(super) fn set_lap_deadline(&mut self, id: CommId, deadline: Time) {
        let lap = self.conns.get_mut(&id).and_then(|conn| conn.lap.as_mut());
        let Some(exchange) = lap else { return };
        self.lap_timers.remove(&(exchange.deadline, id));
        exchange.deadline = deadline;
        self.lap_timers.insert((deadline, id));
    }
    /// The first exchange about an alternate path that is due, whose timer its owner sets anew.
    pub(super) fn due_lap(&self, now: Time) -> Option<CommId> {
        self.lap_timers.first().filter(|(deadline, _)| *deadline <= now).map(|(_, id)| *id)
    }
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let first = |timers: &BTreeSet<(Time, CommId)>| timers.first().map(|(at, _)| *at);
        [&self.timers, &self.lap_timers].into_iter().filter_map(first).min()
    }
    /// Takes the first timer that is due.
    pub(super) fn take_due(&mut self, now: Time) -> Option<CommId> {
        let (deadline, id) = *self.timers.first()?;
        if deadline > now {
            return None;
        }
        self.set_deadline(id, None);
        Some(id)
    }

    fn enter(&mut self, id: CommId, group: Group, source: Source) -> u64 {
        let age = self.next_age;
        self.next_age += 1;
        match group {
            Group::HalfOpen => self.half_open.add(source, age, id),
            Group::Remembered => drop(self.remembered.insert(age, id)),
            Group::Live => {}
        }
        age
    }
    fn leave(&mut self, group: Group, age: u64, source: Source) {
        match group {
            Group::HalfOpen => drop(self.half_open.remove(source, age)),
            Group::Remembered => drop(self.remembered.remove(&age)),
            Group::Live => {}
        }
    }
}

#[cfg(test)]
impl Table {
    pub(super) fn states(&self) -> impl Iterator<Item = State> {
        self.conns.values().map(|conn| conn.state)
    }
    pub(super) fn ids(&self) -> Vec<CommId> {
        self.conns.keys().copied().collect()
    }
    /// Panics unless indices, timers and groups are those that the entries ask for.
    pub(super) fn assert_consistent(&self) {
        let timers: BTreeSet<_> =
            self.conns.iter().filter_map(|(id, conn)| Some((conn.deadline?, *id))).collect();
        assert_eq!(timers, self.timers);
        let laps = self.conns.iter().filter_map(|(id, conn)| Some((conn.lap.as_ref()?, *id)));
        let laps: BTreeSet<_> = laps.map(|(lap, id)| (lap.deadline, id)).collect();
        assert_eq!(laps, self.lap_timers);
        let group = |wanted: Group| -> BTreeMap<u64, CommId> {
            let of = self.conns.iter().filter(|(_, conn)| conn.state.group() == wanted);
            of.map(|(id, conn)| (conn.age, *id)).collect()
        };
        let mut half_open = Shares::default();
        for (age, id) in group(Group::HalfOpen) {
            half_open.add(self.conns[&id].source(), age, id);
        }
        assert_eq!(half_open, self.half_open);
        assert_eq!(group(Group::Remembered), self.remembered);
        // An entry that is over may have lost its key to a later one; no other may.
        let over = |conn: &Conn| conn.state.group() == Group::Remembered;
        for (key, id) in &self.by_remote {
            assert_eq!(self.conns[id].remote_key(), *key);
        }
        for (key, id) in &self.by_request {
            assert_eq!(self.conns[id].remote_key(), *key);
        }
        for (key, id) in &self.by_remote_qp {
            assert_eq!(self.conns[id].qp_key(), Some(*key));
        }
        for (id, conn) in &self.conns {
            let key = conn.remote_key();
            assert!(!conn.is_passive() || over(conn) || self.by_remote.get(&key) == Some(id));
            assert!(!conn.is_sidr_server() || over(conn) || self.by_request.get(&key) == Some(id));
            assert!(conn.qp_key().is_none_or(|key| self.by_remote_qp.get(&key) == Some(id)));
            let waits = match conn.state {
                State::Established => conn.doubted.is_none(),
                state => matches!(state, State::DreqRcvd | State::MraRepSent),
            };
            assert_eq!(conn.deadline.is_none(), waits, "{:?}", conn.state);
            assert!(conn.lap.is_none() || conn.state == State::Established);
            assert!(conn.owned || conn.state.group() != Group::HalfOpen);
        }
    }
}
