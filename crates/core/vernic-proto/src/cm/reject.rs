//! Rejections: those that we send, those that come, and stale connections.

use vernic_wire::cm::{
    CmAttribute, CommId, Info, PrivateData, Rej, RejReason, RejectedMessage, Rep,
};

use super::active::private_data;
use super::event::{CmError, EventKind};
use super::params::{ConnId, Ears, Heard};
use super::state::State;
use super::table::{Conn, RemoteQp};
use super::{Cm, CmDrop, CmPath, Next};
use crate::time::Time;

impl Cm {
    /// Refuses a request, or a reply. `info` is the additional information that the reason has, at
    /// most 72 bytes; private data at most 148. The connection is forgotten: no event follows.
    ///
    /// # Errors
    /// Unknown connection, wrong state, too much information or private data.
    pub fn reject(
        &mut self,
        now: Time,
        conn: ConnId,
        reason: RejReason,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let entry = self.owned(conn)?;
        if !matches!(
            entry.state,
            State::ReqRcvd
                | State::MraReqSent
                | State::RepRcvd
                | State::MraRepSent
                | State::RepSent
                | State::MraRepRcvd
        ) {
            let (command, needs) = ("reject", "REQ received, REP received or REP sent");
            return Err(CmError::WrongState { conn, command, state: entry.state.name(), needs });
        }
        let info = Info::try_from(info)
            .map_err(|error| CmError::TooLong { field: "additional information of REJ", error })?;
        let private_data = self::private_data("private data of REJ", private_data)?;
        self.reject_connection(now, conn.0, reason, info, private_data);
        if let Some(entry) = self.table.conn_mut(conn.0) {
            entry.owned = false;
        }
        Ok(())
    }

    /// Sends the REJ that is due in the connection's state, and keeps it for TIMEWAIT's duplicates.
    fn reject_connection(
        &mut self,
        now: Time,
        id: CommId,
        reason: RejReason,
        info: Info,
        private_data: PrivateData<148>,
    ) {
        let Some(conn) = self.table.conn(id) else { return };
        let message = match conn.state {
            State::ReqRcvd | State::MraReqSent => RejectedMessage::REQ,
            State::RepRcvd | State::MraRepSent => RejectedMessage::REP,
            _ => RejectedMessage::OTHER,
        };
        let rej = Rej {
            local_comm_id: id,
            remote_comm_id: conn.remote_id,
            message,
            reason,
            info,
            private_data,
            ..Rej::default()
        };
        if message == RejectedMessage::REQ {
            // Remembered until the peer has repeated its REQ, if the REJ is lost.
            let repeats = 2 * self.config.wait(conn.peer_waits);
            if let Some(conn) = self.table.conn_mut(id) {
                conn.timewait = conn.timewait.max(repeats);
            }
        }
        self.send_kept(id, &rej.into());
        self.enter_timewait(now, id);
    }

    /// The owner destroys what it was asked for, or asked for itself.
    pub(super) fn reject_unwanted(&mut self, now: Time, id: CommId) {
        let (reason, info) = (RejReason::CONSUMER, Info::NONE);
        self.reject_connection(now, id, reason, info, PrivateData::default());
    }

    /// Nobody answered our REP. The information is our GUID, by which Linux finds its connection.
    pub(super) fn reject_silent(&mut self, now: Time, id: CommId) {
        let guid = self.table.conn(id).map_or(0, |conn| conn.local_guid);
        let (reason, info) = (RejReason::TIMEOUT, guid_info(guid));
        self.reject_connection(now, id, reason, info, PrivateData::default());
    }

    /// Nobody answered our REQ, or nobody here waits for it any more. The peer knows the connection
    /// by our id only; its own is not in the message (IBTA 12.6.7.2: the information is our GUID).
    pub(super) fn reject_timed_out(&mut self, id: CommId) {
        let Some(conn) = self.table.conn(id) else { return };
        let (path, transaction_id) = (conn.path, conn.transaction_id);
        let info = guid_info(conn.local_guid);
        let rej = Rej {
            local_comm_id: id,
            message: RejectedMessage::OTHER,
            reason: RejReason::TIMEOUT,
            info,
            ..Rej::default()
        };
        self.send(path, transaction_id, &rej.into());
    }

    /// Rejects a message of a connection that is none of ours. `ours` is the id that the peer
    /// believes is ours: by it the peer finds its connection.
    pub(super) fn reject_unknown(
        &mut self,
        path: CmPath,
        transaction_id: u64,
        (ours, theirs): (CommId, CommId),
        message: RejectedMessage,
    ) {
        let reason = RejReason::INVALID_COMM_ID;
        let (local_comm_id, remote_comm_id) = (ours, theirs);
        let rej = Rej { local_comm_id, remote_comm_id, message, reason, ..Rej::default() };
        self.send(path, transaction_id, &rej.into());
    }

    /// Ends the connection that names this queue pair as its peer, if there is one, unless its own
    /// queue pair hears the peer: then it is looked at again when that may be over.
    pub(super) fn end_stale(&mut self, now: Time, peer: RemoteQp, ears: Ears<'_>) -> bool {
        let Some(stale) = self.table.by_remote_qp(peer) else { return false };
        self.counters.stale_connections += 1;
        let Some(conn) = self.table.conn(stale) else { return true };
        let heard = ears(conn.local_qpn).map(Heard::until).filter(|until| *until > now);
        match (conn.state, heard) {
            (State::Established, Some(until)) => self.doubt(now, stale, until),
            (State::Established, None) => self.send_dreq(now, stale, PrivateData::default()),
            (State::RepSent | State::MraRepRcvd, Some(_)) => self.counters.stale_but_heard += 1,
            (State::RepSent | State::MraRepRcvd, None) => {
                let (reason, message) = (RejReason::STALE_CONNECTION, RejectedMessage::OTHER);
                self.report_rejected(stale, &Rej { reason, message, ..Rej::default() });
                self.reject_connection(now, stale, reason, Info::NONE, PrivateData::default());
            }
            _ => {}
        }
        true
    }

