//! Agents of a port, and which of them a datagram is for (IBTA 13.4.5, 16.5 for vendors).

use std::collections::BTreeMap;

use vernic_wire::Qpn;
use vernic_wire::mad::{MAD_LEN, MadHeader, MgmtClass};

use super::class;
use super::params::{AgentId, RegisterError, Registration};

/// Versions of a class that can be registered.
const MAX_VERSION: u8 = 7;
/// The last class that is no directed route.
const LAST_CLASS: u8 = 0x4F;

/// Agents by id.
#[derive(Debug)]
pub(super) struct Registry {
    agents: BTreeMap<AgentId, Registration>,
    last: u32,
    id_base: u32,
    id_mask: u32,
}

impl Registry {
    pub(super) fn new(id_base: u32, id_bits: u32) -> Self {
        let id_mask = (1 << id_bits.clamp(8, 24)) - 1;
        Self { agents: BTreeMap::new(), last: 0, id_base: id_base & !id_mask, id_mask }
    }

    pub(super) fn len(&self) -> usize {
        self.agents.len()
    }

    pub(super) fn get(&self, agent: AgentId) -> Option<&Registration> {
        self.agents.get(&agent)
    }

    /// Adds an agent. The caller has checked that there is room.
    pub(super) fn add(&mut self, wanted: &Registration) -> Result<AgentId, RegisterError> {
        check(wanted)?;
        let taken = self.agents.iter().find_map(|(id, agent)| {
            let common = agent.methods & wanted.methods;
            (common != 0 && overlaps(agent, wanted)).then_some((*id, common.trailing_zeros()))
        });
        if let Some((agent, method)) = taken {
            return Err(RegisterError::InUse {
                agent,
                method: method as u8,
                class: wanted.class,
                version: wanted.class_version,
            });
        }
        let id = self.next_id();
        self.agents.insert(id, *wanted);
        Ok(id)
    }

    pub(super) fn remove(&mut self, agent: AgentId) -> bool {
        self.agents.remove(&agent).is_some()
    }

    /// Returns the next id that is free: as many turns as there are agents at most.
    fn next_id(&mut self) -> AgentId {
        loop {
            self.last = (self.last + 1) & self.id_mask;
            let id = AgentId(self.id_base | self.last);
            if self.last != 0 && !self.agents.contains_key(&id) {
                return id;
            }
        }
    }

    /// Returns the agent that a datagram is for: an answer is for the agent that has asked, which
    /// its transaction id names, and a request for the one that takes it.
    pub(super) fn find(
        &self,
        qpn: Qpn,
        header: &MadHeader,
        mad: &[u8; MAD_LEN],
    ) -> Option<(AgentId, &Registration)> {
        if class::is_response(header) {
            let id = AgentId((header.transaction_id >> 32) as u32);
            let agent = self.agents.get(&id).filter(|agent| agent.qpn == qpn)?;
            return Some((id, agent));
        }
        let takes = |agent: &Registration| {
            agent.qpn == qpn
                && agent.class == header.mgmt_class
                && agent.class_version == header.class_version
                && agent.methods >> (header.method.0 & 0x7F) & 1 == 1
                && (!class::has_oui(agent.class) || agent.oui == class::oui(mad))
        };
        self.agents.iter().find(|(_, agent)| takes(agent)).map(|(id, agent)| (*id, agent))
    }
}

fn overlaps(one: &Registration, other: &Registration) -> bool {
    one.class == other.class
        && one.class_version == other.class_version
        && (!class::has_oui(one.class) || one.oui == other.oui)
}

fn check(wanted: &Registration) -> Result<(), RegisterError> {
    let Registration { qpn, class, class_version, oui, .. } = *wanted;
    if class == MgmtClass(0) && wanted.methods == 0 && qpn.value() <= 1 {
        return Ok(());
    }
    let directed = class == MgmtClass::SUBNET_DIRECTED_ROUTE;
    if !directed && !(1..=LAST_CLASS).contains(&class.0) {
        return Err(RegisterError::BadClass(class));
    }
    if qpn != class::queue_pair(class) {
        return Err(RegisterError::WrongQueuePair { class, qpn });
    }
    if class_version > MAX_VERSION {
        return Err(RegisterError::BadVersion(class_version));
    }
    if wanted.rmpp && !class::has_rmpp(class) {
        return Err(RegisterError::NoRmpp(class));
    }
    if class::has_oui(class) && !(1..1 << 24).contains(&oui) {
        return Err(RegisterError::BadOui { class, oui });
    }
    Ok(())
}
