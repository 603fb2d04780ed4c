//! Peers that are gone without a word, as the owner may know by other means than messages.

use vernic_wire::cm::{CmAttribute, CommId, Rej, RejReason, RejectedMessage};

use super::counters::index;
use super::event::CmError;
use super::params::ConnId;
use super::state::{Group, State};
use super::table::Conn;
use super::{Cm, CmPath};
use crate::time::Time;

/// Where a datagram has its transaction id (IBTA 13.4.2).
const TRANSACTION_ID: std::ops::Range<usize> = 8..16;

/// Whether the connection has a peer that is not known to be done with it.
fn has_peer(conn: &Conn) -> bool {
    let sidr = matches!(conn.state, State::SidrReqSent | State::SidrReqRcvd);
    let done = conn.state == State::DreqRcvd || conn.state.group() == Group::Remembered;
    conn.remote_id != CommId::NONE && !sidr && !done
}

impl Cm {
    /// The other ends of connections that are not over: where each is, and what it calls the
    /// connection.
    pub fn peers(&self) -> impl Iterator<Item = (CmPath, CommId)> {
        let with_peer = self.table.iter().filter(|(_, conn)| has_peer(conn));
        with_peer.map(|(_, conn)| (conn.path, conn.remote_id))
    }

    /// Ends the connections whose peer, as [`peers`](Self::peers) tells it, is gone: its process
    /// was killed, say. Each end is told as if the peer had said so: before the connection is up by
    /// [`Rejected`](super::EventKind::Rejected), after by
    /// [`Disconnected`](super::EventKind::Disconnected). Nothing is sent. Returns how many have
    /// ended.
    pub fn end_gone(&mut self, now: Time, is_gone: impl Fn(CmPath, CommId) -> bool) -> usize {
        let gone = self
            .table
            .iter()
            .filter(|(_, conn)| has_peer(conn) && is_gone(conn.path, conn.remote_id));
        let gone: Vec<_> = gone.map(|(id, conn)| (id, conn.state)).collect();
        let ended = gone.len();
        for (id, state) in gone {
            self.counters.peers_gone += 1;
            // What a peer says whose owner has gone.
            let reason = match state {
                State::ReqRcvd | State::MraReqSent => RejReason::TIMEOUT,
                _ => RejReason::CONSUMER,
            };
            let rej = Rej { reason, message: RejectedMessage::OTHER, ..Rej::default() };
            self.end_rejected(now, id, &rej);
        }
        ended
    }

    /// Ends a request that its owner knows to be heard by nobody, as if the peer had rejected it
    /// for that reason. What is still to be sent of it is not. A connection that has any answer
    /// stays as it is, and false is returned.
    ///
    /// # Errors
    /// Unknown connection.
    pub fn refuse(&mut self, now: Time, conn: ConnId) -> Result<bool, CmError> {
        let entry = self.owned(conn)?;
        if entry.state != State::ReqSent {
            return Ok(false);
        }
        let transaction_id = entry.transaction_id.to_be_bytes();
        self.counters.refused_here += 1;
        let waiting = self.outbox.len();
        self.outbox.retain(|out| out.mad[TRANSACTION_ID] != transaction_id);
        // Of a request that nobody has answered there is nothing else.
        self.counters.sent[index(CmAttribute::REQ)] -= (waiting - self.outbox.len()) as u64;
        let reason = RejReason::INVALID_SERVICE_ID;
        let rej = Rej { reason, message: RejectedMessage::REQ, ..Rej::default() };
        self.end_rejected(now, conn.0, &rej);
        Ok(true)
    }

    /// How often a request was sent that has no answer at all, not even a call for patience (MRA,
    /// IBTA 12.6.6); `None` once there is one.
    ///
    /// # Errors
    /// Unknown connection.
    pub fn sent_unanswered(&self, conn: ConnId) -> Result<Option<u32>, CmError> {
        let entry = self.owned(conn)?;
        Ok((entry.state == State::ReqSent).then(|| u32::from(entry.retries) + 1))
    }
}
