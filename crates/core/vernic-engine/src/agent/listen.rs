//! Listeners, and the names by which processes of this host see which services are taken.
//!
//! Part of [`CmAgent`]. A service at an address or netdev belongs to the first process of the host
//! that claims its name (`vernic_io::host`). The names for an address and for its netdev differ,
//! but while one of them is claimed, the other counts as taken, too. So [`Engine::claim`] first
//! claims a name and then checks the overlapping names, and gives its own up if one of these is
//! claimed. If two processes claim overlapping names at the same time, at most one of them
//! succeeds.
//!
//! On InfiniBand the fabric process brings requests to the program that has claimed their service.
//! So there the claim is made with that process ([`ServiceClaim`]), and no names are used.
//!
//! Limits: a device has at most [`MAX_NAMES`] listeners and claims.
//!
//! [`MAX_NAMES`]: vernic_io::host::MAX_NAMES

use std::net::IpAddr;

use vernic_io::infiniband::{AttachError, ServiceClaim};
use vernic_io::{LocalAddr, NameError, ServiceName, ServiceScope};
use vernic_proto::cm::{CmError, ListenerId};
use vernic_wire::Gid;
use vernic_wire::cm::ServiceId;

use super::CmAgent;
use crate::cm::{Claimed, State};
use crate::device::infiniband;
use crate::error::ORPHAN;
use crate::progress::engine::Engine;
use crate::support::events::lock;

/// The reason for which a service cannot be listened for or claimed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// A process of this host, perhaps this one, has claimed the service there, or at an
    /// overlapping address or netdev.
    #[error(
        "{service} is taken at {scope}: `ss -xap | grep vernic/service/{name}` names the process",
        service = .0.service, scope = .0.scope, name = .0
    )]
    InUse(ServiceName),
    /// The device does not have the given address.
    #[error("{device} has no address {address}; it has: {present}")]
    NoSuchAddress {
        /// The device.
        device: String,
        /// The address that was given.
        address: IpAddr,
        /// The addresses of the device.
        present: String,
    },
    /// The given netdev is not the one of this device.
    #[error("netdev {index} is not that of {device}, whose index is {own}")]
    OtherNetdev {
        /// The device.
        device: String,
        /// The index that was given.
        index: u32,
        /// The index of the device's netdev.
        own: u32,
    },
    /// The fabric process refuses the claim: usually another program of the host has the service.
    #[error("{service} cannot be claimed at the host: {source}")]
    Claim {
        /// The service.
        service: ServiceId,
        /// The reason.
        source: AttachError,
    },
    /// The system does not allow to claim the name.
    #[error(transparent)]
    Name(NameError),
    /// The CM machine refuses the listener.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// No sink for the events of the agent was attached.
    #[error("no sink is attached to the device's connection manager: CmAgent::attach comes first")]
    NotAttached,
    /// The device was opened by the parent of this process, before a `fork`.
    #[error("the device was {ORPHAN}")]
    Orphan,
}

impl From<NameError> for ListenError {
    fn from(error: NameError) -> Self {
        match error {
            NameError::InUse(name) => Self::InUse(name),
            other => Self::Name(other),
        }
    }
}

fn place_of(listening: &[Claimed], name: &ServiceName) -> Option<usize> {
    listening.iter().position(|claimed| claimed.name == *name)
}

