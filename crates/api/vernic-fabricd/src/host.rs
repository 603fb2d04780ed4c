//! A host: a channel adapter of the plan, with the programs and agents that use it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use vernic_attach::data::Membership;
use vernic_attach::{LAST_SLOT, Refusal, RefusalKind};
use vernic_fabric::subnet::NodeId;
use vernic_wire::cm::ServiceId;
use vernic_wire::{Gid, Lid, PortNum};

use crate::administration::PortAdministration;
use crate::agents::PortAgents;
use crate::host_cm::HostCm;
use crate::key::Key;

/// Packets that ended at a host and at no program of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostCounts {
    /// For a queue pair of no program.
    pub(crate) no_program: u64,
    /// To a group that no program has joined.
    pub(crate) no_member: u64,
    /// Raw packets, and others without a transport.
    pub(crate) raw: u64,
    /// Messages of connection management for which there is no program, or whose program has no
    /// room.
    pub(crate) no_connection: u64,
    /// Datagrams that no agent took.
    pub(crate) no_agent: u64,
}

/// A port of a host.
#[derive(Debug, Default)]
pub(crate) struct HostPort {
    /// The agents, from the first time that the port is opened on.
    pub(crate) agents: Option<Box<PortAgents>>,
    /// The client of subnet administration, from the first question of a program on.
    pub(crate) administration: Option<Box<PortAdministration>>,
    /// Members of groups: programs by LID, GID and slot, with how often they joined.
    members: BTreeMap<(Lid, Gid, u16), u32>,
    /// How many programs say that they are a subnet manager.
    pub(crate) managers: u32,
    /// How often clients were asked to register anew.
    pub(crate) reregisters: u32,
    /// Whether a packet waits for a program that has no room.
    pub(crate) waits: bool,
}

/// A claim of a service: its requests come to a program.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// Only requests to this address; `None`: all of them.
    address: Option<IpAddr>,
    slot: u16,
    /// The connection of the claim.
    owner: Key,
}

/// A host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) node: NodeId,
    pub(crate) name: String,
    /// Ports, from port 1 on.
    pub(crate) ports: Vec<HostPort>,
    pub(crate) counts: HostCounts,
    /// Programs by slot; empty until the first one comes.
    slots: Vec<Option<Key>>,
    last_slot: u16,
    programs: usize,
    services: BTreeMap<ServiceId, Vec<Claim>>,
    /// Speaks for programs that have ended; from the first time on that there is something to say.
    pub(crate) cm: Option<Box<HostCm>>,
}

