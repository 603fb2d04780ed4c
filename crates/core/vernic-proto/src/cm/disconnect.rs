//! The end of a connection: DREQ, DREP.

use vernic_wire::cm::{
    CmAttribute, CmMessage, CommId, Drep, Dreq, PrivateData, Rej, RejReason, RejectedMessage,
};

use super::active::private_data;
use super::event::{CmError, EventKind};
use super::params::ConnId;
use super::state::State;
use super::{Cm, CmDrop, CmPath, Next};
use crate::time::Time;

impl Cm {
    /// Ends a connection that is up by a DREQ (at most 220 bytes of private data), or answers the
    /// peer's DREQ by a DREP (224). In the first case [`EventKind::Disconnected`] follows; in both
    /// [`EventKind::TimewaitExit`].
    ///
    /// # Errors
    /// Unknown connection, wrong state, too much private data.
    pub fn disconnect(
        &mut self,
        now: Time,
        conn: ConnId,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let entry = self.owned(conn)?;
        match entry.state {
            State::Established => {
                let private_data = self::private_data("private data of DREQ", private_data)?;
                self.send_dreq(now, conn.0, private_data);
            }
            State::DreqRcvd => {
                let private_data = self::private_data("private data of DREP", private_data)?;
                self.send_drep(now, conn.0, private_data);
            }
            state => {
                let (command, needs) = ("disconnect", "Established or DREQ received");
                return Err(CmError::WrongState { conn, command, state: state.name(), needs });
            }
        }
        Ok(())
    }

    pub(super) fn send_dreq(&mut self, now: Time, id: CommId, private_data: PrivateData<220>) {
        let Some(conn) = self.table.conn(id) else { return };
        let dreq = Dreq {
            local_comm_id: id,
            remote_comm_id: conn.remote_id,
            remote_qpn: conn.remote_qpn,
            reserved11: 0,
            private_data,
        };
        if let Some(conn) = self.table.conn_mut(id) {
            conn.transaction_id = id.0.into();
        }
        self.send_kept(id, &dreq.into());
        self.table.set_state(id, State::DreqSent);
        self.await_answer(now, id);
    }

    /// The process is about to end, and there will be nobody to repeat its DREQs: those that are
    /// not answered, and those of now on, are repeated after 10 ms, and then each time after twice
    /// as long, whatever the REQ allowed. To be called once what is to be ended was;
    /// [`farewells`](Self::farewells) says when the owner need not wait any more.
    pub fn hasten_farewells(&mut self, now: Time) {
        self.leaves = true;
        let waiting = self.table.iter().filter(|(_, conn)| conn.state == State::DreqSent);
        let waiting: Vec<_> = waiting.map(|(id, _)| id).collect();
        for id in waiting {
            if let Some(conn) = self.table.conn_mut(id) {
                conn.retries = 0;
            }
            self.await_answer(now, id);
        }
    }

    /// How many of our DREQs are under way.
    pub fn farewells(&self) -> usize {
        self.table.iter().filter(|(_, conn)| conn.state == State::DreqSent).count()
    }

    pub(super) fn send_drep(&mut self, now: Time, id: CommId, private_data: PrivateData<224>) {
        let Some(conn) = self.table.conn(id) else { return };
        let drep = Drep { local_comm_id: id, remote_comm_id: conn.remote_id, private_data };
        self.send_kept(id, &drep.into());
        self.enter_timewait(now, id);
    }

    pub(super) fn handle_dreq(
        &mut self,
        now: Time,
        path: CmPath,
        transaction_id: u64,
        dreq: &Dreq,
    ) -> Result<(), CmDrop> {
        let (id, theirs) = (dreq.remote_comm_id, dreq.local_comm_id);
        let conn = match self.find(path, id, theirs) {
            Ok(conn) => conn,
            // The connection is over; the DREP was lost, or our process is another one now.
            Err(CmDrop::UnknownConnection) => {
                self.send(path, transaction_id, &unasked_drep(id, theirs));
                return Ok(());
            }
            Err(drop) => return Err(drop),
        };
        if conn.local_qpn != dreq.remote_qpn {
            return Err(CmDrop::WrongInstance);
        }
        let state = conn.state;
        if state == State::Timewait && conn.last_attribute() != Some(CmAttribute::DREP) {
            self.send(path, transaction_id, &unasked_drep(id, theirs));
            return Ok(());
        }
        if let Next::Done = self.react(now, id, CmAttribute::DREQ)? {
            return Ok(());
        }
        if let Some(conn) = self.table.conn_mut(id) {
            conn.transaction_id = transaction_id;
        }
        match state {
            State::DreqSent => {
                self.event(id, EventKind::Disconnected);
                self.send_drep(now, id, PrivateData::default());
            }
            // The peer has seen packets of ours instead of an RTU, and is done before we were
            // ready.
            State::RepRcvd | State::MraRepSent => {
                let (reason, message) = (RejReason::CONSUMER, RejectedMessage::OTHER);
                self.report_rejected(id, &Rej { reason, message, ..Rej::default() });
                self.send_drep(now, id, PrivateData::default());
            }
            _ => {
                if state != State::Established {
                    self.up(id, PrivateData::default());
                }
                self.table.set_state(id, State::DreqRcvd);
                self.table.set_deadline(id, None);
                let private_data = Box::new(dreq.private_data);
                self.event(id, EventKind::DisconnectRequest { private_data });
            }
        }
        Ok(())
    }

    pub(super) fn handle_drep(
        &mut self,
        now: Time,
        path: CmPath,
        drep: &Drep,
    ) -> Result<(), CmDrop> {
        let id = drep.remote_comm_id;
        self.find(path, id, drep.local_comm_id)?;
        if let Next::Take = self.react(now, id, CmAttribute::DREP)? {
            self.event(id, EventKind::Disconnected);
            self.over(now, id);
        }
        Ok(())
    }
}

/// DREP of a connection that was not ended by a DREQ, or is unknown here.
fn unasked_drep(local_comm_id: CommId, remote_comm_id: CommId) -> CmMessage {
    Drep { local_comm_id, remote_comm_id, ..Drep::default() }.into()
}
