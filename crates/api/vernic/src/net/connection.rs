//! Connections: how they are made and end. What is done on them is in `operations`.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::net::ToSocketAddrs;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::ending::Ending;
use super::in_flight::{InFlight, Queues, drive};
use super::names::{Addresses, addresses};
use super::{Network, Options};
use crate::asynchronous::next;
use crate::cm::{self, CmError};
use crate::error::Peer;
use crate::raw::{WatchedChannel, watch};
use crate::service::{Init, Rc, Reset, Rts};
use crate::{
    Access, CompChannel, CreateError, Device, Endpoint, Error, InitAttr, Mr, Pd, Qp, RcOptions,
};

/// How long the peer may take to agree to the end of a connection.
const PATIENCE: Duration = Duration::from_secs(20);

/// A reliable connection whose operations are awaited. A clone is another handle to it, for another
/// task; with the last one it is ended, without waiting for the peer.
///
/// Many operations may be under way at once, from several tasks. They are executed in the order in
/// which they are first polled. It belongs to the runtime in which it was made.
///
/// See [`net`](crate::net) for what happens to an operation whose future is dropped.
#[derive(Clone)]
pub struct Connection(pub(super) Arc<Inner>);

/// What the handles of a connection share.
#[derive(Debug)]
pub(super) struct Inner {
    // Dropped first: then nothing completes any more, and memory may go.
    link: Link,
    pub(super) queues: Arc<Queues>,
    /// 8 bytes for each send slot: results of atomics.
    pub(super) results: Mr,
    pd: Pd,
    pub(super) peer: Peer,
    pub(super) ending: Ending,
    /// The tasks that end with it.
    tasks: OnceLock<Vec<AbortHandle>>,
    network: Option<Network>,
}

/// What made the connection.
#[derive(Debug)]
enum Link {
    /// The connection manager.
    Managed(cm::Connection<Rc>),
    /// The program itself.
    Own(Qp<Rc, Rts>),
}

impl Inner {
    pub(super) fn qp(&self) -> &Qp<Rc, Rts> {
        match &self.link {
            Link::Managed(connection) => connection.qp(),
            Link::Own(qp) => qp,
        }
    }

    /// Ends what is posted, and tells the peer if there is a way to.
    fn leave(&self) -> Result<(), Error> {
        match &self.link {
            Link::Managed(connection) => Ok(connection.leave()?),
            Link::Own(qp) => Ok(qp.fail()?),
        }
    }

    /// Something has happened to the connection.
    fn hear(&self, event: &vernic_cm::Event) {
        if let Link::Managed(connection) = &self.link
            && connection.is_over_with(event)
        {
            self.ending.note_peer();
            // Agrees. The connection is over in any case.
            let _ = self.leave();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.get().into_iter().flatten().for_each(AbortHandle::abort);
    }
}

/// What a connection has beside its queue pair.
#[derive(Debug)]
pub(super) struct Parts {
    runtime: Handle,
    pd: Pd,
    channel: AsyncFd<CompChannel>,
    queues: Arc<Queues>,
    results: Mr,
}

impl Parts {
    /// The parts of one connection, and the queue pair for it.
    pub(super) fn new(pd: Pd, options: &Options<'_>) -> Result<(Self, Qp<Rc, Reset>), Error> {
        let device = pd.device();
        let channel = device.create_channel()?;
        let cq = || device.create_cq_on(options.depth, &channel);
        let in_flight = || Ok::<_, Error>(InFlight::new(cq()?, options.spin));
        let queues = Queues { send: in_flight()?, recv: in_flight()? };
        let qp = pd
            .qp()
            .send_cq(queues.send.cq())
            .recv_cq(queues.recv.cq())
            .max_send_wr(options.depth)
            .max_recv_wr(options.depth)
            .max_inline(options.max_inline)
            .create()?;
        let results = pd.alloc_mr(8 * options.depth as usize, Access::NONE.local_write())?;
        let failed = |source| CreateError::Os { what: "watch a completion channel", source };
        let channel = watch(channel).map_err(failed)?;
        let runtime = Handle::try_current().map_err(|none| failed(io::Error::other(none)))?;
        Ok((Self { runtime, pd, channel, queues: Arc::new(queues), results }, qp))
    }

    /// The connection, once the connection manager has made it.
    pub(super) fn managed(
        self,
        connection: cm::Connection<Rc>,
        keep_alive: Option<Duration>,
        network: &Network,
    ) -> Result<Connection, Error> {
        let events = connection.watched()?;
        let peer = Peer::Addr(connection.peer_addr());
        let link = Link::Managed(connection);
        Ok(self.connection(link, peer, Some(events), keep_alive, Some(network.clone())))
    }

