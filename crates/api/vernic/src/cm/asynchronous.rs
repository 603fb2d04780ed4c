//! Waiting for connections in a tokio runtime (feature `tokio`): of each call that waits, the form
//! of its name with `_async` behind it.
//!
//! A call watches the descriptor while it waits, so one object is awaited in one place at a time,
//! which `&mut` sees to. Cancelling loses no event that was not taken.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use vernic_cm::{ConnParam, EventChannel, EventKind, PortSpace, QpType};

use super::manager::{LONGER, RESOLVE_TIMEOUT, port_space, qp_type};
use super::waiting::{OwnId, data_of};
use super::{CmError, Connection, DatagramListener, DatagramPeer, DatagramRequest, Incoming};
use super::{Listener, Manager, Options, Outgoing, PATIENCE, Request, Route};
use crate::asynchronous::next;
use crate::raw::{WatchedChannel, watch};
use crate::service::Connected;

impl OwnId {
    /// The channel, watched for as long as what this returns.
    fn watched(&self) -> Result<AsyncFd<WatchedChannel>, CmError> {
        let channel: Arc<EventChannel> = self.channel.clone();
        watch(WatchedChannel::new(channel)).map_err(CmError::Wait)
    }

    /// The next event.
    async fn event(&self) -> Result<vernic_cm::Event, CmError> {
        let watched = self.watched()?;
        next(&watched, |channel| channel.get().try_next()).await.map_err(CmError::Wait)
    }

    /// One of `kinds`, within the time.
    async fn event_of(
        &self,
        kinds: &[EventKind],
        timeout: Duration,
    ) -> Result<vernic_cm::Event, CmError> {
        let wait = async {
            loop {
                if let Some(event) = self.sort(self.event().await?, kinds)? {
                    return Ok(event);
                }
            }
        };
        tokio::time::timeout(timeout, wait)
            .await
            .unwrap_or_else(|_| Err(CmError::Timeout { peer: self.peer_addr(), timeout }))
    }
}

impl Manager {
    /// The manager underneath.
    pub(crate) fn inner(&self) -> &Arc<vernic_cm::Manager> {
        &self.0
    }

    /// As [`resolve`](Self::resolve), awaiting the next hop on the way, if the system must ask for
    /// it.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); [`CmError::Wait`] outside a runtime.
    ///
    /// # Panics
    /// In a runtime that was built without its I/O or time driver, as all of these.
    pub async fn resolve_async<S: Connected>(&self, peer: SocketAddr) -> Result<Route<S>, CmError> {
        self.resolve_from_async(None, peer).await
    }

    /// As [`resolve_from`](Self::resolve_from), awaiting the next hop.
    ///
    /// # Errors
    /// As [`resolve_from`](Self::resolve_from); [`CmError::Wait`] outside a runtime.
    ///
    /// # Panics
    /// As [`resolve_async`](Self::resolve_async).
    pub async fn resolve_from_async<S: Connected>(
        &self,
        src: Option<SocketAddr>,
        peer: SocketAddr,
    ) -> Result<Route<S>, CmError> {
        let own = self.looking(src, peer, port_space::<S>(), qp_type::<S>())?;
        own.event_of(&[EventKind::AddrResolved], LONGER).await?;
        own.id.resolve_route(RESOLVE_TIMEOUT)?;
        Route::new(own)
    }