impl Host {
    pub(crate) fn new(node: NodeId, name: String, ports: u8) -> Self {
        Self {
            node,
            name,
            ports: (0..ports).map(|_| HostPort::default()).collect(),
            counts: HostCounts::default(),
            slots: Vec::new(),
            last_slot: 0,
            programs: 0,
            services: BTreeMap::new(),
            cm: None,
        }
    }
    pub(crate) fn port(&mut self, port: PortNum) -> Option<&mut HostPort> {
        self.ports.get_mut(usize::from(port.0).checked_sub(1)?)
    }
    pub(crate) const fn programs(&self) -> usize {
        self.programs
    }
    /// Returns the program of a slot.
    pub(crate) fn program(&self, slot: u16) -> Option<Key> {
        self.slots.get(usize::from(slot)).copied().flatten()
    }
    /// Returns all programs, by their slots.
    pub(crate) fn all_programs(&self) -> impl Iterator<Item = (u16, Key)> + '_ {
        (0..).zip(&self.slots).filter_map(|(slot, key)| key.map(|key| (slot, key)))
    }
    /// Chooses a slot: the one that is wanted, or the next free one after the last. So a slot is
    /// used again late, when packets for its last program have gone.
    pub(crate) fn choose_slot(&mut self, wanted: Option<u16>) -> Result<u16, Refusal> {
        let name = &self.name;
        if self.slots.is_empty() {
            self.slots = vec![None; usize::from(LAST_SLOT) + 1];
        }
        match wanted {
            Some(slot) if slot == 0 || slot > LAST_SLOT => {
                let text = format!("slot {slot} is none: slots are 1 to {LAST_SLOT}");
                Err(Refusal::new(RefusalKind::Invalid, text))
            }
            Some(slot) if self.program(slot).is_some() => {
                let text = format!("slot {slot} of {name} belongs to another program");
                Err(Refusal::new(RefusalKind::Taken, text))
            }
            Some(slot) => Ok(slot),
            None => {
                let after = (self.last_slot + 1..=LAST_SLOT).chain(1..=self.last_slot);
                let mut free = after.filter(|slot| self.program(*slot).is_none());
                let slot = free.next().ok_or_else(|| {
                    let text = format!("{name} has {LAST_SLOT} programs, as many as can be");
                    Refusal::new(RefusalKind::TooMany, text)
                })?;
                self.last_slot = slot;
                Ok(slot)
            }
        }
    }
    /// Adds a program in a slot that was chosen.
    pub(crate) fn attach(&mut self, slot: u16, key: Key) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            *place = Some(key);
            self.programs += 1;
        }
    }
    /// Removes a program, and its claims of services.
    pub(crate) fn detach(&mut self, slot: u16) {
        self.services.retain(|_, claims| {
            claims.retain(|claim| claim.slot != slot);
            !claims.is_empty()
        });
        if let Some(place) = self.slots.get_mut(usize::from(slot))
            && place.take().is_some()
        {
            self.programs -= 1;
        }
    }
    /// Adds a join. Returns whether the adapter is to take packets of the LID from now on.
    pub(crate) fn join(&mut self, slot: u16, group: &Membership) -> bool {
        let Some(port) = self.port(group.port) else { return false };
        let is_new = !port.has_members(group.mlid);
        *port.members.entry((group.mlid, group.mgid, slot)).or_insert(0) += 1;
        is_new
    }
    /// Takes a join back. Returns whether the adapter is to take no more packets of the LID.
    pub(crate) fn leave(&mut self, slot: u16, group: &Membership) -> bool {
        let Some(port) = self.port(group.port) else { return false };
        let key = (group.mlid, group.mgid, slot);
        match port.members.get_mut(&key) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => drop(port.members.remove(&key)),
            None => return false,
        }
        !port.has_members(group.mlid)
    }
    /// Returns the slots of the programs that take packets of a group, each once.
    pub(crate) fn members(&self, port: PortNum, mlid: Lid, mgid: Option<Gid>) -> Vec<u16> {
        let at = usize::from(port.0).checked_sub(1);
        let Some(port) = at.and_then(|at| self.ports.get(at)) else { return Vec::new() };
        let of_lid = port.members.range((mlid, Gid::ZERO, 0)..=(mlid, Gid([0xFF; 16]), u16::MAX));
        let takes = |gid: Gid| mgid.is_none_or(|mgid| mgid == gid) || gid == Gid::ZERO;
        let mut slots: Vec<_> =
            of_lid.filter(|((_, gid, _), _)| takes(*gid)).map(|((_, _, slot), _)| *slot).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }
    /// Returns whether a program has joined a group by this LID.
    pub(crate) fn has_members(&self, port: PortNum, mlid: Lid) -> bool {
        let at = usize::from(port.0).checked_sub(1);
        at.and_then(|at| self.ports.get(at)).is_some_and(|port| port.has_members(mlid))
    }
    /// Notes that a program takes the requests for a service, or only those to an address.
    ///
    /// # Errors
    /// The slot has no program; another claim is in the way.
    pub(crate) fn claim(
        &mut self,
        owner: Key,
        slot: u16,
        service: ServiceId,
        address: Option<IpAddr>,
    ) -> Result<(), Refusal> {
        let name = &self.name;
        if self.program(slot).is_none() {
            let text = format!("slot {slot} of {name} has no program that could take requests");
            return Err(Refusal::new(RefusalKind::Invalid, text));
        }
        let address = address.map(|address| address.to_canonical());
        let claims = self.services.get(&service).map_or(&[][..], Vec::as_slice);
        let is_in_the_way = |claim: &&Claim| {
            let is_for_all = claim.address.is_none() || address.is_none();
            claim.address == address || is_for_all && claim.slot != slot
        };
        if let Some(claim) = claims.iter().find(is_in_the_way) {
            let of = claim.address.map_or("all addresses".to_owned(), |ip| ip.to_string());
            let by = claim.slot;
            let text = format!(
                "the service {service} of {name} is claimed for {of}, by the program in slot {by}"
            );
            return Err(Refusal::new(RefusalKind::Taken, text));
        }
        self.services.entry(service).or_default().push(Claim { address, slot, owner });
        Ok(())
    }
    /// Ends the claim of a connection.
    pub(crate) fn end_claim(&mut self, owner: Key, service: ServiceId) {
        let Some(claims) = self.services.get_mut(&service) else { return };
        claims.retain(|claim| claim.owner != owner);
        if claims.is_empty() {
            self.services.remove(&service);
        }
    }
    /// Returns the program that has claimed a service, for the requests that come to an address, if
    /// they name one: a claim for the address goes before one for all.
    pub(crate) fn claimed_by(&self, service: ServiceId, address: Option<IpAddr>) -> Option<Key> {
        let claims = self.services.get(&service)?;
        let of = |wanted| claims.iter().find(|claim| claim.address == wanted);
        let claim = address.and_then(|ip| of(Some(ip.to_canonical()))).or_else(|| of(None))?;
        self.program(claim.slot)
    }
    /// Returns the services that the program of a slot has claimed, as text.
    pub(crate) fn services_of(&self, slot: u16) -> Vec<String> {
        let all = self.services.iter().flat_map(|(id, claims)| claims.iter().map(move |c| (id, c)));
        let own = all.filter(|(_, claim)| claim.slot == slot);
        own.map(|(service, claim)| match claim.address {
            Some(address) => format!("{service} at {address}"),
            None => service.to_string(),
        })
        .collect()
    }
}

