//! What must be done on nobody's thread: refusals that come up under the engine's locks, listening
//! on devices that come up later, start-ups of iWARP, destinations whose next hop is looked for,
//! and hosts that are silent.
//!
//! One thread per process, started with the first listener, search, request to another host, or
//! connection of iWARP. It sleeps on its own descriptor, on changes of the network and on the
//! connections that are being made, holds nothing while it sleeps, and ends when the manager is
//! gone.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use vernic_engine::{Transport, spawn};
use vernic_io::netdev::ChangeWatcher;
use vernic_io::{Sleeper, Waker};
use vernic_proto::cm::ConnId;
use vernic_wire::cm::RejReason;

use crate::device::Device;
use crate::error::Error;
use crate::manager::Shared;
use crate::sync::lock;

/// Something to do.
#[derive(Debug)]
pub(crate) enum Job {
    /// A request that no listener can take, and the number that goes with the reason.
    Refuse { device: Arc<Device>, conn: ConnId, reason: RejReason, info: Option<u8> },
    /// A request for a listener that has no room for it.
    Ignore { device: Arc<Device>, conn: ConnId },
}

/// The list of things to do. Bounded by the requests that an engine keeps unanswered.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    jobs: Mutex<Vec<Job>>,
    waker: OnceLock<Waker>,
    /// Held while the thread is started.
    starting: Mutex<()>,
}

impl Keeper {
    /// Adds something to do. Takes no lock but its own.
    pub(crate) fn add(&self, job: Job) {
        lock(&self.jobs).push(job);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Starts the thread, unless it runs.
    ///
    /// # Errors
    /// [`Error::Os`] when the process has no descriptor or thread left.
    pub(crate) fn start(&self, shared: &Arc<Shared>) -> Result<(), Error> {
        let _starting = lock(&self.starting);
        if self.waker.get().is_some() {
            return Ok(());
        }
        let os = |what| move |source| Error::Os { what, source };
        let sleeper = Sleeper::new().map_err(os("make an eventfd for wake-ups"))?;
        let waker = sleeper.waker();
        // Without netlink (a sandbox may refuse it) devices stay as they are now.
        let watcher = ChangeWatcher::new()
            .inspect_err(|error| tracing::warn!(%error, "new devices will not be noticed"))
            .ok();
        let has_streams = shared.transport == Transport::Iwarp || shared.looks_for_transport;
        let streams = has_streams.then(|| shared.streams.open()).transpose()?;
        let shared = Arc::downgrade(shared);
        spawn("vernic-cm", move || run(sleeper, watcher.as_ref(), streams, &shared))
            .map_err(os("start the thread of the connection manager"))?;
        let _ = self.waker.set(waker);
        Ok(())
    }

    fn take(&self) -> Vec<Job> {
        std::mem::take(&mut lock(&self.jobs))
    }
}

/// The thread; `streams` is readable while a connection of iWARP has something to do.
fn run(
    mut sleeper: Sleeper,
    watcher: Option<&ChangeWatcher>,
    streams: Option<RawFd>,
    shared: &Weak<Shared>,
) {
    sleeper.watch(watcher.map(ChangeWatcher::poll_fd).into_iter().chain(streams));
    // A turn per wake-up.
    loop {
        let Some(shared) = shared.upgrade() else { return };
        for job in shared.keeper.take() {
            match job {
                // It may have gone by itself meanwhile. Requests for datagrams have an answer of
                // their own.
                Job::Refuse { device, conn, reason, info } => {
                    if device.carrier.reject(conn, reason, info.as_slice(), &[]).is_err() {
                        device.carrier.destroy(conn);
                    }
                }
                Job::Ignore { device, conn } => device.carrier.ignore(conn),
            }
        }
        if watcher.is_some_and(ChangeWatcher::has_changed) {
            shared.listen_on_new_devices();
        }
        let startups: Option<Duration> = streams.and_then(|_| shared.streams.progress(&shared));
        let (searches, silent) = (shared.searches.progress(), shared.silent_hosts.progress());
        let pause = [startups, searches, silent].into_iter().flatten().min();
        drop(shared);
        sleeper.sleep(pause);
    }
}
