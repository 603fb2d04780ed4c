//! The manager: root of ids and channels, and owner of the open devices.

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

/// Longest wait of a program that ends for the end of its connections to be sent.
const GOODBYE: Duration = Duration::from_millis(500);

/// Longest wait for another thread that is at work on a device when the program ends.
const PATIENCE: Duration = Duration::from_millis(100);

/// What a process has, and what its children will have.
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
            end_exchanges(&shared);
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
        self.shared().devices.named(name)
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

/// Ends the exchanges of the process, and waits until peers know of it, for a while: of these, and
/// of those that their owner ended before.
fn end_exchanges(shared: &Shared) {
    let (open, conns) = (shared.devices.open(), shared.registry.conns());
    let end = |device: &Arc<Device>| {
        let own = conns.iter().filter(|(key, _)| *key == device.key());
        let ended = own.map(|(_, conn)| shared.destroy(device, *conn)).count();
        device.context.cm().hasten_farewells();
        ended
    };
    // First on all of them, which wait at the same time.
    let ended: Vec<_> = open.iter().map(end).collect();
    for (device, ended) in open.iter().zip(ended) {
        device.context.cm().await_farewells();
        // Streams that were left have something to wait for. Another thread may be at it, and
        // would end in the middle.
        let leaves = ended != 0 && device.agent().is_none();
        let until = Instant::now() + PATIENCE;
        while leaves && !device.context.last_progress() && Instant::now() < until {
            std::thread::yield_now();
        }
    }
}
