//! The manager, and listeners.

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vernic_cm::{EventKind, PortSpace, QpType};

use super::request::Request;
use super::route::Route;
use super::waiting::{OwnId, Told, data_of};
use super::{CmError, DatagramListener, DatagramPeer};
use crate::service::{Connected, Service};
use crate::{Config, Error};

/// Requests that may wait at a listener.
const BACKLOG: u32 = 1024;

/// How long the next hop may be looked for: longer than the system does by default.
pub(super) const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for that to be told.
pub(super) const LONGER: Duration = Duration::from_secs(30);

/// Makes connections by IP address. A clone is another handle to it. It opens each device when an
/// address first needs it, and shares it among all its connections.
#[derive(Clone, Debug)]
pub struct Manager(pub(super) Arc<vernic_cm::Manager>);

impl Manager {
    /// A manager that opens devices with the settings of file and environment.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn open() -> Result<Self, Error> {
        Ok(Self::with(Config::load()?))
    }

    /// A manager that opens devices with exactly these settings. The setting `device` plays no
    /// part: addresses decide.
    pub fn with(config: Config) -> Self {
        Self(vernic_cm::Manager::new(config))
    }

    /// Listens for connections of service `S` at an address and port, at most 1024 of them waiting.
    /// Port 0 takes a free one ([`Listener::local_addr`] tells); the wildcard address is every
    /// device, those that come up later included.
    ///
    /// # Errors
    /// [`CmError::Refused`]: no device has the address (the error names those that there are), the
    /// port is in use, a device cannot be opened.
    pub fn listen<S: Connected>(&self, addr: SocketAddr) -> Result<Listener<S>, CmError> {
        let own = self.listening(addr, port_space::<S>(), qp_type::<S>())?;
        Ok(Listener { own, manager: self.clone(), service: PhantomData })
    }

    /// Answers those who look for a datagram queue pair at an address and port: see
    /// [`Manager::find`].
    ///
    /// # Errors
    /// As [`Manager::listen`].
    pub fn listen_datagrams(&self, addr: SocketAddr) -> Result<DatagramListener, CmError> {
        Ok(DatagramListener(self.listening(addr, PortSpace::UDP, QpType::Ud)?))
    }

    /// The way to a peer: which device, from which address. Waits if the system must ask for the
    /// next hop on it: where nobody is, five seconds at most, and three by default.
    ///
    /// # Errors
    /// [`CmError::Refused`]: the system has no route, the device cannot be opened, or nobody
    /// answers for the address.
    pub fn resolve<S: Connected>(&self, peer: SocketAddr) -> Result<Route<S>, CmError> {
        self.resolve_from(None, peer)
    }

    /// As [`Manager::resolve`], from an address (and port, if it is not 0) of one's own choice.
    ///
    /// # Errors
    /// As [`Manager::resolve`]; also if no device has the address, or the port is in use.
    pub fn resolve_from<S: Connected>(
        &self,
        src: Option<SocketAddr>,
        peer: SocketAddr,
    ) -> Result<Route<S>, CmError> {
        Route::new(self.routed(src, peer, port_space::<S>(), qp_type::<S>())?)
    }

    /// Asks who has the datagrams of a port: the answer is a queue pair, its key, and where it is.
    /// Waits at most `timeout`. `private_data` are at most 180 bytes.
    ///
    /// # Errors
    /// [`CmError::NotServed`], [`CmError::Unreachable`], [`CmError::Timeout`],
    /// [`CmError::Refused`].
    pub fn find(
        &self,
        peer: SocketAddr,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<DatagramPeer, CmError> {
        let own = self.routed(None, peer, PortSpace::UDP, QpType::Ud)?;
        own.id.connect(&vernic_cm::ConnParam { private_data, ..Default::default() })?;
        let event = own.wait_for(&[EventKind::Established], timeout)?;
        DatagramPeer::new(&own, event.param)
    }

    fn id(&self, space: PortSpace, qp_type: QpType) -> Result<OwnId, CmError> {
        let channel = self.0.create_channel()?;
        Ok(OwnId::new(self.0.create_id(Some(&channel), space, qp_type)?, channel))
    }

    fn listening(
        &self,
        addr: SocketAddr,
        space: PortSpace,
        qp_type: QpType,
    ) -> Result<OwnId, CmError> {
        let own = self.id(space, qp_type)?;
        own.id.bind_addr(addr)?;
        own.id.listen(BACKLOG)?;
        Ok(own)
    }

    /// An id that looks for the way to a peer.
    pub(super) fn looking(
        &self,
        src: Option<SocketAddr>,
        peer: SocketAddr,
        space: PortSpace,
        qp_type: QpType,
    ) -> Result<OwnId, CmError> {
        let own = self.id(space, qp_type)?;
        own.id.resolve_addr(src, peer, RESOLVE_TIMEOUT)?;
        Ok(own)
    }

    fn routed(
        &self,
        src: Option<SocketAddr>,
        peer: SocketAddr,
        space: PortSpace,
        qp_type: QpType,
    ) -> Result<OwnId, CmError> {
        let own = self.looking(src, peer, space, qp_type)?;
        own.wait_for(&[EventKind::AddrResolved], LONGER)?;
        own.id.resolve_route(RESOLVE_TIMEOUT)?;
        Ok(own)
    }
}

