//! Datagrams on their way out: new ones, repeated ones, and answers to what has no connection.

use vernic_wire::cm::{AckedMessage, CmAttribute, CmMessage, CommId, Mra, timeout_nanos};
use vernic_wire::mad::MAD_LEN;

use super::Cm;
use super::counters::index;
use super::params::{CmPath, Datagram, clamp};
use super::state::State;
use super::table::Mad;
use crate::time::Time;

/// Datagrams that wait to be fetched: a MiB. The owner fetches them after each call, and no call
/// makes more than [`TIMEOUTS_PER_CALL`](super::timers::TIMEOUTS_PER_CALL) of them, so this is
/// never met unless the owner does not do its part.
const OUTBOX_MAX: usize = 4096;

impl Cm {
    pub(super) fn push(&mut self, path: CmPath, mad: &Mad, repeats: u8) {
        if self.outbox.len() >= OUTBOX_MAX {
            self.counters.outbox_full += 1;
            return;
        }
        self.counters.sent[index(CmAttribute(u16::from_be_bytes([mad[16], mad[17]])))] += 1;
        self.outbox.push_back(Datagram { path, mad: *mad, repeats });
    }

    /// Sends a message that nothing will repeat.
    pub(super) fn send(&mut self, path: CmPath, transaction_id: u64, message: &CmMessage) {
        let mut mad = [0; MAD_LEN];
        message.emit(transaction_id, &mut mad);
        // Nobody remembers whether the same was answered before: each goes another way than the
        // last one.
        self.unkept = self.unkept.wrapping_add(2);
        self.push(path, &mad, self.unkept);
    }

    /// Sends a message of a connection, and keeps it for the timer and for duplicates.
    pub(super) fn send_kept(&mut self, id: CommId, message: &CmMessage) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        let mut mad = Box::new([0; MAD_LEN]);
        message.emit(conn.transaction_id, &mut mad);
        let (path, copy) = (conn.path, *mad);
        conn.last = Some(mad);
        (conn.retries, conn.repeats, conn.mras, conn.extended) = (0, 0, 0, 0);
        self.push(path, &copy, 0);
    }

    /// Sends a connection's last message again.
    pub(super) fn send_last(&mut self, id: CommId) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        let last = conn.last.as_deref().copied();
        if let Some(last) = last {
            conn.repeats = conn.repeats.saturating_add(1);
            let (path, repeats) = (conn.way(conn.repeats), conn.repeats);
            self.push(path, &last, repeats);
        }
    }

    /// Sends an MRA of the REQ or REP that the owner has not answered yet.
    pub(super) fn ask_for_time(&mut self, now: Time, id: CommId) {
        let Some(conn) = self.table.conn(id) else { return };
        let (message, state) = match conn.state {
            State::ReqRcvd | State::MraReqSent => (AckedMessage::REQ, State::MraReqSent),
            _ => (AckedMessage::REP, State::MraRepSent),
        };
        if conn.state == state {
            self.send_last(id);
        } else {
            let mra = Mra {
                local_comm_id: id,
                remote_comm_id: conn.remote_id,
                message,
                service_timeout: self.config.service_timeout,
                ..Mra::default()
            };
            self.send_kept(id, &mra.into());
            self.table.set_state(id, state);
        }
        // The peer of a REP gives up by itself, and says so; that of a REQ may be gone.
        let deadline = (state == State::MraReqSent).then(|| now + self.patience(id));
        self.table.set_deadline(id, deadline);
    }

    /// For how long a peer that is there does not repeat its REQ after our MRA, twice over.
    fn patience(&self, id: CommId) -> u64 {
        let peer_waits = self.table.conn(id).map_or(0, |conn| conn.peer_waits);
        2 * (timeout_nanos(clamp(self.config.service_timeout)) + timeout_nanos(peer_waits))
    }
}