    fn connection(
        self,
        link: Link,
        peer: Peer,
        events: Option<AsyncFd<WatchedChannel>>,
        keep_alive: Option<Duration>,
        network: Option<Network>,
    ) -> Connection {
        let Self { runtime, pd, channel, queues, results } = self;
        let (ending, tasks) = Default::default();
        let inner = Inner { link, queues, results, pd, peer, ending, tasks, network };
        let inner = Arc::new(inner);
        let driving = drive(channel, inner.queues.clone());
        let mut tasks = vec![runtime.spawn(driving).abort_handle()];
        if events.is_some() || keep_alive.is_some() {
            let watching = watch_peer(events, keep_alive, Arc::downgrade(&inner));
            tasks.push(runtime.spawn(watching).abort_handle());
        }
        inner.tasks.get_or_init(|| tasks);
        Connection(inner)
    }
}

/// Hears that the peer ends the connection, and sends signs of life, until the connection is
/// dropped or the runtime ends.
async fn watch_peer(
    events: Option<AsyncFd<WatchedChannel>>,
    keep_alive: Option<Duration>,
    connection: Weak<Inner>,
) {
    loop {
        let event = next_event(events.as_ref());
        let heard = match keep_alive {
            Some(every) => tokio::time::timeout(every, event).await.ok(),
            None => Some(event.await),
        };
        let Some(connection) = connection.upgrade() else { return };
        match heard {
            Some(Ok(event)) => connection.hear(&event),
            Some(Err(_)) => return,
            None => connection.send_sign_of_life(),
        }
    }
}

/// The next event; of a connection that has none, never.
async fn next_event(events: Option<&AsyncFd<WatchedChannel>>) -> io::Result<vernic_cm::Event> {
    match events {
        Some(events) => next(events, |channel| channel.get().try_next()).await,
        None => std::future::pending().await,
    }
}

impl Network {
    /// Connects to a listener by name or IP address, and port: the addresses of a name are tried
    /// one after the other.
    ///
    /// # Errors
    /// [`Error::Cm`]: no route, a peer that rejects or does not answer; [`Error::Create`]: sizes
    /// out of range; [`Error::Io`]: a name that is not known.
    ///
    /// # Panics
    /// In a runtime that was built without its I/O or time driver.
    pub async fn connect(
        &self,
        peer: impl ToSocketAddrs,
        options: &Options<'_>,
    ) -> Result<Connection, Error> {
        let Addresses { first, last } = addresses(peer).await?;
        for addr in first {
            if let Ok(connection) = self.connect_to(addr, options).await {
                return Ok(connection);
            }
        }
        self.connect_to(last, options).await
    }

    async fn connect_to(
        &self,
        peer: SocketAddr,
        options: &Options<'_>,
    ) -> Result<Connection, Error> {
        let route = self.manager().resolve_async::<Rc>(peer).await?;
        let (parts, qp) = Parts::new(self.pd(route.device())?, options)?;
        let connection = route.prepare(qp)?.connect_async(&options.connection).await?;
        parts.managed(connection, options.keep_alive, self)
    }
}

impl Connection {
    /// Connects to a [`Listener`](super::Listener), or to any program that accepts connections by
    /// `rdma_cm`, with the defaults of [`Options`].
    ///
    /// # Errors
    /// As [`Network::connect`]; [`Error::Config`].
    ///
    /// # Panics
    /// As [`Network::connect`].
    pub async fn connect(peer: impl ToSocketAddrs) -> Result<Self, Error> {
        Network::common()?.connect(peer, &Options::default()).await
    }

    /// The first half of a connection whose ends tell each other their [`Endpoint`]s by themselves.
    /// Of the options, `connection` counts only for the rights of the peer. Call it inside a
    /// runtime.
    ///
    /// # Errors
    /// [`Error::Create`]: a size out of range, no descriptor left, no runtime here.
    ///
    /// # Panics
    /// In a runtime that was built without its I/O driver.
    pub fn prepare(pd: &Pd, options: &Options<'_>) -> Result<Unconnected, Error> {
        let (parts, qp) = Parts::new(pd.clone(), options)?;
        let qp = qp.init(InitAttr::granting(options.connection.remote_access))?;
        Ok(Unconnected { parts, qp, keep_alive: options.keep_alive })
    }

    /// The peer.
    pub fn peer(&self) -> Peer {
        self.0.peer
    }