pub(super) fn qp_type<S: Service>() -> QpType {
    match S::SERVICE {
        vernic_engine::Service::Uc => QpType::Uc,
        _ => QpType::Rc,
    }
}

/// RC has the port space of its own that others know; UC goes by the type of the queue pair.
pub(super) fn port_space<S: Service>() -> PortSpace {
    match qp_type::<S>() {
        QpType::Uc => PortSpace::IB,
        _ => PortSpace::TCP,
    }
}

/// Hears of peers that want to connect. Dropping it rejects those that wait.
#[derive(Debug)]
pub struct Listener<S: Connected> {
    pub(super) own: OwnId,
    manager: Manager,
    service: PhantomData<S>,
}

impl<S: Connected> Listener<S> {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.own.local_addr()
    }

    /// The next peer that wants to connect; waits at most `timeout`, for ever without one.
    ///
    /// # Errors
    /// [`CmError::Timeout`], [`CmError::Wait`].
    pub fn next(&self, timeout: Option<Duration>) -> Result<Request<S>, CmError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        // Each turn takes an event; those of a listener are requests.
        loop {
            match self.own.wait(until)? {
                Told::Event(event) => {
                    if let Some(request) = self.request(event)? {
                        return Ok(request);
                    }
                }
                Told::Nothing => {
                    let (peer, timeout) = (self.local_addr(), timeout.unwrap_or_default());
                    return Err(CmError::Timeout { peer, timeout });
                }
            }
        }
    }

    /// The next peer that wants to connect, if there is one; never waits.
    ///
    /// # Errors
    /// [`CmError::Refused`] when the process has no descriptor left for a connection.
    pub fn try_next(&self) -> Result<Option<Request<S>>, CmError> {
        match self.own.channel.try_next() {
            Some(event) => self.request(event),
            None => Ok(None),
        }
    }

    pub(super) fn request(&self, event: vernic_cm::Event) -> Result<Option<Request<S>>, CmError> {
        if event.kind != EventKind::ConnectRequest {
            return Ok(None);
        }
        let channel = self.manager.0.create_channel()?;
        event.id.migrate(&channel)?;
        let own = OwnId::new(event.id.clone(), channel);
        Ok(Some(Request::new(own, data_of(event.param))?))
    }
}

impl<S: Connected> AsFd for Listener<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}

impl<S: Connected> AsRawFd for Listener<S> {
    fn as_raw_fd(&self) -> RawFd {
        self.own.as_raw_fd()
    }
}
