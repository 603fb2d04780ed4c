//! Events that wait to be taken: the id and the channel of each.
//!
//! Owns the registration of each id, with the queue of the id's channel, and the map from
//! connections and listeners of the engine to ids. The engine delivers its events here under its
//! own locks, so nothing here calls the engine, and nothing is dropped here that would: an entry is
//! plain data and further references to shared objects. Lock order: registry, queue.
//!
//! Events are taken from the queues without the registry's lock. Each taken event is counted in its
//! id's [`IdEvents`] while the queue is locked, so a call that removes the waiting events and then
//! waits for the taken ones misses none.
//!
//! Limits: a few events per id; as many requests as the backlog of their listener; [`MAX_EARLY`]
//! events that come before their connection is known.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vernic_engine::{EventQueue, QpType};
use vernic_io::LocalAddr;
use vernic_proto::cm::{self, CmPath, ConnId, ListenerId, Unanswered};
use vernic_wire::cm::{CmService, CmaHeader, RejReason};

use crate::device::Device;
use crate::key::{DeviceKey, IdKey};
use crate::sync::lock;
use crate::worker::{Task, Worker};

mod entry;
mod order;

pub(crate) use entry::{Entry, EntryContent, Request, RequestKind, StreamEvent, StreamRequest};
pub(crate) use order::{IdEvents, Position, Unacked};

/// Most events that are kept for connections whose number a call is about to learn.
const MAX_EARLY: usize = 1024;

/// The queue of a channel.
pub(crate) type Queue = EventQueue<Entry>;

#[derive(Debug)]
struct Registration {
    events: Arc<IdEvents>,
    queue: Arc<Queue>,
    conn: Option<(DeviceKey, ConnId)>,
}

/// A listening id, at one of its addresses.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) key: IdKey,
    pub(crate) device: Arc<Device>,
    pub(crate) port: u16,
    /// Whether the id's addresses are GIDs.
    pub(crate) is_native: bool,
    /// Whether the id accepts IPv4 peers.
    pub(crate) v4: bool,
    /// Whether the id accepts IPv6 peers.
    pub(crate) v6: bool,
    /// The type of the queue pairs of accepted ids.
    pub(crate) qp_type: QpType,
    /// Most requests that wait to be taken.
    pub(crate) backlog: usize,
}

impl Listener {
    /// Whether an id of this listener could answer the request; the kernel's rdma_cm makes the same
    /// comparison.
    fn suits(&self, kind: &RequestKind) -> bool {
        match (kind, self.qp_type) {
            (RequestKind::Datagrams(_), qp_type) => qp_type == QpType::Ud,
            (RequestKind::Connection(req), QpType::Rc) => req.transport == CmService::RC,
            (RequestKind::Connection(req), QpType::Uc) => req.transport == CmService::UC,
            (RequestKind::Connection(req), QpType::XrcIni | QpType::XrcTgt) => req.is_xrc(),
            (RequestKind::Connection(_), QpType::Ud) | (RequestKind::Stream(_), _) => false,
        }
    }
}

#[derive(Debug, Default)]
struct Tables {
    ids: HashMap<IdKey, Registration>,
    conns: HashMap<(DeviceKey, ConnId), IdKey>,
    listeners: HashMap<(DeviceKey, ListenerId), Vec<Listener>>,
    /// The number of calls that are about to name a connection or listener.
    expecting: usize,
    early: VecDeque<(DeviceKey, cm::Event)>,
}

/// The registrations of the ids of a process.
#[derive(Debug)]
pub(crate) struct Registry {
    next: AtomicU64,
    tables: Mutex<Tables>,
    worker: Arc<Worker>,
}

/// A guard: while it lives, events of unknown connections are kept, for one of these connections
/// may become known.
pub(crate) struct Expecting<'a>(&'a Registry);

impl Drop for Expecting<'_> {
    fn drop(&mut self) {
        let mut tables = lock(&self.0.tables);
        tables.expecting -= 1;
        let early = match tables.expecting {
            0 => std::mem::take(&mut tables.early),
            _ => VecDeque::new(),
        };
        drop((tables, early));
    }
}

