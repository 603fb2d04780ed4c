//! A port of an open device: its number, its netdev, its GID table, the paths that the link opens
//! from it, its state and its MTU. A device has one port or several (IBTA 3.5.1); all of them share
//! the device's link.
//!
//! Owns what changes while the device is open. The background thread follows the netdev; all other
//! threads read. Nothing here is written on the data path.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use vernic_io::{LinkPort, LocalAddr, NoPath, OpenPath, PathRequest, Paths, PortState, TxPath};
use vernic_wire::{Gid, Lid, Mtu, Pkey, PortNum};

use crate::device::gid::GidTable;
use crate::device::limits::{MAX_PKEYS, PORT_MBPS};
use crate::device::listing::PortInfo;
use crate::support::events::lock;

/// A port of an open device.
pub(crate) struct Port {
    number: PortNum,
    netdev: String,
    /// The index of the netdev; 0 if the port has none.
    netdev_index: u32,
    gids: Mutex<GidTable>,
    /// What a subnet manager has set up, if the link has one.
    link: Mutex<Option<Arc<LinkPort>>>,
    /// Whether the port has GIDs of RoCEv1 too.
    has_roce_v1: bool,
    /// Opens the paths of the device's link.
    paths: Arc<dyn Paths>,
    is_up: AtomicBool,
    /// Whether the netdev is gone.
    is_removed: AtomicBool,
    /// The code of the active MTU.
    active_mtu: AtomicU8,
    netdev_mtu_bytes: AtomicU32,
    /// The path on which the kernel refused packets last, and its error number.
    refusal: Mutex<Option<(TxPath, i32)>>,
}

impl Port {
    /// Returns a port of a device that is being opened.
    pub(crate) fn new(
        info: &PortInfo,
        active_mtu: Mtu,
        gids: GidTable,
        paths: Arc<dyn Paths>,
    ) -> Self {
        Self {
            number: gids.port(),
            netdev: info.netdev.clone(),
            netdev_index: info.netdev_index,
            gids: Mutex::new(gids),
            link: Mutex::new(info.link.clone()),
            has_roce_v1: info.has_roce_v1,
            paths,
            is_up: AtomicBool::new(info.up),
            is_removed: AtomicBool::new(false),
            active_mtu: AtomicU8::new(active_mtu as u8),
            netdev_mtu_bytes: AtomicU32::new(info.netdev_mtu_bytes),
            refusal: Mutex::default(),
        }
    }

    /// Returns the number of the port, from 1.
    pub(crate) fn number(&self) -> PortNum {
        self.number
    }

    /// Returns the name of the port's netdev.
    pub(crate) fn netdev(&self) -> &str {
        &self.netdev
    }

    /// Returns the index of the port's netdev; 0 if the port has none.
    pub(crate) fn netdev_index(&self) -> u32 {
        self.netdev_index
    }

    /// Returns a row of the P_Key table, which may be empty (0); `None` beyond the table. Row 0 is
    /// the default partition, and all there is where no subnet manager fills the table.
    pub(crate) fn pkey(&self, index: u16) -> Option<Pkey> {
        match self.link() {
            Some(link) => link.pkeys.get(usize::from(index)).copied(),
            None => (index < MAX_PKEYS).then_some(Pkey::DEFAULT),
        }
    }

    /// Returns the row of the P_Key table that has a partition, as a full or limited member.
    pub(crate) fn pkey_row(&self, pkey: Pkey) -> Option<(u16, Pkey)> {
        let rows = match self.link() {
            Some(link) => link.pkeys.len() as u16,
            None => MAX_PKEYS,
        };
        (0..rows).find_map(|index| {
            let row = self.pkey(index)?;
            (row.to_full() == pkey.to_full()).then_some((index, row))
        })
    }

    /// Returns what a subnet manager has set up; `None` for a port that follows a netdev.
    pub(crate) fn link(&self) -> Option<Arc<LinkPort>> {
        lock(&self.link).clone()
    }

