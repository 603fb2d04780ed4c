//! The GID table of a port: one row per address of the netdev, as the kernel keeps it for RoCEv2.
//!
//! Owns the rows. The table is filled when a device is opened, and updated by the background thread
//! when an address comes or goes. A row keeps its index as long as its address lives. An index is
//! used again only after its address is gone (IBTA 10.2.2 requires no more). Read by the control
//! path.

use vernic_io::LocalAddr;
use vernic_wire::{Gid, PortNum};

use crate::device::limits::MAX_GIDS;

/// Type of a GID table row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidType {
    /// RoCEv2: UDP over IPv4 or IPv6 (IBTA annex A17).
    RoceV2,
    /// InfiniBand: the subnet's prefix and a GUID of the port (IBTA 4.1.1).
    InfiniBand,
    /// iWARP: the MAC, and zeros behind it. No address vector names this type.
    Mac,
}

/// A row of the GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The port that has the row.
    pub port: PortNum,
    /// Index of the row: an address vector's `sgid_index`.
    pub index: u8,
    /// The GID: an IPv6 address or an IPv4-mapped one; the MAC for iWARP.
    pub gid: Gid,
    /// The type of the row.
    pub kind: GidType,
    /// Index of the netdev that has the address.
    pub ifindex: u32,
    /// The local address, with scope id if it is link-local. For iWARP it is unspecified, because
    /// no address in particular belongs to the row.
    pub local: LocalAddr,
}

/// The table. Rows are never moved.
#[derive(Debug)]
pub(crate) struct GidTable {
    port: PortNum,
    kind: GidType,
    rows: Vec<Option<GidEntry>>,
}

/// The changes of an update.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct GidChanges {
    added: Vec<LocalAddr>,
    removed: Vec<LocalAddr>,
}

impl GidChanges {
    /// Returns the addresses that are new.
    pub(crate) fn added(&self) -> &[LocalAddr] {
        &self.added
    }

    /// Returns the addresses that were removed.
    pub(crate) fn removed(&self) -> &[LocalAddr] {
        &self.removed
    }
}

impl GidTable {
    /// Returns the empty table of a port, for rows of one type.
    pub(crate) const fn new(port: PortNum, kind: GidType) -> Self {
        Self { port, kind, rows: Vec::new() }
    }

    /// Returns the port that has the table.
    pub(crate) fn port(&self) -> PortNum {
        self.port
    }

    /// Returns the row of `index`, if it is filled.
    pub(crate) fn row(&self, index: u8) -> Option<&GidEntry> {
        self.rows.get(usize::from(index))?.as_ref()
    }

    /// Returns the filled rows.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &GidEntry> {
        self.rows.iter().flatten()
    }

    /// Makes the table hold exactly `addresses` (at most [`MAX_GIDS`] of them). Addresses that are
    /// already there stay in their rows.
    pub(crate) fn update(&mut self, ifindex: u32, addresses: &[LocalAddr]) -> GidChanges {
        let mut changes = GidChanges::default();
        for row in &mut self.rows {
            if let Some(entry) = row.take_if(|entry| !addresses.contains(&entry.local)) {
                changes.removed.push(entry.local);
            }
        }
        for &local in addresses {
            if self.iter().any(|entry| entry.local == local) {
                continue;
            }
            let free = self.rows.iter().position(Option::is_none).unwrap_or(self.rows.len());
            if free >= MAX_GIDS {
                tracing::warn!(%local, "GID table full ({MAX_GIDS} rows): address left out");
                continue;
            }
            if free == self.rows.len() {
                self.rows.push(None);
            }
            let (port, index, gid) = (self.port, free as u8, Gid::from_ip(local.ip));
            let kind = self.kind;
            self.rows[free] = Some(GidEntry { port, index, gid, kind, ifindex, local });
            changes.added.push(local);
        }
        changes
    }

    /// Empties the row of an address that proved unusable.
    pub(crate) fn remove(&mut self, local: LocalAddr) {
        for row in &mut self.rows {
            row.take_if(|entry| entry.local == local);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(ip: &str) -> LocalAddr {
        LocalAddr::from(ip.parse::<std::net::IpAddr>().unwrap())
    }

    #[test]
    fn rows_stay_where_they_are_while_addresses_come_and_go() {
        let (a, b, c, d) = (local("10.0.0.1"), local("10.0.0.2"), local("::1"), local("10.0.0.4"));
        let mut table = GidTable::new(PortNum(1), GidType::RoceV2);
        assert_eq!(table.update(1, &[a, b, c]).added, [a, b, c]);
        let changes = table.update(1, &[c, a, d]);
        assert_eq!((changes.added, changes.removed), (vec![d], vec![b]));
        assert_eq!(table.row(0).unwrap().local, a);
        assert_eq!(table.row(1).unwrap().local, d);
        assert_eq!(table.row(2).unwrap().local, c);
        assert_eq!(table.update(1, &[a, c, d]), GidChanges::default());
        assert!(table.row(3).is_none());
    }
}
