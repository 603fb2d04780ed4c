//! Communication management: how two queue pairs come to know each other (IBTA chapter 12).
//!
//! Owns the connections of one process while they are made and ended: communication ids, listeners,
//! repeats and their timers, duplicates, stale connections, TIMEWAIT, and exchanges of SIDR
//! messages. Called by the engine with datagrams, commands of the layers above, and time; it
//! answers with datagrams ([`Cm::poll_transmit`]) and events ([`Cm::poll_event`]), both to be
//! fetched after each call. Queue pairs are not its business: their owner brings them up between
//! [`EventKind::Reply`] and [`Cm::ready_to_use`], and on [`EventKind::Established`].
//!
//! # States
//!
//! ```text
//!   active (connect)                              passive (listen)
//!
//!   connect --REQ-->  REQ sent                    --REQ-->  REQ received  -> Request
//!                        | MRA: wait longer                    | no accept for half the time: MRA
//!                        v                                     v
//!            MRA of REQ received                         MRA of REQ sent
//!                        | REP -> Reply                        | accept: REP
//!                        v                                     v
//!                  REP received                             REP sent
//!                        | no ready_to_use: MRA                | MRA: wait longer
//!                        v                                     v
//!              MRA of REP sent                       MRA of REP received
//!                        | ready_to_use: RTU                   | RTU -> Established
//!                        v                                     v
//!                                     Established
//!          disconnect: DREQ |                                 | DREQ -> DisconnectRequest
//!                           v                                 v
//!                       DREQ sent                       DREQ received
//!          DREP -> Disconnected |                             | disconnect: DREP
//!                               v                             v
//!                                       TIMEWAIT -> TimewaitExit
//! ```
//!
//! What a message does in a state that does not expect it. `take` moves on, `again` sends the last
//! answer again, `MRA` asks for time, `-` is a counted drop; the code of it is `state::reaction`.
//!
//! | state | REQ again | REP | RTU | REJ | DREQ | DREP |
//! |---|---|---|---|---|---|---|
//! | REQ sent, MRA of REQ received | | take | - | take | - | - |
//! | REP received, MRA of REP sent | | MRA | - | take | take: DREP | - |
//! | REQ received, MRA of REQ sent | MRA | - | - | take | - | - |
//! | REP sent | REP again | - | take | take | take | - |
//! | MRA of REP received | - | - | take | take | take | - |
//! | Established | - | RTU again | - | take | take | - |
//! | DREQ sent | - | - | - | take | take: DREP | take |
//! | DREQ received | - | - | - | take | - | - |
//! | TIMEWAIT | REJ again | REJ again | REJ again | - | DREP again | - |
//! | no connection | | REJ 6 | REJ 6 | - | DREP | - |
//!
//! A REJ is taken only by who has sent what it rejects: of a REQ before there was an answer, of a
//! REP on the passive side. It has both communication ids, or it is dropped: without the sender's
//! it rejects a REQ that is not answered, without ours it says that the peer gave its REQ up
//! (timeout).
//!
//! A message that is not answered in time is sent again, as often as the REQ allows, and the first
//! times earlier than its fields say, in case it was lost; then the connection is
//! [`Unreachable`](EventKind::Unreachable), and the peer is told so by a REJ. What a peer may make
//! us wait is cut at 69 s, and at 137 s with all repeats; all the MRAs of a message put its end off
//! by 137 s at most. REPs to peers of which nothing came but a REQ are repeated three times each,
//! and beyond that 64 times a second in all.
//!
//! # Alternate paths
//!
//! A REQ may offer an alternate path, and the active side of a connection that is up may load
//! another one by a LAP (`lap.rs`). The passive side's owner loads the path into its queue pair and
//! says so in the REP or by an APR; then the active side's owner does. From then on messages of the
//! connection are taken from that path, too, and repeats go by all paths in turn: the first one may
//! have failed.
//!
//! # Destroying
//!
//! [`Cm::destroy`] is allowed in every state, and the peer hears what is due: REJ 4 (timeout) of a
//! REQ of ours that is under way, REJ 28 (consumer) before the connection is up, DREQ or DREP
//! after. DREQs are repeated and TIMEWAIT runs out without the owner.
//!
//! # Stale connections
//!
//! A queue pair has one connection. If a REQ or a REP names a queue pair (by its device's GUID and
//! its number) that one of our connections has for peer, the peer's end of that is gone: the
//! message gets REJ 10, and the connection is ended by DREQ, or by REJ 10 too if it is not up (IBTA
//! chapter 12). In TIMEWAIT the REJ is all. Anybody can say so of a queue pair: while ours hears
//! its peer ([`Ears`]), the REJ is all, too. When it has been silent for as long as it tries to
//! reach its peer, [`Cm::handle_timeout_with`] asks again, and ends the connection if nothing was
//! heard since; a peer that was quick to start anew is noticed by that. A request that our owner
//! has not answered is given up for the new one instead.
//!
//! # Limits
//!
//! All tables are bounded by [`CmConfig`]. No state is kept for what is refused. Nothing here
//! protects against a peer that forges addresses and knows the ids: CM has no authentication, as
//! all of RoCEv2; messages of a connection are taken only from its path, with both communication
//! ids right once both ends have said theirs.

