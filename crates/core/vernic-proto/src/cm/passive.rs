//! The passive side: REQ in, REP out, RTU in.

use vernic_wire::cm::{
    CmAttribute, CmService, CommId, FailoverAccepted, Info, PrivateData, Rej, RejReason,
    RejectedMessage, Rep, Req, Rtu, timeout_nanos,
};
use vernic_wire::{Gid, Mtu};

use super::active::private_data;
use super::event::{CmError, EventKind};
use super::params::{AcceptParams, AlternatePath, ConnId, Ears, ListenerId, clamp, repeats};
use super::state::State;
use super::table::{Conn, ReqIdentity};
use super::{Cm, CmDrop, CmPath, Next};
use crate::shares::Source;
use crate::time::Time;

impl Cm {
    pub(super) fn handle_req(
        &mut self,
        now: Time,
        path: CmPath,
        transaction_id: u64,
        req: &Req,
        ears: Ears<'_>,
    ) -> Result<(), CmDrop> {
        let theirs = req.local_comm_id;
        if theirs == CommId::NONE {
            return Err(CmDrop::Malformed);
        }
        if let Some(id) = self.table.by_remote(path.peer(), theirs) {
            match self.compare_req(id, path, req) {
                Known::Same => {
                    return self.react(now, id, CmAttribute::REQ).map(|_| ());
                }
                Known::Collides => {
                    let reason = RejReason::DUPLICATE_LOCAL_COMM_ID;
                    return self.refuse_req(path, transaction_id, req, reason, Info::NONE);
                }
                Known::Over => {}
            }
        }
        if let Err((reason, info)) = check_req(path, req) {
            return self.refuse_req(path, transaction_id, req, reason, info);
        }
        let called = path.called(req.service_id, req.private_data.as_bytes());
        let Some(listener) = self.listeners.find(req.service_id, called) else {
            self.counters.no_listener += 1;
            let reason = RejReason::INVALID_SERVICE_ID;
            return self.refuse_req(path, transaction_id, req, reason, Info::NONE);
        };
        self.supersede_half_open(now, path, req);
        let qp = (path.peer(), req.local_ca_guid, req.local_qpn);
        if self.end_stale(now, qp, ears) {
            let reason = RejReason::STALE_CONNECTION;
            return self.refuse_req(path, transaction_id, req, reason, Info::NONE);
        }
        match self.make_room(now, path.peer(), listener)? {
            Room::Made => self.admit_req(now, path, transaction_id, req, listener),
            // The peer asks again, and there may be room then.
            Room::FullBacklog => {}
            Room::TooMany => {
                let reason = RejReason::NO_RESOURCES;
                return self.refuse_req(path, transaction_id, req, reason, Info::NONE);
            }
        }
        Ok(())
    }

    /// What a REQ has to do with the connection that was asked for by the same id.
    fn compare_req(&self, id: CommId, path: CmPath, req: &Req) -> Known {
        match self.table.conn(id) {
            Some(conn) if conn.req == Some(ReqIdentity::of(req)) && conn.path.same_ends(&path) => {
                Known::Same
            }
            Some(conn) if conn.state != State::Timewait => Known::Collides,
            _ => Known::Over,
        }
    }

    fn refuse_req(
        &mut self,
        path: CmPath,
        transaction_id: u64,
        req: &Req,
        reason: RejReason,
        info: Info,
    ) -> Result<(), CmDrop> {
        let (remote_comm_id, message) = (req.local_comm_id, RejectedMessage::REQ);
        let rej = Rej { remote_comm_id, message, reason, info, ..Rej::default() };
        self.send(path, transaction_id, &rej.into());
        Ok(())
    }

    /// A peer that asks again for the same queue pair has given up what it asked before.
    fn supersede_half_open(&mut self, now: Time, path: CmPath, req: &Req) {
        let qp = self.table.by_remote_qp((path.peer(), req.local_ca_guid, req.local_qpn));
        let Some(id) = qp else { return };
        let superseded = self.table.conn(id).is_some_and(|conn| {
            matches!(conn.state, State::ReqRcvd | State::MraReqSent) && conn.path.same_ends(&path)
        });
        if superseded {
            let (reason, message) = (RejReason::STALE_CONNECTION, RejectedMessage::REQ);
            self.report_rejected(id, &Rej { reason, message, ..Rej::default() });
            self.disown(id);
            self.over(now, id);
        }
    }

