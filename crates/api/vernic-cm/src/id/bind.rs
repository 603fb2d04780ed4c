//! Addresses and ports of ids.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;

use vernic_engine::{DeviceInfo, ListenError, Transport};
use vernic_io::{LocalAddr, ServiceScope};
use vernic_wire::cm::ServiceId;

use crate::device::Device;
use crate::error::Error;
use crate::id::{Id, Inner};
use crate::ports::{Binding, check_privilege, claimed_ports, v6_only};
use crate::route;
use crate::state::State;
use crate::sync::lock;

/// A port that no other process of this host can bind meanwhile.
#[derive(Debug)]
pub(crate) struct Reservation {
    device: Arc<Device>,
    service: ServiceId,
    scope: ServiceScope,
}

impl Reservation {
    fn make(&self) -> Result<(), ListenError> {
        self.device.reserve(self.service, self.scope)
    }

    pub(crate) fn release(self) {
        self.device.release(self.service, self.scope);
    }

    pub(crate) fn is_on(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }
}

/// The purpose of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The id connects.
    Connecting,
    /// The id may listen.
    Unknown,
}

impl Id {
    /// Binds the id to an address and a port. Port 0 takes a free port. A wildcard address stands
    /// for all addresses of this machine; any other address decides the device.
    ///
    /// # Errors
    /// [`Error::State`] for an id that is bound already; [`Error::Device`] for an address that no
    /// device has, which lists the addresses that exist; [`Error::InUse`], [`Error::NoPort`],
    /// [`Error::Scope`], [`Error::Privileged`].
    pub fn bind_addr(&self, addr: SocketAddr) -> Result<(), Error> {
        let mut inner = self.enter("bind_addr")?;
        self.bind_inner(&mut inner, "bind_addr", addr, Purpose::Unknown)
    }

    pub(crate) fn bind_inner(
        &self,
        inner: &mut Inner,
        call: &'static str,
        addr: SocketAddr,
        purpose: Purpose,
    ) -> Result<(), Error> {
        if inner.state != State::Idle {
            return Err(self.wrong_state(inner, call, "is new"));
        }
        check_privilege(addr.port())?;
        let place = route::local(addr);
        let device = match (addr.ip().is_unspecified(), inner.transport) {
            (true, _) => None,
            // A zero GID is any, as a wildcard is.
            (false, Transport::InfiniBand) => {
                let device = self.shared.devices.fabric()?;
                self.choose_interface(inner, &device, addr.ip())?;
                Some(device)
            }
            (false, transport) => {
                route::check_scope(addr)?;
                Some(self.shared.devices.with(place, transport)?)
            }
        };
        let binding = Binding {
            key: self.key(),
            addr: place,
            af_only: inner.options.af_only.unwrap_or_else(|| place.ip.is_ipv6() && v6_only()),
            reuse: inner.options.reuse_addr,
            listens: false,
        };
        if inner.transport == Transport::Iwarp {
            let port = self.take_socket(inner, addr, binding)?;
            inner.local = Some(route::with_port(place.with_port(0), port));
            inner.device = device;
            inner.bound = Some(binding);
            inner.state = State::Bound;
            return Ok(());
        }
        let (port, reserved) =
            self.take_port(inner, (addr.port(), purpose), binding, device.as_ref())?;
        inner.reserved = reserved;
        let local = route::with_port(place.with_port(0), port);
        inner.local = Some(local);
        inner.device = device;
        inner.bound = Some(binding);
        inner.state = State::Bound;
        Ok(())
    }

