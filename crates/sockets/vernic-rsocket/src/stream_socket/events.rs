//! What happens to the id of a stream's socket, told by the service thread.

use std::net::SocketAddr;
use std::sync::Arc;

use super::{State, StreamSocket, Told};
use crate::listener::Listener;
use crate::wake::lock;
use crate::wire::ConnData;
use crate::{Error, Failure};

impl StreamSocket {
    /// Something about its id has happened.
    pub(crate) fn handle(self: &Arc<Self>, told: Told) {
        match told {
            Told::Request { id, data } => Listener::handle_request(self, id, data),
            Told::Established(data) => return self.handle_established(&data),
            Told::Resolved => return self.handle_resolved(),
            Told::Refused => self.handle_failed(libc::ECONNREFUSED),
            Told::Failed(errno) => self.handle_failed(errno),
            Told::Disconnected => self.handle_disconnected(),
        }
        self.wakers.wake();
    }

    /// Wakes who waits before the socket can be accepted: to its new owner this is no news.
    fn handle_established(self: &Arc<Self>, data: &[u8]) {
        let mut state = lock(&self.state);
        let (peer, listener) = match &*state {
            State::Connecting(_) => {
                (ConnData::parse(data).map_err(|e| Error::Protocol(e.into())), None)
            }
            State::Accepting(listener, peer) => (Ok(**peer), listener.upgrade()),
            _ => return,
        };
        let connected = match (peer, self.connection.get()) {
            (Ok(peer), Some(connection)) => connection.connect(peer),
            (Ok(_), None) => Err(Error::NotConnected),
            (Err(error), _) => Err(error),
        };
        match connected {
            Ok(()) => {
                *state = State::Connected;
                drop(state);
                self.keep_alive_as_set();
                self.wakers.wake();
                if let Some(listener) = listener {
                    Listener::handle_accepted(&listener, self);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot talk with the peer");
                *state = State::Failed(Some(Failure::from(&error)));
                drop(state);
                // The peer learns of it by the end of the connection.
                self.id.destroy();
                self.wakers.wake();
            }
        }
    }

    /// The peer may be asked, if that was not done at once. Wakes nobody if all is well: it goes
    /// on.
    fn handle_resolved(&self) {
        let mut state = lock(&self.state);
        if !matches!(*state, State::Connecting(_)) {
            return;
        }
        if let Err(error) = self.go_on() {
            tracing::warn!(%error, "the peer cannot be asked");
            *state = State::Failed(Some(Failure::from(&error)));
            drop(state);
            self.wakers.wake();
        }
    }

    fn handle_failed(self: &Arc<Self>, errno: i32) {
        let mut state = lock(&self.state);
        let peer = self.id.peer_addr();
        let failed = |peer: Option<SocketAddr>| {
            let error = std::io::Error::from_raw_os_error(errno);
            let peer = peer.map_or_else(String::new, |peer| format!(" to {peer}"));
            Failure::new(errno, format!("no connection{peer}: {error}"))
        };
        match &*state {
            State::Connecting(peer) => *state = State::Failed(Some(failed(Some(*peer)))),
            State::Accepting(listener, _) => {
                let listener = listener.upgrade();
                *state = State::Failed(Some(failed(peer)));
                drop(state);
                if let Some(listener) = listener {
                    Listener::handle_lost(&listener, self);
                }
            }
            State::Connected => {
                drop(state);
                self.handle_disconnected();
            }
            _ => {}
        }
    }

    fn handle_disconnected(self: &Arc<Self>) {
        if let Some(connection) = self.connected() {
            connection.handle_disconnected();
            // Agrees, and ends what is in flight.
            let _ = self.id.disconnect();
        } else {
            self.handle_failed(libc::ECONNRESET);
        }
    }
}
