//! Taking connections of one device at one address.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use vernic_io::tcp::{self, Readiness};

use super::{ConnectError, Handshake, StartupConfig, Watch, check_device, sleep_on};
use crate::context::Context;

/// Takes connections at an address.
#[derive(Debug)]
pub struct Listener {
    context: Arc<Context>,
    socket: tcp::Listener,
    readiness: Readiness,
    config: StartupConfig,
}

impl Listener {
    /// Listens at an address; port 0 chooses one. Peers are asked for, and offered, what `config` says,
    /// until a connection is accepted with something else.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn bind(
        context: &Arc<Context>,
        addr: SocketAddr,
        config: StartupConfig,
    ) -> Result<Self, ConnectError> {
        check_device(context)?;
        let os = |source| ConnectError::Os { what: "listen at", addr, source };
        let socket = tcp::Listener::bind(&addr).map_err(os)?;
        let readiness = Readiness::new().map_err(ConnectError::Descriptors)?;
        readiness.watch_listener(&socket, 0).map_err(ConnectError::Descriptors)?;
        Ok(Self { context: context.clone(), socket, readiness, config })
    }

    /// The address, its port chosen.
    ///
    /// # Errors
    /// Of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Readable while a connection waits.
    pub fn raw_fd(&self) -> RawFd {
        self.readiness.raw_fd()
    }

    /// The next connection, if there is one. Its start-up has not begun; private data and terms come with
    /// the peer's request.
    ///
    /// # Errors
    /// [`ConnectError::Descriptors`], [`ConnectError::Gone`].
    pub fn accept(&self) -> Result<Option<Handshake>, ConnectError> {
        check_device(&self.context)?;
        let Some(connection) = self.socket.accept().map_err(ConnectError::Descriptors)? else {
            return Ok(None);
        };
        Handshake::respond(&self.context, connection, self.config, Watch::own()?).map(Some)
    }

    /// As [`accept`](Self::accept), waiting for it for some time.
    ///
    /// # Errors
    /// [`ConnectError::Descriptors`], [`ConnectError::Gone`].
    pub fn wait(&self, timeout: Duration) -> Result<Option<Handshake>, ConnectError> {
        if let Some(handshake) = self.accept()? {
            return Ok(Some(handshake));
        }
        sleep_on(self.raw_fd(), timeout).map_err(ConnectError::Descriptors)?;
        self.accept()
    }
}
