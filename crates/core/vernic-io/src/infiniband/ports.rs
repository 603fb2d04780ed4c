//! What a subnet manager has set up, and its changes.
//!
//! The link writes it when the fabric process tells a change. The control path opens paths with it,
//! and the engine's background thread takes the changes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vernic_attach::PortReport;
use vernic_sys as sys;
use vernic_wire::Gid;

use super::route;
use crate::link::{NoPath, OpenPath, PathRequest, Paths};
use crate::link_port::{LinkPort, PortState, PortWatch};
use crate::wait::{bell, raise};

/// Returns a port in the terms of links.
pub(super) fn of_report(report: &PortReport) -> LinkPort {
    let prefix = report.gid_prefix.to_be_bytes();
    let gid = |guid: u64| {
        let mut gid = Gid::ZERO;
        gid.0[..8].copy_from_slice(&prefix);
        gid.0[8..].copy_from_slice(&guid.to_be_bytes());
        gid
    };
    LinkPort {
        state: PortState::from_code(report.state),
        physical_state: report.physical_state,
        lid: report.lid,
        lmc: report.lmc,
        sm_lid: report.sm_lid,
        sm_service_level: report.sm_service_level.value(),
        subnet_timeout: report.subnet_timeout,
        init_type_reply: 0,
        active_width: report.width,
        active_speed: report.speed,
        max_lanes: report.lanes_supported,
        capabilities: report.capabilities,
        max_mtu: Some(report.mtu_capability),
        active_mtu: Some(report.active_mtu),
        gids: report.guids.iter().map(|guid| gid(guid.0)).collect(),
        pkeys: report.pkeys.clone(),
        reregistrations: report.reregisters,
    }
}

/// The ports, as the control path sees them.
#[derive(Debug)]
pub(super) struct SharedPorts {
    /// `None` once the fabric is gone.
    ports: Mutex<Option<Vec<LinkPort>>>,
    bell: OwnedFd,
}

impl SharedPorts {
    /// Returns the ports as they are when the link is opened.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub(super) fn new(ports: Vec<LinkPort>) -> io::Result<Self> {
        Ok(Self { ports: Mutex::new(Some(ports)), bell: bell(false)? })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<LinkPort>>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the ports as they are now; `None` if the fabric is gone.
    pub(super) fn set(&self, ports: Option<Vec<LinkPort>>) {
        *self.lock() = ports;
        raise(self.bell.as_fd());
    }
}

impl PortWatch for SharedPorts {
    fn raw_fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    fn take(&self) -> Option<Vec<LinkPort>> {
        // Each change has rung once, and the bell holds a bounded number of rings.
        while sys::read(self.bell.as_fd(), &mut [0; 8]).is_ok_and(|bytes| bytes != 0) {}
        self.lock().clone()
    }
}

impl Paths for SharedPorts {
    fn open_path(&self, to: &PathRequest) -> Result<OpenPath, NoPath> {
        let ports = self.lock();
        let at = usize::from(to.port.value()).wrapping_sub(1);
        let port = ports.as_ref().and_then(|ports| ports.get(at)).ok_or(NoPath::UnknownGid)?;
        Ok(route::open(to, to.path_bits & route::own_bits(port)))
    }
}
