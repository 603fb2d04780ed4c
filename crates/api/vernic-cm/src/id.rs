//! Ids: an id is a listener, a connection, or a datagram address.
//!
//! Owns the state of each id and what belongs to it. The calls are in a file per kind under `id/`;
//! what an event changes when it is taken is in `id/apply.rs`.
//!
//! What changes is behind one lock per id. A call holds the lock to its end, also while it calls
//! the engine; nothing that runs under the engine's locks takes the lock. Lock order: id, ports,
//! engine, registry, queue.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use vernic_attach::IpInterface;
use vernic_engine::{AddressVector, Context, GidEntry, Mtu, Pkey, PortNum, Qp, QpType, Transport};
use vernic_io::tcp::Bound;
use vernic_proto::cm::CmPath;
use vernic_wire::cm::PortSpace;
use vernic_wire::{Gid, RoceVersion};

use crate::device::Device;
use crate::error::Error;
use crate::key::IdKey;
use crate::ports::Binding;
use crate::registry::IdEvents;
use crate::route;
use crate::state::State;
use crate::sync::lock;

mod alternate;
mod apply;
mod bind;
mod channel;
mod connect;
mod connection;
mod event;
mod listen;
mod multicast;
mod native;
mod options;
mod qp;
mod resolve;
mod shared;
mod stream;
mod subnet;
mod waits;
mod write;

pub use channel::EventChannel;
pub use event::Event;
pub use multicast::JoinState;
pub use native::GidAddr;
pub use options::IdOption;

pub(crate) use shared::Shared;
#[cfg(test)]
pub(crate) use shared::Sink;

use alternate::Loading;
use bind::Reservation;
use connection::Connection;
use listen::Listening;
use multicast::Membership;
use options::Options;
use write::Written;

/// How a program learns of a connection before the last message of the handshake: by a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommEstablished;

/// Where an id and its peer are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The port of the device, once an address has decided it.
    pub port: Option<PortNum>,
    /// The GID of the port.
    pub local: Option<Gid>,
    /// The GID of the peer's port.
    pub remote: Option<Gid>,
    /// The partition.
    pub pkey: Pkey,
    /// The path MTU, once the route is resolved.
    pub mtu: Option<Mtu>,
}

/// The state of an id that changes.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: State,
    /// The transport of the id's connection.
    pub(crate) transport: Transport,
    pub(crate) channel: Arc<EventChannel>,
    pub(crate) device: Option<Arc<Device>>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) bound: Option<Binding>,
    /// The port, kept from other processes while the id is bound and does not listen.
    pub(crate) reserved: Vec<Reservation>,
    pub(crate) options: Options,
    /// The path of the request that the id was made for; on InfiniBand, the path that was resolved,
    /// too.
    pub(crate) path: Option<CmPath>,
    /// The IP interface, on InfiniBand, once an address has decided it.
    pub(crate) interface: Option<Box<IpInterface>>,
    /// The partition, if the id's addresses are GIDs.
    pub(crate) native: Option<Pkey>,
    /// The largest path MTU of the path, if the path has another than its port.
    pub(crate) path_mtu: Option<Mtu>,
    pub(crate) qp: Option<Arc<Qp>>,
    /// The queue pair that the program brings up itself, as far as it has named it.
    pub(crate) own_qp: Weak<Qp>,
    pub(crate) connection: Option<Connection>,
    pub(crate) backlog: u32,
    pub(crate) listening: Vec<Listening>,
    /// The socket that holds the port over iWARP, until the id listens or connects.
    pub(crate) socket: Option<Bound>,
    /// The number of the listening socket over iWARP, in the streams of the process.
    pub(crate) listener: Option<u32>,
    pub(crate) groups: Vec<Membership>,
}

/// An id. Dropping the last reference destroys it.
pub struct Id {
    pub(crate) shared: Arc<Shared>,
    pub(crate) events: Arc<IdEvents>,
    port_space: PortSpace,
    qp_type: QpType,
    user_context: AtomicUsize,
    written: Written,
    /// What became of the last alternate path that the program has named.
    pub(crate) loading: Loading,
    inner: Mutex<Inner>,
}

impl Id {
    pub(crate) fn new(
        channel: &Arc<EventChannel>,
        port_space: PortSpace,
        qp_type: QpType,
    ) -> Result<Arc<Self>, Error> {
        let datagrams = qp_type == QpType::Ud;
        let fits = match port_space {
            PortSpace::TCP => !datagrams,
            PortSpace::UDP | PortSpace::IPOIB => datagrams,
            other => other == PortSpace::IB,
        };
        if !fits {
            return Err(Error::PortSpace { port_space, qp_type });
        }
        let events = channel.shared.registry.register(&channel.queue);
        Ok(Self::at(events, channel, port_space, qp_type, |_| ()))
    }

