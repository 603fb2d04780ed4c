//! The active side: REQ out, REP in, RTU out.

use vernic_wire::cm::{
    AckedMessage, CmAttribute, CmService, CommId, FailoverAccepted, Mra, PrivateData,
    RejectedMessage, Rep, Req, ReqPath, Rtu, timeout_nanos,
};

use super::event::{CmError, EventKind};
use super::params::{AlternatePath, ConnId, ConnectParams, Ears, clamp};
use super::state::State;
use super::table::Conn;
use super::{Cm, CmDrop, CmPath, Next};
use crate::state::QpType;
use crate::time::Time;

/// How much longer than by its own repeats the answer to a message is waited for at most, whatever
/// MRAs ask for, in nanoseconds: twice what rdma_cm of Linux asks for at once. One of a REQ may be
/// anybody's who knows our id.
pub(super) const MAX_EXTENSION: u64 = timeout_nanos(25);

/// A parameter that does not fit its field.
fn check(field: &'static str, value: u64, max: u64, allowed: &'static str) -> Result<(), CmError> {
    if value > max { Err(CmError::Value { field, value, allowed }) } else { Ok(()) }
}

/// A path whose values do not fit a message's fields.
pub(super) fn check_path(path: &CmPath) -> Result<(), CmError> {
    check("flow_label", path.flow_label.into(), 0xF_FFFF, "20 bits")
}

/// Private data as the message has it.
pub(super) fn private_data<const N: usize>(
    field: &'static str,
    bytes: &[u8],
) -> Result<PrivateData<N>, CmError> {
    PrivateData::try_from(bytes).map_err(|error| CmError::TooLong { field, error })
}

/// Timeout and retries of a command, or else the configuration's.
pub(super) fn patience(
    cm: &Cm,
    response_timeout: Option<u8>,
    max_retries: Option<u8>,
) -> Result<(u8, u8), CmError> {
    let timeout = response_timeout.unwrap_or(cm.config.response_timeout);
    let retries = max_retries.unwrap_or(cm.config.max_retries);
    check("response_timeout", timeout.into(), 31, "0 to 31")?;
    check("max_retries", retries.into(), 15, "0 to 15")?;
    Ok((timeout, retries))
}

impl ConnectParams<'_> {
    /// The message, with everything that the parameters say.
    fn req(&self, timeout: u8, retries: u8) -> Result<Req, CmError> {
        check("retry_count", self.retry_count.into(), 7, "0 to 7")?;
        check("rnr_retry_count", self.rnr_retry_count.into(), 7, "0 to 7")?;
        check_path(&self.path)?;
        if let Some(alternate) = &self.alternate {
            check_path(&alternate.path)?;
        }
        let (transport, ext_transport) = match self.qp_type {
            QpType::Rc => (CmService::RC, 0),
            QpType::Uc => (CmService::UC, 0),
            QpType::XrcIni | QpType::XrcTgt => (CmService::EXTENDED, Req::EXT_XRC),
            QpType::Ud => {
                let allowed = "RC, UC or XRC; datagram queue pairs ask by sidr_request";
                let value = QpType::Ud as u64;
                return Err(CmError::Value { field: "qp_type", value, allowed });
            }
        };
        Ok(Req {
            service_id: self.service,
            local_ca_guid: self.local_ca_guid,
            local_qpn: self.local_qpn,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            remote_response_timeout: timeout,
            transport,
            end_to_end_flow_control: self.flow_control,
            starting_psn: self.starting_psn,
            local_response_timeout: timeout,
            retry_count: self.retry_count,
            pkey: self.pkey,
            path_mtu: self.path_mtu as u8,
            rnr_retry_count: self.rnr_retry_count,
            max_cm_retries: retries,
            srq: self.srq,
            ext_transport,
            primary: self.path.to_req_path(self.local_ack_timeout),
            alternate: self.alternate.map_or_else(ReqPath::default, AlternatePath::to_req_path),
            private_data: private_data("private data of REQ", self.private_data)?,
            ..Req::default()
        })
    }
}

impl Cm {
    /// Asks a peer for a connection. The answer is [`EventKind::Reply`], [`EventKind::Rejected`] or
    /// [`EventKind::Unreachable`].
    ///
    /// # Errors
    /// A value out of range, too much private data, too many connections.
    pub fn connect(&mut self, now: Time, params: &ConnectParams<'_>) -> Result<ConnId, CmError> {
        let (timeout, retries) = patience(self, params.response_timeout, params.max_retries)?;
        let mut req = params.req(timeout, retries)?;
        let mut conn = Conn::new(State::ReqSent, params.path, params.service);
        conn.local_qpn = params.local_qpn;
        conn.local_guid = params.local_ca_guid;
        conn.wait = self.config.wait(timeout);
        conn.peer_waits = clamp(timeout);
        conn.max_retries = retries;
        conn.xrc = req.is_xrc();
        conn.timewait = self.config.timewait(params.local_ack_timeout, 0);
        conn.offered = params.alternate.map(|alternate| alternate.path);
        let id = self.admit(conn)?;
        req.local_comm_id = id;
        self.begin(now, id, &req.into());
        Ok(self.table.conn_id(id))
    }

