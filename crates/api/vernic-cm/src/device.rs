//! The devices of this process, each opened when an id first needs it and then shared by all.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use vernic_engine::{
    CmAttachError, CmSink, Config, Context, DeviceInfo, GidEntry, ListenError, Mtu, OpenError,
    Transport, configured_devices, device_with, devices, no_device,
};
use vernic_io::{LocalAddr, ServiceScope};
use vernic_proto::cm::{CmPath, ListenerId};
use vernic_wire::cm::ServiceId;
use vernic_wire::{PortNum, RoceVersion};

use crate::key::DeviceKey;
use crate::sync::lock;

mod agent;

pub(crate) use agent::Agent;

/// An open device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) context: Arc<Context>,
    /// The RoCE device's agent of communication management; `None` for iWARP, which has streams.
    agent: Option<Arc<dyn Agent>>,
    /// The services of this process by their address. Ids may share a service: the wildcards of
    /// both IP versions do.
    services: Mutex<HashMap<(ServiceId, ServiceScope), ServiceUse>>,
    /// Whether the device's netdev was removed.
    removed: AtomicBool,
}

/// How many ids of this process use a service at one address.
#[derive(Debug, Default)]
struct ServiceUse {
    /// Ids that are bound and do not listen.
    reserved: usize,
    listener: Option<ListenerId>,
    /// Ids that listen.
    listening: usize,
}

impl Drop for Device {
    fn drop(&mut self) {
        // The program may keep the context for ever, and a removed device is of no use any more.
        if self.removed.load(Ordering::Relaxed) {
            self.context.close();
        }
    }
}

impl Device {
    pub(crate) fn new(context: Arc<Context>, agent: Option<Arc<dyn Agent>>) -> Arc<Self> {
        let (services, removed) = Default::default();
        Arc::new(Self { context, agent, services, removed })
    }

    /// The agent of communication management, of a RoCE device.
    pub(crate) fn agent(&self) -> Option<&Arc<dyn Agent>> {
        self.agent.as_ref()
    }

    pub(crate) fn key(&self) -> DeviceKey {
        DeviceKey::of(self.context.info())
    }

    /// The GID table's row for an address, if this device has the address: that of this version
    /// of RoCE, if there is one.
    pub(crate) fn row_of(&self, local: LocalAddr, version: RoceVersion) -> Option<GidEntry> {
        let rows = self.context.gid_table().into_iter().filter(|row| row.local == local);
        rows.min_by_key(|row| row.kind.roce_version() != version)
    }

    /// Reserves a service at an address against other processes, for one more id.
    ///
    /// # Errors
    /// [`ListenError`].
    pub(crate) fn reserve(
        &self,
        service: ServiceId,
        scope: ServiceScope,
    ) -> Result<(), ListenError> {
        // A TCP port is reserved by its socket.
        let Some(agent) = self.agent() else { return Ok(()) };
        let mut services = lock(&self.services);
        if let Some(used) = services.get_mut(&(service, scope)) {
            used.reserved += 1;
            return Ok(());
        }
        agent.reserve(service, scope)?;
        services.insert((service, scope), ServiceUse { reserved: 1, ..ServiceUse::default() });
        Ok(())
    }

    /// Drops the reservation of one id. An id that listens drops its reservation by listening.
    pub(crate) fn release(&self, service: ServiceId, scope: ServiceScope) {
        let Some(agent) = self.agent() else { return };
        let mut services = lock(&self.services);
        let Some(used) = services.get_mut(&(service, scope)) else { return };
        used.reserved = used.reserved.saturating_sub(1);
        if used.reserved == 0 && used.listener.is_none() {
            agent.release(service, scope);
            services.remove(&(service, scope));
        }
    }

    /// Listens at an address; if this process listens there already, counts one more id.
    ///
    /// # Errors
    /// [`ListenError`].
    pub(crate) fn listen(
        &self,
        service: ServiceId,
        scope: ServiceScope,
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        let mut services = lock(&self.services);
        let before = services.get_mut(&(service, scope));
        if let Some(ServiceUse { listener: Some(listener), listening, .. }) = before {
            *listening += 1;
            return Ok(*listener);
        }
        let agent = self.agent().ok_or(ListenError::NotAttached)?;
        let listener = agent.listen(service, scope, backlog)?;
        let used = services.entry((service, scope)).or_default();
        (used.listener, used.listening) = (Some(listener), 1);
        Ok(listener)
    }

    /// Counts one listening id less, and stops listening with the last.
    pub(crate) fn stop_listening(&self, service: ServiceId, scope: ServiceScope) {
        let mut services = lock(&self.services);
        let Some(used) = services.get_mut(&(service, scope)) else { return };
        used.listening = used.listening.saturating_sub(1);
        if used.listening != 0 {
            return;
        }
        let listener = used.listener.take();
        let Some(agent) = self.agent() else { return };
        if let Some(listener) = listener {
            agent.stop_listening(listener);
        }
        // Another id may still be bound to this address, so the service stays reserved.
        let is_kept = used.reserved != 0
            && agent
                .reserve(service, scope)
                .inspect_err(|error| tracing::warn!(%error, "a port is no longer reserved"))
                .is_ok();
        if !is_kept {
            services.remove(&(service, scope));
        }
    }

    /// The active MTU of a port.
    pub(crate) fn mtu(&self, port: PortNum) -> Mtu {
        self.context.active_mtu(port)
    }

    /// Whether the device is one of an InfiniBand fabric: its addresses are those of IP interfaces.
    pub(crate) fn has_lids(&self) -> bool {
        self.context.info().transport == Transport::InfiniBand
    }