/// Whether the addresses in a request are those of its packets: programs are given the addresses in
/// the request, and some trust a peer by its address. (The kernel looks the sender's address up in
/// its routes.) On InfiniBand a packet has no IP address, so nothing can be compared.
fn is_of_path(header: &CmaHeader, path: &CmPath) -> bool {
    let ends = (path.remote.to_ip(), path.local.to_ip());
    header.version == 0 && (path.lids.is_some() || (header.src, header.dst) == ends)
}

impl Registry {
    pub(crate) fn new(worker: Arc<Worker>) -> Self {
        Self { next: AtomicU64::new(0), tables: Mutex::default(), worker }
    }

    fn new_events(&self) -> Arc<IdEvents> {
        IdEvents::new(IdKey(self.next.fetch_add(1, Ordering::Relaxed)))
    }

    /// Registers a new id, whose events go to `queue`.
    pub(crate) fn register(&self, queue: &Arc<Queue>) -> Arc<IdEvents> {
        let events = self.new_events();
        let registration =
            Registration { events: events.clone(), queue: queue.clone(), conn: None };
        lock(&self.tables).ids.insert(events.key, registration);
        events
    }

    /// Queues an event for an id; the event is lost if the id is gone.
    pub(crate) fn push(&self, key: IdKey, what: EntryContent) {
        lock(&self.tables).push(key, what);
    }

