//! Taking connections of one device at one address.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vernic_io::tcp::{self, Readiness};

use super::{
    ConnectError, Handshake, HandshakeState, StartupConfig, StartupState, Watch, check_device,
    sleep_on,
};
use crate::support::events::lock;
use crate::verbs::context::Context;

/// Connections whose request is not here, at most; beyond that the oldest goes. Few: who has many
/// peers has a connection manager.
const MAX_GREETING: usize = 64;

/// Key of the listening socket, and of connections whose request is waited for.
const WATCHED: u64 = 0;

/// Takes connections at an address.
#[derive(Debug)]
pub struct Listener {
    context: Arc<Context>,
    socket: tcp::Listener,
    readiness: Arc<Readiness>,
    config: StartupConfig,
    greeting: Mutex<Greeting>,
}

/// Connections whose request is waited for, the oldest first.
#[derive(Debug, Default)]
struct Greeting {
    waiting: VecDeque<Handshake>,
    passed_over: u64,
}

impl Listener {
    /// Listens at an address; port 0 chooses one. Peers are asked for, and offered, what `config`
    /// says, until a connection is accepted with something else.
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
        let readiness = Arc::new(Readiness::new().map_err(ConnectError::Descriptors)?);
        readiness.watch_listener(&socket, WATCHED).map_err(ConnectError::Descriptors)?;
        let (context, greeting) = (context.clone(), Mutex::default());
        Ok(Self { context, socket, readiness, config, greeting })
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

    /// The next connection, if there is one. Its start-up has not begun; private data and terms
    /// come with the peer's request.
    ///
    /// # Errors
    /// [`ConnectError::Descriptors`], [`ConnectError::Gone`].
    pub fn accept(&self) -> Result<Option<Handshake>, ConnectError> {
        check_device(&self.context)?;
        // Those that are refused are closed, so each turn ends one.
        while let Some(connection) = self.socket.accept().map_err(ConnectError::Descriptors)? {
            match Handshake::respond(&self.context, connection, self.config, Watch::own()?) {
                Err(ConnectError::NotAllowed(_)) => {}
                done => return done.map(Some),
            }
        }
        Ok(None)
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

    /// Waits for some time until the request of a peer is here: its connection, to be accepted or
    /// rejected. What comes to nothing meanwhile is [passed over](Self::passed_over): a port scan,
    /// somebody who does not speak MPA, or says nothing for as long as a start-up may take. Of 64
    /// that say nothing the oldest goes for another, and likewise where no descriptor is left.
    ///
    /// # Errors
    /// [`ConnectError::Descriptors`], [`ConnectError::Gone`].
    pub fn wait_request(&self, timeout: Duration) -> Result<Option<Handshake>, ConnectError> {
        let end = Instant::now() + timeout;
        loop {
            check_device(&self.context)?;
            let mut greeting = lock(&self.greeting);
            self.greet(&mut greeting)?;
            if let Some(mut asked) = greeting.next_asked() {
                drop(greeting);
                asked.watch = Watch::own()?;
                return Ok(Some(asked));
            }
            let patience = greeting.waiting.iter().filter_map(Handshake::patience).min();
            drop(greeting);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let pause = patience.map_or(left, |patience| patience.min(left));
            sleep_on(self.raw_fd(), pause).map_err(ConnectError::Descriptors)?;
        }
    }

    /// Connections that [`wait_request`](Self::wait_request) took and that came to nothing.
    pub fn passed_over(&self) -> u64 {
        lock(&self.greeting).passed_over
    }

    /// Takes the connections that wait.
    fn greet(&self, greeting: &mut Greeting) -> Result<(), ConnectError> {
        // Bounded: a turn takes no more than may wait.
        for _ in 0..MAX_GREETING {
            let connection = match self.socket.accept() {
                Ok(Some(connection)) => connection,
                Ok(None) => return Ok(()),
                // One that says nothing has a descriptor that another needs.
                Err(error) if !greeting.waiting.is_empty() => {
                    tracing::warn!(%error, "a silent connection is closed for another");
                    greeting.displace();
                    continue;
                }
                Err(error) => return Err(ConnectError::Descriptors(error)),
            };
            if greeting.waiting.len() == MAX_GREETING {
                greeting.displace();
            }
            let watch = Watch::shared(&self.readiness, WATCHED);
            match Handshake::respond(&self.context, connection, self.config, watch) {
                Err(ConnectError::NotAllowed(_)) => greeting.passed_over += 1,
                handshake => greeting.waiting.push_back(handshake?),
            }
        }
        Ok(())
    }
}

impl Greeting {
    fn displace(&mut self) {
        let gone = self.waiting.pop_front();
        self.passed_over += u64::from(gone.is_some());
    }

    /// Goes on with all of them: the first one whose request is here.
    fn next_asked(&mut self) -> Option<Handshake> {
        let mut at = 0;
        while at < self.waiting.len() {
            let state = self.waiting[at].poll();
            if !state.is_settled() {
                at += 1;
                continue;
            }
            let settled = self.waiting.remove(at);
            if state == HandshakeState::Startup(StartupState::Asked) {
                return settled;
            }
            tracing::debug!(?state, "a connection came to nothing");
            self.passed_over += 1;
        }
        None
    }
}
