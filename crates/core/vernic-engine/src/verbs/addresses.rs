//! Follows changes of the ports while the device is open: of netdevs (addresses, MTU, state), and
//! of what a subnet manager sets up. Changes are applied to the GID table, the queue pairs and the
//! link, and reported to the application.

use std::fmt;
use std::sync::Arc;

use vernic_io::netdev::{self, NetDev};
use vernic_io::{LinkPort, LocalAddr, PortState};
use vernic_wire::Mtu;

use crate::device::gid::GidChanges;
use crate::device::port::Port;
use crate::progress::engine::Engine;
use crate::support::events::{AsyncEvent, Element, EventKind};

/// The code of the physical state of a port that is disabled (IBTA 14.2.5.6).
const DISABLED: u8 = 3;

impl Engine {
    /// Updates GID table, MTU and state of each port from its netdev, and reports the changes to
    /// the application.
    pub(crate) fn refresh_addresses(&self) {
        let all = match netdev::list() {
            Ok(all) => all,
            Err(error) => {
                tracing::warn!(%error, "cannot look at the network after a change");
                return;
            }
        };
        for port in self.ports().iter().filter(|port| port.netdev_index() != 0) {
            self.refresh_port(port, all.iter().find(|dev| dev.index == port.netdev_index()));
        }
    }

    /// Updates a port from its netdev; `None` if there is no such netdev.
    fn refresh_port(&self, port: &Port, netdev: Option<&NetDev>) {
        let addresses = netdev.map_or(&[][..], |dev| &dev.addrs[..]);
        let changes = port.gids().update(port.netdev_index(), addresses);
        if !changes.added().is_empty() || !changes.removed().is_empty() {
            self.readdress(port, &changes);
            let (added, removed) = (List(changes.added()), List(changes.removed()));
            tracing::debug!(port = %port.number(), %added, %removed, "GID table changed");
            self.port_event(port, EventKind::GidChange);
        }
        let up = netdev.is_some_and(|dev| dev.running);
        self.set_up(port, up);
        if let Some(dev) = netdev {
            let at_most = |fits: Mtu| self.config().mtu.map_or(fits, |wanted| wanted.min(fits));
            port.set_mtu(dev.mtu_bytes, dev.ib_mtu().map(at_most));
        } else {
            self.look_for_removal(port);
        }
    }

    /// Makes the link use new addresses and stop using removed ones. An address that the link
    /// cannot use is removed from the GID table again.
    fn readdress(&self, port: &Port, changes: &GidChanges) {
        for &local in changes.removed() {
            self.with_lane(|lane| lane.lose_address(local));
        }
        let uses_gids = self.rules().uses_gids();
        for &local in changes.added().iter().filter(|_| uses_gids) {
            if let Err(error) = self.with_lane(|lane| lane.activate(local)) {
                tracing::debug!(%local, %error, "address not usable (yet)");
                port.gids().remove(local);
            }
        }
        let locals: Vec<_> = port.gids().iter().map(|row| row.local).collect();
        self.with_lane(|lane| lane.rejoin(port.number(), &locals));
    }

    /// Updates the ports from what their link knows of them; `None` if its fabric is gone, and the
    /// device with it.
    pub(crate) fn refresh_link_ports(&self, links: Option<Vec<LinkPort>>) {
        let Some(links) = links else {
            for port in self.ports() {
                let last = port.link().map(|link| (*link).clone()).unwrap_or_default();
                let state = PortState::Down;
                self.refresh_link_port(port, LinkPort { state, physical_state: DISABLED, ..last });
                port.set_removed();
            }
            let (device, fabric) = (&self.info().name, &self.config().fabric);
            tracing::warn!(device, "the fabric {fabric:?} is gone: its process has ended");
            self.with_lane(|lane| lane.fail_all_qps(self, self.now()));
            return self.report_removal();
        };
        for (port, link) in self.ports().iter().zip(links) {
            self.refresh_link_port(port, link);
        }
    }

    /// Updates a port from what its link knows of it.
    fn refresh_link_port(&self, port: &Port, link: LinkPort) {
        let (state, link) = (link.state, Arc::new(link));
        let before = port.set_link(link.clone()).unwrap_or_default();
        let addresses: Vec<_> =
            link.gids.iter().map(|gid| LocalAddr::new(gid.to_ip(), 0)).collect();
        if before.gids != link.gids && !addresses.is_empty() {
            let changes = port.gids().update(port.netdev_index(), &addresses);
            self.readdress(port, &changes);
            self.port_event(port, EventKind::GidChange);
        }
        if let Some(fits) = link.active_mtu {
            port.set_mtu(fits.bytes(), Some(self.config().mtu.map_or(fits, |mtu| mtu.min(fits))));
        }
        if before.pkeys != link.pkeys {
            self.with_lane(|lane| lane.renew_pkeys(port));
        }
        let is_active = state == PortState::Active;
        let changes = [
            ((before.lid, before.lmc) != (link.lid, link.lmc), EventKind::LidChange),
            (before.sm_lid != link.sm_lid, EventKind::SmChange),
            (before.pkeys != link.pkeys, EventKind::PkeyChange),
            (before.reregistrations != link.reregistrations, EventKind::ClientReregister),
        ];
        for (_, kind) in changes.into_iter().filter(|(is_new, _)| *is_new) {
            self.port_event(port, kind);
        }
        self.set_up(port, is_active);
    }

    /// Notes whether a port is up, and reports it if that is new. Its queue pairs leave a port that
    /// is down, if they can.
    fn set_up(&self, port: &Port, is_up: bool) {
        if !port.set_up(is_up) {
            return;
        }
        self.port_event(port, if is_up { EventKind::PortActive } else { EventKind::PortError });
        if !is_up {
            self.with_lane(|lane| lane.leave_port(self, port.number(), self.now()));
        }
    }

    /// Notes that a port's netdev is gone. Once the netdevs of all ports are, the device is: this
    /// is reported once. A netdev of the same name that appears later is another device.
    fn look_for_removal(&self, port: &Port) {
        let exists = netdev::exists(port.netdev_index()).unwrap_or(true);
        if exists || !port.set_removed() {
            return;
        }
        tracing::warn!(device = self.info().name, netdev = port.netdev(), "the netdev was removed");
        if !self.ports().iter().all(Port::is_removed) {
            return;
        }
        self.report_removal();
    }

    /// Reports that the device is lost.
    fn report_removal(&self) {
        self.events().push(AsyncEvent { kind: EventKind::DeviceFatal, element: Element::Device });
        self.cm.report_removed();
    }

    fn port_event(&self, port: &Port, kind: EventKind) {
        self.events().push(AsyncEvent { kind, element: Element::Port(port.number()) });
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
