//! A stream that is waited for by something else than the calls of this crate: by the reactor of an
//! asynchronous runtime.
//!
//! Calls on a socket that does not wait make progress, and tell whether they would have to wait. A
//! task that sleeps until it may try again is told so by a function, which runs when the socket is
//! ready for more. Somebody has to look at the socket for that to happen: whoever watches the
//! descriptor of the stream and calls [`Watch::look`] each time it is readable.
//!
//! Limits: one entry in the list of those who are told, and one descriptor more for a stream whose
//! descriptor is asked for.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::Error;
use crate::socket::Socket;
use crate::wake::Wake;

/// A socket whose changes are told to a function, until it is dropped.
pub struct Watch {
    socket: Socket,
    who: Arc<dyn Wake>,
}

/// The function.
struct Tell<F>(F);

impl<F: Fn() + Send + Sync> Wake for Tell<F> {
    fn wake(&self, _token: usize) {
        (self.0)();
    }
}

impl Watch {
    /// Watches a socket. `tell` is called when it is ready for more than before, on any thread and
    /// under locks of the socket: it must not call the socket, nor drop it.
    pub fn new(socket: &Socket, tell: impl Fn() + Send + Sync + 'static) -> Self {
        let who: Arc<dyn Wake> = Arc::new(Tell(tell));
        socket.wakers().enter(who.clone(), 0);
        Self { socket: socket.clone(), who }
    }

    /// The socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// A descriptor of a connected stream that is readable when something has completed since the
    /// last [`look`](Self::look).
    ///
    /// # Errors
    /// [`Error::NotConnected`]; [`Error::Os`] when the process has no descriptor left.
    pub fn descriptor(&self) -> Result<OwnedFd, Error> {
        let connection = self.socket.connection()?;
        let what = "copy the descriptor of a stream";
        connection.fd().try_clone_to_owned().map_err(|source| Error::Os { what, source })
    }

    /// Takes what has completed, tells if the socket is ready for more by that, and has the next
    /// completion make the descriptor readable.
    pub fn look(&self) {
        self.socket.take_events();
        let Ok(connection) = self.socket.connection() else { return };
        connection.arm();
        // What completed before the queue was armed raises no event.
        connection.readiness();
    }

    /// Whether everything that was sent has arrived at the peer, or never will.
    pub fn is_flushed(&self) -> bool {
        self.socket.connection().ok().is_none_or(|connection| connection.is_flushed())
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({:?})", self.socket)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.socket.wakers().leave(&self.who, 0);
    }
}