impl HostPort {
    fn has_members(&self, mlid: Lid) -> bool {
        let all = (mlid, Gid::ZERO, 0)..=(mlid, Gid([0xFF; 16]), u16::MAX);
        self.members.range(all).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Host {
        Host::new(NodeId(0), "h1".to_owned(), 2)
    }

    #[test]
    fn slots_are_used_again_as_late_as_can_be() {
        let mut host = host();
        let key = Key::from_bits(1 << 20);
        for slot in 1..=3 {
            assert_eq!(host.choose_slot(None), Ok(slot));
            host.attach(slot, key);
        }
        host.detach(1);
        assert_eq!((host.programs(), host.program(1), host.program(2)), (2, None, Some(key)));
        assert_eq!(host.choose_slot(None), Ok(4));
        assert_eq!(host.choose_slot(Some(1)), Ok(1));
        assert_eq!(host.choose_slot(Some(2)).unwrap_err().kind, RefusalKind::Taken);
        assert_eq!(host.choose_slot(Some(LAST_SLOT + 1)).unwrap_err().kind, RefusalKind::Invalid);
        for slot in 1..=LAST_SLOT {
            host.attach(slot, key);
        }
        assert_eq!(host.choose_slot(None).unwrap_err().kind, RefusalKind::TooMany);
    }

    #[test]
    fn joins_are_counted_by_program_and_group() {
        let mut host = host();
        let group =
            |mgid| Membership { port: PortNum(1), mlid: Lid(0xC001), mgid: Gid([mgid; 16]) };
        assert!(host.join(1, &group(1)));
        assert!(!host.join(1, &group(1)) && !host.join(2, &group(2)) && !host.join(3, &group(0)));
        let members = |host: &Host, mgid| host.members(PortNum(1), Lid(0xC001), mgid);
        assert_eq!(members(&host, Some(Gid([1; 16]))), [1, 3]);
        assert_eq!(members(&host, Some(Gid([2; 16]))), [2, 3]);
        assert_eq!(members(&host, None), [1, 2, 3]);
        assert!(host.members(PortNum(2), Lid(0xC001), None).is_empty());
        assert!(!host.leave(1, &group(1)) && !host.leave(1, &group(1)));
        assert_eq!(members(&host, None), [2, 3]);
        assert!(!host.leave(2, &group(2)) && !host.leave(2, &group(2)) && host.leave(3, &group(0)));
        assert!(!host.join(1, &Membership { port: PortNum(3), ..group(1) }), "no such port");
    }

    fn with_programs(slots: &[u16]) -> Host {
        let mut host = host();
        for slot in slots {
            host.choose_slot(Some(*slot)).unwrap();
            host.attach(*slot, Key::from_bits(u64::from(*slot) << 20));
        }
        host
    }

    #[test]
    fn requests_go_to_the_nearest_claim() {
        let service = ServiceId(7);
        let mut host = with_programs(&[1, 2, 3, 4]);
        let (here, there) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mapped = IpAddr::from(std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped());
        let claimed = |host: &Host, address| {
            let key = host.claimed_by(service, address);
            key.map(|key| key.bits() >> 20)
        };
        assert_eq!(claimed(&host, Some(here)), None);
        let owners = [100, 101, 102].map(Key::from_bits);
        host.claim(owners[0], 2, service, Some(here)).unwrap();
        assert_eq!([None, Some(there)].map(|ip| claimed(&host, ip)), [None; 2]);
        assert_eq!([here, mapped].map(|ip| claimed(&host, Some(ip))), [Some(2); 2]);
        host.claim(owners[1], 3, service, Some(there)).unwrap();
        assert_eq!(claimed(&host, Some(there)), Some(3));
        host.end_claim(owners[1], service);
        host.claim(owners[2], 2, service, None).unwrap();
        assert_eq!([None, Some(there)].map(|ip| claimed(&host, ip)), [Some(2); 2]);
        assert_eq!(host.claimed_by(ServiceId(8), Some(here)), None, "another service");
        host.end_claim(owners[0], service);
        assert_eq!(claimed(&host, Some(here)), Some(2), "by the claim for all");
        host.detach(2);
        assert!(host.services.is_empty());
        host.attach(2, owners[0]);
        assert_eq!(claimed(&host, Some(here)), None, "the next program of a slot has no claim");
    }

    #[test]
    fn claims_do_not_take_what_another_program_has() {
        let mut host = with_programs(&[1, 2]);
        let (service, here) = (ServiceId(7), Some(IpAddr::from([10, 0, 0, 1])));
        let owner = Key::from_bits;
        let kind = |result: Result<(), Refusal>| result.map_err(|refusal| refusal.kind);
        assert_eq!(kind(host.claim(owner(1), 9, service, None)), Err(RefusalKind::Invalid));
        assert_eq!(kind(host.claim(owner(1), 1, service, here)), Ok(()));
        for (slot, address) in [(1, here), (2, here), (2, None)] {
            let taken = host.claim(owner(2), slot, service, address);
            assert_eq!(kind(taken), Err(RefusalKind::Taken), "{slot} {address:?}");
        }
        assert_eq!(kind(host.claim(owner(3), 1, service, None)), Ok(()));
        let there = Some(IpAddr::from([10, 0, 0, 2]));
        assert_eq!(kind(host.claim(owner(4), 2, service, there)), Err(RefusalKind::Taken));
        assert_eq!(kind(host.claim(owner(4), 1, service, there)), Ok(()));
        assert_eq!(kind(host.claim(owner(5), 2, ServiceId(8), None)), Ok(()));
        for one in 1..=5 {
            host.end_claim(owner(one), service);
        }
        assert_eq!(kind(host.claim(owner(6), 2, service, None)), Ok(()));
    }
}