    /// Makes room for one more request of a peer for the listener, if it can.
    pub(super) fn make_room(
        &mut self,
        now: Time,
        remote: Gid,
        listener: ListenerId,
    ) -> Result<Room, CmDrop> {
        if self.events.len() >= self.config.max_events() {
            return Err(CmDrop::EventsFull);
        }
        let half_open_full = self.table.half_open() >= self.config.max_half_open;
        if !half_open_full && self.table.live() >= self.config.max_connections {
            self.counters.too_many += 1;
            return Ok(Room::TooMany);
        }
        if !self.listeners.has_room(listener) {
            let Some(victim) = self.listeners.excess(listener, Source::of(remote)) else {
                self.counters.backlog_full += 1;
                return Ok(Room::FullBacklog);
            };
            self.counters.backlog_displaced += 1;
            self.drop_half_open(now, victim);
        }
        if half_open_full && let Some(victim) = self.table.half_open_too_many(remote) {
            self.counters.half_open_dropped += 1;
            self.drop_half_open(now, victim);
        }
        Ok(Room::Made)
    }

    /// A request that the owner has no room for is as if it had not come: the peer asks again.
    /// Unknown connections, and those that are no unanswered requests, are ignored.
    pub fn ignore(&mut self, conn: ConnId) {
        let state = self.table.entry(conn).map(|entry| entry.state);
        if state.is_some_and(State::is_unanswered) {
            self.counters.backlog_full += 1;
            self.forget_events(conn);
            self.forget(conn.0);
        }
    }

    /// Ends what its owner or its peer has not answered. A peer that was answered may believe that
    /// the connection is up, and is told.
    pub(super) fn drop_half_open(&mut self, now: Time, id: CommId) {
        self.event(id, EventKind::HalfOpenDropped);
        match self.table.conn(id).is_some_and(|conn| conn.state.is_unanswered()) {
            true => self.forget(id),
            false => {
                self.disown(id);
                self.reject_silent(now, id);
            }
        }
    }

    fn admit_req(
        &mut self,
        now: Time,
        path: CmPath,
        transaction_id: u64,
        req: &Req,
        listener: ListenerId,
    ) {
        let primary = &req.primary;
        // Its ends are those of the datagram (`check_req`), but on InfiniBand. There messages go
        // back as they came, and packets as the request says.
        let pkey = if path.lids.is_some() { req.pkey } else { path.pkey };
        let ours = CmPath { pkey, ..CmPath::of_peer(primary, &path) };
        let of_messages = if path.lids.is_some() { path } else { ours };
        let mut conn = Conn::new(State::ReqRcvd, of_messages, req.service_id);
        conn.remote_id = req.local_comm_id;
        conn.transaction_id = transaction_id;
        conn.remote_guid = req.local_ca_guid;
        conn.remote_qpn = req.local_qpn;
        conn.req = Some(ReqIdentity::of(req));
        conn.wait = self.config.wait(req.local_response_timeout);
        conn.peer_waits = clamp(req.remote_response_timeout);
        conn.max_retries = repeats(conn.wait, req.max_cm_retries);
        conn.timewait = self.config.timewait(primary.local_ack_timeout, 0);
        conn.xrc = req.is_xrc();
        conn.offered = AlternatePath::of_peer(&req.alternate, &path).map(|other| other.path);
        let half = timeout_nanos(conn.peer_waits) / 2;
        let Some(id) = self.table.insert(conn) else {
            self.counters.too_many += 1;
            return;
        };
        self.count_in_backlog(id, listener);
        self.table.set_deadline(id, Some(now + half));
        self.event(id, EventKind::Request { listener, path: ours, req: Box::new(*req) });
    }