    /// Makes an id that the registry has registered; `make` sets what differs from a new id.
    fn at(
        events: Arc<IdEvents>,
        channel: &Arc<EventChannel>,
        port_space: PortSpace,
        qp_type: QpType,
        make: impl FnOnce(&mut Inner),
    ) -> Arc<Self> {
        let mut inner = Inner {
            state: State::Idle,
            transport: channel.shared.transport,
            channel: channel.clone(),
            device: None,
            local: None,
            peer: None,
            bound: None,
            reserved: Vec::new(),
            options: Options::default(),
            path: None,
            interface: None,
            native: None,
            path_mtu: None,
            qp: None,
            own_qp: Weak::new(),
            connection: None,
            backlog: 0,
            listening: Vec::new(),
            socket: None,
            listener: None,
            groups: Vec::new(),
        };
        make(&mut inner);
        let id = Arc::new(Self {
            shared: channel.shared.clone(),
            events,
            port_space,
            qp_type,
            user_context: AtomicUsize::new(0),
            written: Written::default(),
            loading: Loading::default(),
            inner: Mutex::new(inner),
        });
        id.shared.add(&id);
        id
    }

    /// Whether the id was made before this process was forked. Such an id is unusable here.
    pub fn is_orphan(&self) -> bool {
        !self.shared.origin.is_here()
    }

    /// The number of the id in this process.
    pub(crate) fn key(&self) -> IdKey {
        self.events.key
    }

    /// The port space.
    pub fn port_space(&self) -> PortSpace {
        self.port_space
    }

    /// The type of the id's queue pairs.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// The state.
    pub fn state(&self) -> State {
        self.look(|inner| inner.state).unwrap_or(State::Destroyed)
    }

    /// The event channel; `None` if the id is an orphan.
    pub fn channel(&self) -> Option<Arc<EventChannel>> {
        self.look(|inner| inner.channel.clone())
    }

    /// The device, once an address has decided it.
    pub fn context(&self) -> Option<Arc<Context>> {
        self.look(|inner| inner.device.as_ref().map(|device| device.context.clone())).flatten()
    }

    /// The local port, 0 before the id is bound.
    pub fn port(&self) -> u16 {
        self.local_addr().map_or(0, |addr| addr.port())
    }

