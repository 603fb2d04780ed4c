//! Connections of owners that have ended without a word: their peers hear what was due to them.
//!
//! The kernel of a host with hardware does that for a process that is killed. Here a process that
//! outlives the owner may do it, if it knows the ids of the connection.

use vernic_wire::cm::{CommId, Rej, RejReason, RejectedMessage, ServiceId};
use vernic_wire::{AckTimeout, Qpn};

use super::reject::guid_info;
use super::state::State;
use super::table::Conn;
use super::{Cm, CmPath};
use crate::time::Time;

/// A connection whose owner has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// The id that the owner had given it.
    pub id: CommId,
    /// The queue pair of the owner.
    pub qpn: Qpn,
    /// GUID of the owner's device.
    pub guid: u64,
    /// The peer's id and queue pair; `None` if the peer has not answered the owner's REQ.
    pub peer: Option<(CommId, Qpn)>,
    /// The path to the peer, from the owner's end.
    pub path: CmPath,
}

impl Cm {
    /// Ends a connection for its owner, which has ended: by a DREQ, which is repeated until the
    /// peer answers it, or by REJ 4 (timeout) of a REQ that had no answer. There is no event.
    ///
    /// An id that names a connection already does nothing. Beyond the limit on connections, the
    /// DREQ is not repeated.
    pub fn end_for(&mut self, now: Time, orphan: &Orphan) {
        if self.owns(orphan.id) {
            return;
        }
        let Some((remote_id, remote_qpn)) = orphan.peer else {
            let rej = Rej {
                local_comm_id: orphan.id,
                message: RejectedMessage::OTHER,
                reason: RejReason::TIMEOUT,
                info: guid_info(orphan.guid),
                ..Rej::default()
            };
            return self.send(orphan.path, orphan.id.0.into(), &rej.into());
        };
        let mut conn = Conn::new(State::Established, orphan.path, ServiceId(0));
        conn.owned = false;
        (conn.remote_id, conn.remote_qpn) = (remote_id, remote_qpn);
        (conn.local_qpn, conn.local_guid) = (orphan.qpn, orphan.guid);
        conn.wait = self.config.wait(self.config.response_timeout);
        conn.max_retries = self.config.max_retries;
        conn.timewait = self.config.timewait(AckTimeout::INFINITE, 0);
        let has_room = self.table.live() < self.config.max_connections;
        self.table.insert_as(orphan.id, conn);
        self.send_dreq(now, orphan.id, Default::default());
        if !has_room {
            self.forget(orphan.id);
        }
    }
}
