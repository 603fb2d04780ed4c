//! A listener for iWARP connections to one address of a device.

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

/// Largest number of connections that have not sent their request yet. Beyond that, the oldest is
/// closed. The number is small, because a program with many peers uses a connection manager.
const MAX_GREETING: usize = 64;

/// The key in epoll of the listening socket, and of all connections that have not sent their
/// request.
const WATCHED: u64 = 0;

/// A listener for iWARP connections to an address.
#[derive(Debug)]
pub struct Listener {
    context: Arc<Context>,
    socket: tcp::Listener,
    readiness: Arc<Readiness>,
    config: StartupConfig,
    greeting: Mutex<Greeting>,
}

/// Connections that have not sent their request yet, oldest first.
#[derive(Debug, Default)]
struct Greeting {
    waiting: VecDeque<Handshake>,
    passed_over: u64,
}

impl Listener {
    /// Listens at an address; port 0 lets the system choose a port. Start-ups use the terms of
    /// `config`, unless a connection is accepted with others.
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

    /// Returns the address, with the port that the system chose.
    ///
    /// # Errors
    /// The error of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the epoll descriptor, which is readable while a connection has something to do.
    pub fn raw_fd(&self) -> RawFd {
        self.readiness.raw_fd()
    }

    /// Returns the next connection, if there is one. Its start-up has not begun: the peer's
    /// request, with private data and terms, has still to come.
    ///
    /// # Errors
    /// [`ConnectError::Descriptors`], [`ConnectError::Gone`].
    pub fn accept(&self) -> Result<Option<Handshake>, ConnectError> {
        check_device(&self.context)?;
        // Bounded, because each round takes a connection from the queue of the socket.
        while let Some(connection) = self.socket.accept().map_err(ConnectError::Descriptors)? {
            match Handshake::respond(&self.context, connection, self.config, Watch::own()?) {
                Err(ConnectError::NotAllowed(_)) => {}
                done => return done.map(Some),
            }
        }
        Ok(None)
    }

    /// Takes a connection as [`accept`](Self::accept) does, but waits for one up to `timeout`.
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

    /// Waits up to `timeout` for the request of a peer, and returns the peer's connection, to be
    /// accepted or rejected. Connections that fail before their request comes are counted
    /// ([`passed_over`](Self::passed_over)) and not returned: a port scan, a peer that does not use
    /// MPA, or a peer that sends nothing for as long as a start-up may take. If 64 connections have
    /// sent nothing, or no descriptor is left, the oldest is closed to make room for a new one.
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

    /// Returns the number of connections that [`wait_request`](Self::wait_request) closed because
    /// no valid request came.
    pub fn passed_over(&self) -> u64 {
        lock(&self.greeting).passed_over
    }

    /// Takes the connections that wait in the queue of the socket.
    fn greet(&self, greeting: &mut Greeting) -> Result<(), ConnectError> {
        // Bounded, so that a flood of connections does not keep this call busy.
        for _ in 0..MAX_GREETING {
            let connection = match self.socket.accept() {
                Ok(Some(connection)) => connection,
                Ok(None) => return Ok(()),
                // A connection without a request occupies a descriptor that the new connection
                // needs.
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

    /// Continues all start-ups until a request has come on one of them, and returns that one.
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