    /// As [`find`](Self::find), awaiting the answer.
    ///
    /// # Errors
    /// As [`find`](Self::find); [`CmError::Wait`] outside a runtime.
    ///
    /// # Panics
    /// As [`resolve_async`](Self::resolve_async).
    pub async fn find_async(
        &self,
        peer: SocketAddr,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<DatagramPeer, CmError> {
        let own = self.looking(None, peer, PortSpace::UDP, QpType::Ud)?;
        own.event_of(&[EventKind::AddrResolved], LONGER).await?;
        own.id.resolve_route(RESOLVE_TIMEOUT)?;
        own.id.connect(&ConnParam { private_data, ..ConnParam::default() })?;
        let event = own.event_of(&[EventKind::Established], timeout).await?;
        DatagramPeer::new(&own, event.param)
    }
}

impl<S: Connected> Listener<S> {
    /// As [`next`](Self::next), awaiting the peer.
    ///
    /// # Errors
    /// [`CmError::Wait`] outside a runtime; [`CmError::Refused`] when the process has no descriptor
    /// left.
    ///
    /// # Panics
    /// As [`Manager::resolve_async`].
    pub async fn next_async(&mut self) -> Result<Request<S>, CmError> {
        loop {
            if let Some(request) = self.request(self.own.event().await?)? {
                return Ok(request);
            }
        }
    }

    /// The events of the listener, watched for as long as what this returns.
    pub(crate) fn watched(&self) -> Result<AsyncFd<WatchedChannel>, CmError> {
        self.own.watched()
    }
}

impl DatagramListener {
    /// As [`next`](Self::next), awaiting who asks.
    ///
    /// # Errors
    /// [`CmError::Wait`] outside a runtime.
    ///
    /// # Panics
    /// As [`Manager::resolve_async`].
    pub async fn next_async(&mut self) -> Result<DatagramRequest, CmError> {
        loop {
            if let Some(request) = Self::request(self.0.event().await?)? {
                return Ok(request);
            }
        }
    }
}

impl<S: Connected> Incoming<S> {
    /// As [`accept`](Self::accept), awaiting the peer.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    ///
    /// # Panics
    /// As [`Manager::resolve_async`].
    pub async fn accept_async(self, options: &Options<'_>) -> Result<Connection<S>, CmError> {
        let answered = self.answer(options)?;
        answered.own().event_of(&[EventKind::Established], options.timeout).await?;
        Ok(answered)
    }
}

impl<S: Connected> Outgoing<S> {
    /// As [`connect`](Self::connect), awaiting the peer.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Panics
    /// As [`Manager::resolve_async`].
    pub async fn connect_async(self, options: &Options<'_>) -> Result<Connection<S>, CmError> {
        self.ask(options)?;
        let event = self.own.event_of(&[EventKind::ConnectResponse], options.timeout).await?;
        self.finish(data_of(event.param), options)
    }
}

impl<S: Connected> Connection<S> {
    /// As [`wait_disconnected`](Self::wait_disconnected), awaiting the peer for ever.
    ///
    /// # Errors
    /// [`CmError::Wait`] outside a runtime.
    ///
    /// # Panics
    /// As [`Manager::resolve_async`].
    pub async fn wait_disconnected_async(&mut self) -> Result<(), CmError> {
        while !self.is_disconnected() {
            let event = self.own().event().await?;
            self.note(event.kind);
        }
        Ok(())
    }

    /// As [`disconnect`](Self::disconnect), awaiting the peer.
    ///
    /// # Errors
    /// As [`disconnect`](Self::disconnect); [`CmError::Wait`] outside a runtime.
    ///
    /// # Panics
    /// As [`Manager::resolve_async`].
    pub async fn disconnect_async(mut self) -> Result<(), CmError> {
        let is_over = self.is_disconnected();
        self.leave()?;
        if is_over {
            return Ok(());
        }
        let farewell = tokio::time::timeout(PATIENCE, self.wait_disconnected_async()).await;
        farewell.unwrap_or_else(|_| Err(self.no_farewell()))
    }

    /// The events of the connection, watched for as long as what this returns.
    pub(crate) fn watched(&self) -> Result<AsyncFd<WatchedChannel>, CmError> {
        self.own().watched()
    }

    /// Whether the connection is over with this event.
    pub(crate) fn is_over_with(&self, event: &vernic_cm::Event) -> bool {
        self.note(event.kind);
        self.has_ended()
    }
}