impl Engine {
    /// Returns the name of a service at an address or netdev of this device, and the GID at which a
    /// listener there receives requests; `None` for a netdev, where it is all GIDs.
    fn name_of(
        &self,
        service: ServiceId,
        scope: ServiceScope,
    ) -> Result<(ServiceName, Option<Gid>), ListenError> {
        let device = || self.info().name.clone();
        if self.rules().has_lids() {
            // The addresses are those of IP interfaces, which the device does not have itself.
            let gid = match scope {
                ServiceScope::Address(address) => Some(Gid::from_ip(address.ip)),
                ServiceScope::Netdev(_) => None,
            };
            return Ok((ServiceName { service, scope }, gid));
        }
        match scope {
            ServiceScope::Netdev(index)
                if self.ports().iter().all(|p| p.netdev_index() != index) =>
            {
                let own = self.ports()[0].netdev_index();
                Err(ListenError::OtherNetdev { device: device(), index, own })
            }
            ServiceScope::Netdev(_) => Ok((ServiceName { service, scope }, None)),
            ServiceScope::Address(LocalAddr { ip: address, .. }) => {
                let rows = self.gid_rows();
                let Some(row) = rows.iter().find(|row| row.local.ip == address) else {
                    let all: Vec<_> = rows.iter().map(|row| row.local.to_string()).collect();
                    let present = all.join(", ");
                    return Err(ListenError::NoSuchAddress { device: device(), address, present });
                };
                // The address as the device has it, with its IPv6 scope, even if the caller gave
                // none.
                let scope = ServiceScope::Address(row.local);
                Ok((ServiceName { service, scope }, Some(row.gid)))
            }
        }
    }

    /// Returns the other names whose addresses include an address of `name`.
    fn overlapping(&self, name: &ServiceName) -> Vec<ServiceName> {
        let at = |scope| ServiceName { scope, ..*name };
        match name.scope {
            ServiceScope::Address(local) => {
                let port = self.port_with(local.ip).unwrap_or(&self.ports()[0]);
                vec![at(ServiceScope::Netdev(port.netdev_index()))]
            }
            ServiceScope::Netdev(index) => {
                let rows = self.gid_rows().into_iter().filter(|row| row.ifindex == index);
                rows.map(|row| at(ServiceScope::Address(row.local))).collect()
            }
        }
    }

    /// Claims a name. Returns the claim that has to be kept, on InfiniBand.
    fn claim(&self, name: &ServiceName) -> Result<Option<ServiceClaim>, ListenError> {
        let service = name.service;
        if self.rules().has_lids() {
            let slot = self.with_lane(|lane| lane.first_slot(self.slots()));
            let slot = slot.map_err(|_| ListenError::NotAttached)?;
            let address = match name.scope {
                ServiceScope::Address(address) => Some(address.ip),
                ServiceScope::Netdev(_) => None,
            };
            let claim = infiniband::claim(self.config(), slot, service, address);
            return claim.map(Some).map_err(|source| ListenError::Claim { service, source });
        }
        self.slots().claim_name(name)?;
        for other in self.overlapping(name) {
            let taken = match self.slots().is_claimed(&other) {
                Ok(false) => continue,
                Ok(true) => ListenError::InUse(other),
                Err(error) => error.into(),
            };
            self.slots().release_name(name);
            return Err(taken);
        }
        Ok(None)
    }

    /// Gives up a claim.
    fn give_up(&self, claimed: &Claimed) {
        // A claim at the fabric process ends when it is dropped.
        if claimed.claim.is_none() {
            self.slots().release_name(&claimed.name);
        }
    }
}

impl CmAgent {
    fn check(&self) -> Result<(), ListenError> {
        if self.engine.is_orphan() { Err(ListenError::Orphan) } else { Ok(()) }
    }

    /// Claims a service at an address or netdev of this device without listening, like a TCP port
    /// that is bound. No other process on this host can claim the service or listen for it there,
    /// and requests for it are rejected.
    ///
    /// # Errors
    /// [`ListenError`]. It is [`ListenError::InUse`] also if this device has claimed the service.
    pub fn reserve(&self, service: ServiceId, scope: ServiceScope) -> Result<(), ListenError> {
        self.check()?;
        let (name, _) = self.engine.name_of(service, scope)?;
        // The claim is made without the lock: a fabric process may take long to answer.
        let claim = self.engine.claim(&name)?;
        lock(&self.engine.cm.listening).push(Claimed { name, listener: None, claim });
        Ok(())
    }

