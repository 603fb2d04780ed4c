//! The thread that does what must be done while no call of the user runs.
//!
//! It takes the events of the connection manager, sees closed connections through to their end,
//! sends signs of life, and reads the UDP sockets of datagrams. One per process, started with the
//! first need.
//!
//! Limits: a closed connection is seen through for [`PATIENCE`] at most.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use vernic_cm::{Event, EventKind, Param};
use vernic_engine::spawn;

use crate::Error;
use crate::connection::Connection;
use crate::datagram::DatagramSocket;
use crate::shared::Shared;
use crate::stream_socket::{StreamSocket, Told};
use crate::sys;
use crate::wake::{Sleeper, Wake, lock};

/// The name of threads of rsockets.
pub(crate) const THREAD: &str = "vernic-rsocket";

/// How long a closed connection may take until all that was sent is acknowledged: beyond what seven
/// repetitions take, after which the queue pair fails by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Datagrams of one UDP socket that are read in a row.
const DATAGRAMS_IN_A_ROW: usize = 64;

/// A closed connection that has something in flight.
#[derive(Debug)]
struct Closing {
    socket: Arc<StreamSocket>,
    connection: Arc<Connection>,
    until: Instant,
}

/// A connection that is asked for signs of life.
#[derive(Debug)]
struct KeepAlive {
    socket: Weak<StreamSocket>,
    every: Duration,
    next: Instant,
}

/// What the thread sees to.
#[derive(Debug, Default)]
struct Work {
    closing: Vec<Closing>,
    /// Keys of their sockets, those that the thread looks at just now included.
    left: HashSet<usize>,
    keep_alives: HashMap<usize, KeepAlive>,
    /// No sign of life is due before this.
    next_alive: Option<Instant>,
    datagrams: Vec<Weak<DatagramSocket>>,
}

/// The thread and its work.
#[derive(Debug)]
pub(crate) struct Service {
    work: Mutex<Work>,
    closed: Condvar,
    sleeper: Arc<Sleeper>,
    started: OnceLock<()>,
}

impl Service {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self {
            work: Mutex::default(),
            closed: Condvar::new(),
            sleeper: Sleeper::new()?,
            started: OnceLock::new(),
        })
    }

    /// Starts the thread, if it does not run.
    pub(crate) fn start(&self, shared: &Arc<Shared>) -> Result<(), Error> {
        if self.started.get().is_some() {
            return Ok(());
        }
        let mut failed = None;
        self.started.get_or_init(|| {
            let shared = shared.clone();
            failed = spawn(THREAD, move || run(&shared)).err();
        });
        match failed {
            None => Ok(()),
            Some(source) => Err(Error::Os { what: "start a thread", source }),
        }
    }

    /// Sees a closed connection through to its end.
    pub(crate) fn see_through(&self, socket: Arc<StreamSocket>, connection: Arc<Connection>) {
        let until = Instant::now() + PATIENCE;
        let mut work = lock(&self.work);
        work.left.insert(socket.key());
        work.closing.push(Closing { socket, connection, until });
        drop(work);
        self.sleeper.wake(0);
    }

    /// Waits until the closed connection of this socket is at its end, or until `deadline`.
    pub(crate) fn wait_closed(&self, key: usize, deadline: Instant) {
        self.wait_while(deadline, |work| work.left.contains(&key));
    }

    /// Waits until no closed connection is left, or until `deadline`.
    pub(crate) fn wait_all_closed(&self, deadline: Instant) {
        self.wait_while(deadline, |work| !work.left.is_empty());
    }

    fn wait_while(&self, deadline: Instant, is_left: impl Fn(&Work) -> bool) {
        let mut work = lock(&self.work);
        // Each turn sleeps until one has ended.
        while is_left(&work) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.closed.wait_timeout(work, left);
            work = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// From now on a stream sends signs of life; `None` ends it.
    pub(crate) fn keep_alive(
        &self,
        key: usize,
        socket: &Arc<StreamSocket>,
        every: Option<Duration>,
    ) {
        let mut work = lock(&self.work);
        match every {
            None => {
                work.keep_alives.remove(&key);
                return;
            }
            Some(every) => {
                let (socket, next) = (Arc::downgrade(socket), Instant::now() + every);
                work.keep_alives.insert(key, KeepAlive { socket, every, next });
                if work.next_alive.is_some_and(|first| first <= next) {
                    return;
                }
                work.next_alive = Some(next);
            }
        }
        drop(work);
        self.sleeper.wake(0);
    }

    /// From now on the UDP socket of `socket` is read.
    pub(crate) fn read(&self, socket: &Arc<DatagramSocket>) {
        lock(&self.work).datagrams.push(Arc::downgrade(socket));
        self.sleeper.wake(0);
    }

    /// The socket of datagrams with this key.
    fn datagram(&self, key: usize) -> Option<Arc<DatagramSocket>> {
        let work = lock(&self.work);
        work.datagrams.iter().filter_map(Weak::upgrade).find(|socket| socket.key() == key)
    }

    /// Something has changed: the thread looks again.
    pub(crate) fn rouse(&self) {
        self.sleeper.wake(0);
    }
}