    /// Keeps events of unknown connections. The guard must be held from before a connection or
    /// listener is made until it is known here.
    pub(crate) fn expect(&self) -> Expecting<'_> {
        lock(&self.tables).expecting += 1;
        Expecting(self)
    }

    /// Routes the events of `conn` to the id from now on.
    pub(crate) fn bind_conn(&self, key: IdKey, device: DeviceKey, conn: ConnId) {
        let mut tables = lock(&self.tables);
        tables.conns.insert((device, conn), key);
        if let Some(registration) = tables.ids.get_mut(&key) {
            registration.conn = Some((device, conn));
        }
        self.replay(&mut tables, |at, event| at == device && event.conn == conn);
    }

    /// Adds an id to those that accept requests of `listener`.
    pub(crate) fn add_listener(&self, listener: ListenerId, entry: Listener) {
        let mut tables = lock(&self.tables);
        let device = entry.device.key();
        tables.listeners.entry((device, listener)).or_default().push(entry);
        self.replay(&mut tables, |at, event| at == device && listener_of(event) == Some(listener));
    }

    /// Removes the id from those that accept requests of `listener`.
    pub(crate) fn remove_listener(&self, device: DeviceKey, listener: ListenerId, key: IdKey) {
        let mut tables = lock(&self.tables);
        let Some(listeners) = tables.listeners.get_mut(&(device, listener)) else { return };
        let gone: Vec<Listener> = listeners.extract_if(.., |entry| entry.key == key).collect();
        if listeners.is_empty() {
            tables.listeners.remove(&(device, listener));
        }
        drop(tables);
        drop(gone);
    }

    /// Delivers an event of the engine. Called under the engine's locks.
    pub(crate) fn deliver(&self, device: DeviceKey, event: cm::Event) {
        self.route(&mut lock(&self.tables), device, event);
    }

    fn replay(&self, tables: &mut Tables, is_known: impl Fn(DeviceKey, &cm::Event) -> bool) {
        for _ in 0..tables.early.len() {
            let Some((device, event)) = tables.early.pop_front() else { return };
            match is_known(device, &event) {
                true => self.route(tables, device, event),
                false => tables.early.push_back((device, event)),
            }
        }
    }

    fn route(&self, tables: &mut Tables, device: DeviceKey, event: cm::Event) {
        let conn = event.conn;
        if let Some(listener) = listener_of(&event) {
            if tables.listeners.contains_key(&(device, listener)) {
                self.request(tables, (device, listener), conn, event.kind);
                return;
            }
        } else if let Some(&key) = tables.conns.get(&(device, conn)) {
            match event.kind {
                event if is_of_alternate_path(&event) => {
                    self.worker.add(Task::AlternatePath { id: key, event });
                }
                kind => tables.push(key, EntryContent::Cm(kind)),
            }
            return;
        }
        if tables.expecting != 0 {
            if tables.early.len() >= MAX_EARLY {
                tables.early.pop_front();
            }
            tables.early.push_back((device, event));
        }
    }

    /// Queues a request for a listener, and registers the id that the request becomes when it is
    /// taken.
    fn request(
        &self,
        tables: &mut Tables,
        listener: (DeviceKey, ListenerId),
        conn: ConnId,
        kind: cm::EventKind,
    ) {
        let (path, kind, private_data) = match kind {
            cm::EventKind::Request { path, req, .. } => {
                let data = *req.private_data.as_bytes();
                (path, RequestKind::Connection(req), CmaHeader::parse(&data))
            }
            cm::EventKind::SidrRequest { path, req, .. } => {
                let data = *req.private_data.as_bytes();
                (path, RequestKind::Datagrams(req), CmaHeader::parse(&data))
            }
            _ => return,
        };
        let Some(listeners) = tables.listeners.get(&listener) else { return };
        // On InfiniBand the IP addresses are those of interfaces, and only the request has them.
        let called = match (&private_data, path.lids) {
            (Ok(header), Some(_)) => header.dst,
            _ => path.local.to_ip(),
        };
        let v4 = called.is_ipv4();
        let by_ip = |entry: &&Listener| !entry.is_native && if v4 { entry.v4 } else { entry.v6 };
        let Some(entry) = listeners
            .iter()
            .find(|entry| private_data.is_ok() && by_ip(entry))
            .or_else(|| listeners.iter().find(|entry| entry.is_native))
            .or(listeners.first())
        else {
            return;
        };
        let device = entry.device.clone();
        // Requests are messages, which only devices with an agent have.
        let Some(agent) = device.agent().cloned() else { return };
        let is_native = entry.is_native;
        let header = match is_native {
            true => Ok(CmaHeader::new(0, path.remote.to_ip(), path.local.to_ip())),
            false => private_data,
        };
        let hears = is_native || if v4 { entry.v4 } else { entry.v6 };
        let hears = hears && entry.suits(&kind);
        let registration = tables.ids.get(&entry.key);
        let (Some(registration), Ok(header), true) = (registration, header, hears) else {
            let (reason, info) = (RejReason::INVALID_SERVICE_ID, None);
            self.worker.add(Task::Refuse { agent, conn, reason, info });
            return;
        };
        if !is_of_path(&header, &path) {
            let (from, says) = (path.remote.to_ip(), header.src);
            tracing::warn!(%from, %says, port = entry.port, "a request in another's name is refused");
            let (reason, info) = (RejReason::INVALID_GID, None);
            self.worker.add(Task::Refuse { agent, conn, reason, info });
            return;
        }
        if path.lids.is_some()
            && device.context.pkey_row(device.port_of(&path), path.pkey).is_none()
        {
            let (from, pkey) = (path.remote, path.pkey);
            tracing::warn!(%from, port = entry.port, %pkey, "a request in a foreign partition is refused");
            let (reason, info) = (RejReason::UNSUPPORTED, None);
            self.worker.add(Task::Refuse { agent, conn, reason, info });
            return;
        }
        let most = device.mtu(device.port_of(&path));
        if kind.path_mtu().is_some_and(|mtu| mtu > most) {
            let from = path.remote.to_ip();
            tracing::warn!(%from, port = entry.port, %most, "a request for a larger path MTU is refused");
            let (reason, info) = (RejReason::INVALID_MTU, Some(most as u8));
            self.worker.add(Task::Refuse { agent, conn, reason, info });
            return;
        }
        // Untaken requests that have ended no longer count in the engine's backlog, but do here.
        if registration.untaken_requests() >= entry.backlog {
            self.worker.add(Task::Ignore { agent, conn });
            return;
        }
        let scope = device.context.info().port.netdev_index;
        let with_scope = |ip: IpAddr, port| LocalAddr::new(ip, scope).with_port(port);
        let (local, peer) =
            (with_scope(header.dst, entry.port), with_scope(header.src, header.port));
        let (key, events) = (entry.key, self.new_events());
        tables.admit(key, Request { events, device, conn, path, is_native, local, peer, kind });
    }

    /// Queues an event of an iWARP connection.
    pub(crate) fn push_stream(&self, device: DeviceKey, conn: ConnId, event: StreamEvent) {
        let tables = lock(&self.tables);
        if let Some(&key) = tables.conns.get(&(device, conn)) {
            tables.push(key, EntryContent::Stream(event));
        }
    }

    /// Queues an iWARP request for a listening id. Returns false if the id is gone, or has
    /// `backlog` untaken requests.
    pub(crate) fn request_stream(
        &self,
        listener: IdKey,
        backlog: usize,
        make: impl FnOnce(Arc<IdEvents>) -> Request,
    ) -> bool {
        let mut tables = lock(&self.tables);
        let takes = |registration: &Registration| registration.untaken_requests() < backlog;
        let admits = tables.ids.get(&listener).is_some_and(takes);
        if admits {
            let request = make(self.new_events());
            tables.admit(listener, request);
        }
        admits
    }

    /// Moves the id's events to `queue`, those that wait included.
    pub(crate) fn migrate(&self, key: IdKey, queue: &Arc<Queue>) {
        let mut tables = lock(&self.tables);
        let Some(registration) = tables.ids.get_mut(&key) else { return };
        let from = std::mem::replace(&mut registration.queue, queue.clone());
        if Arc::ptr_eq(&from, queue) {
            return;
        }
        // Events of an id that is not made yet follow its request.
        let mut keys = vec![key];
        let moved = from.extract(|entry| {
            let moves = keys.contains(&entry.events.key);
            if let (true, EntryContent::Request(request)) = (moves, &entry.what) {
                keys.push(request.events.key);
            }
            moves
        });
        for key in &keys[1..] {
            if let Some(registration) = tables.ids.get_mut(key) {
                registration.queue = queue.clone();
            }
        }
        for entry in moved {
            queue.push(entry);
        }
    }

    /// Removes untaken events of an id.
    pub(crate) fn withdraw(&self, key: IdKey, which: impl Fn(&EntryContent) -> bool) {
        let tables = lock(&self.tables);
        let Some(registration) = tables.ids.get(&key) else { return };
        let gone =
            registration.queue.extract(|entry| entry.events.key == key && which(&entry.what));
        drop(tables);
        drop(gone);
    }

    /// Removes the registration, and returns the untaken events. No further event can come.
    pub(crate) fn unregister(&self, key: IdKey) -> Vec<Entry> {
        let mut tables = lock(&self.tables);
        let Some(registration) = tables.ids.remove(&key) else { return Vec::new() };
        if let Some(conn) = registration.conn {
            tables.conns.remove(&conn);
        }
        registration.queue.extract(|entry| entry.events.key == key)
    }

    /// The exchanges of all ids.
    pub(crate) fn conns(&self) -> Vec<(DeviceKey, ConnId)> {
        lock(&self.tables).conns.keys().copied().collect()
    }

    /// Numbers of registrations, connections and listeners, for tests of leaks.
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        let tables = lock(&self.tables);
        (tables.ids.len(), tables.conns.len(), tables.listeners.len())
    }
}