    /// The local address and port, once the id is bound.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.look(|inner| inner.local).flatten()
    }

    /// The address and port of the peer, once the peer is resolved or has connected.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.look(|inner| inner.peer).flatten()
    }

    /// The index of the local address in the device's GID table.
    pub fn local_gid_index(&self) -> Option<u8> {
        self.look(|inner| Some(inner.local_row()?.index)).flatten()
    }

    /// The port that the id is on, its GID, the peer's GID, and the partition, as far as they are
    /// known.
    pub fn place(&self) -> Place {
        self.look(Inner::place).unwrap_or_default()
    }

    /// The path to the peer, once the peer is resolved or has connected.
    pub fn path(&self) -> Option<CmPath> {
        self.look(Inner::path).flatten()
    }

    /// The address vector of the path to the peer, for a handle of datagrams; on InfiniBand once
    /// the route is resolved.
    pub fn address_vector(&self) -> Option<AddressVector> {
        self.look(|inner| {
            let (device, path) = (inner.device.as_ref()?, inner.path()?);
            let is_known = path.lids.is_some() || !device.has_lids();
            is_known.then(|| apply::vector(device, &path))
        })
        .flatten()
    }

    /// The user context, which the program has set.
    pub fn user_context(&self) -> usize {
        self.user_context.load(Ordering::Relaxed)
    }

    /// Sets the user context: a number or an address of the program's. New ids of a listener start
    /// with the listener's.
    pub fn set_user_context(&self, context: usize) {
        self.user_context.store(context, Ordering::Relaxed);
    }

    /// Moves the id to `channel`, with the events that wait. Waits until those that were taken from
    /// the old channel are dropped.
    ///
    /// # Errors
    /// [`Error::Orphan`], [`Error::OtherManager`], [`Error::State`] for a destroyed id.
    pub fn migrate(&self, channel: &Arc<EventChannel>) -> Result<(), Error> {
        {
            let mut inner = self.enter("migrate")?;
            if !Arc::ptr_eq(&self.shared, &channel.shared) {
                return Err(Error::OtherManager);
            }
            self.shared.registry.migrate(self.key(), &channel.queue);
            inner.channel = channel.clone();
        }
        self.events.wait_acked();
        Ok(())
    }

    /// Destroys the id. Its events that wait are dropped, its listener and its connection end, the
    /// peer is notified, and port and groups are released. The queue pair is detached and keeps its
    /// state. Waits until every [`Event`] of the id that was taken is dropped.
    pub fn destroy(&self) {
        if !self.is_orphan() {
            self.shut_down();
            self.events.wait_acked();
        }
    }

    fn shut_down(&self) {
        let mut inner = lock(&self.inner);
        if inner.state == State::Destroyed {
            return;
        }
        inner.state = State::Destroyed;
        self.loading.end();
        inner.leave_groups();
        self.shared.waits.drop_all(self.key());
        self.stop_listening(&mut inner);
        // The order matters: after this, no event for the id can come.
        if let Some((device, connection)) = self.exchange(&inner) {
            self.shared.destroy(&device, connection.conn);
            // Over iWARP nothing else notifies the peer.
            if device.agent().is_none() {
                inner.close_stream();
            }
        }
        let socket = inner.socket.take();
        let untaken = self.shared.registry.unregister(self.key());
        std::mem::take(&mut inner.reserved).into_iter().for_each(Reservation::release);
        if let (Some(binding), Some(local)) = (inner.bound.take(), inner.local) {
            lock(&self.shared.ports).release(self.port_space, local.port(), binding.key);
        }
        let qp = inner.qp.take();
        drop(inner);
        // These may be the last references.
        drop((qp, socket));
        self.shared.refuse(untaken);
    }

    /// Reads the state, unless the id is an orphan.
    fn look<T>(&self, look: impl FnOnce(&Inner) -> T) -> Option<T> {
        (!self.is_orphan()).then(|| look(&lock(&self.inner)))
    }

    /// Begins a call. Orphans and destroyed ids are refused.
    pub(crate) fn enter(&self, call: &'static str) -> Result<MutexGuard<'_, Inner>, Error> {
        if self.is_orphan() {
            return Err(Error::Orphan);
        }
        let inner = lock(&self.inner);
        match inner.state {
            State::Destroyed => Err(self.wrong_state(&inner, call, "is not destroyed")),
            _ => Ok(inner),
        }
    }

    /// The error of a call that the id's state does not allow.
    pub(crate) fn wrong_state(
        &self,
        inner: &Inner,
        call: &'static str,
        needs: &'static str,
    ) -> Error {
        let address = |addr: Option<SocketAddr>| addr.map_or("-".to_owned(), |a| a.to_string());
        let (local, peer) = (address(inner.local), address(inner.peer));
        let id = format!("{} {local} -> {peer}", self.port_space);
        Error::State { call, needs, id, state: inner.state }
    }
}

impl Inner {
    /// The row of the local address in the GID table.
    pub(crate) fn local_row(&self) -> Option<GidEntry> {
        let device = self.device.as_ref()?;
        if device.has_lids() {
            return device.context.gid_row(self.port_gid()?);
        }
        let version = self.path.map_or(device.context.config().roce, |path| path.roce);
        device.row_of(route::local(self.local?), version)
    }

    /// Where the id and its peer are.
    fn place(&self) -> Place {
        let port = self.device.as_ref().map(|_| self.port_num());
        let of = |address: Option<SocketAddr>| {
            address.filter(|a| !a.ip().is_unspecified()).map(|a| Gid::from_ip(a.ip()))
        };
        let (mut local, mut remote) = (of(self.local), of(self.peer));
        if self.device.as_ref().is_some_and(|device| device.has_lids()) {
            (local, remote) = (self.port_gid(), self.path.map(|path| path.remote));
        }
        let mtu = self.device.as_ref().map(|device| self.largest_mtu(device));
        Place { port, local, remote, pkey: self.pkey(), mtu }
    }

    /// The path to the peer.
    pub(crate) fn path(&self) -> Option<CmPath> {
        if self.path.is_some() || self.device.as_ref()?.has_lids() {
            return self.path;
        }
        let roce = self.local_row().map_or(RoceVersion::V2, |row| row.kind.roce_version());
        let (local, peer) = (Gid::from_ip(self.local?.ip()), Gid::from_ip(self.peer?.ip()));
        Some(CmPath { traffic_class: self.options.tos, roce, ..CmPath::new(local, peer) })
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if !self.is_orphan() {
            self.shut_down();
            self.shared.forget(self.key());
            return;
        }
        // A thread of the parent may have held the lock when it forked: everything is leaked as it
        // is.
        let inner = self.inner.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::forget((
            inner.channel.clone(),
            inner.device.take(),
            inner.qp.take(),
            std::mem::take(&mut inner.reserved),
            std::mem::take(&mut inner.listening),
            std::mem::take(&mut inner.groups),
            self.shared.clone(),
            self.events.clone(),
        ));
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({} {:?} #{})", self.port_space, self.qp_type, self.key().0)
    }
}
