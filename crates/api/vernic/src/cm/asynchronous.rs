//! Waiting for connections in a tokio runtime (feature `tokio`).
//!
//! A call watches the descriptor while it waits, so one object is awaited in one place at a time,
//! which `&mut` sees to. Cancelling loses no event that was not taken.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use vernic_cm::{EventChannel, EventKind};

use super::manager::{LONGER, RESOLVE_TIMEOUT, port_space, qp_type};
use super::waiting::{OwnId, data_of};
use super::{CmError, Connection, DatagramListener, DatagramRequest, Incoming, Listener, Manager};
use super::{Options, Outgoing, Request, Route};
use crate::asynchronous::next;
use crate::raw::{WatchedChannel, watch};
use crate::service::Connected;

impl OwnId {
    /// The next event.
    async fn event(&self) -> Result<vernic_cm::Event, CmError> {
        let try_next = |channel: &WatchedChannel| channel.get().try_next();
        let channel: Arc<EventChannel> = self.channel.clone();
        let watched = watch(WatchedChannel::new(channel)).map_err(CmError::Wait)?;
        next(&watched, try_next).await.map_err(CmError::Wait)
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
    /// As [`resolve`](Self::resolve), awaiting the next hop on the way, if the system must ask for
    /// it.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); [`CmError::Wait`] outside a runtime.
    ///
    /// # Panics
    /// In a runtime that was built without its I/O or time driver.
    pub async fn resolve_async<S: Connected>(&self, peer: SocketAddr) -> Result<Route<S>, CmError> {
        let own = self.looking(None, peer, port_space::<S>(), qp_type::<S>())?;
        own.event_of(&[EventKind::AddrResolved], LONGER).await?;
        own.id.resolve_route(RESOLVE_TIMEOUT)?;
        Route::new(own)
    }
}

impl<S: Connected> Listener<S> {
    /// The next peer that wants to connect.
    ///
    /// # Errors
    /// [`CmError::Wait`] outside a runtime; [`CmError::Refused`] when the process has no descriptor
    /// left.
    ///
    /// # Panics
    /// In a runtime that was built without its I/O driver.
    pub async fn next_async(&mut self) -> Result<Request<S>, CmError> {
        loop {
            if let Some(request) = self.request(self.own.event().await?)? {
                return Ok(request);
            }
        }
    }
}

impl DatagramListener {
    /// The next that asks.
    ///
    /// # Errors
    /// [`CmError::Wait`] outside a runtime.
    ///
    /// # Panics
    /// In a runtime that was built without its I/O driver.
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
    /// In a runtime that was built without its I/O or time driver.
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
    /// In a runtime that was built without its I/O or time driver.
    pub async fn connect_async(self, options: &Options<'_>) -> Result<Connection<S>, CmError> {
        self.ask(options)?;
        let event = self.own.event_of(&[EventKind::ConnectResponse], options.timeout).await?;
        self.finish(data_of(event.param), options)
    }
}

impl<S: Connected> Connection<S> {
    /// Returns when the peer has disconnected.
    ///
    /// # Errors
    /// [`CmError::Wait`] outside a runtime.
    ///
    /// # Panics
    /// In a runtime that was built without its I/O driver.
    pub async fn disconnected(&mut self) -> Result<(), CmError> {
        while !self.is_disconnected() {
            let event = self.own().event().await?;
            self.note(event.kind);
        }
        Ok(())
    }
}
