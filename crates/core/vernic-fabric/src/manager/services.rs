//! Services that ports offer, with their leases (IBTA 15.2.5.14).

use vernic_wire::sa::{SaStatus, ServiceComponents, ServiceRecord};

use crate::Time;

/// Services at most.
const MOST: usize = 1 << 16;
const NANOS: u64 = 1_000_000_000;

/// All services.
#[derive(Debug, Default)]
pub(super) struct Services {
    records: Vec<(ServiceRecord, Option<Time>)>,
}

/// What makes a record the same: service, port and partition.
fn is_same(one: &ServiceRecord, other: &ServiceRecord) -> bool {
    (one.service_id, one.gid, one.pkey) == (other.service_id, other.gid, other.pkey)
}

/// Returns whether a record has what a request asks for.
pub(super) fn matches(asked: &ServiceRecord, mask: ServiceComponents, has: &ServiceRecord) -> bool {
    let asks = |component| mask.intersects(component);
    (!asks(ServiceComponents::SERVICE_ID) || asked.service_id == has.service_id)
        && (!asks(ServiceComponents::GID) || asked.gid == has.gid)
        && (!asks(ServiceComponents::PKEY) || asked.pkey == has.pkey)
        && (!asks(ServiceComponents::NAME) || asked.name == has.name)
        && (!asks(ServiceComponents::DATA8) || asked.data8 == has.data8)
        && (!asks(ServiceComponents::DATA16) || asked.data16 == has.data16)
        && (!asks(ServiceComponents::DATA32) || asked.data32 == has.data32)
        && (!asks(ServiceComponents::DATA64) || asked.data64 == has.data64)
}

impl Services {
    /// Takes a service.
    ///
    /// # Errors
    /// [`SaStatus::DENIED`] if there is one with another key; [`SaStatus::NO_RESOURCES`].
    pub(super) fn set(&mut self, record: ServiceRecord, now: Time) -> Result<(), SaStatus> {
        let end = (record.lease_s != ServiceRecord::LEASE_FOREVER)
            .then(|| now + u64::from(record.lease_s) * NANOS);
        if let Some(slot) = self.records.iter_mut().find(|(one, _)| is_same(one, &record)) {
            if slot.0.key != record.key {
                return Err(SaStatus::DENIED);
            }
            *slot = (record, end);
        } else if self.records.len() < MOST {
            self.records.push((record, end));
        } else {
            return Err(SaStatus::NO_RESOURCES);
        }
        Ok(())
    }
    /// Ends a service. Returns it.
    ///
    /// # Errors
    /// [`SaStatus::NO_RECORDS`], or [`SaStatus::DENIED`] with another key.
    pub(super) fn remove(
        &mut self,
        asked: &ServiceRecord,
        mask: ServiceComponents,
    ) -> Result<ServiceRecord, SaStatus> {
        let at = self.records.iter().position(|(one, _)| matches(asked, mask, one));
        let at = at.ok_or(SaStatus::NO_RECORDS)?;
        match self.records[at].0.key == asked.key {
            true => Ok(self.records.swap_remove(at).0),
            false => Err(SaStatus::DENIED),
        }
    }
    /// Returns all services.
    pub(super) fn records(&self) -> impl Iterator<Item = &ServiceRecord> {
        self.records.iter().map(|(record, _)| record)
    }
    /// Ends the services whose lease is over.
    pub(super) fn expire(&mut self, now: Time) {
        self.records.retain(|(_, end)| end.is_none_or(|end| now < end));
    }
    /// Returns when the next lease is over.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.records.iter().filter_map(|(_, end)| *end).min()
    }
}