    /// A new entry of the owner's making.
    pub(super) fn admit(&mut self, conn: Conn) -> Result<CommId, CmError> {
        let max = self.config.max_connections;
        let room = self.table.live() < max;
        let id = room.then(|| self.table.insert(conn)).flatten();
        id.ok_or(CmError::TooMany { max })
    }

    /// Sends the first message of an entry, whose id is the transaction's too.
    pub(super) fn begin(&mut self, now: Time, id: CommId, message: &vernic_wire::cm::CmMessage) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        conn.transaction_id = id.0.into();
        self.send_kept(id, message);
        self.await_answer(now, id);
    }

    /// The queue pair is ready: sends the RTU that an [`EventKind::Reply`] waits for. At most 224
    /// bytes of private data. The connection is up then; no event says so.
    ///
    /// # Errors
    /// Unknown connection, wrong state, too much private data.
    pub fn ready_to_use(&mut self, conn: ConnId, private_data: &[u8]) -> Result<(), CmError> {
        let entry = self.owned(conn)?;
        if !matches!(entry.state, State::RepRcvd | State::MraRepSent) {
            let (command, needs) = ("ready_to_use", "REP received");
            return Err(CmError::WrongState { conn, command, state: entry.state.name(), needs });
        }
        let rtu = Rtu {
            local_comm_id: conn.0,
            remote_comm_id: entry.remote_id,
            private_data: self::private_data("private data of RTU", private_data)?,
        };
        self.send_kept(conn.0, &rtu.into());
        self.table.set_state(conn.0, State::Established);
        self.table.set_deadline(conn.0, None);
        self.agree_on_offered(conn.0);
        Ok(())
    }

    pub(super) fn handle_rep(
        &mut self,
        now: Time,
        path: CmPath,
        transaction_id: u64,
        rep: &Rep,
        ears: Ears<'_>,
    ) -> Result<(), CmDrop> {
        let id = rep.remote_comm_id;
        match self.find(path, id, rep.local_comm_id) {
            Ok(_) => {}
            // The peer accepted what we have given up, or a copy of our REQ beside the first.
            Err(CmDrop::UnknownConnection | CmDrop::WrongInstance) => {
                let (ids, message) = ((id, rep.local_comm_id), RejectedMessage::REP);
                self.reject_unknown(path, transaction_id, ids, message);
                return Ok(());
            }
            Err(drop) => return Err(drop),
        }
        if let Next::Done = self.react(now, id, CmAttribute::REP)? {
            return Ok(());
        }
        if rep.local_comm_id == CommId::NONE {
            return Err(CmDrop::WrongInstance);
        }
        let xrc = self.table.conn(id).is_some_and(|conn| conn.xrc);
        let qp = (path.peer(), rep.local_ca_guid, rep.qpn(xrc));
        if self.end_stale(now, qp, ears) {
            self.reject_stale_rep(now, id, rep);
            return Ok(());
        }
        self.table.set_remote(id, rep.local_comm_id, rep.local_ca_guid, rep.qpn(xrc));
        if let Some(conn) = self.table.conn_mut(id) {
            let delay = timeout_nanos(clamp(rep.target_ack_delay));
            let longest = timeout_nanos(self.config.max_timewait_time);
            conn.timewait = conn.timewait.saturating_add(delay).min(longest);
            conn.offered = conn.offered.filter(|_| rep.failover == FailoverAccepted::ACCEPTED);
            conn.last = None;
            let half = timeout_nanos(conn.peer_waits) / 2;
            self.table.set_deadline(id, Some(now + half));
        }
        self.table.set_state(id, State::RepRcvd);
        self.event(id, EventKind::Reply { rep: Box::new(*rep) });
        Ok(())
    }

    pub(super) fn handle_mra(&mut self, now: Time, path: CmPath, mra: &Mra) -> Result<(), CmDrop> {
        let id = mra.remote_comm_id;
        let conn = self.find(path, id, mra.local_comm_id)?;
        if mra.message == AckedMessage::LAP {
            return self.wait_longer_for_apr(now, id, mra);
        }
        let next = match (mra.message, conn.state) {
            (AckedMessage::REQ, State::ReqSent | State::MraReqRcvd) => State::MraReqRcvd,
            (AckedMessage::REP, State::RepSent | State::MraRepRcvd) => State::MraRepRcvd,
            (AckedMessage::REQ | AckedMessage::REP, _) => return Err(CmDrop::Duplicate),
            _ => return Err(CmDrop::WrongState),
        };
        // As often as the message may be repeated, so that nobody waits for ever.
        if conn.mras > conn.max_retries {
            return Err(CmDrop::Duplicate);
        }
        let from = conn.deadline().unwrap_or(now).max(now);
        let asked = now + timeout_nanos(clamp(mra.service_timeout)) + conn.wait;
        let room = MAX_EXTENSION.saturating_sub(conn.extended);
        if room == 0 {
            self.counters.mras_beyond += 1;
            return Err(CmDrop::Duplicate);
        }
        let longer = asked.since(from).min(room);
        self.table.set_state(id, next);
        self.table.set_deadline(id, Some(from + longer));
        if let Some(conn) = self.table.conn_mut(id) {
            conn.mras += 1;
            conn.extended += longer;
        }
        Ok(())
    }
}
