//! The GID table of a port: a row of RoCEv2 for each address of the netdev, as the kernel
//! keeps it, and, where the process may use RoCEv1, a row of RoCEv1 further behind.
//!
//! Owns the rows. The table is filled when a device is opened, and updated by the background thread
//! when an address comes or goes. A row keeps its index as long as its address lives. An index is
//! used again only after its address is gone (IBTA 10.2.2 requires no more). Read by the control
//! path.

use vernic_io::LocalAddr;
use vernic_wire::{Gid, PortNum, RoceVersion};

use crate::device::limits::MAX_GIDS;

/// The bit of an index that says RoCEv1, where there are such rows: the row of RoCEv1 is 32 behind
/// the row of RoCEv2 with the same address. So the first 32 rows of RoCEv2 have the same indices
/// whether or not the process may use RoCEv1, and perftest, which takes indices up to 64, can name
/// the rows of both.
const V1_BIT: usize = 32;

/// Type of a GID table row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidType {
    /// RoCEv1: Ethernet and GRH (IBTA annex A16).
    RoceV1,
    /// RoCEv2: UDP over IPv4 or IPv6 (IBTA annex A17).
    RoceV2,
    /// InfiniBand: the subnet's prefix and a GUID of the port (IBTA 4.1.1).
    InfiniBand,
    /// iWARP: the MAC, and zeros behind it. No address vector names this type.
    Mac,
}

impl GidType {
    /// Returns the version of RoCE that a row's packets are of.
    pub fn roce_version(self) -> RoceVersion {
        match self {
            Self::RoceV1 => RoceVersion::V1,
            Self::RoceV2 | Self::InfiniBand | Self::Mac => RoceVersion::V2,
        }
    }
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
    /// Whether each address has a row of RoCEv1 too.
    has_v1: bool,
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
    /// Returns the empty table of a port, for rows of one type, beside which each address may have
    /// a row of RoCEv1 too.
    pub(crate) const fn new(port: PortNum, kind: GidType, has_v1: bool) -> Self {
        Self { port, kind, has_v1, rows: Vec::new() }
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
            let gone = row.take_if(|entry| !addresses.contains(&entry.local));
            if let Some(entry) = gone.filter(|entry| entry.kind != GidType::RoceV1) {
                changes.removed.push(entry.local);
            }
        }
        for &local in addresses {
            if self.iter().any(|entry| entry.local == local) {
                continue;
            }
            let is_v2 = |at: &usize| !self.has_v1 || at & V1_BIT == 0;
            let free = (0..MAX_GIDS).filter(is_v2).find(|&at| self.row_at(at).is_none());
            let Some(free) = free else {
                tracing::warn!(%local, "GID table full ({MAX_GIDS} rows): address left out");
                continue;
            };
            self.fill(free, self.kind, ifindex, local);
            if self.has_v1 {
                self.fill(free | V1_BIT, GidType::RoceV1, ifindex, local);
            }
            changes.added.push(local);
        }
        changes
    }

    fn row_at(&self, index: usize) -> Option<&GidEntry> {
        self.rows.get(index)?.as_ref()
    }

    fn fill(&mut self, at: usize, kind: GidType, ifindex: u32, local: LocalAddr) {
        let (port, index, gid) = (self.port, at as u8, Gid::from_ip(local.ip));
        if self.rows.len() <= at {
            self.rows.resize(at + 1, None);
        }
        self.rows[at] = Some(GidEntry { port, index, gid, kind, ifindex, local });
    }

    /// Empties the rows of an address that proved unusable.
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
        let mut table = GidTable::new(PortNum(1), GidType::RoceV2, false);
        assert_eq!(table.update(1, &[a, b, c]).added, [a, b, c]);
        let changes = table.update(1, &[c, a, d]);
        assert_eq!((changes.added, changes.removed), (vec![d], vec![b]));
        assert_eq!(table.row(0).unwrap().local, a);
        assert_eq!(table.row(1).unwrap().local, d);
        assert_eq!(table.row(2).unwrap().local, c);
        assert_eq!(table.update(1, &[a, c, d]), GidChanges::default());
        assert!(table.row(3).is_none());
    }

    #[test]
    fn rows_of_roce_v1_are_32_behind_those_of_v2() {
        let (a, b, c) = (local("10.0.0.1"), local("10.0.0.2"), local("fe80::1"));
        let mut table = GidTable::new(PortNum(1), GidType::RoceV2, true);
        table.update(1, &[a, b]);
        assert_eq!(table.update(1, &[b, c]).removed, [a]);
        let rows = table.iter().map(|row| (row.index, row.kind, row.local));
        let (v1, v2) = (GidType::RoceV1, GidType::RoceV2);
        let expected = [(0, v2, c), (1, v2, b), (32, v1, c), (33, v1, b)];
        assert_eq!(rows.collect::<Vec<_>>(), expected);
        table.remove(b);
        assert_eq!(table.iter().map(|row| row.index).collect::<Vec<_>>(), [0, 32]);
    }

    #[test]
    fn a_full_table_has_no_row_twice() {
        let all: Vec<_> =
            (0..300).map(|n| local(&format!("10.0.{}.{}", n / 256, n % 256))).collect();
        let mut table = GidTable::new(PortNum(1), GidType::RoceV2, true);
        assert_eq!(table.update(1, &all).added, all[..MAX_GIDS / 2]);
        assert_eq!(table.iter().count(), MAX_GIDS);
        assert!(table.iter().enumerate().all(|(n, row)| usize::from(row.index) == n));
    }
}