    /// Stores what a subnet manager has set up; returns what was there before.
    pub(crate) fn set_link(&self, link: Arc<LinkPort>) -> Option<Arc<LinkPort>> {
        lock(&self.link).replace(link)
    }

    /// Returns the state of the port.
    pub(crate) fn state(&self) -> PortState {
        match self.link() {
            Some(link) => link.state,
            None if self.is_up() => PortState::Active,
            None => PortState::Down,
        }
    }

    /// Whether a GID is one of the port's.
    pub(crate) fn has_gid(&self, gid: Gid) -> bool {
        self.gids().iter().any(|row| row.gid == gid)
    }

    /// Returns an address as the port reaches it: a link-local address is valid on the link of the
    /// port's netdev only.
    pub(crate) fn local_addr(&self, ip: IpAddr) -> LocalAddr {
        LocalAddr::new(ip, self.netdev_index)
    }

    /// Whether a LID is one of this port, with any path bits.
    pub(crate) fn has_lid(&self, lid: Lid) -> bool {
        let Some(link) = self.link() else { return false };
        let free = (1u16 << link.lmc.min(7)) - 1;
        link.lid.is_unicast() && lid.value() & !free == link.lid.value()
    }

    /// Locks the GID table.
    pub(crate) fn gids(&self) -> MutexGuard<'_, GidTable> {
        lock(&self.gids)
    }

    /// Opens a path, without the lane.
    ///
    /// # Errors
    /// [`NoPath`] where the link has none.
    pub(crate) fn open_path(&self, to: &PathRequest) -> Result<OpenPath, NoPath> {
        self.paths.open_path(to)
    }

    /// Notes that a queue pair takes datagrams on this port. Returns whether the link has other
    /// sockets now, which the background thread must learn of.
    pub(crate) fn receive_datagrams(&self) -> bool {
        self.has_roce_v1 && self.paths.receive_datagrams(self.netdev_index)
    }

    /// Whether the port is active.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// Sets whether the port is active; returns whether that has changed.
    pub(crate) fn set_up(&self, up: bool) -> bool {
        self.is_up.swap(up, Ordering::Relaxed) != up
    }

    /// Whether the netdev is gone.
    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Relaxed)
    }

    /// Notes that the netdev is gone; returns whether this is the first time.
    pub(crate) fn set_removed(&self) -> bool {
        !self.is_removed.swap(true, Ordering::Relaxed)
    }

    /// Returns the largest path MTU that fits the netdev now.
    pub(crate) fn active_mtu(&self) -> Mtu {
        Mtu::from_code(self.active_mtu.load(Ordering::Relaxed)).unwrap_or(Mtu::B256)
    }

    /// Returns the rate of the port, in Mb/s: static rates that are not smaller are no limit.
    pub(crate) fn mbps(&self) -> u32 {
        self.link().map_or(PORT_MBPS, |link| link.mbps())
    }

    /// Returns the MTU of the netdev, in bytes.
    pub(crate) fn netdev_mtu_bytes(&self) -> u32 {
        self.netdev_mtu_bytes.load(Ordering::Relaxed)
    }

    /// Stores the netdev's new MTU. If no path MTU fits (`None`), the active one stays.
    pub(crate) fn set_mtu(&self, netdev_bytes: u32, active: Option<Mtu>) {
        self.netdev_mtu_bytes.store(netdev_bytes, Ordering::Relaxed);
        if let Some(active) = active {
            self.active_mtu.store(active as u8, Ordering::Relaxed);
        }
    }

    /// Notes that the kernel refused packets on a path, with its error number; returns whether the
    /// refusal before was the same.
    pub(crate) fn note_refusal(&self, refusal: (TxPath, i32)) -> bool {
        lock(&self.refusal).replace(refusal) == Some(refusal)
    }

    /// Returns the path on which the kernel refused packets last, and its error number.
    pub(crate) fn refusal(&self) -> Option<(TxPath, i32)> {
        *lock(&self.refusal)
    }
}