mod active;
mod counters;
mod disconnect;
mod event;
mod exchange;
mod gone;
mod heir;
mod ids;
mod lap;
mod listener;
mod params;
mod passive;
mod reject;
mod send;
mod sidr;
mod state;
mod table;
mod timers;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use vernic_wire::Gid;
use vernic_wire::cm::{AprStatus, CmAttribute, CmMessage, CommId, ServiceId};

pub use counters::{CmCounters, CmDrop};
pub use event::{CmError, Event, EventKind, Unanswered};
pub use heir::Orphan;
pub use params::{
    AcceptParams, AlternatePath, CmConfig, CmPath, ConnId, ConnectParams, Datagram, Ears, Heard,
    LapParams, LidPath, ListenerId, SidrParams, SidrReply,
};

use crate::time::Time;
use listener::Listeners;
use state::{Reaction, State, answers, reaction};
use table::{Conn, Table};

/// How many entries there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmOccupancy {
    /// Connections and exchanges, without those in TIMEWAIT.
    pub live: usize,
    /// Requests of these that the owner has not answered, or whose peer has not answered that.
    pub half_open: usize,
    /// In TIMEWAIT, or remembered for duplicates.
    pub timewait: usize,
    /// Listeners.
    pub listeners: usize,
}

/// The connection manager of a process. See the head of the module.
///
/// After each call that takes `&mut self` the owner fetches what there is to send and to hear, and
/// asks for [`next_deadline`](Self::next_deadline).
#[derive(Debug)]
pub struct Cm {
    config: CmConfig,
    table: Table,
    listeners: Listeners,
    outbox: VecDeque<Datagram>,
    /// What the last message said of its repeats that is not kept to be repeated: an even number.
    unkept: u8,
    /// LAPs of ours so far; counted round.
    laps: u32,
    /// The process ends: its DREQs are repeated soon.
    leaves: bool,
    events: VecDeque<Event>,
    /// Repeats of REPs to peers of which nothing is heard: since when they are counted, and how
    /// many.
    more_reps: (Time, u32),
    counters: CmCounters,
}

impl Cm {
    /// One without connections and listeners. Fields of the configuration that are out of range
    /// count as the nearest that is not.
    pub fn new(config: CmConfig) -> Self {
        Self {
            config: CmConfig {
                max_half_open: config.max_half_open.max(1),
                max_timewait: config.max_timewait.max(1),
                response_timeout: config.response_timeout.min(31),
                max_retries: config.max_retries.min(15),
                service_timeout: config.service_timeout.min(31),
                ..config
            },
            table: Table::new(&config),
            listeners: Listeners::default(),
            outbox: VecDeque::new(),
            unkept: 0,
            laps: 0,
            leaves: false,
            events: VecDeque::new(),
            more_reps: (Time(0), 0),
            counters: CmCounters::default(),
        }
    }

    /// Takes REQs and SIDR_REQs for `service`, at one of our GIDs or at all of them. A listener at
    /// a GID goes before one at all. At most `backlog` requests (at least 1) may wait for their
    /// answer; see [`request_taken`](Self::request_taken).
    ///
    /// # Errors
    /// [`CmError::InUse`] if there is one for the same service and place.
    pub fn listen(
        &mut self,
        service: ServiceId,
        local: Option<Gid>,
        backlog: usize,
    ) -> Result<ListenerId, CmError> {
        self.listeners.add(service, local, backlog.max(1))
    }
    /// Takes no more requests. Those that are here stay with the owner.
    pub fn stop_listening(&mut self, listener: ListenerId) {
        self.listeners.remove(listener);
    }
    /// Whether a request for `service` at `local` would find a listener.
    pub fn has_listener(&self, service: ServiceId, local: Gid) -> bool {
        self.listeners.find(service, local).is_some()
    }
    /// Whether the id names a connection or exchange of ours, in TIMEWAIT or not.
    pub fn owns(&self, id: CommId) -> bool {
        self.table.conn(id).is_some()
    }
    /// Whether the peer at `remote` has asked for a connection that it calls `id`.
    pub fn was_asked(&self, remote: Gid, id: CommId) -> bool {
        self.table.by_remote(remote, id).is_some()
    }
    /// Where the other end of a connection or exchange is, and what it calls it: nothing yet while
    /// our REQ is not answered.
    pub fn peer(&self, conn: ConnId) -> Option<(CmPath, CommId)> {
        self.table.entry(conn).map(|entry| (entry.path, entry.remote_id))
    }
    /// What there is.
    pub fn occupancy(&self) -> CmOccupancy {
        CmOccupancy {
            live: self.table.live(),
            half_open: self.table.half_open(),
            timewait: self.table.remembered(),
            listeners: self.listeners.len(),
        }
    }
    /// What has been counted.
    pub fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// Takes a datagram that came for QP 1. `path` is where it came from and to: local is our end.
    ///
    /// # Errors
    /// Why it was dropped; counted here. What is answered (a REQ for no listener with REJ 8, a
    /// message of no connection with REJ 6 or DREP) is no error.
    pub fn handle_mad(&mut self, now: Time, path: CmPath, mad: &[u8]) -> Result<(), CmDrop> {
        self.handle_mad_with(now, path, mad, &|_| None)
    }

