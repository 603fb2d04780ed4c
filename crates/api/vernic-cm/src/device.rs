//! The devices of this process, each opened when an id first needs it and then shared by all.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use vernic_engine::{
    CmAttachError, CmSink, Config, Context, DeviceInfo, GidEntry, ListenError, Mtu, OpenError,
    Transport, device_with, devices,
};
use vernic_io::{LocalAddr, Place};
use vernic_proto::cm::ListenerId;
use vernic_wire::cm::ServiceId;

use crate::key::DeviceKey;
use crate::sync::lock;

mod agent;

pub(crate) use agent::Agent;

/// An open device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) context: Arc<Context>,
    /// The exchange of messages, of RoCE; iWARP has streams instead.
    agent: Option<Arc<dyn Agent>>,
    /// Which services this process has, and where: ids may share, those of both IP versions'
    /// wildcards.
    services: Mutex<HashMap<(ServiceId, Place), ServiceUse>>,
    /// Its netdev was removed.
    removed: AtomicBool,
}

/// For how many ids this process has a service at a place.
#[derive(Debug, Default)]
struct ServiceUse {
    /// Of ids that are bound and do not listen.
    reserved: usize,
    listener: Option<ListenerId>,
    /// Of ids that listen.
    listening: usize,
}

impl Drop for Device {
    fn drop(&mut self) {
        // The program may keep the context for ever, and nothing can come of it any more.
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

    /// The exchange of messages, of RoCE.
    pub(crate) fn agent(&self) -> Option<&Arc<dyn Agent>> {
        self.agent.as_ref()
    }

    pub(crate) fn key(&self) -> DeviceKey {
        DeviceKey::of(self.context.info())
    }

    /// The row of an address, if it is one of this device.
    pub(crate) fn row_of(&self, local: LocalAddr) -> Option<GidEntry> {
        self.context.gid_table().into_iter().find(|row| row.local == local)
    }

    /// Keeps a service at a place from other processes, for one id more.
    ///
    /// # Errors
    /// [`ListenError`].
    pub(crate) fn reserve(&self, service: ServiceId, place: Place) -> Result<(), ListenError> {
        // A port of TCP is kept by its socket.
        let Some(agent) = self.agent() else { return Ok(()) };
        let mut services = lock(&self.services);
        if let Some(used) = services.get_mut(&(service, place)) {
            used.reserved += 1;
            return Ok(());
        }
        agent.reserve(service, place)?;
        services.insert((service, place), ServiceUse { reserved: 1, ..ServiceUse::default() });
        Ok(())
    }

    /// One id less has it reserved. One that listens gives it back by that.
    pub(crate) fn release(&self, service: ServiceId, place: Place) {
        let Some(agent) = self.agent() else { return };
        let mut services = lock(&self.services);
        let Some(used) = services.get_mut(&(service, place)) else { return };
        used.reserved = used.reserved.saturating_sub(1);
        if used.reserved == 0 && used.listener.is_none() {
            agent.release(service, place);
            services.remove(&(service, place));
        }
    }

    /// Listens at a place, or once more for another id where this process listens already.
    ///
    /// # Errors
    /// [`ListenError`].
    pub(crate) fn listen(
        &self,
        service: ServiceId,
        place: Place,
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        let mut services = lock(&self.services);
        let before = services.get_mut(&(service, place));
        if let Some(ServiceUse { listener: Some(listener), listening, .. }) = before {
            *listening += 1;
            return Ok(*listener);
        }
        let agent = self.agent().ok_or(ListenError::NotAttached)?;
        let listener = agent.listen(service, place, backlog)?;
        let used = services.entry((service, place)).or_default();
        (used.listener, used.listening) = (Some(listener), 1);
        Ok(listener)
    }

    /// One id less listens.
    pub(crate) fn stop_listening(&self, service: ServiceId, place: Place) {
        let mut services = lock(&self.services);
        let Some(used) = services.get_mut(&(service, place)) else { return };
        used.listening = used.listening.saturating_sub(1);
        if used.listening != 0 {
            return;
        }
        let listener = used.listener.take();
        let Some(agent) = self.agent() else { return };
        if let Some(listener) = listener {
            agent.stop_listening(listener);
        }
        // Another id may be bound there, and is so still.
        let is_kept = used.reserved != 0
            && agent
                .reserve(service, place)
                .inspect_err(|error| tracing::warn!(%error, "a port is no longer reserved"))
                .is_ok();
        if !is_kept {
            services.remove(&(service, place));
        }
    }

    /// The largest path MTU of its port now.
    pub(crate) fn mtu(&self) -> Mtu {
        self.context.active_mtu()
    }

    fn is(&self, info: &DeviceInfo) -> bool {
        self.key() == DeviceKey::of(info)
    }
}

/// The device of a transport on the netdev of a RoCE device.
fn with_transport(info: DeviceInfo, transport: Transport) -> DeviceInfo {
    if transport == Transport::Iwarp { info.into_iwarp() } else { info }
}

/// Makes what takes the events of the device with a key.
pub(crate) type MakeSink =
    Box<dyn Fn(DeviceKey) -> Arc<dyn CmSink> + Send + Sync + UnwindSafe + RefUnwindSafe>;

/// The open devices of a process.
pub(crate) struct Devices {
    config: Config,
    /// The transport of devices that are named by their netdev.
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

