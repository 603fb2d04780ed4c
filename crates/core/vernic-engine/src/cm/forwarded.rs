//! A record of the requests that this process has handed over to other processes of the host, so
//! that a REJ which withdraws a request can be handed over, too.
//!
//! A peer that no longer waits for the answer to its REQ sends a REJ. The REJ does not say which
//! process it is for, because the peer has not seen an id of that process yet. All datagrams of a
//! peer about one connection leave from one port, so the kernel delivers them to the process that
//! the REQ came to. This record tells that process for which service the REQ was.
//!
//! If processes have started or ended meanwhile, the kernel may deliver the REJ to another process,
//! which drops and counts it. Then the request stays with its owner until the owner answers and the
//! peer refuses the answer, or until it expires.
//!
//! Limits: the last [`MAX_FORWARDED`] requests are remembered.

use std::collections::VecDeque;

use vernic_wire::Gid;
use vernic_wire::cm::{CommId, ServiceId};

/// The number of requests that are remembered: as many as one burst brings. Each takes 32 bytes.
const MAX_FORWARDED: usize = 1024;

/// Requests that were handed over, oldest first: the peer's address, the peer's id for the
/// connection, and the service.
#[derive(Debug, Default)]
pub(crate) struct Forwarded(VecDeque<(Gid, CommId, ServiceId)>);

impl Forwarded {
    /// Records that a REQ for `service` was handed over. It came from the peer at `from`, for the
    /// connection that the peer calls `id`.
    pub(super) fn note(&mut self, from: Gid, id: CommId, service: ServiceId) {
        if self.service(from, id) == Some(service) {
            return;
        }
        if self.0.len() >= MAX_FORWARDED {
            self.0.pop_front();
        }
        self.0.push_back((from, id, service));
    }

    /// Returns the service of the last REQ that the peer at `from` sent for the connection that it
    /// calls `id`.
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
            // Each REQ comes twice, as repeated REQs do.
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