    /// The same, and `ears` tells which queue pairs of ours hear their peers: those are not
    /// stale.
    ///
    /// # Errors
    /// The same.
    pub fn handle_mad_with(
        &mut self,
        now: Time,
        path: CmPath,
        mad: &[u8],
        ears: Ears<'_>,
    ) -> Result<(), CmDrop> {
        let taken = match CmMessage::parse(mad) {
            Ok((header, message)) => {
                let transaction_id = header.transaction_id;
                self.handle_message(now, path, transaction_id, &message, ears).inspect(|()| {
                    self.counters.received[counters::index(message.attribute())] += 1;
                })
            }
            Err(_) => Err(CmDrop::Malformed),
        };
        if let Err(drop) = taken {
            self.counters.dropped[drop as usize] += 1;
        }
        taken
    }

    fn handle_message(
        &mut self,
        now: Time,
        path: CmPath,
        transaction_id: u64,
        message: &CmMessage,
        ears: Ears<'_>,
    ) -> Result<(), CmDrop> {
        match message {
            CmMessage::Req(req) => self.handle_req(now, path, transaction_id, req, ears),
            CmMessage::Mra(mra) => self.handle_mra(now, path, mra),
            CmMessage::Rep(rep) => self.handle_rep(now, path, transaction_id, rep, ears),
            CmMessage::Rtu(rtu) => self.handle_rtu(now, path, transaction_id, rtu),
            CmMessage::Rej(rej) => self.handle_rej(now, path, rej),
            CmMessage::Dreq(dreq) => self.handle_dreq(now, path, transaction_id, dreq),
            CmMessage::Drep(drep) => self.handle_drep(now, path, drep),
            CmMessage::Lap(lap) => self.handle_lap(now, path, transaction_id, lap),
            CmMessage::Apr(apr) => self.handle_apr(path, transaction_id, apr),
            CmMessage::SidrReq(req) => self.handle_sidr_req(now, path, transaction_id, req),
            CmMessage::SidrRep(rep) => self.handle_sidr_rep(path, rep),
        }
    }

