//! Ids: an id is a listener, a connection, or a datagram address.
//!
//! Owns what an id has and the state it is in. The calls are in a file per kind under `id/`; what
//! an event does when it is taken is in `id/apply.rs`.
//!
//! Everything that changes is behind one lock per id, held during a call, also while that call asks
//! the engine. Nothing under the engine's locks takes it. Lock order: id, ports, engine, registry,
//! queue.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use vernic_engine::{Context, GidEntry, Qp, QpType, Transport};
use vernic_io::tcp::Bound;
use vernic_proto::cm::CmPath;
use vernic_wire::Gid;
use vernic_wire::cm::PortSpace;

use crate::device::Device;
use crate::error::Error;
use crate::key::IdKey;
use crate::ports::Binding;
use crate::registry::IdEvents;
use crate::route;
use crate::state::State;
use crate::sync::lock;

mod apply;
mod bind;
mod channel;
mod connect;
mod connection;
mod event;
mod listen;
mod multicast;
mod options;
mod qp;
mod resolve;
mod search;
mod shared;
mod stream;
mod write;

pub use channel::EventChannel;
pub use event::Event;
pub use multicast::JoinState;
pub use options::IdOption;

pub(crate) use shared::Shared;
#[cfg(test)]
pub(crate) use shared::Sink;

use bind::Reservation;
use connection::Connection;
use listen::Listening;
use multicast::Membership;
use options::Options;
use write::Written;

/// How a program knows that a connection is there before its last message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommEstablished;

/// What changes of an id.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: State,
    /// What its connection goes over.
    pub(crate) transport: Transport,
    pub(crate) channel: Arc<EventChannel>,
    pub(crate) device: Option<Arc<Device>>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) bound: Option<Binding>,
    /// Of a port that is bound and not listened on.
    pub(crate) reserved: Vec<Reservation>,
    pub(crate) options: Options,
    /// Of a request: as it came.
    pub(crate) path: Option<CmPath>,
    pub(crate) qp: Option<Arc<Qp>>,
    pub(crate) connection: Option<Connection>,
    pub(crate) backlog: u32,
    pub(crate) listening: Vec<Listening>,
    /// Of iWARP: what has its port, until it listens or connects.
    pub(crate) socket: Option<Bound>,
    /// Of iWARP: its listening socket among those of the process.
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

    /// An id with a seat, as `make` makes it.
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
            qp: None,
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
            inner: Mutex::new(inner),
        });
        id.shared.add(&id);
        id
    }

    /// Whether it was made before this process was forked: then it is unusable here.
    pub fn is_orphan(&self) -> bool {
        !self.shared.origin.is_here()
    }

    /// What names it in this process.
    pub(crate) fn key(&self) -> IdKey {
        self.events.key
    }

    /// Its port space.
    pub fn port_space(&self) -> PortSpace {
        self.port_space
    }

    /// The type of its queue pairs.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.look(|inner| inner.state).unwrap_or(State::Destroyed)
    }

    /// The channel that its events come on; `None` if it is an orphan.
    pub fn channel(&self) -> Option<Arc<EventChannel>> {
        self.look(|inner| inner.channel.clone())
    }

    /// Its device, once an address has decided it.
    pub fn context(&self) -> Option<Arc<Context>> {
        self.look(|inner| inner.device.as_ref().map(|device| device.context.clone())).flatten()
    }

    /// Its own port, 0 before it is bound.
    pub fn port(&self) -> u16 {
        self.local_addr().map_or(0, |addr| addr.port())
    }

    /// Its own address and port, once it is bound.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.look(|inner| inner.local).flatten()
    }

    /// The address and port of its peer, once one is resolved or has connected.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.look(|inner| inner.peer).flatten()
    }

    /// The row of its own address in the device's GID table.
    pub fn local_gid_index(&self) -> Option<u8> {
        self.look(|inner| Some(inner.local_row()?.index)).flatten()
    }

    /// The path to its peer, once that is resolved or has connected.
    pub fn path(&self) -> Option<CmPath> {
        self.look(Inner::path).flatten()
    }

    /// What the program has attached to it.
    pub fn user_context(&self) -> usize {
        self.user_context.load(Ordering::Relaxed)
    }

    /// Attaches a number or an address of the program's. New ids of a listener start with the
    /// listener's.
    pub fn set_user_context(&self, context: usize) {
        self.user_context.store(context, Ordering::Relaxed);
    }

    /// From now on its events come on `channel`, those that wait included. Waits until those that
    /// were taken from the old one are dropped.
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

    /// Destroys it: its events that nobody has taken are gone, what it listens to or is connected
    /// to is told, and its port and groups are given back; its queue pair is detached and goes on
    /// as it is. Waits until every [`Event`](crate::Event) of it that was taken is dropped.
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
        inner.leave_groups();
        self.stop_listening(&mut inner);
        // In this order: afterwards nobody has an event for it.
        if let Some((device, connection)) = self.exchange(&inner) {
            self.shared.destroy(&device, connection.conn);
            // Without messages there is nobody else who tells the peer.
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
        // May be the last references to others.
        drop((qp, socket));
        self.shared.refuse(untaken);
    }

    /// Looks at what changes, unless it is an orphan's.
    fn look<T>(&self, look: impl FnOnce(&Inner) -> T) -> Option<T> {
        (!self.is_orphan()).then(|| look(&lock(&self.inner)))
    }

    /// Begins a call: refused on orphans and destroyed ids.
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

    /// The refusal of a call that its state does not allow.
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
    /// The row of its own address.
    pub(crate) fn local_row(&self) -> Option<GidEntry> {
        self.device.as_ref()?.row_of(route::local(self.local?))
    }

    /// The path to its peer.
    pub(crate) fn path(&self) -> Option<CmPath> {
        if self.path.is_some() {
            return self.path;
        }
        self.device.as_ref()?;
        let (local, peer) = (Gid::from_ip(self.local?.ip()), Gid::from_ip(self.peer?.ip()));
        Some(CmPath { traffic_class: self.options.tos, ..CmPath::new(local, peer) })
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if !self.is_orphan() {
            self.shut_down();
            self.shared.forget(self.key());
            return;
        }
        // A thread of the parent may have been at work on it: everything is leaked as it is.
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
