//! Addresses, MTU and state of a device's netdev while the device is open. Changes are applied to
//! the GID table and to the link, and reported to the application.

use std::fmt;

use vernic_io::LocalAddr;
use vernic_io::netdev;
use vernic_wire::Mtu;

use crate::device::gid::GidChanges;
use crate::device::listing::Transport;
use crate::progress::engine::Engine;
use crate::support::events::{AsyncEvent, Element, EventKind};
use crate::verbs::context::PORT;

impl Engine {
    /// Updates the GID table, MTU and port state from the netdev, and reports changes to the
    /// application.
    pub(crate) fn refresh_addresses(&self) {
        let all = match netdev::list() {
            Ok(all) => all,
            Err(error) => {
                tracing::warn!(%error, "cannot look at the network after a change");
                return;
            }
        };
        let netdev = all.into_iter().find(|dev| dev.index == self.info().netdev_index);
        let addresses = netdev.as_ref().map_or(&[][..], |dev| &dev.addrs[..]);
        let changes = self.port().gids().update(self.info().netdev_index, addresses);
        if !changes.added.is_empty() || !changes.removed.is_empty() {
            self.readdress(&changes);
            let (added, removed) = (List(&changes.added), List(&changes.removed));
            tracing::debug!(%added, %removed, "GID table changed");
            self.port_event(EventKind::GidChange);
        }
        let up = netdev.as_ref().is_some_and(|dev| dev.running);
        if self.port().set_up(up) {
            self.port_event(if up { EventKind::PortActive } else { EventKind::PortError });
        }
        if netdev.is_none() {
            self.look_for_removal();
        }
        if let Some(dev) = netdev {
            let at_most = |fits: Mtu| self.config().mtu.map_or(fits, |wanted| wanted.min(fits));
            self.port().set_mtu(dev.mtu_bytes, dev.ib_mtu().map(at_most));
        }
    }

    /// Lets the link use the addresses that are new, and stops its use of those that are gone. An
    /// address that the link cannot use is removed from the GID table.
    fn readdress(&self, changes: &GidChanges) {
        for &local in &changes.removed {
            self.with_lane(|lane| lane.lose_address(local));
        }
        let packets = self.info().transport == Transport::Roce;
        for &local in changes.added.iter().filter(|_| packets) {
            if let Err(error) = self.with_lane(|lane| lane.activate(local)) {
                tracing::debug!(%local, %error, "address not usable (yet)");
                self.port().gids().remove(local);
            }
        }
        let locals: Vec<_> = self.port().gids().iter().map(|row| row.local).collect();
        self.with_lane(|lane| lane.rejoin(&locals));
    }

    /// Reports once that the netdev is gone. A netdev of the same name that appears later is
    /// another device.
    fn look_for_removal(&self) {
        let exists = netdev::exists(self.info().netdev_index).unwrap_or(true);
        if exists || !self.port().set_removed() {
            return;
        }
        tracing::warn!(
            device = self.info().name,
            netdev = self.info().netdev,
            "the netdev was removed"
        );
        self.events().push(AsyncEvent { kind: EventKind::DeviceFatal, element: Element::Device });
        self.cm.tell_removed();
    }

    fn port_event(&self, kind: EventKind) {
        self.events().push(AsyncEvent { kind, element: Element::Port(PORT) });
    }
}

/// A list of addresses, formatted for a line of the log.
struct List<'a>(&'a [LocalAddr]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, local) in self.0.iter().enumerate() {
            write!(f, "{}{local}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}
