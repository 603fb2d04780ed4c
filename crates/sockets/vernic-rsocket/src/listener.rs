//! Connections on their way to a user that accepts.
//!
//! A request is answered at once, so that the peer's call returns as it does with TCP, and the
//! connection waits to be accepted. When more wait than the backlog says, requests wait unanswered;
//! the connection manager asks peers to be patient meanwhile.
//!
//! Limits: the backlog, at most [`MAX_BACKLOG`], and [`MAX_REQUESTS`] requests beyond it; more are
//! refused.

use std::collections::VecDeque;
use std::sync::Arc;

use vernic_cm::Id;

use crate::stream_socket::{State, StreamSocket};
use crate::wake::lock;
use crate::wire::ConnData;

/// Largest backlog: the kernel's own default for `net.core.somaxconn`.
const MAX_BACKLOG: usize = 4096;

/// Requests that may wait unanswered.
const MAX_REQUESTS: usize = 1024;

/// What a listening socket keeps.
#[derive(Debug)]
pub(crate) struct Listener {
    backlog: usize,
    stopped: bool,
    /// Requests that are not answered.
    requests: VecDeque<(Arc<Id>, Vec<u8>)>,
    /// Answered, and not yet connected.
    pending: Vec<Arc<StreamSocket>>,
    /// Connected, and not yet accepted.
    ready: VecDeque<Arc<StreamSocket>>,
}

impl Listener {
    pub(crate) fn new(backlog: u32) -> Self {
        let mut listener = Self {
            backlog: 0,
            stopped: false,
            requests: VecDeque::new(),
            pending: Vec::new(),
            ready: VecDeque::new(),
        };
        listener.set_backlog(backlog);
        listener
    }

    pub(crate) fn set_backlog(&mut self, backlog: u32) {
        self.backlog = (backlog as usize).clamp(1, MAX_BACKLOG);
    }

    /// Whether a user can accept a connection, or the end of accepting.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty() || self.stopped
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// No connection will be accepted any more.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Takes the oldest connection.
    pub(crate) fn take(&mut self) -> Option<Arc<StreamSocket>> {
        self.ready.pop_front()
    }

    /// A peer wants to connect.
    pub(crate) fn handle_request(socket: &Arc<StreamSocket>, id: Arc<Id>, data: Vec<u8>) {
        let refused = match &mut *lock(&socket.state) {
            State::Listening(listener)
                if listener.requests.len() < MAX_REQUESTS && !listener.stopped =>
            {
                listener.requests.push_back((id, data));
                None
            }
            _ => Some(id),
        };
        match refused {
            Some(id) => refuse(&id),
            None => Self::go_on(socket),
        }
    }

    /// Answers requests, as many as there is room for.
    pub(crate) fn go_on(socket: &Arc<StreamSocket>) {
        // One request less with each turn, of a bounded number.
        while let Some((id, data)) = Self::next_request(socket) {
            let made = match ConnData::parse(&data) {
                Ok(peer) => StreamSocket::of_request(socket, id.clone(), peer),
                Err(error) => Err(crate::Error::Protocol(error.into())),
            };
            match made {
                // An event of its may be there already, so that it is told of it here.
                Ok(made) => Self::keep(socket, made),
                Err(error) => {
                    tracing::warn!(%error, peer = ?id.peer_addr(), "request refused");
                    refuse(&id);
                }
            }
        }
    }

    fn next_request(socket: &StreamSocket) -> Option<(Arc<Id>, Vec<u8>)> {
        let State::Listening(listener) = &mut *lock(&socket.state) else { return None };
        let kept = listener.ready.len() + listener.pending.len();
        if kept > listener.backlog { None } else { listener.requests.pop_front() }
    }

    /// Keeps a connection that was answered. Its outcome may be known already; if it is not, it
    /// will be told after this, since that takes the lock that is held here.
    fn keep(socket: &StreamSocket, made: Arc<StreamSocket>) {
        let mut lost = None;
        match &mut *lock(&socket.state) {
            State::Listening(listener) => match made.is_being_made() {
                true => listener.pending.push(made),
                false if made.connected().is_some() => listener.ready.push_back(made),
                false => lost = Some(made),
            },
            _ => lost = Some(made),
        }
        match lost {
            Some(made) => made.close(),
            None => socket.wakers.wake(),
        }
    }

    /// A connection that was answered is there.
    pub(crate) fn handle_accepted(socket: &StreamSocket, made: &Arc<StreamSocket>) {
        if let State::Listening(listener) = &mut *lock(&socket.state)
            && listener.forget(made)
        {
            listener.ready.push_back(made.clone());
        }
        socket.wakers.wake();
    }

    /// A connection that was answered will not be there.
    pub(crate) fn handle_lost(socket: &Arc<StreamSocket>, made: &Arc<StreamSocket>) {
        if let State::Listening(listener) = &mut *lock(&socket.state) {
            listener.forget(made);
        }
        made.close();
        Self::go_on(socket);
    }

    fn forget(&mut self, made: &Arc<StreamSocket>) -> bool {
        let at = self.pending.iter().position(|pending| Arc::ptr_eq(pending, made));
        at.map(|at| self.pending.swap_remove(at)).is_some()
    }

    /// Ends all that nobody has accepted.
    pub(crate) fn close(self) {
        self.requests.iter().for_each(|(id, _)| refuse(id));
        self.pending.iter().chain(&self.ready).for_each(|socket| socket.close());
    }
}

fn refuse(id: &Id) {
    // The peer learns of it in either way.
    let _ = id.reject(&[]);
    id.destroy();
}
