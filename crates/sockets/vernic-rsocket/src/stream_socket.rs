//! A stream's socket: from nothing over listening or connecting to a connection, and to its end.
//!
//! Owns the id of the connection manager and the state. Events come from the service thread
//! (`events`); whoever waits for one sleeps on its own descriptor and is woken by [`Wakers`]. Bytes
//! are the business of [`Connection`].
//!
//! Lock order: `state` (a listener's before that of a connection it has), then those of a
//! connection, of the service, of the connection manager. An id is destroyed under no lock.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use vernic_cm::{ConnParam, Id, IdOption, PortSpace, QpType, State as IdState};

use crate::connection::Connection;
use crate::family::Family;
use crate::listener::Listener;
use crate::options::Options;
use crate::patience::looked;
use crate::shared::Shared;
use crate::stream::Shutdown;
use crate::sys;
use crate::wake::{Entered, Sleeper, Wakers, lock};
use crate::wire::ConnData;
use crate::{Error, Failure, Readiness};

/// A connection on which nothing is under way sends a sign of life every so often, and fails if
/// none is answered. The kernel tells the peers of a process that was killed; here nobody is left
/// to do it, and who only receives would wait for ever.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

mod events;

/// How long the next hop may be looked for: until the system finds that nobody is there, which it
/// does after 3 s unless it is told otherwise. So TCP fails, too.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Repetitions of a connection, after silence and after RNR NAK (7: for ever).
const RETRIES: u8 = 7;

/// Requests that the connection manager may keep until they are taken: as many as it can.
const CM_BACKLOG: u32 = 0;

/// Path MTU before there is a path: what every RoCE port has room for.
const DEFAULT_MTU_BYTES: u32 = 1024;

/// Bytes of `struct ibv_path_data`.
const ROUTE_BYTES: usize = 72;

/// What the service thread tells a socket.
#[derive(Debug)]
pub(crate) enum Told {
    /// A peer wants to connect; private data of its request.
    Request { id: Arc<Id>, data: Vec<u8> },
    /// The address of the peer or the route to it is resolved.
    Resolved,
    /// The connection is there; private data of the peer's answer.
    Established(Vec<u8>),
    /// The peer refused.
    Refused,
    /// It failed, with this errno.
    Failed(i32),
    /// It is over.
    Disconnected,
}

/// The state.
#[derive(Debug)]
pub(crate) enum State {
    /// New, or bound.
    Idle,
    /// It waits for peers.
    Listening(Listener),
    /// The peer was asked, or is looked for.
    Connecting(SocketAddr),
    /// The peer asked, and was answered. Whose request it was, and the peer's connection data.
    Accepting(Weak<StreamSocket>, Box<ConnData>),
    /// Connected, or was.
    Connected,
    /// There will be no connection. The reason, until it was told.
    Failed(Option<Failure>),
    /// The user has closed it.
    Closed,
}

/// A stream's socket.
#[derive(Debug)]
pub(crate) struct StreamSocket {
    pub(crate) shared: Arc<Shared>,
    key: usize,
    family: Family,
    pub(crate) id: Arc<Id>,
    pub(crate) state: Mutex<State>,
    connection: OnceLock<Arc<Connection>>,
    pub(crate) options: Mutex<Options>,
    nonblocking: AtomicBool,
    pub(crate) wakers: Arc<Wakers>,
}

impl StreamSocket {
    pub(crate) fn new(shared: &Arc<Shared>, family: Family) -> Result<Arc<Self>, Error> {
        let id = shared.manager.create_id(Some(&shared.channel), PortSpace::TCP, QpType::Rc)?;
        let options = Options::new(shared.settings.limits);
        Ok(Self::with(shared, id, family, options, State::Idle))
    }

    /// The socket of a peer's request to `listener`.
    pub(crate) fn of_request(
        listener: &Arc<Self>,
        id: Arc<Id>,
        peer: ConnData,
    ) -> Result<Arc<Self>, Error> {
        let options = lock(&listener.options).clone();
        let state = State::Accepting(Arc::downgrade(listener), Box::new(peer));
        let socket = Self::with(&listener.shared, id, listener.family, options, state);
        let connection = socket.make_connection()?;
        let data = connection.conn_data().to_bytes();
        socket.id.accept(&Self::param(&data))?;
        Ok(socket)
    }

    fn with(
        shared: &Arc<Shared>,
        id: Arc<Id>,
        family: Family,
        options: Options,
        state: State,
    ) -> Arc<Self> {
        let key = shared.next_key();
        id.set_user_context(key);
        let socket = Arc::new(Self {
            shared: shared.clone(),
            key,
            family,
            id,
            state: Mutex::new(state),
            connection: OnceLock::new(),
            options: Mutex::new(options),
            nonblocking: AtomicBool::new(false),
            wakers: Arc::default(),
        });
        shared.enter(key, &socket);
        socket
    }

