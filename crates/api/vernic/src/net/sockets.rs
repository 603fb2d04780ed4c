//! A socket of a stream in a runtime: who sleeps until it may go on, and who wakes them.
//!
//! A call on the socket does not wait. One that would have to is tried again after its task is
//! entered into [`Sleepers`], so no change is missed. The socket tells of changes itself, if
//! somebody looks at it: that is a task, [`look_after`], which the completions of the stream wake.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, coop};
use vernic_rsocket::{Error, Family, Runtime, Settings, Socket, SocketKind, Watch};

use crate::cm;
use crate::raw::watch;

/// What tasks sleep for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Direction {
    /// Something to read, a connection, or the outcome of connecting.
    Read,
    /// Room to write.
    Write,
    /// The arrival of all that was written.
    Flush,
}

/// The task that sleeps for each direction; the last one that asked.
#[derive(Debug, Default)]
struct Sleepers([Mutex<Option<Waker>>; 3]);

impl Sleepers {
    fn enter(&self, direction: Direction, waker: &Waker) {
        let mut place = self.place(direction);
        let old = match &*place {
            Some(old) if old.will_wake(waker) => None,
            _ => place.replace(waker.clone()),
        };
        drop(place);
        // Without the lock: this may be the last of a task.
        drop(old);
    }

    fn wake(&self, direction: Direction) {
        // Stays, since its drop might drop a socket, under the socket's locks.
        if let Some(waker) = &*self.place(direction) {
            waker.wake_by_ref();
        }
    }

    fn place(&self, direction: Direction) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.0[direction as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket whose calls are awaited. Dropping it closes the socket.
#[derive(Debug)]
pub(super) struct AsyncSocket {
    watched: Arc<Watch>,
    sleepers: Arc<Sleepers>,
    looking: Option<AbortHandle>,
}

impl AsyncSocket {
    /// A socket of a stream, which is neither bound nor connected.
    pub(super) fn new(family: Family) -> io::Result<Self> {
        Ok(Self::of(runtime()?.socket(family, SocketKind::Stream).map_err(io_error)?))
    }

    pub(super) fn of(socket: Socket) -> Self {
        socket.set_nonblocking(true);
        let sleepers = Arc::<Sleepers>::default();
        let told = sleepers.clone();
        let watched = Watch::new(&socket, move || {
            told.wake(Direction::Read);
            told.wake(Direction::Write);
        });
        Self { watched: Arc::new(watched), sleepers, looking: None }
    }

    pub(super) fn socket(&self) -> &Socket {
        self.watched.socket()
    }

    /// Begins to look after the stream, which is connected.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        let descriptor = watch(self.watched.descriptor().map_err(io_error)?)?;
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        let looking = look_after(descriptor, self.watched.clone(), self.sleepers.clone());
        self.looking = Some(runtime.spawn(looking).abort_handle());
        Ok(())
    }

    /// Tries until it need not wait.
    pub(super) fn poll<T>(
        &self,
        direction: Direction,
        cx: &mut Context<'_>,
        mut attempt: impl FnMut(&Socket) -> Result<T, Error>,
    ) -> Poll<Result<T, Error>> {
        // Gives way to other tasks of the thread now and then.
        let budget = ready!(coop::poll_proceed(cx));
        let mut attempt = || match attempt(self.socket()) {
            Err(Error::WouldBlock | Error::InProgress(_) | Error::Already(_)) => Poll::Pending,
            done => Poll::Ready(done),
        };
        let mut outcome = attempt();
        if outcome.is_pending() {
            self.sleepers.enter(direction, cx.waker());
            outcome = attempt();
        }
        if outcome.is_ready() {
            budget.made_progress();
        }
        outcome
    }

    /// Waits until all that was written has arrived, or never will.
    pub(super) fn poll_flushed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.sleepers.enter(Direction::Flush, cx.waker());
        if self.watched.is_flushed() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for AsyncSocket {
    fn drop(&mut self) {
        if let Some(looking) = &self.looking {
            looking.abort();
        }
        // What was written still arrives.
        self.socket().close();
    }
}

/// Looks at a stream each time that something has completed, until the runtime ends.
async fn look_after(descriptor: AsyncFd<OwnedFd>, watched: Arc<Watch>, sleepers: Arc<Sleepers>) {
    loop {
        watched.look();
        sleepers.wake(Direction::Flush);
        let Ok(mut readable) = descriptor.readable().await else { return };
        // Before the next look, which takes what makes it readable.
        readable.clear_ready();
    }
}

/// The sockets of this process, over devices that stay open.
static RUNTIME: Mutex<Option<Arc<Runtime>>> = Mutex::new(None);

/// The sockets of this process; a child of `fork` has its own.
fn runtime() -> io::Result<Arc<Runtime>> {
    let mut known = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = known.as_ref().filter(|runtime| !runtime.is_orphan()) {
        return Ok(runtime.clone());
    }
    let manager = cm::Manager::open().map_err(io::Error::other)?;
    let runtime = Runtime::new(manager.inner(), Settings::load()).map_err(io_error)?;
    Ok(known.insert(Arc::new(runtime)).clone())
}

/// The error with the kind that programs of TCP look for.
pub(super) fn io_error(error: Error) -> io::Error {
    io::Error::new(io::Error::from_raw_os_error(error.errno()).kind(), error)
}