    /// Those that are open.
    pub(crate) fn open(&self) -> Vec<Arc<Device>> {
        lock(&self.open).clone()
    }

    /// The device of a transport that has `local`.
    ///
    /// # Errors
    /// [`OpenError::NoSuchAddress`], with the devices and addresses that there are; those of
    /// opening the device.
    pub(crate) fn with(
        &self,
        local: LocalAddr,
        transport: Transport,
    ) -> Result<Arc<Device>, OpenError> {
        // The table of an open device follows its addresses: the usual case asks the system
        // nothing.
        let has = |device: &Arc<Device>| {
            device.context.info().transport == transport && device.context.has_address(local)
        };
        match self.open().into_iter().find(has) {
            Some(device) => Ok(device),
            None => self.device(&with_transport(device_with(local)?, transport)),
        }
    }

    /// The device of this description.
    ///
    /// # Errors
    /// Those of opening it.
    pub(crate) fn device(&self, info: &DeviceInfo) -> Result<Arc<Device>, OpenError> {
        // Held while it is opened: two threads must not open it twice.
        let mut open = lock(&self.open);
        if let Some(device) = open.iter().find(|device| device.is(info)) {
            return Ok(device.clone());
        }
        let context = Context::open_on(&info.netdev, info.transport, self.config.clone())?;
        let agent: Option<Arc<dyn Agent>> = match info.transport {
            Transport::Iwarp => None,
            _ => Some(context.clone()),
        };
        let device = Device::new(context, agent);
        let sink = (self.sink)(device.key());
        // Of connections of iWARP it hears elsewhere, but of the end of the device here.
        device.context.cm().attach(sink).map_err(|error| match error {
            CmAttachError::Slot(source) => OpenError::Slot { device: info.name.clone(), source },
            // Nobody else has the device yet.
            other => OpenError::Os { what: "hear of connections", source: io::Error::other(other) },
        })?;
        open.push(device.clone());
        Ok(device)
    }

    /// Forgets the device whose netdev was removed: it is closed when the last id on it is
    /// destroyed.
    pub(crate) fn remove(&self, key: DeviceKey) -> Option<Arc<Device>> {
        let mut open = lock(&self.open);
        let place = open.iter().position(|device| device.key() == key)?;
        let device = open.swap_remove(place);
        device.removed.store(true, Ordering::Relaxed);
        Some(device)
    }

    /// The device of this name, or of this netdev's.
    ///
    /// # Errors
    /// Those of opening it.
    pub(crate) fn named(&self, name: &str) -> Result<Arc<Context>, OpenError> {
        let all = devices()?;
        let beside = all.iter().cloned().map(DeviceInfo::into_iwarp);
        let on_netdev = all.iter().find(|info| info.netdev == name).cloned();
        let named = all.iter().cloned().chain(beside).find(|info| info.name == name);
        let found = named.or(on_netdev.map(|info| with_transport(info, self.transport)));
        match found {
            Some(info) => Ok(self.device(&info)?.context.clone()),
            // For the error, which says what there is.
            None => Context::open(Some(name), self.config.clone()),
        }
    }

    /// Puts a device of a test's own in the place of the one on its netdev.
    #[cfg(test)]
    pub(crate) fn insert(&self, device: Arc<Device>) {
        lock(&self.open).push(device);
    }
}