    fn param(data: &[u8]) -> ConnParam<'_> {
        ConnParam {
            private_data: data,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: true,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            // As TCP.
            impatient: true,
            ..ConnParam::default()
        }
    }

    /// The queue pair and its rings, attached to the id.
    fn make_connection(&self) -> Result<&Arc<Connection>, Error> {
        let context = self.id.context().ok_or(Error::NotConnected)?;
        let limits = lock(&self.options).limits;
        let peer = self.id.peer_addr().map_or_else(|| "?".to_owned(), |peer| peer.to_string());
        let polling_time = self.shared.settings.polling_time;
        let connection = Connection::new(&context, limits, polling_time, &self.wakers, peer)?;
        self.id.attach_qp(connection.qp().clone())?;
        connection.post_receives()?;
        Ok(self.connection.get_or_init(|| Arc::new(connection)))
    }

    /// The number that names it for ever.
    pub(crate) fn key(&self) -> usize {
        self.key
    }

    pub(crate) fn wakers(&self) -> &Arc<Wakers> {
        &self.wakers
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Binds it to an address and a port.
    pub(crate) fn bind(&self, addr: SocketAddr) -> Result<(), Error> {
        let addr = self.family.inwards(addr)?;
        self.apply_options()?;
        Ok(self.id.bind_addr(addr)?)
    }

    fn apply_options(&self) -> Result<(), Error> {
        let options = lock(&self.options);
        self.id.set_option(IdOption::ReuseAddr(options.reuse_addr))?;
        if options.tos != 0 {
            self.id.set_option(IdOption::Tos(options.tos))?;
        }
        if let (Family::V6, Some(only)) = (self.family, options.only_v6) {
            self.id.set_option(IdOption::AfOnly(only))?;
        }
        Ok(())
    }

    /// Waits for peers. `backlog` connections that nobody has accepted are kept.
    pub(crate) fn listen(self: &Arc<Self>, backlog: u32) -> Result<(), Error> {
        self.shared.service.start(&self.shared)?;
        let mut state = lock(&self.state);
        match &mut *state {
            State::Idle => {}
            State::Listening(listener) => {
                listener.set_backlog(backlog);
                return Ok(());
            }
            _ => return Err(Error::State { call: "listen", needs: "is not connected" }),
        }
        if self.id.local_addr().is_none() {
            drop(state);
            self.bind(self.family.any())?;
            state = lock(&self.state);
        }
        // Requests are taken at once, and kept here beyond the backlog.
        self.id.listen(CM_BACKLOG)?;
        *state = State::Listening(Listener::new(backlog));
        Ok(())
    }

    /// A connection that a peer has made.
    pub(crate) fn accept(self: &Arc<Self>, nonblocking: bool) -> Result<Arc<Self>, Error> {
        let timeout = lock(&self.options).recv_timeout;
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let taken = self.wait_state(nonblocking, deadline, |state| match state {
            State::Listening(listener) if listener.is_stopped() => Some(None),
            State::Listening(listener) => listener.take().map(Some),
            _ => Some(None),
        })?;
        let needs = "listens";
        let socket = taken.ok_or(Error::State { call: "accept", needs })?;
        // There is room for another.
        Listener::go_on(self);
        Ok(socket)
    }

    /// Asks a peer for a connection, and waits for it unless it shall not.
    pub(crate) fn connect(self: &Arc<Self>, peer: SocketAddr) -> Result<(), Error> {
        let peer = self.family.inwards(peer)?;
        self.shared.service.start(&self.shared)?;
        {
            let mut state = lock(&self.state);
            match &mut *state {
                State::Idle => {}
                State::Connecting(peer) if self.is_nonblocking() => {
                    let peer = *peer;
                    drop(state);
                    looked(false);
                    return Err(Error::Already(peer));
                }
                // A signal has cut the wait short, and it goes on.
                State::Connecting(peer) => {
                    let peer = *peer;
                    drop(state);
                    return self.wait_for(Error::Already(peer));
                }
                State::Failed(failure) => {
                    let told = failure.take();
                    return Err(told.map_or(Error::NotConnected, Error::Failed));
                }
                State::Connected | State::Listening(_) | State::Accepting(..) => {
                    return Err(Error::Connected);
                }
                State::Closed => return Err(Error::NotConnected),
            }
            if let Err(error) = self.ask(peer) {
                // An id that was resolved cannot be resolved again.
                *state = State::Failed(None);
                return Err(error);
            }
            *state = State::Connecting(peer);
        }
        match self.is_nonblocking() {
            true => Err(Error::InProgress(peer)),
            false => self.wait_for(Error::InProgress(peer)),
        }
    }

    /// Waits for the connection, for as long as the user has said; `late` if it is not there then.
    fn wait_for(&self, late: Error) -> Result<(), Error> {
        let timeout = lock(&self.options).send_timeout;
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        match self.wait_connected(false, deadline) {
            Err(Error::WouldBlock) => Err(late),
            other => other,
        }
    }

    fn ask(&self, peer: SocketAddr) -> Result<(), Error> {
        self.apply_options()?;
        self.id.resolve_addr(None, peer, RESOLVE_TIMEOUT)?;
        self.go_on()
    }

    /// Takes the next steps towards the peer that do not wait. What waits goes on when its end is
    /// told; or there is an error by now, which will be told.
    fn go_on(&self) -> Result<(), Error> {
        if self.id.state() == IdState::AddrResolved {
            self.id.resolve_route(RESOLVE_TIMEOUT)?;
        }
        if self.id.state() == IdState::RouteResolved {
            let data = self.make_connection()?.conn_data().to_bytes();
            self.id.connect(&Self::param(&data))?;
        }
        Ok(())
    }

    /// Waits until there is a connection, or none will be.
    fn wait_connected(&self, nonblocking: bool, deadline: Option<Instant>) -> Result<(), Error> {
        self.wait_state(nonblocking, deadline, |state| match state {
            State::Connecting(_) | State::Accepting(..) => None,
            State::Connected => Some(Ok(())),
            State::Failed(failure) => {
                Some(Err(failure.take().map_or(Error::NotConnected, Error::Failed)))
            }
            _ => Some(Err(Error::NotConnected)),
        })?
    }

    /// Waits until `look` finds something.
    fn wait_state<T>(
        &self,
        nonblocking: bool,
        deadline: Option<Instant>,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Error> {
        let found = look(&mut lock(&self.state));
        if nonblocking {
            looked(found.is_some());
        }
        match found {
            Some(found) => return Ok(found),
            None if nonblocking => return Err(Error::WouldBlock),
            None => {}
        }
        let sleeper = Sleeper::own()?;
        let _entered = Entered::new(&self.wakers, sleeper.clone(), 0);
        // Each turn sleeps until the socket has changed.
        loop {
            sleeper.reset();
            if let Some(found) = look(&mut lock(&self.state)) {
                return Ok(found);
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(Error::WouldBlock);
            }
            sys::sleep(&mut [sys::entry(sleeper.fd().as_raw_fd(), libc::POLLIN)], deadline)?;
        }
    }

    /// The connection; waits for one that is being made, unless it shall not.
    pub(crate) fn connection(&self, nonblocking: bool) -> Result<&Arc<Connection>, Error> {
        self.shared.check()?;
        if let (Some(connection), State::Connected) = (self.connection.get(), &*lock(&self.state)) {
            return Ok(connection);
        }
        self.wait_connected(nonblocking, None)?;
        self.connection.get().ok_or(Error::NotConnected)
    }

    /// The connection, if there is or was one.
    pub(crate) fn connected(&self) -> Option<&Arc<Connection>> {
        match &*lock(&self.state) {
            State::Connected => self.connection.get(),
            _ => None,
        }
    }

    /// Whether a peer's request was answered, and the outcome is not known.
    pub(crate) fn is_being_made(&self) -> bool {
        matches!(&*lock(&self.state), State::Accepting(..))
    }

    pub(crate) fn readiness(&self, with_progress: bool) -> Readiness {
        let state = lock(&self.state);
        match &*state {
            State::Connected => {
                drop(state);
                let Some(connection) = self.connection.get() else { return Readiness::default() };
                match with_progress {
                    true => connection.readiness(),
                    false => connection.readiness_now(),
                }
            }
            State::Listening(listener) => Readiness::READ.when(listener.is_ready()),
            State::Failed(failure) => {
                let all = Readiness::READ | Readiness::WRITE | Readiness::HUNG_UP;
                all | Readiness::ERROR.when(failure.is_some())
            }
            // For who waits for it while another thread closes it.
            State::Closed => Readiness::READ | Readiness::WRITE | Readiness::HUNG_UP,
            State::Idle | State::Connecting(_) | State::Accepting(..) => Readiness::default(),
        }
    }

    /// Takes the failure that nobody was told of: `SO_ERROR`.
    pub(crate) fn take_failure(&self) -> Option<Failure> {
        if let State::Failed(failure) = &mut *lock(&self.state) {
            return failure.take();
        }
        self.connected()?.take_failure()
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> Result<(), Error> {
        self.shared.check()?;
        if let State::Listening(listener) = &mut *lock(&self.state) {
            if how != Shutdown::Write {
                listener.stop();
                self.wakers.wake();
            }
            return Ok(());
        }
        self.connected().ok_or(Error::NotConnected)?.shutdown(how);
        Ok(())
    }

    /// The user is done with it. What was sent still goes out, seen to by the service thread; with
    /// `SO_LINGER` this waits for it.
    pub(crate) fn close(self: &Arc<Self>) {
        if self.shared.is_orphan() {
            return;
        }
        let before = std::mem::replace(&mut *lock(&self.state), State::Closed);
        self.shared.service.keep_alive(self.key, self, None);
        self.wakers.wake();
        match (before, self.connection.get()) {
            (State::Closed, _) => {}
            (State::Connected, Some(connection)) => self.close_connection(connection),
            (State::Listening(listener), _) => {
                self.end();
                listener.close();
            }
            _ => self.end(),
        }
    }

    fn close_connection(self: &Arc<Self>, connection: &Arc<Connection>) {
        let linger = lock(&self.options).linger;
        if linger == Some(Duration::ZERO) {
            return self.end();
        }
        connection.shutdown(Shutdown::Both);
        if connection.is_flushed() {
            return self.end();
        }
        self.shared.service.see_through(self.clone(), connection.clone());
        if let Some(patience) = linger {
            self.shared.service.wait_closed(self.key, Instant::now() + patience);
        }
    }

    /// Ends it at once.
    pub(crate) fn end(&self) {
        self.shared.leave(self.key);
        self.id.destroy();
    }

    pub(crate) fn keep_alive(&self) {
        if let Some(connection) = self.connected() {
            connection.keep_alive();
        }
    }

    /// Begins signs of life, as often as the options say, and every [`SIGN_OF_LIFE`] in any case.
    pub(crate) fn keep_alive_as_set(self: &Arc<Self>) {
        let every = {
            let options = lock(&self.options);
            options.keepalive.then_some(options.keepalive_after)
        };
        let every = every.map_or(SIGN_OF_LIFE, |every| every.min(SIGN_OF_LIFE));
        let every = self.connected().map(|_| every);
        self.shared.service.keep_alive(self.key, self, every);
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.id.local_addr().map_or(self.family.any(), |addr| self.family.outwards(addr))
    }

    pub(crate) fn peer_addr(&self) -> Result<SocketAddr, Error> {
        self.connected().ok_or(Error::NotConnected)?;
        Ok(self.family.outwards(self.id.peer_addr().ok_or(Error::NotConnected)?))
    }

    /// Path MTU: bytes of data in a packet.
    pub(crate) fn mtu_bytes(&self) -> u32 {
        let path_mtu = |connection: &Arc<Connection>| connection.qp().query().path_mtu.bytes();
        self.connected().map_or(DEFAULT_MTU_BYTES, path_mtu)
    }

    /// The path, as `struct ibv_path_data`: flags, a reserved word, and a path record (IBTA
    /// 15.2.5.16) whose fields are big-endian.
    pub(crate) fn route(&self) -> Result<Vec<u8>, Error> {
        /// A field that means exactly this value, and not at most or at least.
        const EXACTLY: u8 = 2 << 6;
        /// For data and management, the primary path, in both directions.
        const FLAGS: u32 = 0b10_1011;
        let path = self.id.path().ok_or(Error::NotConnected)?;
        let mtu = self.connected().map_or(0, |connection| connection.qp().query().path_mtu as u8);
        let hops = path.flow_label << 8 | u32::from(path.hop_limit);
        let mut route = FLAGS.to_ne_bytes().to_vec();
        route.extend([0; 4 + 8]);
        route.extend(path.remote.0);
        route.extend(path.local.0);
        route.extend([0; 4]);
        route.extend(hops.to_be_bytes());
        // Reversible, one path; the default partition; no service level.
        route.extend([path.traffic_class, 0x81, 0xFF, 0xFF, 0, 0, mtu | EXACTLY]);
        route.resize(ROUTE_BYTES, 0);
        Ok(route)
    }

    /// Whether sizes may still be chosen.
    pub(crate) fn is_open(&self) -> bool {
        matches!(&*lock(&self.state), State::Idle | State::Listening(_))
            && self.connection.get().is_none()
    }
}

impl Drop for StreamSocket {
    fn drop(&mut self) {
        if !self.shared.is_orphan() {
            self.shared.leave(self.key);
        }
    }
}