impl Registration {
    /// The number of requests that nobody has taken.
    fn untaken_requests(&self) -> usize {
        let key = self.events.key;
        self.queue.count(|entry| {
            entry.events.key == key && matches!(entry.what, EntryContent::Request(_))
        })
    }
}

impl Tables {
    /// Registers the id that a request becomes, and queues the request for its listener.
    fn admit(&mut self, listener: IdKey, request: Request) {
        let Some(registration) = self.ids.get(&listener) else { return };
        let (queue, listening) = (registration.queue.clone(), registration.events.clone());
        let conn = (request.device.key(), request.conn);
        let events = request.events.clone();
        self.conns.insert(conn, events.key);
        self.ids
            .insert(events.key, Registration { events, queue: queue.clone(), conn: Some(conn) });
        queue.push(Entry { events: listening, what: EntryContent::Request(Box::new(request)) });
    }

    fn push(&self, key: IdKey, what: EntryContent) {
        if let Some(registration) = self.ids.get(&key) {
            registration.queue.push(Entry { events: registration.events.clone(), what });
        }
    }
}

/// Whether the event is about an alternate path: programs are told nothing of those.
fn is_of_alternate_path(event: &cm::EventKind) -> bool {
    matches!(
        event,
        cm::EventKind::LoadAlternatePath { .. }
            | cm::EventKind::AlternatePathAnswered { .. }
            | cm::EventKind::Unreachable { which: Unanswered::Lap }
    )
}

fn listener_of(event: &cm::Event) -> Option<ListenerId> {
    match &event.kind {
        cm::EventKind::Request { listener, .. } | cm::EventKind::SidrRequest { listener, .. } => {
            Some(*listener)
        }
        _ => None,
    }
}
