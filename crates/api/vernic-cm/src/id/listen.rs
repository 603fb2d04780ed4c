//! Listening: at an address, or on every device, later ones included.

use std::net::SocketAddr;
use std::sync::Arc;

use vernic_attach::{AttachError, RefusalKind};
use vernic_engine::ListenError;
use vernic_io::ServiceScope;
use vernic_proto::cm::ListenerId;
use vernic_wire::cm::ServiceId;

use crate::device::Device;
use crate::error::Error;
use crate::event::{EventKind, Param};
use crate::id::bind::{Purpose, Reservation};
use crate::id::{Id, Inner};
use crate::key::DeviceKey;
use crate::ports::Binding;
use crate::registry::{EntryContent, Listener};
use crate::route;
use crate::state::State;
use crate::sync::lock;

/// Most requests that wait at a listener: the kernel's default (`max_backlog` of rdma_ucm).
const MAX_BACKLOG: u32 = 1024;

/// An address where an id listens.
#[derive(Debug)]
pub(crate) struct Listening {
    device: Arc<Device>,
    service: ServiceId,
    scope: ServiceScope,
    listener: ListenerId,
}

/// Whether the fabric process has refused a claim because another program has the service.
fn is_taken(error: &AttachError) -> bool {
    matches!(error, AttachError::Refused(refusal) if refusal.kind == RefusalKind::Taken)
}

