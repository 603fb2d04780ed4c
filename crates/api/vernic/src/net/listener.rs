//! Listeners: peers that connect, as a stream of connections.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tokio::io::unix::AsyncFd;
use tokio::net::ToSocketAddrs;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::connection::{Connection, Parts};
use super::names::{Addresses, addresses};
use super::{Network, Options};
use crate::cm::{self, CmError};
use crate::raw::WatchedChannel;
use crate::service::Rc;
use crate::{Error, Pd};

/// Handshakes that go on at once, those that nobody has accepted yet included. Others wait in the
/// queue of the connection manager, which is longer.
const HANDSHAKES: usize = 64;

/// Accepts connections, for one address and port. Dropping it rejects those that nobody has
/// accepted.
///
/// It is a [`Stream`], which never ends: each item is a connection after its handshake, or why that
/// failed, after which the next one is awaited as before. Handshakes go on beside each other, so a
/// peer that is slow holds up no other.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), vernic::Error> {
/// use vernic::{Inline, net::{Connection, Listener}};
/// let mut listener = Listener::bind("127.0.0.1:0").await?;
/// let place = listener.local_addr();
/// let client = tokio::spawn(Connection::connect(place));
/// let server = listener.accept().await?;
/// println!("{} has connected", server.peer());
/// # drop(client);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Listener {
    inner: cm::Listener<Rc>,
    requests: AsyncFd<WatchedChannel>,
    runtime: Handle,
    handshakes: JoinSet<Result<Connection, Error>>,
    network: Network,
    options: Options<'static>,
}

impl Network {
    /// Listens at a name or IP address, and port, for connections with these options. Port 0 takes
    /// a free one ([`Listener::local_addr`] tells); the wildcard address is every device. Of a name
    /// with several addresses, the first at which it can listen.
    ///
    /// # Errors
    /// [`Error::Cm`]: no device has the address, the port is in use, a device cannot be opened;
    /// [`Error::Io`]: a name that is not known.
    ///
    /// # Panics
    /// In a runtime that was built without its I/O driver.
    pub async fn listen(
        &self,
        addr: impl ToSocketAddrs,
        options: Options<'static>,
    ) -> Result<Listener, Error> {
        let Addresses { first, last } = addresses(addr).await?;
        let found = first.into_iter().find_map(|addr| self.manager().listen(addr).ok());
        let inner = found.map_or_else(|| self.manager().listen(last), Ok)?;
        Listener::new(inner, self.clone(), options)
    }
}

impl Listener {
    /// Listens as [`Network::listen`] does, with the defaults of [`Options`].
    ///
    /// # Errors
    /// As [`Network::listen`]; [`Error::Config`].
    ///
    /// # Panics
    /// As [`Network::listen`].
    pub async fn bind(addr: impl ToSocketAddrs) -> Result<Self, Error> {
        Network::common()?.listen(addr, Options::default()).await
    }

    fn new(
        inner: cm::Listener<Rc>,
        network: Network,
        options: Options<'static>,
    ) -> Result<Self, Error> {
        let requests = inner.watched()?;
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        let handshakes = JoinSet::new();
        Ok(Self { inner, requests, runtime, handshakes, network, options })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    /// The network whose protection domains its connections have.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The next connection. Cancelling loses none: it waits for the next call.
    ///
    /// # Errors
    /// [`Error::Cm`]: a peer gave up before its handshake was complete, or does not answer any
    /// more; [`Error::Create`]: no descriptor or memory is left for it. The listener goes on.
    pub async fn accept(&mut self) -> Result<Connection, Error> {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Connection, Error>> {
        // Each turn but the last takes a request; there are as many as the manager queues.
        loop {
            if let Poll::Ready(Some(ended)) = self.handshakes.poll_join_next(cx) {
                return Poll::Ready(ended.unwrap_or_else(|error| match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(error) => Err(io::Error::other(error).into()),
                }));
            }
            if self.handshakes.len() >= HANDSHAKES {
                return Poll::Pending;
            }
            let request = ready!(self.poll_request(cx))?;
            let (network, options) = (self.network.clone(), self.options);
            let handshake = async move {
                let pd = network.pd(request.device())?;
                accept(request, pd, &network, &options).await
            };
            self.handshakes.spawn_on(handshake, &self.runtime);
        }
    }

    fn poll_request(&self, cx: &mut Context<'_>) -> Poll<Result<cm::Request<Rc>, Error>> {
        // Each turn but the last takes an event, or clears what is not readable any more.
        loop {
            if let Some(request) = self.inner.try_next()? {
                return Poll::Ready(Ok(request));
            }
            let mut readable = ready!(self.requests.poll_read_ready(cx)).map_err(CmError::Wait)?;
            match self.inner.try_next()? {
                Some(request) => {
                    readable.retain_ready();
                    return Poll::Ready(Ok(request));
                }
                None => readable.clear_ready(),
            }
        }
    }
}

/// The handshake with one peer.
async fn accept(
    request: cm::Request<Rc>,
    pd: Pd,
    network: &Network,
    options: &Options<'_>,
) -> Result<Connection, Error> {
    let (parts, qp) = Parts::new(pd, options)?;
    let connection = request.prepare(qp)?.accept_async(&options.connection).await?;
    parts.managed(connection, options.keep_alive, network)
}

impl Stream for Listener {
    type Item = Result<Connection, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_accept(cx).map(Some)
    }
}