    /// Whether there is a datagram to send.
    pub fn wants_transmit(&self) -> bool {
        !self.outbox.is_empty()
    }
    /// The next datagram to send, if there is one.
    pub fn poll_transmit(&mut self) -> Option<Datagram> {
        self.outbox.pop_front()
    }
    /// The next event, if there is one.
    pub fn poll_event(&mut self) -> Option<Event> {
        while let Some(id) = self.table.take_cut_lap() {
            self.event(id, EventKind::AlternatePathAnswered { status: AprStatus::INVALID_COMM_ID });
        }
        self.events.pop_front()
    }
    /// When [`handle_timeout`](Self::handle_timeout) is to be called at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        self.table.next_deadline()
    }

    /// The request was handed on to the application, which has yet to answer it: it no longer
    /// counts in its listener's backlog, but still among the half-open ones.
    pub fn request_taken(&mut self, conn: ConnId) {
        if self.table.entry(conn).is_some() {
            self.release_backlog(conn.0);
        }
    }

    /// Forgets a connection or exchange; see the head of the module for what the peer hears. No
    /// event of it comes any more. Does nothing if the id names none, so it may be called after the
    /// last event as well.
    pub fn destroy(&mut self, now: Time, conn: ConnId) {
        let id = conn.0;
        self.forget_events(conn);
        let Some(state) = self.table.entry(conn).map(|conn| conn.state) else { return };
        match state {
            State::ReqSent | State::MraReqRcvd => {
                self.reject_timed_out(id);
                self.forget(id);
            }
            State::SidrReqSent => self.forget(id),
            State::SidrReqRcvd => self.refuse_sidr(now, id),
            State::ReqRcvd
            | State::MraReqSent
            | State::RepRcvd
            | State::MraRepSent
            | State::RepSent
            | State::MraRepRcvd => self.reject_unwanted(now, id),
            State::Established => self.send_dreq(now, id, Default::default()),
            State::DreqRcvd => self.send_drep(now, id, Default::default()),
            State::DreqSent | State::Timewait | State::SidrDone => {}
        }
        if let Some(conn) = self.table.conn_mut(id) {
            conn.owned = false;
        }
    }

    /// The owner's connection, and its state.
    fn owned(&self, conn: ConnId) -> Result<&Conn, CmError> {
        let entry = self.table.entry(conn).filter(|entry| entry.owned);
        entry.ok_or(CmError::UnknownConnection(conn))
    }

    /// The connection that a message is for, if the message is of that connection.
    fn find(&self, path: CmPath, ours: CommId, theirs: CommId) -> Result<&Conn, CmDrop> {
        let conn = self.table.conn(ours).ok_or(CmDrop::UnknownConnection)?;
        // On InfiniBand a subnet manager may give the peer another LID: both ids are enough.
        let names_both = conn.remote_id != CommId::NONE && conn.remote_id == theirs;
        if !(conn.is_on(&path) || names_both && path.lids.is_some()) {
            return Err(CmDrop::WrongPath);
        }
        if conn.remote_id != CommId::NONE && conn.remote_id != theirs {
            return Err(CmDrop::WrongInstance);
        }
        Ok(conn)
    }

    /// What the table says, for all but [`Reaction::Take`] done at once: then the message is
    /// finished with.
    fn react(&mut self, now: Time, id: CommId, message: CmAttribute) -> Result<Next, CmDrop> {
        let Some(conn) = self.table.conn(id) else { return Err(CmDrop::UnknownConnection) };
        match reaction(message, conn.state) {
            Reaction::Take => return Ok(Next::Take),
            Reaction::AskForTime => self.ask_for_time(now, id),
            Reaction::Repeat => match conn.last_attribute() {
                Some(last) if answers(last, message) => self.send_last(id),
                _ => return Err(CmDrop::Duplicate),
            },
            Reaction::Duplicate => return Err(CmDrop::Duplicate),
            Reaction::Wrong => return Err(CmDrop::WrongState),
        }
        self.counters.duplicates_answered += 1;
        Ok(Next::Done)
    }

    fn event(&mut self, id: CommId, kind: EventKind) {
        if self.table.conn(id).is_some_and(|conn| conn.owned) {
            self.events.push_back(Event { conn: self.table.conn_id(id), kind });
        }
    }

    /// Takes back what the owner has not fetched and does not want to know any more.
    fn forget_events(&mut self, conn: ConnId) {
        self.events.retain(|event| event.conn != conn);
    }

    fn count_in_backlog(&mut self, id: CommId, listener: ListenerId) {
        if let Some(conn) = self.table.conn_mut(id) {
            conn.backlog = Some(listener);
            self.listeners.count(listener, conn.turn(), id);
        }
    }

    fn release_backlog(&mut self, id: CommId) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        if let Some(listener) = conn.backlog.take() {
            self.listeners.release(listener, conn.turn());
        }
    }

    fn forget(&mut self, id: CommId) {
        self.release_backlog(id);
        self.table.remove(id);
    }

    /// The connection is over, and its entry stays until no packet of it can be under way.
    fn enter_timewait(&mut self, now: Time, id: CommId) {
        self.release_backlog(id);
        let Some(conn) = self.table.conn(id) else { return };
        let until = now + conn.timewait;
        if !conn.state.holds_qp() {
            self.table.release_qp(id);
        }
        self.remember(id, State::Timewait, until);
    }

    /// Moves the entry to those that are over, of which the oldest makes room.
    fn remember(&mut self, id: CommId, state: State, until: Time) {
        self.table.set_state(id, state);
        self.table.set_deadline(id, Some(until));
        while self.table.remembered() > self.config.max_timewait {
            let Some(oldest) = self.table.oldest_remembered() else { break };
            self.counters.timewait_cut_short += 1;
            self.timewait_over(oldest);
        }
    }

    fn timewait_over(&mut self, id: CommId) {
        if self.table.conn(id).is_some_and(|conn| conn.state == State::Timewait) {
            self.event(id, EventKind::TimewaitExit);
        }
        self.table.remove(id);
    }
}

/// What is left to do with a message.
enum Next {
    /// Everything.
    Take,
    /// Nothing.
    Done,
}