    /// Releases a service that was reserved. Does nothing if it is not reserved, or if a listener
    /// uses it by now.
    pub fn release(&self, service: ServiceId, scope: ServiceScope) {
        if self.engine.is_orphan() {
            return;
        }
        let mut listening = lock(&self.engine.cm.listening);
        // The address may have been removed from the device, so it is not looked up there.
        let is_it = |claimed: &Claimed| {
            let same = match (claimed.name.scope, scope) {
                (ServiceScope::Address(has), ServiceScope::Address(asked)) => has.ip == asked.ip,
                (has, asked) => has == asked,
            };
            same && claimed.name.service == service && claimed.listener.is_none()
        };
        if let Some(at) = listening.iter().position(is_it) {
            let claimed = listening.swap_remove(at);
            self.engine.give_up(&claimed);
        }
    }

    /// Whether a process of this host, perhaps this one, has claimed the service at `scope`, or at
    /// an overlapping address or netdev. On InfiniBand, where this cannot be known, the answer is
    /// true.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn is_claimed(&self, service: ServiceId, scope: ServiceScope) -> Result<bool, ListenError> {
        self.check()?;
        if self.engine.rules().has_lids() {
            // No program can look up the claims of others.
            return Ok(true);
        }
        let (name, _) = self.engine.name_of(service, scope)?;
        for name in [name].into_iter().chain(self.engine.overlapping(&name)) {
            if self.engine.slots().is_claimed(&name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Listens for requests, at one address of this device, or at all addresses that its netdev has
    /// and will have. At most `backlog` requests wait to be taken
    /// ([`request_taken`](Self::request_taken)) or answered. Claims the service if this device has
    /// not reserved it.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(
        &self,
        service: ServiceId,
        scope: ServiceScope,
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        self.check()?;
        let engine = &*self.engine;
        let (name, gid) = engine.name_of(service, scope)?;
        // The claim is made without the lock: a fabric process may take long to answer. The loop
        // goes on with a claim that nobody else can have meanwhile.
        let mut fresh = None;
        let (mut listening, at, is_fresh) = loop {
            let mut listening = lock(&engine.cm.listening);
            match (place_of(&listening, &name), fresh.take()) {
                (Some(at), _) if listening[at].listener.is_some() => {
                    return Err(ListenError::InUse(name));
                }
                (Some(at), _) => break (listening, at, false),
                (None, Some(claimed)) => {
                    listening.push(claimed);
                    let at = listening.len() - 1;
                    break (listening, at, true);
                }
                (None, None) => drop(listening),
            }
            fresh = Some(Claimed { name, listener: None, claim: engine.claim(&name)? });
        };
        let listener = self.open(&name, gid, backlog);
        match &listener {
            Ok(id) => listening[at].listener = Some(*id),
            Err(_) if is_fresh => engine.give_up(&listening.swap_remove(at)),
            Err(_) => {}
        }
        drop(listening);
        // The listener has new sockets, which the background thread must watch.
        engine.waker().wake();
        listener
    }

    /// Makes the listener, and its sockets to which other processes hand over requests.
    fn open(
        &self,
        name: &ServiceName,
        gid: Option<Gid>,
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        let listener = {
            let mut state = lock(&self.engine.cm.state);
            let State { machine: Some(machine), sink: Some(_) } = &mut *state else {
                return Err(ListenError::NotAttached);
            };
            machine.listen(name.service, gid, backlog)?
        };
        if self.engine.rules().has_lids() {
            return Ok(listener);
        }
        match self.engine.slots().open_name(name) {
            Ok(()) => Ok(listener),
            Err(error) => {
                self.close(listener);
                Err(error.into())
            }
        }
    }

    fn close(&self, listener: ListenerId) {
        if let Some(machine) = &mut lock(&self.engine.cm.state).machine {
            machine.stop_listening(listener);
        }
    }

    /// Ends a listener and releases its service, even if the service had been reserved before.
    /// Requests that the listener has received stay. Does nothing for an unknown listener.
    pub fn stop_listening(&self, listener: ListenerId) {
        if self.engine.is_orphan() {
            return;
        }
        let mut listening = lock(&self.engine.cm.listening);
        let Some(at) = listening.iter().position(|c| c.listener == Some(listener)) else {
            return;
        };
        let claimed = listening.swap_remove(at);
        self.engine.give_up(&claimed);
        self.close(listener);
        drop(listening);
        // The background thread must stop watching the listener's sockets.
        self.engine.waker().wake();
    }
}
