//! Service id resolution: which datagram queue pair has a service (IBTA 12.11).

use vernic_wire::cm::{
    CmAttribute, CommId, PrivateData, SidrRep, SidrReq, SidrStatus, timeout_nanos,
};

use super::active::{patience, private_data};
use super::event::{CmError, EventKind};
use super::params::{ConnId, SidrParams, SidrReply};
use super::passive::Room;
use super::state::{Reaction, State, reaction};
use super::table::Conn;
use super::{Cm, CmDrop, CmPath};
use crate::time::Time;

/// How long a SIDR_REQ is kept from its last copy on, and an answered one remembered; exponent. 21
/// is 8.6 s: in this time rdma_cm of Linux repeats it twice.
const MEMORY: u8 = 21;

impl Cm {
    /// Asks a peer for a datagram queue pair. The answer is [`EventKind::SidrReply`] or
    /// [`EventKind::Unreachable`].
    ///
    /// # Errors
    /// A value out of range, too much private data, too many connections.
    pub fn sidr_request(&mut self, now: Time, params: &SidrParams<'_>) -> Result<ConnId, CmError> {
        let (timeout, retries) = patience(self, params.response_timeout, params.max_retries)?;
        let private_data = private_data("private data of SIDR_REQ", params.private_data)?;
        let mut conn = Conn::new(State::SidrReqSent, params.path, params.service);
        conn.wait = self.config.wait(timeout);
        conn.max_retries = retries;
        let id = self.admit(conn)?;
        let req = SidrReq {
            request_id: id,
            pkey: params.pkey,
            service_id: params.service,
            private_data,
            ..SidrReq::default()
        };
        self.begin(now, id, &req.into());
        Ok(self.table.conn_id(id))
    }

    /// Answers a SIDR_REQ. The exchange is over for the owner then; no event follows.
    ///
    /// # Errors
    /// Unknown exchange, wrong state, too much private data.
    pub fn sidr_reply(
        &mut self,
        now: Time,
        conn: ConnId,
        reply: &SidrReply<'_>,
    ) -> Result<(), CmError> {
        let entry = self.owned(conn)?;
        if entry.state != State::SidrReqRcvd {
            let (command, needs) = ("sidr_reply", State::SidrReqRcvd.name());
            return Err(CmError::WrongState { conn, command, state: entry.state.name(), needs });
        }
        let rep = SidrRep {
            request_id: entry.remote_id,
            status: reply.status,
            qpn: reply.qpn,
            service_id: entry.service,
            qkey: reply.qkey,
            private_data: private_data("private data of SIDR_REP", reply.private_data)?,
            ..SidrRep::default()
        };
        self.answer_sidr(now, conn.0, rep);
        Ok(())
    }

    fn answer_sidr(&mut self, now: Time, id: CommId, rep: SidrRep) {
        self.release_backlog(id);
        self.send_kept(id, &rep.into());
        self.disown(id);
        self.remember(id, State::SidrDone, now + timeout_nanos(MEMORY));
    }

    /// The owner destroys an exchange that it has not answered.
    pub(super) fn refuse_sidr(&mut self, now: Time, id: CommId) {
        let Some(conn) = self.table.conn(id) else { return };
        let rep = refusal(conn.remote_id, conn.service, SidrStatus::REJECTED);
        self.answer_sidr(now, id, rep);
    }

    pub(super) fn handle_sidr_req(
        &mut self,
        now: Time,
        path: CmPath,
        transaction_id: u64,
        req: &SidrReq,
    ) -> Result<(), CmDrop> {
        let known = self.table.by_request(path.peer(), req.request_id);
        if let Some(id) = known
            && let Some(conn) = self.table.conn(id)
        {
            if conn.service == req.service_id && conn.path.same_ends(&path) {
                if conn.state == State::SidrReqRcvd {
                    self.table.set_deadline(id, Some(now + timeout_nanos(MEMORY)));
                }
                return self.react(now, id, CmAttribute::SIDR_REQ).map(|_| ());
            }
            if reaction(CmAttribute::SIDR_REQ, conn.state) == Reaction::Duplicate {
                return Err(CmDrop::WrongInstance);
            }
        }
        let called = path.called(req.service_id, req.private_data.as_bytes());
        let Some(listener) = self.listeners.find(req.service_id, called) else {
            self.counters.no_listener += 1;
            let status = SidrStatus::UNSUPPORTED_SERVICE;
            let rep = refusal(req.request_id, req.service_id, status);
            self.send(path, transaction_id, &rep.into());
            return Ok(());
        };
        if !matches!(self.make_room(now, path.peer(), listener)?, Room::Made) {
            let rep = refusal(req.request_id, req.service_id, SidrStatus::NO_QP);
            self.send(path, transaction_id, &rep.into());
            return Ok(());
        }
        let mut conn = Conn::new(State::SidrReqRcvd, path, req.service_id);
        conn.remote_id = req.request_id;
        conn.transaction_id = transaction_id;
        let Some(id) = self.table.insert(conn) else {
            self.counters.too_many += 1;
            return Ok(());
        };
        self.count_in_backlog(id, listener);
        self.table.set_deadline(id, Some(now + timeout_nanos(MEMORY)));
        self.event(id, EventKind::SidrRequest { listener, path, req: Box::new(*req) });
        Ok(())
    }

    pub(super) fn handle_sidr_rep(&mut self, path: CmPath, rep: &SidrRep) -> Result<(), CmDrop> {
        let id = rep.request_id;
        let conn = self.find(path, id, CommId::NONE)?;
        match reaction(CmAttribute::SIDR_REP, conn.state) {
            Reaction::Take => {
                self.event(id, EventKind::SidrReply { rep: Box::new(*rep) });
                self.forget(id);
                Ok(())
            }
            _ => Err(CmDrop::WrongState),
        }
    }
}

fn refusal(
    request_id: CommId,
    service_id: vernic_wire::cm::ServiceId,
    status: SidrStatus,
) -> SidrRep {
    SidrRep {
        request_id,
        status,
        service_id,
        private_data: PrivateData::default(),
        ..SidrRep::default()
    }
}
