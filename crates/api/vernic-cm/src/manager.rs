//! The manager: root of ids and channels, and owner of the open devices.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::time::Duration;

use vernic_engine::{
    Config, Context, DeviceInfo, Gate, OpenError, QpType, Transport, address_transport,
    looks_for_transport,
};
use vernic_io::Origin;
use vernic_wire::cm::PortSpace;

use crate::device::Devices;
use crate::error::Error;
use crate::id::EventChannel;
use crate::id::Id;
use crate::id::search::Searches;
use crate::keeper::Keeper;
use crate::ports::Ports;
use crate::registry::Registry;
use crate::silent_host::SilentHosts;
use crate::streams::{StartupCounters, Streams};

/// Longest wait of a program that ends for the end of its connections to be sent.
const GOODBYE: Duration = Duration::from_millis(500);

/// What the ids of one process share. A child of `fork` has one of its own.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) origin: Origin,
    pub(crate) config: Config,
    pub(crate) registry: Arc<Registry>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) ports: Mutex<Ports>,
    pub(crate) devices: Devices,
    /// What connections by address go over, unless the peer decides.
    pub(crate) transport: Transport,
    /// Whether the peer decides.
    pub(crate) looks_for_transport: bool,
    /// Start-ups of iWARP.
    pub(crate) streams: Arc<Streams>,
    /// Destinations that are looked for.
    pub(crate) searches: Searches,
    /// Hosts that have not answered a request for a connection by RoCE.
    pub(crate) silent_hosts: SilentHosts,
    /// Ids that listen on every device.
    pub(crate) wildcards: Mutex<Vec<Weak<Id>>>,
    me: Weak<Self>,
}

impl Shared {
    /// For who outlives it.
    pub(crate) fn weak(&self) -> Weak<Self> {
        self.me.clone()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Its thread sees that there is nothing to keep.
        self.keeper.wake();
    }
}

/// What a process has, and what its children will have.
#[derive(Debug)]
struct Generation {
    shared: Arc<Shared>,
    child: OnceLock<Box<Generation>>,
}

impl Generation {
    fn new(config: &Config) -> Self {
        let keeper = Arc::new(Keeper::default());
        let registry = Arc::new(Registry::new(keeper.clone()));
        let streams = Streams::new(registry.clone(), keeper.clone(), config);
        let shared = Arc::new_cyclic(|me| Shared {
            origin: Origin::here(),
            config: config.clone(),
            transport: address_transport(config),
            looks_for_transport: looks_for_transport(config),
            streams: Arc::new(streams),
            registry,
            keeper,
            ports: Mutex::new(Ports::new()),
            devices: Devices::default(),
            searches: Searches::default(),
            silent_hosts: SilentHosts::default(),
            wildcards: Mutex::default(),
            me: me.clone(),
        });
        Self { shared, child: OnceLock::new() }
    }
}

/// The connection manager of a process.
///
/// It may be used on after a fork, in both processes: in the child it has no open device, and the
/// parent's ids and channels are refused.
#[derive(Debug)]
pub struct Manager {
    config: Config,
    generation: Generation,
}

impl Manager {
    /// A manager whose devices are opened with `config`.
    pub fn new(config: Config) -> Arc<Self> {
        let generation = Generation::new(&config);
        Arc::new(Self { config, generation })
    }

    /// What this process has.
    fn shared(&self) -> &Arc<Shared> {
        let mut at = &self.generation;
        // A turn per fork between the manager's process and this one.
        while !at.shared.origin.is_here() {
            // No thread forks while another makes it: a child finds it made or not begun.
            let _gate = Gate::enter();
            at = at.child.get_or_init(|| Box::new(Generation::new(&self.config)));
        }
        &at.shared
    }

    /// Ends what connections and requests this process has, as destroying their ids would: for the
    /// end of a program that did not do so. The kernel does that for programs that use its
    /// `rdma_cm`. Waits for peers of iWARP alone, whose connections end only when they have taken
    /// what they were sent. Takes half a second at most, whatever this process's threads are in the
    /// middle of.
    pub fn say_goodbye(&self) {
        let mut at = &self.generation;
        while !at.shared.origin.is_here() {
            // A child that has done nothing yet has nothing to end.
            let Some(child) = at.child.get() else { return };
            at = child;
        }
        // The thread that ends a program may hold the very locks: in a handler of a signal, say.
        let (shared, (done, is_done)) = (at.shared.clone(), mpsc::channel());
        let say = move || {
            shared.devices.say_goodbye(&shared.registry.conns());
            let _ = done.send(());
        };
        if vernic_engine::spawn("vernic-goodbye", say).is_ok() {
            let _ = is_done.recv_timeout(GOODBYE);
        }
    }

    /// The devices of this machine: all, or the one that the settings name.
    ///
    /// # Errors
    /// Those of [`vernic_engine::configured_devices`].
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, OpenError> {
        vernic_engine::configured_devices(&self.config)
    }

    /// The open device of this name (or of the netdev of this name), which all ids on it share;
    /// opened if it is not open.
    ///
    /// # Errors
    /// Those of [`Context::open`].
    pub fn context(&self, name: &str) -> Result<Arc<Context>, OpenError> {
        let shared = self.shared();
        shared.devices.named(name, shared)
    }

    /// What became of connections of iWARP that peers have begun, in this process.
    pub fn startup_counters(&self) -> StartupCounters {
        self.shared().streams.counters()
    }

    /// An event channel.
    ///
    /// # Errors
    /// [`Error::Os`] when the process has no descriptor left.
    pub fn create_channel(&self) -> Result<Arc<EventChannel>, Error> {
        EventChannel::new(self.shared())
    }

    /// An id for queue pairs of `qp_type`, whose events go to `channel`; without one it gets a
    /// channel of its own, for programs that wait for each call's outcome
    /// ([`Id::complete`](crate::Id::complete)).
    ///
    /// # Errors
    /// [`Error::PortSpace`] for a type that the port space does not have, [`Error::Orphan`] for a
    /// channel of this process's parent, [`Error::Os`].
    pub fn create_id(
        &self,
        channel: Option<&Arc<EventChannel>>,
        port_space: PortSpace,
        qp_type: QpType,
    ) -> Result<Arc<Id>, Error> {
        let channel = match channel {
            Some(channel) if channel.is_orphan() => return Err(Error::Orphan),
            Some(channel) => channel.clone(),
            None => self.create_channel()?,
        };
        Id::new(&channel, port_space, qp_type)
    }

    /// The address that the system sends from to `dst`, with port 0; `src` if that is given.
    ///
    /// # Errors
    /// [`Error::NoRoute`], [`Error::Scope`], [`Error::Family`].
    pub fn source_address(
        &self,
        src: Option<IpAddr>,
        dst: SocketAddr,
    ) -> Result<SocketAddr, Error> {
        crate::route::source(src.map(|ip| SocketAddr::new(ip, 0)), dst)
    }
}