    /// Our address and port; `None` of a connection that [`prepare`](Self::prepare) began.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.managed().map(cm::Connection::local_addr)
    }

    /// What the peer's program said when it connected (56 bytes) or accepted (196 bytes); those
    /// that it did not use are zero. Empty of a connection that [`prepare`](Self::prepare) began.
    pub fn private_data(&self) -> &[u8] {
        self.managed().map_or(&[], cm::Connection::private_data)
    }

    fn managed(&self) -> Option<&cm::Connection<Rc>> {
        match &self.0.link {
            Link::Managed(connection) => Some(connection),
            Link::Own(_) => None,
        }
    }

    /// The queue pair: its state, counters, route. Work that is posted here directly would complete
    /// in queues that are not the caller's, so post none.
    pub fn qp(&self) -> &Qp<Rc, Rts> {
        self.0.qp()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.qp().device()
    }

    /// The network that made it; `None` of a connection that [`prepare`](Self::prepare) began.
    pub fn network(&self) -> Option<&Network> {
        self.0.network.as_ref()
    }

    /// The protection domain: regions of it may be used here.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// A region of `len` zeroed bytes, as by [`Pd::alloc_mr`].
    ///
    /// # Errors
    /// [`CreateError`]: no memory or no key left.
    pub fn alloc_mr(&self, len: usize, access: Access) -> Result<Mr, CreateError> {
        self.0.pd.alloc_mr(len, access)
    }

    /// Returns when the peer has ended the connection. Of a connection that
    /// [`prepare`](Self::prepare) began, never.
    pub async fn wait_disconnected(&self) {
        self.0.ending.wait_peer().await;
    }

    /// Ends the connection, for all handles: what is not complete fails, and the peer is told.
    /// Returns when the peer has answered.
    ///
    /// # Errors
    /// [`CmError::Refused`] if the peer has broken the connection off meanwhile,
    /// [`CmError::Timeout`] if it does not answer within 20 s. It is over in any case.
    pub async fn disconnect(&self) -> Result<(), Error> {
        let ending = &self.0.ending;
        let is_by_peer = ending.is_by_peer();
        ending.end();
        self.0.leave()?;
        if let (Peer::Addr(peer), false) = (self.0.peer, is_by_peer) {
            let answered = tokio::time::timeout(PATIENCE, ending.wait_peer()).await;
            answered.map_err(|_| CmError::Timeout { peer, timeout: PATIENCE })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({:?}, peer {})", self.qp(), self.peer())
    }
}

/// A connection whose peer is not known yet: see [`Connection::prepare`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), vernic::Error> {
/// use vernic::{Access, Device, Inline, net::{Connection, Options}};
/// let pd = Device::open("lo")?.alloc_pd()?;
/// let (a, b) = (Connection::prepare(&pd, &Options::default())?,
///               Connection::prepare(&pd, &Options::default())?);
/// let (at_a, at_b) = (a.endpoint(), b.endpoint()); // 24 bytes each, to be sent to the peer
/// let (a, b) = (a.connect(at_b)?, b.connect(at_a)?);
///
/// let mr = b.alloc_mr(64, Access::NONE.local_write())?;
/// let (sent, received) = tokio::join!(a.send(Inline(b"hello")), b.recv(&mr));
/// sent?;
/// assert_eq!(mr.to_vec(..received?.byte_len() as usize)?, b"hello");
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "there is no connection before `connect`"]
pub struct Unconnected {
    // Dropped first, as in a connection.
    qp: Qp<Rc, Init>,
    parts: Parts,
    keep_alive: Option<Duration>,
}

impl Unconnected {
    /// What the peer needs to connect to this end.
    pub fn endpoint(&self) -> Endpoint {
        self.qp.endpoint()
    }

    /// Connects to the peer, with the defaults of [`RcOptions`].
    ///
    /// # Errors
    /// [`Error::Connect`]: no path to the peer.
    pub fn connect(self, peer: Endpoint) -> Result<Connection, Error> {
        self.connect_with(peer, &RcOptions::default())
    }

    /// Connects to the peer, with choices.
    ///
    /// # Errors
    /// [`Error::Connect`]: no path to the peer, or a value out of range.
    pub fn connect_with(self, peer: Endpoint, options: &RcOptions) -> Result<Connection, Error> {
        let Self { qp, parts, keep_alive } = self;
        let link = Link::Own(qp.connect_with(peer, options)?);
        Ok(parts.connection(link, Peer::Endpoint(peer), None, keep_alive, None))
    }
}
