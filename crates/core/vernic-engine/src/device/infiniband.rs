//! The host of a fabric that the settings name, and its adapter.
//!
//! A program is on a host of a fabric if the settings `fabric` and `host` say so. It then sees that
//! host's adapter, and no device of this machine's netdevs. The fabric process has the adapter
//! (docs/fabric.md); several programs may use it at once.

use std::net::IpAddr;

use vernic_io::Slot;
use vernic_io::infiniband::{
    Adapter, AttachError, FabricHost, InfinibandFactory, PathAsked, ServiceClaim,
};
use vernic_wire::PortNum;
use vernic_wire::cm::ServiceId;
use vernic_wire::sa::PathRecord;

use crate::config::Config;
use crate::error::OpenError;

/// Whether the settings name a fabric.
pub(crate) fn is_chosen(config: &Config) -> bool {
    !config.fabric.is_empty()
}

fn place(config: &Config) -> FabricHost {
    FabricHost { fabric: config.fabric.clone(), host: config.host.clone() }
}

/// Returns the factory of the link of the host that the settings name.
pub(crate) fn factory(config: &Config) -> InfinibandFactory {
    InfinibandFactory::new(place(config))
}

/// Asks the fabric for the adapter of the host that the settings name.
///
/// # Errors
/// [`OpenError::Fabric`].
pub(crate) fn adapter(config: &Config) -> Result<Adapter, OpenError> {
    let place = place(config);
    place.adapter().map_err(|source| OpenError::Fabric {
        fabric: place.fabric.clone(),
        host: place.host.clone(),
        source,
    })
}

/// Claims a service for a process slot: requests for it come to this process, those for one IP
/// address or all.
///
/// # Errors
/// [`AttachError`].
pub(crate) fn claim(
    config: &Config,
    slot: Slot,
    service: ServiceId,
    address: Option<IpAddr>,
) -> Result<ServiceClaim, AttachError> {
    ServiceClaim::claim(&config.fabric, &config.host, slot.value(), service, address)
}

/// Asks subnet administration for a path that leaves by a port, and waits for the answer.
///
/// # Errors
/// [`AttachError`].
pub(crate) fn path(
    config: &Config,
    port: PortNum,
    asked: &PathAsked,
) -> Result<PathRecord, AttachError> {
    place(config).path(port, asked)
}
