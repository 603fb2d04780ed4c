//! Requests that this process has handed to others, so that a withdrawal by their sender can follow
//! them.
//!
//! A peer that no longer waits for the answer to its REQ sends a REJ. The REJ cannot name its
//! receiver, since the peer has never seen an id of ours. A peer's datagrams about one connection
//! leave from one port, so they all reach the process that the REQ reached. That process knows from
//! this record which service the REQ went to.
//!
//! If processes have come or gone meanwhile, the REJ may reach another process, where it is a
//! counted drop. Then the request stays until its owner answers it and the peer refuses that
//! answer, or until it expires.
//!
//! Limits: the last [`MAX_FORWARDED`] requests.

use std::collections::VecDeque;

use vernic_wire::Gid;
use vernic_wire::cm::{CommId, ServiceId};

/// The number of requests remembered: as many as one burst brings, at 32 bytes each.
const MAX_FORWARDED: usize = 1024;

/// Requests that were handed over, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Forwarded(VecDeque<(Gid, CommId, ServiceId)>);

impl Forwarded {
    /// Records that the REQ of connection `id` of the peer at `from` went to the listener for
    /// `service`.
    pub(super) fn note(&mut self, from: Gid, id: CommId, service: ServiceId) {
        if self.service(from, id) == Some(service) {
            return;
        }
        if self.0.len() >= MAX_FORWARDED {
            self.0.pop_front();
        }
        self.0.push_back((from, id, service));
    }

    /// Returns the service of the last REQ that the peer at `from` sent for its connection `id`.
    pub(super) fn service(&self, from: Gid, id: CommId) -> Option<ServiceId> {
        let noted = self.0.iter().rev().find(|noted| (noted.0, noted.1) == (from, id));
        noted.map(|noted| noted.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_requests_are_remembered_and_no_more() {
        let mut forwarded = Forwarded::default();
        let (from, other) = (Gid([1; 16]), Gid([2; 16]));
        for n in 0..2 * MAX_FORWARDED as u32 {
            // Repeated, as REQs are.
            forwarded.note(from, CommId(n), ServiceId(n.into()));
            forwarded.note(from, CommId(n), ServiceId(n.into()));
        }
        assert_eq!(forwarded.0.len(), MAX_FORWARDED);
        assert_eq!(forwarded.service(from, CommId(0)), None);
        let last = 2 * MAX_FORWARDED as u32 - 1;
        assert_eq!(forwarded.service(from, CommId(last)), Some(ServiceId(last.into())));
        assert_eq!(forwarded.service(other, CommId(last)), None);
        forwarded.note(from, CommId(last), ServiceId(7));
        assert_eq!(forwarded.service(from, CommId(last)), Some(ServiceId(7)));
    }
}