    /// The port of this end of a path.
    pub(crate) fn port_of(&self, path: &CmPath) -> PortNum {
        let port = path.lids.and_then(|lids| self.context.port_of_lid(lids.local));
        port.unwrap_or(PortNum(1))
    }

    fn is(&self, info: &DeviceInfo) -> bool {
        self.key() == DeviceKey::of(info)
    }
}

/// The device of the fabric's host that the settings name.
fn device_of(config: &Config) -> Result<DeviceInfo, OpenError> {
    let found = configured_devices(config)?.into_iter().next();
    found.map_or_else(|| Err(no_device()?), Ok)
}

/// The device of a transport on the netdev of a RoCE device.
fn with_transport(info: DeviceInfo, transport: Transport) -> DeviceInfo {
    if transport == Transport::Iwarp { info.into_iwarp() } else { info }
}

/// Makes the sink for the events of the device with this key.
pub(crate) type MakeSink =
    Box<dyn Fn(DeviceKey) -> Arc<dyn CmSink> + Send + Sync + UnwindSafe + RefUnwindSafe>;

/// The open devices of a process.
pub(crate) struct Devices {
    config: Config,
    /// The transport of a device that is named by its netdev.
    transport: Transport,
    sink: MakeSink,
    open: Mutex<Vec<Arc<Device>>>,
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Devices").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Devices {
    pub(crate) fn new(config: Config, transport: Transport, sink: MakeSink) -> Self {
        Self { config, transport, sink, open: Mutex::default() }
    }

    /// The devices that are open.
    pub(crate) fn open(&self) -> Vec<Arc<Device>> {
        lock(&self.open).clone()
    }

    /// The device of a transport that has `local`.
    ///
    /// # Errors
    /// [`OpenError::NoSuchAddress`], which lists the devices and addresses that exist; the errors
    /// of opening the device.
    pub(crate) fn with(
        &self,
        local: LocalAddr,
        transport: Transport,
    ) -> Result<Arc<Device>, OpenError> {
        // The GID table of an open device follows its addresses, so the usual case needs no system
        // call.
        let has = |device: &Arc<Device>| {
            device.context.info().transport == transport && device.context.has_address(local)
        };
        match self.open().into_iter().find(has) {
            Some(device) => Ok(device),
            None => self.device(&with_transport(device_with(local)?, transport)),
        }
    }

    /// The device of the fabric's host that the settings name.
    ///
    /// # Errors
    /// The errors of opening the device.
    pub(crate) fn fabric(&self) -> Result<Arc<Device>, OpenError> {
        let is_it = |device: &Arc<Device>| device.has_lids();
        match self.open().into_iter().find(is_it) {
            Some(device) => Ok(device),
            None => self.device(&device_of(&self.config)?),
        }
    }

    /// The devices where ids of all addresses listen.
    ///
    /// # Errors
    /// [`OpenError::NetDev`], [`OpenError::Fabric`].
    pub(crate) fn usable(&self) -> Result<Vec<DeviceInfo>, OpenError> {
        match self.transport {
            Transport::InfiniBand => Ok(vec![device_of(&self.config)?]),
            _ => devices(),
        }
    }

    /// The open device that `info` describes; opened if it is not open.
    ///
    /// # Errors
    /// The errors of opening the device.
    pub(crate) fn device(&self, info: &DeviceInfo) -> Result<Arc<Device>, OpenError> {
        // The lock is held while the device is opened: two threads must not open it twice.
        let mut open = lock(&self.open);
        if let Some(device) = open.iter().find(|device| device.is(info)) {
            return Ok(device.clone());
        }
        let context = Context::open_on(&info.port.netdev, info.transport, self.config.clone())?;
        let agent: Option<Arc<dyn Agent>> = match info.transport {
            Transport::Iwarp => None,
            _ => Some(context.clone()),
        };
        let device = Device::new(context, agent);
        let sink = (self.sink)(device.key());
        // Connections of iWARP report their events elsewhere, but the removal of the device comes
        // here.
        device.context.cm().attach(sink).map_err(|error| match error {
            CmAttachError::Slot(source) => OpenError::Slot { device: info.name.clone(), source },
            // No other code has the device before this.
            other => OpenError::Os { what: "hear of connections", source: io::Error::other(other) },
        })?;
        open.push(device.clone());
        Ok(device)
    }

    /// Forgets the device whose netdev was removed. The device is closed when the last id on it is
    /// destroyed.
    pub(crate) fn remove(&self, key: DeviceKey) -> Option<Arc<Device>> {
        let mut open = lock(&self.open);
        let index = open.iter().position(|device| device.key() == key)?;
        let device = open.swap_remove(index);
        device.removed.store(true, Ordering::Relaxed);
        Some(device)
    }

    /// The device of this name, or the device on the netdev of this name.
    ///
    /// # Errors
    /// The errors of opening the device.
    pub(crate) fn named(&self, name: &str) -> Result<Arc<Context>, OpenError> {
        let all = self.usable()?;
        let beside = all.iter().cloned().map(DeviceInfo::into_iwarp);
        let on_netdev = all.iter().find(|info| info.port.netdev == name).cloned();
        let named = all.iter().cloned().chain(beside).find(|info| info.name == name);
        let found = named.or(on_netdev.map(|info| with_transport(info, self.transport)));
        match found {
            Some(info) => Ok(self.device(&info)?.context.clone()),
            // Opening fails with the error that lists the devices there are.
            None => Context::open(Some(name), self.config.clone()),
        }
    }

    /// Adds a device that a test has made, in place of the device on the same netdev.
    #[cfg(test)]
    pub(crate) fn insert(&self, device: Arc<Device>) {
        lock(&self.open).push(device);
    }
}
