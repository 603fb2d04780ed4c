//! What the sockets of a process share: the connection manager, its events, the sockets by key.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::{Duration, Instant};

use vernic_cm::{EventChannel, Manager};
use vernic_io::Origin;

use crate::datagram::DatagramSocket;
use crate::family::Family;
use crate::service::Service;
use crate::stream_socket::StreamSocket;
use crate::wake::lock;
use crate::{Error, Settings};

/// What the sockets of one process share.
pub(crate) struct Shared {
    origin: Origin,
    pub(crate) manager: Arc<Manager>,
    pub(crate) settings: Settings,
    /// The events of all ids.
    pub(crate) channel: Arc<EventChannel>,
    pub(crate) service: Service,
    streams: Mutex<HashMap<usize, Weak<StreamSocket>>>,
    last_key: AtomicUsize,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

impl Shared {
    /// Whether it is of the process that this one was forked from.
    pub(crate) fn is_orphan(&self) -> bool {
        !self.origin.is_here()
    }

    /// # Errors
    /// [`Error::Orphan`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_orphan() { Err(Error::Orphan) } else { Ok(()) }
    }

    /// A number that names a stream's socket for ever.
    pub(crate) fn next_key(&self) -> usize {
        self.last_key.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Makes a stream's socket known to events.
    pub(crate) fn enter(&self, key: usize, socket: &Arc<StreamSocket>) {
        lock(&self.streams).insert(key, Arc::downgrade(socket));
    }

    pub(crate) fn leave(&self, key: usize) {
        lock(&self.streams).remove(&key);
    }

    pub(crate) fn stream(&self, key: usize) -> Option<Arc<StreamSocket>> {
        lock(&self.streams).get(&key)?.upgrade()
    }

    fn streams(&self) -> Vec<Arc<StreamSocket>> {
        lock(&self.streams).values().filter_map(Weak::upgrade).collect()
    }
}

/// Makes sockets, in the process that made it: a child of `fork` makes one of its own.
#[derive(Debug)]
pub struct Runtime {
    shared: Arc<Shared>,
}

impl Runtime {
    /// Sockets over the devices of `manager`.
    ///
    /// # Errors
    /// [`Error::Os`] when the process has no descriptor left, [`Error::Cm`].
    pub fn new(manager: &Arc<Manager>, settings: Settings) -> Result<Self, Error> {
        let shared = Shared {
            origin: Origin::here(),
            manager: manager.clone(),
            settings,
            channel: manager.create_channel()?,
            service: Service::new()?,
            streams: Mutex::default(),
            last_key: AtomicUsize::new(0),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Whether it is of the process that this one was forked from, and unusable here.
    pub fn is_orphan(&self) -> bool {
        self.shared.is_orphan()
    }

    /// What its sockets start with.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    pub(crate) fn stream(&self, family: Family) -> Result<Arc<StreamSocket>, Error> {
        self.shared.check()?;
        StreamSocket::new(&self.shared, family)
    }

    pub(crate) fn datagram(&self, family: Family) -> Result<Arc<DatagramSocket>, Error> {
        self.shared.check()?;
        DatagramSocket::new(&self.shared, family)
    }

    /// Closes every stream and waits until what was sent has arrived, for `patience` at most:
    /// before the process ends, as the kernel does it for TCP after that.
    ///
    /// On a thread of its own: a program that jumped out of a call, from a handler of a signal, has
    /// left locks behind that nobody opens any more.
    pub fn finish(&self, patience: Duration) {
        if self.is_orphan() || self.shared.last_key.load(Ordering::Relaxed) == 0 {
            return;
        }
        let (done, ended) = mpsc::channel();
        let shared = self.shared.clone();
        let finish = move || {
            let deadline = Instant::now() + patience;
            shared.streams().iter().for_each(|socket| socket.close());
            shared.service.wait_all_closed(deadline);
            // Nobody is there any more if it took too long.
            let _ = done.send(());
        };
        if vernic_engine::spawn(crate::service::THREAD, finish).is_ok() {
            // The end of the wait, one way or the other.
            let _ = ended.recv_timeout(patience);
        }
    }
}