impl Id {
    /// Listens for requests to the id's port, of which at most `backlog` wait to be taken (0, and
    /// more than 1024, count as 1024). A new id is bound to the IPv4 wildcard and a free port. A
    /// wildcard covers every device, and the addresses and devices that come later.
    ///
    /// # Errors
    /// [`Error::State`]; [`Error::InUse`] if another id of this process or another process of this
    /// host listens there; [`Error::Device`] if no device can be opened; the errors of
    /// [`bind_addr`](Self::bind_addr).
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        let mut inner = self.enter("listen")?;
        match inner.state {
            State::Idle => {
                let any = SocketAddr::from(([0, 0, 0, 0], 0));
                self.bind_inner(&mut inner, "listen", any, Purpose::Unknown)?;
            }
            State::Bound => {}
            _ => return Err(self.wrong_state(&inner, "listen", "is new or bound")),
        }
        let (Some(binding), Some(local)) = (inner.bound, inner.local) else {
            return Err(self.wrong_state(&inner, "listen", "is bound"));
        };
        let listening = Binding { listens: true, ..binding };
        {
            let mut ports = lock(&self.shared.ports);
            ports.check(self.port_space(), local.port(), &listening)?;
            ports.update(self.port_space(), local.port(), listening);
        }
        inner.backlog = if backlog == 0 { MAX_BACKLOG } else { backlog.min(MAX_BACKLOG) };
        let result = self.shared.start_keeper().and_then(|()| {
            match (inner.socket.take(), inner.device.clone()) {
                (Some(socket), _) => self.listen_at_socket(&mut inner, socket, local),
                // GIDs are not in requests: all requests for the port come to the id.
                (None, Some(device)) if inner.native.is_some() => {
                    let scope = ServiceScope::Netdev(device.context.info().port.netdev_index);
                    self.listen_at(&mut inner, device, scope)
                }
                (None, Some(device)) => {
                    self.listen_at(&mut inner, device, ServiceScope::Address(route::local(local)))
                }
                (None, None) => self.listen_everywhere(&mut inner),
            }
        });
        if let Err(error) = result {
            self.stop_listening(&mut inner);
            lock(&self.shared.ports).update(self.port_space(), local.port(), binding);
            return Err(error);
        }
        inner.bound = Some(listening);
        // The listeners now hold the port, and will release it.
        std::mem::take(&mut inner.reserved).into_iter().for_each(Reservation::release);
        inner.state = State::Listen;
        if inner.device.is_none() && inner.listener.is_none() {
            self.shared.add_wildcard(self.key());
        }
        Ok(())
    }

    fn service(&self, inner: &Inner) -> ServiceId {
        self.port_space().service_id(inner.local.map_or(0, |local| local.port()))
    }

    /// Listens on each device that can be opened.
    fn listen_everywhere(&self, inner: &mut Inner) -> Result<(), Error> {
        let mut refused = None;
        for info in self.shared.devices.usable()? {
            let key = DeviceKey::of(&info);
            if inner.listening.iter().any(|one| one.device.key() == key) {
                continue;
            }
            match self.shared.devices.device(&info) {
                Ok(device) => {
                    self.listen_at(inner, device, ServiceScope::Netdev(info.port.netdev_index))?;
                }
                Err(error) => {
                    tracing::warn!(device = info.name, %error, "not listening there");
                    refused = Some(error);
                }
            }
        }
        match (inner.listening.is_empty(), refused) {
            (false, _) => Ok(()),
            (true, Some(error)) => Err(error.into()),
            (true, None) => Err(vernic_engine::no_device()?.into()),
        }
    }

    fn listen_at(
        &self,
        inner: &mut Inner,
        device: Arc<Device>,
        scope: ServiceScope,
    ) -> Result<(), Error> {
        let Some(local) = inner.local else { return Ok(()) };
        let wildcard = matches!(scope, ServiceScope::Netdev(_));
        let both = wildcard && inner.bound.is_some_and(|binding| !binding.af_only);
        let entry = Listener {
            key: self.key(),
            device: device.clone(),
            port: local.port(),
            is_native: inner.native.is_some(),
            v4: local.is_ipv4() || both,
            v6: local.is_ipv6(),
            qp_type: self.qp_type(),
            backlog: inner.backlog as usize,
        };
        let service = self.service(inner);
        let _expecting = self.shared.registry.expect();
        let listener = device
            .listen(service, scope, inner.backlog as usize)
            .map_err(|source| self.listen_error(local, source))?;
        self.shared.registry.add_listener(listener, entry);
        inner.listening.push(Listening { device, service, scope, listener });
        Ok(())
    }

    /// The error for a device's refusal to listen, with the port.
    pub(crate) fn listen_error(&self, addr: SocketAddr, source: ListenError) -> Error {
        match source {
            ListenError::InUse(name) => {
                let by =
                    format!("another process (`ss -xap | grep vernic/service/{name}` names it)");
                let everywhere =
                    addr.ip().is_unspecified() || matches!(name.scope, ServiceScope::Netdev(_));
                Error::InUse { port_space: self.port_space(), addr, by, everywhere }
            }
            ListenError::Claim { service, source } if is_taken(&source) => {
                let by = format!("another program of the host: {service} is claimed");
                let everywhere = addr.ip().is_unspecified();
                Error::InUse { port_space: self.port_space(), addr, by, everywhere }
            }
            source => Error::Listen(source),
        }
    }

    /// Stops listening everywhere.
    pub(crate) fn stop_listening(&self, inner: &mut Inner) {
        if let Some(listener) = inner.listener.take() {
            self.shared.streams.stop_listening(listener);
        }
        for Listening { device, service, scope, listener } in std::mem::take(&mut inner.listening) {
            device.stop_listening(service, scope);
            self.shared.registry.remove_listener(device.key(), listener, self.key());
        }
    }

    /// Handles the removal of a device: a wildcard stops listening there, and an id on the device
    /// gets an event.
    pub(crate) fn device_removed(&self, device: &Arc<Device>) {
        let mut inner = lock(&self.inner);
        if inner.state == State::Destroyed {
            return;
        }
        for reservation in inner.reserved.extract_if(.., |kept| kept.is_on(device)) {
            reservation.release();
        }
        for one in inner.listening.extract_if(.., |one| Arc::ptr_eq(&one.device, device)) {
            device.stop_listening(one.service, one.scope);
            self.shared.registry.remove_listener(device.key(), one.listener, self.key());
        }
        if inner.device.as_ref().is_some_and(|own| Arc::ptr_eq(own, device)) {
            let (kind, status, param) = (EventKind::DeviceRemoval, 0, Param::None);
            self.shared.registry.push(self.key(), EntryContent::Decided { kind, status, param });
        }
    }

    /// Listens on devices that were not there before.
    pub(crate) fn listen_on_new_devices(&self) {
        let mut inner = lock(&self.inner);
        if inner.state != State::Listen || inner.device.is_some() || inner.listener.is_some() {
            return;
        }
        if let Err(error) = self.listen_everywhere(&mut inner) {
            tracing::warn!(id = ?self, %error, "not listening on a new device");
        }
    }
}