    /// A connection may be stale, and its peer was heard a moment ago.
    fn doubt(&mut self, now: Time, id: CommId, until: Time) {
        self.counters.stale_but_heard += 1;
        let Some(conn) = self.table.conn_mut(id) else { return };
        if conn.doubted.is_none() {
            conn.doubted = Some(now);
            self.table.set_deadline(id, Some(until));
        }
    }

    /// The time is over for which the peer of a connection in doubt counted as there.
    pub(super) fn settle_doubt(&mut self, now: Time, id: CommId, ears: Ears<'_>) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        let Some(since) = conn.doubted.take() else { return };
        if ears(conn.local_qpn).is_none_or(|heard| heard.at <= since) {
            self.send_dreq(now, id, PrivateData::default());
        }
    }

    /// A REP of a queue pair that is connected: our connection ends before it begins.
    pub(super) fn reject_stale_rep(&mut self, now: Time, id: CommId, rep: &Rep) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        conn.remote_id = rep.local_comm_id;
        let (reason, info) = (RejReason::STALE_CONNECTION, Info::NONE);
        self.table.set_state(id, State::RepRcvd);
        self.report_rejected(id, &Rej { reason, message: RejectedMessage::REP, ..Rej::default() });
        self.disown(id);
        self.reject_connection(now, id, reason, info, PrivateData::default());
    }

    pub(super) fn report_rejected(&mut self, id: CommId, rej: &Rej) {
        let kind = EventKind::Rejected {
            reason: rej.reason,
            message: rej.message,
            info: Box::new(rej.info),
            private_data: Box::new(rej.private_data),
        };
        self.event(id, kind);
    }

    pub(super) fn handle_rej(&mut self, now: Time, path: CmPath, rej: &Rej) -> Result<(), CmDrop> {
        let id = if rej.remote_comm_id != CommId::NONE {
            rej.remote_comm_id
        } else {
            // The peer never heard our id.
            let id = self.table.by_remote(path.peer(), rej.local_comm_id);
            id.ok_or(CmDrop::UnknownConnection)?
        };
        let conn = self.table.conn(id).ok_or(CmDrop::UnknownConnection)?;
        if !conn.is_on(&path) {
            return Err(CmDrop::WrongPath);
        }
        let (state, theirs) = (conn.state, rej.local_comm_id);
        if theirs != CommId::NONE && conn.remote_id != CommId::NONE && theirs != conn.remote_id {
            return Err(CmDrop::WrongInstance);
        }
        // A copy of a REQ may be rejected where another one is accepted, and a rejection may be
        // late.
        let late = match rej.message {
            RejectedMessage::REQ => !matches!(state, State::ReqSent | State::MraReqRcvd),
            RejectedMessage::REP => conn.req.is_none(),
            _ => false,
        };
        if late {
            return Err(CmDrop::Duplicate);
        }
        if !names_both(conn, rej) {
            return Err(CmDrop::WrongInstance);
        }
        if let Next::Done = self.react(now, id, CmAttribute::REJ)? {
            return Ok(());
        }
        self.end_rejected(now, id, rej);
        Ok(())
    }

    /// The peer's end of the connection is over, which `rej` says, or would say.
    pub(super) fn end_rejected(&mut self, now: Time, id: CommId, rej: &Rej) {
        match self.table.conn(id).map(|conn| conn.state) {
            None => {}
            Some(State::ReqSent | State::MraReqRcvd) => {
                self.report_rejected(id, rej);
                self.forget(id);
            }
            Some(State::ReqRcvd | State::MraReqSent) => {
                self.report_rejected(id, rej);
                self.disown(id);
                self.over(now, id);
            }
            Some(State::RepSent | State::MraRepRcvd) => {
                self.report_rejected(id, rej);
                // TIMEWAIT is for late packets of a queue pair that is another connection's.
                if rej.reason != RejReason::STALE_CONNECTION {
                    self.disown(id);
                }
                self.over(now, id);
            }
            Some(State::RepRcvd | State::MraRepSent) => {
                self.report_rejected(id, rej);
                self.over(now, id);
            }
            Some(_) => {
                self.event(id, EventKind::Disconnected);
                self.over(now, id);
            }
        }
    }

    /// The owner has heard the last event.
    pub(super) fn disown(&mut self, id: CommId) {
        if let Some(conn) = self.table.conn_mut(id) {
            conn.owned = false;
        }
    }

    /// TIMEWAIT, with nothing to say to duplicates.
    pub(super) fn over(&mut self, now: Time, id: CommId) {
        if let Some(conn) = self.table.conn_mut(id) {
            conn.last = None;
        }
        self.enter_timewait(now, id);
    }
}

/// Whether a REJ has both ids of the connection, or lacks one for a reason that there is.
fn names_both(conn: &Conn, rej: &Rej) -> bool {
    // The peer has no connection, and no id for it, or we have not heard of it.
    let is_unknown = matches!(conn.state, State::ReqSent | State::MraReqRcvd);
    let theirs = is_unknown || rej.local_comm_id == conn.remote_id;
    // The peer gives its REQ up without ever having heard our id.
    let ours = rej.remote_comm_id != CommId::NONE
        || (rej.reason == RejReason::TIMEOUT && conn.state.may_be_unheard());
    ours && theirs
}

pub(super) fn guid_info(guid: u64) -> Info {
    Info::try_from(&guid.to_be_bytes()[..]).unwrap_or(Info::NONE)
}
