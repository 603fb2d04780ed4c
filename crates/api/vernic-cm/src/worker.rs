//! Work outside the program's own threads: refusals that come up under the engine's locks,
//! alternate paths that peers ask for, and periodic work of the worker's owner ([`Work`]).
//!
//! One thread per process, started with the first listener, wait for a next hop, request to another
//! host, or connection of iWARP. The thread sleeps on its own descriptor, on changes of the network
//! and on one descriptor of its work, holds nothing while it sleeps, and ends when its work is
//! dropped.

use std::fmt;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use vernic_engine::spawn;
use vernic_io::netdev::ChangeWatcher;
use vernic_io::{Sleeper, Waker};
use vernic_proto::cm::{self, ConnId};
use vernic_wire::cm::RejReason;

use crate::device::Agent;
use crate::error::Error;
use crate::key::IdKey;
use crate::sync::lock;

/// The periodic work of the thread.
pub(crate) trait Work: Send + Sync {
    /// Does what is due. `network_changed` means that devices may have come up. Returns the time
    /// until more is due, if nothing wakes the thread up before; `None` is for ever.
    fn progress(&self, network_changed: bool) -> Option<Duration>;
    /// Handles a message about an alternate path of an id's connection.
    fn alternate_path(&self, id: IdKey, event: cm::EventKind);
}

/// Work that an event of the engine brings, and that no call of the program does.
pub(crate) enum Task {
    /// No listener can take the request, for this reason and with the number that goes with it.
    Refuse { agent: Arc<dyn Agent>, conn: ConnId, reason: RejReason, info: Option<u8> },
    /// The listener has no room for the request.
    Ignore { agent: Arc<dyn Agent>, conn: ConnId },
    /// A message about an alternate path of the id's connection has come, or did not come.
    AlternatePath { id: IdKey, event: cm::EventKind },
}

impl Task {
    fn run(self, work: &dyn Work) {
        match self {
            // The request may have ended meanwhile. Requests for datagrams have their own kind of
            // answer.
            Self::Refuse { agent, conn, reason, info } => {
                if agent.reject(conn, reason, info.as_slice(), &[]).is_err() {
                    agent.destroy(conn);
                }
            }
            Self::Ignore { agent, conn } => agent.ignore(conn),
            Self::AlternatePath { id, event } => work.alternate_path(id, event),
        }
    }
}

/// The tasks and the thread. Tasks are bounded by the requests that an engine keeps unanswered, and
/// by its connections, each of which has one exchange about an alternate path.
#[derive(Default)]
pub(crate) struct Worker {
    tasks: Mutex<Vec<Task>>,
    waker: OnceLock<Waker>,
    /// Held while the thread is started.
    starting: Mutex<()>,
}

impl Worker {
    /// Adds a task. Takes no lock but the worker's own.
    pub(crate) fn add(&self, task: Task) {
        lock(&self.tasks).push(task);
        self.wake();
    }

    /// Wakes the thread up, if it was started.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Starts the thread, unless it runs; `fd` is readable while `work` has something to do.
    ///
    /// # Errors
    /// [`Error::Os`] when the process has no descriptor or thread left.
    pub(crate) fn start(
        self: &Arc<Self>,
        fd: Option<RawFd>,
        work: Weak<dyn Work>,
    ) -> Result<(), Error> {
        let _starting = lock(&self.starting);
        if self.waker.get().is_some() {
            return Ok(());
        }
        let os = |what| move |source| Error::Os { what, source };
        let sleeper = Sleeper::new().map_err(os("make an eventfd for wake-ups"))?;
        let waker = sleeper.waker();
        // Without netlink (a sandbox may forbid it) new devices are not noticed.
        let watcher = ChangeWatcher::new()
            .inspect_err(|error| tracing::warn!(%error, "new devices will not be noticed"))
            .ok();
        let worker = self.clone();
        spawn("vernic-cm", move || worker.run(sleeper, watcher.as_ref(), fd, &work))
            .map_err(os("start the thread of the connection manager"))?;
        let _ = self.waker.set(waker);
        Ok(())
    }

    /// The body of the thread.
    fn run(
        &self,
        mut sleeper: Sleeper,
        watcher: Option<&ChangeWatcher>,
        fd: Option<RawFd>,
        work: &Weak<dyn Work>,
    ) {
        sleeper.watch(watcher.map(ChangeWatcher::poll_fd).into_iter().chain(fd));
        // A turn per wake-up.
        loop {
            let Some(work) = work.upgrade() else { return };
            let tasks = std::mem::take(&mut *lock(&self.tasks));
            tasks.into_iter().for_each(|task| task.run(&*work));
            let pause = work.progress(watcher.is_some_and(ChangeWatcher::has_changed));
            drop(work);
            sleeper.sleep(pause);
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("tasks", &lock(&self.tasks).len()).finish()
    }
}
