//! The port of the interface, as the fabric tells it.

use vernic_attach::{MadClient, PortReport};
use vernic_wire::{Gid, Guid, Pkey, PortNum};

use crate::error::IpoibError;

/// Port of the adapter that interfaces are on.
pub(crate) const PORT: PortNum = PortNum(1);
/// Logical state of an active port (IBTA 14.2.5.6).
const ACTIVE: u8 = 4;
/// Bits of a partition key that name the partition.
const PARTITION: u16 = 0x7FFF;

/// What of a port matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Port {
    pub(crate) adapter: Guid,
    pub(crate) is_active: bool,
    pub(crate) gid: Gid,
    pub(crate) lid: vernic_wire::Lid,
    pub(crate) reregisters: u32,
    /// Place of our partition in the port's table.
    pub(crate) pkey_index: Option<u16>,
}

/// Where news of the port come from.
#[derive(Debug)]
pub(crate) struct PortView {
    fabric: MadClient,
    host: String,
    pkey: Pkey,
}

impl PortView {
    pub(crate) fn open(fabric: &str, host: &str, pkey: Pkey) -> Result<Self, IpoibError> {
        Ok(Self { fabric: MadClient::connect(fabric)?, host: host.to_owned(), pkey })
    }

    /// The port as it is now.
    pub(crate) fn port(&self) -> Result<Port, IpoibError> {
        let adapter = self.fabric.adapter(&self.host)?;
        let (ports, port) = (adapter.ports.len(), PORT.0);
        let found = adapter.ports.into_iter().find(|port| port.number == PORT);
        let report =
            found.ok_or_else(|| IpoibError::NoPort { host: self.host.clone(), port, ports })?;
        Ok(self.port_of(adapter.guid, &report))
    }
    fn port_of(&self, adapter: Guid, report: &PortReport) -> Port {
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&report.gid_prefix.to_be_bytes());
        let guid = report.guids.first().map_or(0, |guid| guid.0);
        gid[8..].copy_from_slice(&guid.to_be_bytes());
        let same = |key: &Pkey| (key.0 ^ self.pkey.0) & PARTITION == 0;
        // Of two entries of a partition, that of a full member counts.
        let full = |key: &Pkey| same(key) && key.0 & !PARTITION != 0;
        let at = report.pkeys.iter().position(full).or(report.pkeys.iter().position(same));
        let is_active = report.state == ACTIVE;
        let pkey_index = at.and_then(|at| u16::try_from(at).ok());
        let (gid, lid, reregisters) = (Gid(gid), report.lid, report.reregisters);
        Port { adapter, is_active, gid, lid, reregisters, pkey_index }
    }
}
