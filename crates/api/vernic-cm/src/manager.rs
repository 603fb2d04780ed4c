//! The manager: makes ids and channels, and owns the state of a process.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use vernic_engine::{Config, Context, DeviceInfo, Gate, OpenError, QpType};
use vernic_wire::cm::PortSpace;

use crate::device::Device;
use crate::error::Error;
use crate::id::EventChannel;
use crate::id::Id;
use crate::id::Shared;
use crate::streams::StartupCounters;

/// Longest time that the end of a program waits until its connections are ended.
const GOODBYE: Duration = Duration::from_millis(500);

/// Longest time that the end of a program waits for another thread that works on a device.
const PATIENCE: Duration = Duration::from_millis(100);

/// The state of a process, and of its forked child.
#[derive(Debug)]
struct Generation {
    shared: Arc<Shared>,
    child: OnceLock<Box<Generation>>,
}

impl Generation {
    fn new(config: &Config) -> Self {
        Self { shared: Shared::new(config), child: OnceLock::new() }
    }
}

/// The connection manager of a process.
///
/// A manager may be used after a fork, in both processes. In the child no device is open, and the
/// parent's ids and channels are refused.
#[derive(Debug)]
pub struct Manager {
    config: Config,
    generation: Generation,
}

impl Manager {
    /// Makes a manager that opens devices with `config`.
    pub fn new(config: Config) -> Arc<Self> {
        let generation = Generation::new(&config);
        Arc::new(Self { config, generation })
    }

    /// The state of this process.
    fn shared(&self) -> &Arc<Shared> {
        let mut at = &self.generation;
        // One iteration per fork between the manager's process and this one.
        while !at.shared.origin.is_here() {
            // No thread forks while the state is made: a child finds it complete or not begun.
            let _gate = Gate::enter();
            at = at.child.get_or_init(|| Box::new(Generation::new(&self.config)));
        }
        &at.shared
    }

    /// Ends the connections and requests of this process, as destroying their ids would: for a
    /// program that ends without doing so. (The kernel does that for programs that use its
    /// `rdma_cm`.) Only peers of iWARP are waited for, because a stream ends only when the peer has
    /// received what was sent. Takes at most half a second, even if threads of this process hold
    /// locks.
    pub fn disconnect_all(&self) {
        let mut at = &self.generation;
        while !at.shared.origin.is_here() {
            // A child that has used nothing has nothing to end.
            let Some(child) = at.child.get() else { return };
            at = child;
        }
        // The calling thread may hold the locks that this needs, for example in a signal handler.
        let (shared, (done, is_done)) = (at.shared.clone(), mpsc::channel());
        let say = move || {
            end_exchanges(&shared);
            let _ = done.send(());
        };
        if vernic_engine::spawn("vernic-goodbye", say).is_ok() {
            let _ = is_done.recv_timeout(GOODBYE);
        }
    }

    /// The devices of this machine, or the one device that the settings name.
    ///
    /// # Errors
    /// The errors of [`vernic_engine::configured_devices`].
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, OpenError> {
        vernic_engine::configured_devices(&self.config)
    }

    /// The open device of this name, or on the netdev of this name, which all ids on it share. The
    /// device is opened if it is not open.
    ///
    /// # Errors
    /// The errors of [`Context::open`].
    pub fn context(&self, name: &str) -> Result<Arc<Context>, OpenError> {
        self.shared().devices.named(name)
    }

    /// Counters of the iWARP connections that peers have begun with this process.
    pub fn startup_counters(&self) -> StartupCounters {
        self.shared().streams.counters()
    }

    /// Makes an event channel.
    ///
    /// # Errors
    /// [`Error::Os`] when the process has no descriptor left.
    pub fn create_channel(&self) -> Result<Arc<EventChannel>, Error> {
        EventChannel::new(self.shared())
    }

    /// Makes an id for queue pairs of `qp_type`, whose events go to `channel`. Without a channel
    /// the id gets its own, for programs that wait for the outcome of each call
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

/// Ends the exchanges of the process, and waits for a limited time until the peers know of these,
/// and of exchanges that ended before.
fn end_exchanges(shared: &Shared) {
    let (open, conns) = (shared.devices.open(), shared.registry.conns());
    let end = |device: &Arc<Device>| {
        let own = conns.iter().filter(|(key, _)| *key == device.key());
        let ended = own.map(|(_, conn)| shared.destroy(device, *conn)).count();
        device.context.cm().hasten_farewells();
        ended
    };
    // All of them are ended first, so that they wait at the same time.
    let ended: Vec<_> = open.iter().map(end).collect();
    for (device, ended) in open.iter().zip(ended) {
        device.context.cm().await_farewells();
        // Streams that were ended still have data to send. Another thread may be sending, and would
        // be killed in the middle.
        let leaves = ended != 0 && device.agent().is_none();
        let until = Instant::now() + PATIENCE;
        while leaves && !device.context.last_progress() && Instant::now() < until {
            std::thread::yield_now();
        }
    }
}
