//! Requests for connections that come before a program has claimed their service.
//!
//! Often two programs agree by other means that one of them will connect, and the other one listens
//! only a moment later. So a request without a claim waits for [`PATIENCE_NS`]. Then the host
//! rejects it.
//!
//! Limits: [`MOST`] requests wait. If one more comes, the oldest is rejected at once.

use std::collections::VecDeque;
use std::net::IpAddr;

use vernic_fabric::Time;
use vernic_wire::PortNum;
use vernic_wire::cm::ServiceId;

use crate::host::Host;
use crate::key::Key;
use crate::known::RequestName;

/// How long a request waits: as long as a program takes to listen that is about to. Peers repeat
/// their requests after half a second.
const PATIENCE_NS: u64 = 100_000_000;

/// Most requests that wait, at all hosts together.
const MOST: usize = 256;

/// A request that waits for a claim.
#[derive(Debug)]
pub(crate) struct EarlyRequest {
    /// The host and the port that it came to.
    pub(crate) end: (usize, PortNum),
    pub(crate) packet: Vec<u8>,
    name: RequestName,
    service: ServiceId,
    address: Option<IpAddr>,
    until: Time,
}

/// The requests that wait, in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct EarlyRequests(VecDeque<EarlyRequest>);

impl EarlyRequests {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Keeps a request.
    pub(crate) fn keep(
        &mut self,
        end: (usize, PortNum),
        name: RequestName,
        packet: &[u8],
        (service, address): (ServiceId, Option<IpAddr>),
        now: Time,
    ) {
        if self.0.len() >= MOST
            && let Some(oldest) = self.0.front_mut()
        {
            oldest.until = now;
        }
        let (packet, until) = (packet.to_vec(), now + PATIENCE_NS);
        self.0.push_back(EarlyRequest { end, packet, name, service, address, until });
    }
    /// Forgets a request that is taken back.
    pub(crate) fn withdraw(&mut self, name: RequestName) {
        self.0.retain(|request| request.name != name);
    }
    /// Takes a request whose service is claimed by now, or that has waited for long enough. With it
    /// comes the program that has claimed the service, if there is one.
    pub(crate) fn take(
        &mut self,
        hosts: &[Host],
        now: Time,
    ) -> Option<(EarlyRequest, Option<Key>)> {
        let claimed = |request: &EarlyRequest| {
            hosts.get(request.end.0)?.claimed_by(request.service, request.address)
        };
        let at = self.0.iter().position(|one| one.until <= now || claimed(one).is_some())?;
        let request = self.0.remove(at)?;
        let key = claimed(&request);
        Some((request, key))
    }
    /// Returns when the first of them has waited for long enough.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.0.front().map(|request| request.until)
    }
}

#[cfg(test)]
mod tests {
    use vernic_fabric::subnet::NodeId;
    use vernic_wire::cm::CommId;

    use super::*;

    const SERVICE: ServiceId = ServiceId(7);
    const AT: (usize, PortNum) = (0, PortNum(1));

    fn name(id: u32) -> RequestName {
        RequestName { host: 0, slid: 1, comm_id: CommId(id), is_sidr: false }
    }

    fn host() -> [Host; 1] {
        let mut host = Host::new(NodeId(0), "h1".to_owned(), 1);
        for slot in [1, 2] {
            host.choose_slot(Some(slot)).unwrap();
            host.attach(slot, Key::from_bits(u64::from(slot) << 20));
        }
        [host]
    }

    #[test]
    fn a_request_waits_for_a_claim_for_a_bounded_time() {
        let (mut hosts, mut early) = (host(), EarlyRequests::default());
        let address = Some(IpAddr::from([10, 0, 0, 1]));
        early.keep(AT, name(1), &[1], (SERVICE, address), Time(0));
        early.keep(AT, name(2), &[2], (ServiceId(8), None), Time(5));
        assert!(early.take(&hosts, Time(PATIENCE_NS - 1)).is_none());
        let owner = Key::from_bits(99);
        hosts[0].claim(owner, 2, SERVICE, address).unwrap();
        let (request, key) = early.take(&hosts, Time(6)).unwrap();
        assert_eq!((request.packet, key), (vec![1], hosts[0].program(2)));
        assert_eq!(early.next_due(), Some(Time(5 + PATIENCE_NS)));
        let (request, key) = early.take(&hosts, Time(5 + PATIENCE_NS)).unwrap();
        assert_eq!((request.packet, key), (vec![2], None));
        assert!(early.is_empty());
    }

    #[test]
    fn a_flood_keeps_no_more_than_the_most() {
        let (hosts, mut early) = (host(), EarlyRequests::default());
        for n in 0..2 * MOST {
            early.keep(AT, name(n as u32), &[n as u8], (SERVICE, None), Time(1));
            while early.take(&hosts, Time(1)).is_some() {}
            assert!(early.0.len() <= MOST);
        }
    }

    #[test]
    fn a_request_that_is_taken_back_waits_no_more() {
        let (hosts, mut early) = (host(), EarlyRequests::default());
        early.keep(AT, name(1), &[1], (SERVICE, None), Time(0));
        early.keep(AT, name(2), &[2], (SERVICE, None), Time(0));
        early.withdraw(name(1));
        let (request, _) = early.take(&hosts, Time(PATIENCE_NS)).unwrap();
        assert_eq!((request.packet, early.is_empty()), (vec![2], true));
    }
}