    /// Accepts a request: sends the REP.
    ///
    /// # Errors
    /// Unknown connection, wrong state, too much private data, a value out of range.
    pub fn accept(
        &mut self,
        now: Time,
        conn: ConnId,
        params: &AcceptParams<'_>,
    ) -> Result<(), CmError> {
        let entry = self.owned(conn)?;
        if !matches!(entry.state, State::ReqRcvd | State::MraReqSent) {
            let (command, needs) = ("accept", "REQ received");
            return Err(CmError::WrongState { conn, command, state: entry.state.name(), needs });
        }
        for (field, value, max, allowed) in [
            ("rnr_retry_count", params.rnr_retry_count, 7, "0 to 7"),
            ("target_ack_delay", params.target_ack_delay, 31, "0 to 31"),
        ] {
            if value > max {
                return Err(CmError::Value { field, value: value.into(), allowed });
            }
        }
        let failover = match entry.offered {
            Some(_) => params.failover,
            None => FailoverAccepted::ACCEPTED,
        };
        let mut rep = Rep {
            local_comm_id: conn.0,
            remote_comm_id: entry.remote_id,
            starting_psn: params.starting_psn,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            target_ack_delay: params.target_ack_delay,
            failover,
            end_to_end_flow_control: params.flow_control,
            rnr_retry_count: params.rnr_retry_count,
            srq: params.srq,
            local_ca_guid: params.local_ca_guid,
            private_data: private_data("private data of REP", params.private_data)?,
            ..Rep::default()
        };
        rep.set_qpn(params.local_qpn, entry.xrc);
        self.release_backlog(conn.0);
        if let Some(entry) = self.table.conn_mut(conn.0) {
            entry.local_qpn = params.local_qpn;
            entry.local_guid = params.local_ca_guid;
            entry.offered = entry.offered.filter(|_| failover == FailoverAccepted::ACCEPTED);
        }
        self.send_kept(conn.0, &rep.into());
        self.table.set_state(conn.0, State::RepSent);
        self.await_answer(now, conn.0);
        Ok(())
    }

    /// A packet came on the queue pair before the RTU: the connection is up. The event
    /// is [`EventKind::Established`], as of an RTU.
    ///
    /// # Errors
    /// Unknown connection, wrong state. If it is up already there is no error, and no event.
    pub fn notify_established(&mut self, conn: ConnId) -> Result<(), CmError> {
        let entry = self.owned(conn)?;
        match entry.state {
            State::RepSent | State::MraRepRcvd => self.up(conn.0, PrivateData::default()),
            State::Established => {}
            state => {
                let (command, needs) = ("notify_established", "REP sent");
                return Err(CmError::WrongState { conn, command, state: state.name(), needs });
            }
        }
        Ok(())
    }

    pub(super) fn up(&mut self, id: CommId, private_data: PrivateData<224>) {
        self.table.set_state(id, State::Established);
        self.table.set_deadline(id, None);
        if let Some(conn) = self.table.conn_mut(id) {
            conn.last = None;
        }
        self.agree_on_offered(id);
        self.event(id, EventKind::Established { private_data: Box::new(private_data) });
    }

    pub(super) fn handle_rtu(
        &mut self,
        now: Time,
        path: CmPath,
        transaction_id: u64,
        rtu: &Rtu,
    ) -> Result<(), CmDrop> {
        let id = rtu.remote_comm_id;
        match self.find(path, id, rtu.local_comm_id) {
            Ok(_) => {}
            // The peer believes in a connection that we have given up.
            Err(CmDrop::UnknownConnection) => {
                let (ids, message) = ((id, rtu.local_comm_id), RejectedMessage::OTHER);
                self.reject_unknown(path, transaction_id, ids, message);
                return Ok(());
            }
            Err(drop) => return Err(drop),
        }
        if let Next::Take = self.react(now, id, CmAttribute::RTU)? {
            self.up(id, rtu.private_data);
        }
        Ok(())
    }
}

/// Whether there is room for a request.
pub(super) enum Room {
    /// There is.
    Made,
    /// As many requests of its listener wait to be taken as may.
    FullBacklog,
    /// There are as many connections as may be.
    TooMany,
}

/// What a REQ has to do with an earlier one of its id.
enum Known {
    /// It is a copy.
    Same,
    /// It is another one, and the earlier one's connection is alive.
    Collides,
    /// It is another one, and the earlier one's connection is over.
    Over,
}

/// What no listener could accept: the paths are not where the message came from, a transport that
/// we do not have, an MTU that is none.
fn check_req(path: CmPath, req: &Req) -> Result<(), (RejReason, Info)> {
    let primary = &req.primary;
    for (said, seen) in [(primary.local_gid, path.remote), (primary.remote_gid, path.local)] {
        // On InfiniBand another port of the host may ask for the one that packets will come from.
        if said != seen && path.lids.is_none() {
            let right = Info::try_from(&seen.0[..]).unwrap_or(Info::NONE);
            return Err((RejReason::INVALID_GID, right));
        }
    }
    if !matches!(req.transport, CmService::RC | CmService::UC) && !req.is_xrc() {
        return Err((RejReason::INVALID_TRANSPORT, Info::NONE));
    }
    if Mtu::from_code(req.path_mtu).is_none() {
        let largest = Info::try_from(&[Mtu::B4096 as u8][..]).unwrap_or(Info::NONE);
        return Err((RejReason::INVALID_MTU, largest));
    }
    Ok(())
}