/// For as long as the process lives.
fn run(shared: &Arc<Shared>) {
    let mut fds = Vec::new();
    loop {
        shared.service.sleeper.reset();
        // Few turns: each takes an event of the few that an id can have.
        while let Some(event) = shared.channel.try_next() {
            handle(shared, event);
        }
        read_datagrams(shared);
        let keep_alive = keep_alive(shared);
        let closing = see_through(shared, &mut fds);
        let deadline = [keep_alive, closing].into_iter().flatten().min();
        fds.push(sys::entry(shared.channel.as_raw_fd(), libc::POLLIN));
        fds.push(sys::entry(shared.service.sleeper.fd().as_raw_fd(), libc::POLLIN));
        if sys::poll(&mut fds, deadline).is_err() {
            // Descriptors are open, and signals are blocked: the kernel is short of memory.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Hands an event of the connection manager to its socket.
fn handle(shared: &Arc<Shared>, event: Event) {
    let Event { id, kind, status, param, .. } = &event;
    let (id, kind, status) = (id.clone(), *kind, *status);
    let conn = match param {
        Param::Conn(conn) => Some(conn.clone()),
        _ => None,
    };
    // While it lives, destroying its id waits.
    drop(event);
    if let Some(socket) = shared.service.datagram(id.user_context()) {
        return socket.handle_way(&id, kind, status);
    }
    // A new id has the key of its listener.
    let Some(socket) = shared.stream(id.user_context()) else { return };
    let told = match kind {
        EventKind::ConnectRequest => {
            Told::Request { id, data: conn.unwrap_or_default().private_data }
        }
        EventKind::AddrResolved | EventKind::RouteResolved => Told::Resolved,
        EventKind::Established => Told::Established(conn.unwrap_or_default().private_data),
        EventKind::Disconnected => Told::Disconnected,
        EventKind::Rejected => Told::Refused,
        EventKind::Unreachable => Told::Failed(libc::ETIMEDOUT),
        EventKind::AddrError | EventKind::RouteError | EventKind::ConnectError => {
            Told::Failed(if status < 0 { -status } else { libc::ECONNABORTED })
        }
        EventKind::DeviceRemoval => Told::Failed(libc::ENETDOWN),
        // Their outcome is known by the return of the call, or concerns nobody here.
        _ => return,
    };
    socket.handle(told);
}

/// Reads what the UDP sockets have. They are part of the next sleep, by their descriptors.
fn read_datagrams(shared: &Arc<Shared>) {
    let sockets: Vec<_> = {
        let mut work = lock(&shared.service.work);
        work.datagrams.retain(|socket| socket.strong_count() != 0);
        work.datagrams.iter().filter_map(Weak::upgrade).collect()
    };
    for socket in sockets {
        for _ in 0..DATAGRAMS_IN_A_ROW {
            if !socket.read_lookup() {
                break;
            }
        }
    }
}

/// Sends the signs of life that are due; when the next one is.
fn keep_alive(shared: &Arc<Shared>) -> Option<Instant> {
    let now = Instant::now();
    let mut due = Vec::new();
    let next = {
        let mut work = lock(&shared.service.work);
        if work.next_alive.is_none_or(|next| now < next) {
            return work.next_alive;
        }
        work.keep_alives.retain(|_, alive| alive.socket.strong_count() != 0);
        for alive in work.keep_alives.values_mut().filter(|alive| alive.next <= now) {
            due.extend(alive.socket.upgrade());
            alive.next = now + alive.every;
        }
        work.next_alive = work.keep_alives.values().map(|alive| alive.next).min();
        work.next_alive
    };
    due.iter().for_each(|socket| socket.keep_alive());
    next
}

/// Ends closed connections that have nothing in flight any more; when the next one's time is over.
/// `fds` becomes the descriptors of the others and of UDP sockets.
fn see_through(shared: &Arc<Shared>, fds: &mut Vec<libc::pollfd>) -> Option<Instant> {
    fds.clear();
    let now = Instant::now();
    let closing = std::mem::take(&mut lock(&shared.service.work).closing);
    let (mut left, mut ended) = (Vec::new(), Vec::new());
    for one in closing {
        one.connection.take_events();
        one.connection.arm();
        match one.connection.is_flushed() || one.until <= now {
            true => ended.push(one),
            false => left.push(one),
        }
    }
    ended.iter().for_each(|one| one.socket.end());
    let mut work = lock(&shared.service.work);
    for one in &ended {
        work.left.remove(&one.socket.key());
    }
    work.closing.append(&mut left);
    let entry = |fd: RawFd| sys::entry(fd, libc::POLLIN);
    fds.extend(work.closing.iter().map(|one| entry(one.connection.fd().as_raw_fd())));
    fds.extend(work.datagrams.iter().filter_map(Weak::upgrade).map(|s| entry(s.number())));
    if !ended.is_empty() {
        shared.service.closed.notify_all();
    }
    work.closing.iter().map(|one| one.until).min()
}
