//! Who listens on what.

use std::collections::BTreeMap;

use vernic_wire::Gid;
use vernic_wire::cm::{CommId, ServiceId};

use super::event::CmError;
use super::params::ListenerId;
use crate::shares::{Shares, Source};

/// Place that a listener listens at: a GID of ours, or all.
type Place = (ServiceId, Option<Gid>);

/// Whose a request is, and its number.
pub(super) type Turn = (Source, u64);

#[derive(Debug)]
struct Listener {
    place: Place,
    backlog: usize,
    /// Requests that count in the backlog, by the numbers of their entries.
    pending: Shares<CommId>,
}

/// All listeners: as many as the owner asked for.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_place: BTreeMap<Place, ListenerId>,
    by_id: BTreeMap<ListenerId, Listener>,
    next: u32,
}

impl Listeners {
    pub(super) fn add(
        &mut self,
        service: ServiceId,
        local: Option<Gid>,
        backlog: usize,
    ) -> Result<ListenerId, CmError> {
        let place = (service, local);
        if self.by_place.contains_key(&place) {
            return Err(CmError::InUse { service, local });
        }
        // There are far fewer listeners than numbers.
        while self.by_id.contains_key(&ListenerId(self.next)) {
            self.next = self.next.wrapping_add(1);
        }
        let id = ListenerId(self.next);
        self.next = self.next.wrapping_add(1);
        self.by_place.insert(place, id);
        self.by_id.insert(id, Listener { place, backlog, pending: Shares::default() });
        Ok(id)
    }
    pub(super) fn remove(&mut self, id: ListenerId) {
        if let Some(listener) = self.by_id.remove(&id) {
            self.by_place.remove(&listener.place);
        }
    }
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }
    /// The listener for a request that came to `local`.
    pub(super) fn find(&self, service: ServiceId, local: Gid) -> Option<ListenerId> {
        let place = self.by_place.get(&(service, Some(local)));
        place.or_else(|| self.by_place.get(&(service, None))).copied()
    }
    /// Whether the backlog has room for one more request.
    pub(super) fn has_room(&self, id: ListenerId) -> bool {
        self.by_id.get(&id).is_some_and(|listener| listener.pending.len() < listener.backlog)
    }
    /// The request that makes room for one of a peer, if others have too much of the backlog.
    pub(super) fn excess(&self, id: ListenerId, of: Source) -> Option<CommId> {
        self.by_id.get(&id)?.pending.excess(of)
    }
    /// Counts a request in the backlog.
    pub(super) fn count(&mut self, id: ListenerId, (of, number): Turn, request: CommId) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.pending.add(of, number, request);
        }
    }
    /// A request that was counted is answered, or gone. The listener may be gone too.
    pub(super) fn release(&mut self, id: ListenerId, (of, number): Turn) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.pending.remove(of, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use vernic_wire::cm::PortSpace;

    use super::*;

    fn gid(last: u8) -> Gid {
        Gid::from_ip([10, 0, 0, last].into())
    }

    #[test]
    fn a_listener_at_an_address_goes_before_one_at_all() {
        let mut listeners = Listeners::default();
        let service = PortSpace::TCP.service_id(1);
        let all = listeners.add(service, None, 1).unwrap();
        let one = listeners.add(service, Some(gid(1)), 1).unwrap();
        assert_eq!(listeners.find(service, gid(1)), Some(one));
        assert_eq!(listeners.find(service, gid(2)), Some(all));
        assert_eq!(listeners.find(PortSpace::UDP.service_id(1), gid(1)), None);
        listeners.remove(one);
        assert_eq!(listeners.find(service, gid(1)), Some(all));
        let error = CmError::InUse { service, local: None };
        assert_eq!(listeners.add(service, None, 1), Err(error));
    }

    #[test]
    fn a_backlog_has_room_again_when_a_request_is_answered() {
        let mut listeners = Listeners::default();
        let id = listeners.add(ServiceId(1), None, 1).unwrap();
        let request = (Source::of(gid(1)), 7);
        assert!(listeners.has_room(id));
        listeners.count(id, request, CommId(1));
        assert!(!listeners.has_room(id));
        listeners.release(id, request);
        assert!(listeners.has_room(id));
        listeners.remove(id);
        listeners.release(id, request);
        assert!(!listeners.has_room(id));
    }
}