    /// Takes a port in this process, and reserves it against other processes if need be. Of port 0,
    /// that is a port which nobody has.
    fn take_port(
        &self,
        inner: &Inner,
        (wanted, purpose): (u16, Purpose),
        binding: Binding,
        device: Option<&Arc<Device>>,
    ) -> Result<(u16, Vec<Reservation>), Error> {
        let (space, place) = (self.port_space(), binding.addr);
        // An id that connects may share the port number of another process's listener, because no
        // request comes to that id.
        let may_listen = wanted == 0 && purpose == Purpose::Unknown;
        let mut elsewhere = if may_listen { claimed_ports(space) } else { HashSet::new() };
        // Other processes may ask for a port that the program has named; they do not know a port
        // that was chosen here. On InfiniBand only a claim tells whether others have a port.
        let is_reserved = match wanted {
            0 => may_listen && inner.transport == Transport::InfiniBand,
            _ => !inner.options.reuse_addr,
        };
        // Bounded: each time there is one port less to choose from.
        loop {
            let port = lock(&self.shared.ports)
                .bind(space, wanted, binding, |port| elsewhere.contains(&port))?;
            if !is_reserved {
                return Ok((port, Vec::new()));
            }
            match self.reserve(device, place, port, inner.native.is_some()) {
                Ok(reserved) => return Ok((port, reserved)),
                Err(source) => {
                    lock(&self.shared.ports).release(space, port, self.key());
                    let local = route::with_port(place.with_port(0), port);
                    let error = self.listen_error(local, source);
                    if wanted != 0 || !matches!(error, Error::InUse { .. }) {
                        return Err(error);
                    }
                    elsewhere.insert(port);
                }
            }
        }
    }

    /// Reserves a port against other processes: at an address of a device, or on every device that
    /// can be opened.
    fn reserve(
        &self,
        device: Option<&Arc<Device>>,
        place: LocalAddr,
        port: u16,
        is_native: bool,
    ) -> Result<Vec<Reservation>, ListenError> {
        let service = self.port_space().service_id(port);
        let wanted: Vec<_> = match device {
            Some(device) if is_native => {
                let scope = ServiceScope::Netdev(device.context.info().port.netdev_index);
                vec![(device.clone(), scope)]
            }
            Some(device) => vec![(device.clone(), ServiceScope::Address(place))],
            None => {
                // Without devices there is nothing to reserve; the call to listen reports that.
                let infos = self.shared.devices.usable().unwrap_or_default();
                let open = |info: &DeviceInfo| self.shared.devices.device(info).ok();
                let with_place =
                    |info| Some((open(info)?, ServiceScope::Netdev(info.port.netdev_index)));
                infos.iter().filter_map(with_place).collect()
            }
        };
        let mut made = Vec::new();
        for (device, scope) in wanted {
            let reservation = Reservation { device, service, scope };
            if let Err(error) = reservation.make() {
                made.into_iter().for_each(Reservation::release);
                return Err(error);
            }
            made.push(reservation);
        }
        Ok(made)
    }

    /// Narrows the wildcard binding down to the address that was found.
    pub(crate) fn narrow(&self, inner: &mut Inner, found: SocketAddr) {
        let (Some(mut binding), Some(local)) = (inner.bound, inner.local) else { return };
        binding.addr = route::local(found);
        inner.bound = Some(binding);
        inner.local = Some(route::with_port(found, local.port()));
        lock(&self.shared.ports).update(self.port_space(), local.port(), binding);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::testing::{HOME, Lab};

    #[test]
    fn a_port_that_is_chosen_on_infiniband_is_one_that_no_other_program_has() {
        let lab = Lab::new();
        let device = lab.channel.shared.devices.open().remove(0);
        let take = |transport, purpose, wanted| {
            let id = lab.id();
            let mut inner = lock(&id.inner);
            inner.transport = transport;
            let addr = route::local(HOME.parse().unwrap());
            let (key, af_only, reuse, listens) = (id.key(), false, false, false);
            let binding = Binding { key, addr, af_only, reuse, listens };
            let taken = id.take_port(&inner, (wanted, purpose), binding, Some(&device));
            let (port, reserved) = taken?;
            let count = reserved.len();
            reserved.into_iter().for_each(Reservation::release);
            lock(&id.shared.ports).release(id.port_space(), port, key);
            drop(inner);
            Ok::<_, Error>((count, lab.agent.asked().len()))
        };
        let infiniband = Transport::InfiniBand;
        lab.agent.taken.store(3, Ordering::Relaxed);
        let (reserved, asked) = take(infiniband, Purpose::Unknown, 0).unwrap();
        assert_eq!((reserved, asked), (1, 3 + 1 + 1), "three refusals, one claim, its end");
        assert_eq!(take(infiniband, Purpose::Connecting, 0).unwrap(), (0, 0));
        assert_eq!(take(Transport::Roce, Purpose::Unknown, 0).unwrap(), (0, 0));
        lab.agent.taken.store(1, Ordering::Relaxed);
        let refused = take(infiniband, Purpose::Unknown, 7471).unwrap_err();
        assert_eq!(refused.errno(), libc::EADDRINUSE, "a port that was named: {refused}");
    }
}
