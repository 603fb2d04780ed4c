//! The state that the ids of one process share, and the work for them outside their calls.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use vernic_engine::{CmSink, Config, Transport, address_transport, looks_for_transport};
use vernic_io::Origin;
use vernic_proto::cm::{self, ConnId};
use vernic_wire::cm::RejReason;

use crate::device::{Device, Devices};
use crate::error::Error;
use crate::fabric::Fabric;
use crate::id::Id;
use crate::id::waits::Waits;
use crate::key::{DeviceKey, IdKey};
use crate::ports::Ports;
use crate::registry::{Entry, EntryContent, Registry};
use crate::silent_host::SilentHosts;
use crate::streams::Streams;
use crate::sync::lock;
use crate::worker::{Work, Worker};

/// The state that the ids of one process share. A child of `fork` has its own.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) origin: Origin,
    pub(crate) registry: Arc<Registry>,
    pub(crate) worker: Arc<Worker>,
    pub(crate) ports: Mutex<Ports>,
    pub(crate) devices: Devices,
    /// The transport of connections by address, unless the peer decides it.
    pub(crate) transport: Transport,
    /// Whether the peer decides the transport.
    pub(crate) looks_for_transport: bool,
    /// The host of a fabric, if the transport is InfiniBand.
    pub(crate) fabric: Option<Fabric>,
    /// Start-ups of iWARP.
    pub(crate) streams: Streams,
    /// Destinations of which something is not known yet.
    pub(crate) waits: Waits,
    /// Hosts that have not answered a request for a connection by RoCE.
    pub(crate) silent_hosts: SilentHosts,
    /// The ids of this process, until they are dropped.
    ids: Mutex<HashMap<IdKey, Weak<Id>>>,
    /// Ids that listen on every device.
    wildcards: Mutex<HashSet<IdKey>>,
    me: Weak<Self>,
}

impl Shared {
    pub(crate) fn new(config: &Config) -> Arc<Self> {
        let worker = Arc::new(Worker::default());
        let registry = Arc::new(Registry::new(worker.clone()));
        let transport = address_transport(config);
        Arc::new_cyclic(|me: &Weak<Self>| {
            let (shared, events) = (me.clone(), registry.clone());
            let sink = move |device| -> Arc<dyn CmSink> {
                Arc::new(Sink { registry: events.clone(), device, shared: shared.clone() })
            };
            Self {
                origin: Origin::here(),
                streams: Streams::new(registry.clone(), worker.clone(), config),
                devices: Devices::new(config.clone(), transport, Box::new(sink)),
                transport,
                looks_for_transport: looks_for_transport(config),
                fabric: Fabric::of(config),
                registry,
                worker,
                ports: Mutex::new(Ports::new()),
                waits: Waits::default(),
                silent_hosts: SilentHosts::default(),
                ids: Mutex::default(),
                wildcards: Mutex::default(),
                me: me.clone(),
            }
        })
    }

    /// Starts the worker's thread, unless it runs.
    ///
    /// # Errors
    /// [`Error::Os`] when the process has no descriptor or thread left.
    pub(crate) fn start_keeper(&self) -> Result<(), Error> {
        let has_streams = self.transport == Transport::Iwarp || self.looks_for_transport;
        let streams = has_streams.then(|| self.streams.open()).transpose()?;
        self.worker.start(streams, self.me.clone())
    }

    /// Adds a new id.
    pub(super) fn add(&self, id: &Arc<Id>) {
        lock(&self.ids).insert(id.key(), Arc::downgrade(id));
    }

    /// Forgets an id that is being dropped.
    pub(super) fn forget(&self, key: IdKey) {
        lock(&self.ids).remove(&key);
        lock(&self.wildcards).remove(&key);
    }

    /// The id with this key, unless it was dropped.
    pub(super) fn id(&self, key: IdKey) -> Option<Arc<Id>> {
        lock(&self.ids).get(&key)?.upgrade()
    }

    /// Adds an id that listens on every device.
    pub(super) fn add_wildcard(&self, key: IdKey) {
        lock(&self.wildcards).insert(key);
    }

    /// Makes every wildcard listen on new devices.
    fn listen_on_new_devices(&self) {
        let wildcards = lock(&self.wildcards).clone();
        let ids = wildcards.into_iter().filter_map(|key| self.id(key));
        ids.for_each(|id| id.listen_on_new_devices());
    }

    /// Closes a device whose netdev was removed, and notifies the ids on it.
    fn remove_device(&self, key: DeviceKey) {
        let Some(device) = self.devices.remove(key) else { return };
        let ids: Vec<_> = lock(&self.ids).values().filter_map(Weak::upgrade).collect();
        ids.iter().for_each(|id| id.device_removed(&device));
    }

    /// Rejects a request; iWARP has no reasons.
    ///
    /// # Errors
    /// [`Error::Cm`], [`Error::Stream`]: the peer has given up.
    pub(super) fn reject(
        &self,
        device: &Device,
        conn: ConnId,
        reason: RejReason,
        private_data: &[u8],
    ) -> Result<(), Error> {
        match device.agent() {
            Some(agent) => Ok(agent.reject(conn, reason, &[], private_data)?),
            None => self.streams.reject(conn, private_data),
        }
    }

    /// Ends an exchange in the way its state needs, and forgets it.
    pub(crate) fn destroy(&self, device: &Device, conn: ConnId) {
        match device.agent() {
            Some(agent) => agent.destroy(conn),
            None => self.streams.destroy(conn),
        }
    }

    /// Refuses the requests among events that will not be taken.
    pub(super) fn refuse(&self, untaken: Vec<Entry>) {
        for entry in untaken {
            if let EntryContent::Request(request) = entry.what {
                self.destroy(&request.device, request.conn);
                // The program has not seen that id, so its other events do not matter.
                self.registry.unregister(request.events.key);
            }
        }
    }
}

impl Work for Shared {
    fn progress(&self, network_changed: bool) -> Option<Duration> {
        if network_changed {
            self.listen_on_new_devices();
        }
        let startups = self.streams.progress(&self.devices);
        let (waits, silent) =
            (self.waits.progress(|key| self.id(key)), self.silent_hosts.progress());
        [startups, waits, silent].into_iter().flatten().min()
    }

    fn alternate_path(&self, id: IdKey, event: cm::EventKind) {
        if let Some(id) = self.id(id) {
            id.apply_alternate(&event);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The thread then finds that its work is gone.
        self.worker.wake();
    }
}

/// The sink for the engine's events of a device.
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) registry: Arc<Registry>,
    pub(crate) device: DeviceKey,
    pub(crate) shared: Weak<Shared>,
}

impl CmSink for Sink {
    fn event(&self, event: cm::Event) {
        self.registry.deliver(self.device, event);
    }

    fn removed(&self) {
        let (shared, device) = (self.shared.clone(), self.device);
        // Ids have locks of their own, and the engine holds its locks here.
        let remove = move || {
            if let Some(shared) = shared.upgrade() {
                shared.remove_device(device);
            }
        };
        if let Err(error) = vernic_engine::spawn("vernic-removal", remove) {
            tracing::error!(%error, "ids are not notified that a device is gone");
        }
    }
}
