//! The progress of start-ups, on the worker's thread.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use vernic_engine::iwarp::{
    ConnectError, Handshake, HandshakeState, StartupError, StartupState, Watch,
};
use vernic_engine::{Gid, Transport};
use vernic_io::tcp::{Connection, descriptor_limit};
use vernic_proto::Source;
use vernic_proto::cm::{CmPath, ConnId};
use vernic_wire::cm::CommId;

use super::{
    Arrival, GREETING_SHARE, LISTENER, Listening, MAX_GREETING, Stage, Startup, Streams, Table,
    in_byte, in_words,
};
use crate::device::{Device, Devices};
use crate::event::EventKind;
use crate::param::Depths;
use crate::registry::{Request, RequestKind, StreamEvent, StreamRequest};
use crate::route;
use crate::sync::lock;

/// Most connections that are accepted from a listener per turn; the others wait for the next.
const TURN: usize = 64;

/// How long a listening socket is paused if the process has no descriptor for a waiting connection:
/// other connections go on, and the thread does not spin.
const NO_DESCRIPTOR: Duration = Duration::from_millis(100);

/// Most connections of a listener without a request.
fn max_greeting() -> usize {
    let share = descriptor_limit() / GREETING_SHARE;
    (share.min(MAX_GREETING as u64) as usize).max(1)
}

/// The event of a start-up that did not reach the peer: kinds and statuses are those of the
/// kernel's `rdma_cm` over iWARP.
pub(super) fn unreachable(kind: ErrorKind) -> StreamEvent {
    let (kind, errno) = match kind {
        ErrorKind::ConnectionRefused => (EventKind::Rejected, libc::ECONNREFUSED),
        ErrorKind::ConnectionReset => (EventKind::Rejected, libc::ECONNRESET),
        ErrorKind::TimedOut => (EventKind::Unreachable, libc::ETIMEDOUT),
        ErrorKind::HostUnreachable => (EventKind::ConnectError, libc::EHOSTUNREACH),
        ErrorKind::NetworkUnreachable => (EventKind::ConnectError, libc::ENETUNREACH),
        ErrorKind::AddrInUse => (EventKind::ConnectError, libc::EADDRINUSE),
        ErrorKind::AddrNotAvailable => (EventKind::ConnectError, libc::EADDRNOTAVAIL),
        _ => (EventKind::ConnectError, libc::EIO),
    };
    StreamEvent::Failed { kind, status: -errno, private_data: Vec::new() }
}

/// The event of a start-up that failed, as [`unreachable()`].
fn failed(error: &StartupError) -> StreamEvent {
    let (kind, errno) = match error {
        StartupError::TimedOut => (EventKind::Unreachable, libc::ETIMEDOUT),
        StartupError::Ended(_) => (EventKind::Rejected, libc::ECONNRESET),
        _ => (EventKind::ConnectError, libc::EPROTO),
    };
    StreamEvent::Failed { kind, status: -errno, private_data: Vec::new() }
}

/// The address with an IPv4-mapped IPv6 address turned into the IPv4 one.
fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        ip if ip == addr.ip() => addr,
        ip => SocketAddr::new(ip, addr.port()),
    }
}

impl Streams {
    /// Does what is due. Returns the time until more is due, whatever the descriptor reports;
    /// `None` is for ever.
    pub(crate) fn progress(&self, devices: &Devices) -> Option<Duration> {
        let mut ready = Vec::new();
        if let Some(readiness) = self.readiness.get() {
            // The only possible error is a signal: what is ready comes with the next call.
            let _ = readiness.poll(&mut ready);
        }
        for one in ready {
            match one.key.checked_sub(LISTENER) {
                Some(number) => self.take_connections(devices, number as u32),
                None => self.advance(ConnId(CommId(one.key as u32), 0)),
            }
        }
        let now = Instant::now();
        // Each due start-up is taken once: its next timer is later.
        loop {
            let Some(conn) = lock(&self.table).due.take(now) else { break };
            self.advance(conn);
        }
        self.resume(now);
        let table = lock(&self.table);
        let paused = table.listeners.values().filter_map(|listening| listening.paused);
        let next = paused.chain(table.due.next()).min();
        next.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Watches listening sockets again whose pause is over.
    fn resume(&self, now: Instant) {
        let Ok(readiness) = self.readiness() else { return };
        let mut table = lock(&self.table);
        for (number, listening) in &mut table.listeners {
            if listening.paused.is_some_and(|until| until <= now) {
                let key = LISTENER | u64::from(*number);
                let watched = readiness.watch_listener(&listening.socket, key);
                listening.paused = watched.is_err().then(|| now + NO_DESCRIPTOR);
            }
        }
    }

    /// Makes room for a waiting connection for which the process has no descriptor: closes a
    /// connection without a request, and returns true; if there is none, pauses the listener.
    fn make_room(&self, number: u32, error: &std::io::Error) -> bool {
        let Ok(readiness) = self.readiness() else { return false };
        let mut table = lock(&self.table);
        table.counters.no_descriptor += 1;
        let silent = |listening: &Listening| listening.greeting.len();
        let most = table.listeners.iter().max_by_key(|(_, listening)| silent(listening));
        let most = most.filter(|(_, listening)| silent(listening) > 0).map(|(number, _)| *number);
        if let Some(number) = most {
            table.displace(number);
            return true;
        }
        if let Some(listening) = table.listeners.get_mut(&number) {
            let (port, limit) = (listening.port, descriptor_limit());
            tracing::warn!(
                %error, port, limit,
                "a connection waits at a listener, and cannot be taken: see `ulimit -n`"
            );
            // This cannot fail for a watched socket.
            let _ = readiness.unwatch_listener(&listening.socket);
            listening.paused = Some(Instant::now() + NO_DESCRIPTOR);
        }
        false
    }

    fn take_connections(&self, devices: &Devices, number: u32) {
        let socket = lock(&self.table).listeners.get(&number).map(|one| one.socket.clone());
        let Some(socket) = socket else { return };
        for _ in 0..TURN {
            match socket.accept() {
                Ok(Some(connection)) => self.greet(devices, number, connection),
                Ok(None) => return,
                Err(error) if self.make_room(number, &error) => {}
                Err(_) => return,
            }
        }
    }

    /// Begins the start-up of a connected peer, whose request is to come.
    fn greet(&self, devices: &Devices, listener: u32, connection: Connection) {
        let Ok(local) = connection.local_addr().map(canonical) else { return };
        let device = match devices.with(route::local(local), Transport::Iwarp) {
            Ok(device) => device,
            Err(error) => {
                let mut table = lock(&self.table);
                table.counters.begun += 1;
                table.counters.failed += 1;
                tracing::warn!(%local, %error, "a connection to no device is closed");
                return;
            }
        };
        let Ok(peer) = connection.peer_addr().map(canonical) else { return };
        let most = most(&device);
        let Ok(readiness) = self.readiness() else { return };
        let mut table = lock(&self.table);
        if !table.listeners.contains_key(&listener) {
            return;
        }
        table.counters.begun += 1;
        let conn = ConnId(CommId(table.number()), 0);
        let watch = Watch::shared(readiness, conn.0.value().into());
        let config = self.config(most);
        match Handshake::respond(&device.context, connection, config, watch) {
            Ok(handshake) => {
                let key = device.key();
                let arrival = (Source::of(Gid::from_ip(peer.ip())), table.counters.begun);
                let stage = Stage::Greeting { listener, device, arrival };
                table.insert(conn, Startup { handshake, device: key, stage });
                table.queue(listener, conn, arrival);
            }
            // The engine has counted this, and logs it, at most once a second.
            Err(ConnectError::NotAllowed(_)) => table.counters.failed += 1,
            Err(error) => {
                table.counters.failed += 1;
                tracing::warn!(%local, %error, "a connection cannot be watched and is closed");
            }
        }
    }

    /// Advances a start-up as far as possible.
    fn advance(&self, conn: ConnId) {
        let mut table = lock(&self.table);
        let Some(startup) = table.startups.get_mut(&conn) else { return };
        let state = startup.handshake.poll();
        table.arm(conn);
        let Some(startup) = table.startups.get_mut(&conn) else { return };
        let device = startup.device;
        match (&startup.stage, state) {
            (Stage::Asking, state) => {
                let event = match state {
                    HandshakeState::Startup(StartupState::Agreed) => {
                        startup.stage = Stage::Replied;
                        self.registry.push_stream(device, conn, StreamEvent::Replied);
                        return;
                    }
                    HandshakeState::Unreachable(kind) => unreachable(kind),
                    HandshakeState::Startup(StartupState::Failed(error)) => failed(&error),
                    HandshakeState::Startup(StartupState::Rejected) => {
                        let private_data = startup.handshake.private().to_vec();
                        // A rejection by siw looks like this.
                        let (kind, status) = (EventKind::Rejected, -libc::ECONNRESET);
                        StreamEvent::Failed { kind, status, private_data }
                    }
                    _ => return,
                };
                let gone = table.remove(conn);
                drop(table);
                drop(gone);
                self.registry.push_stream(device, conn, event);
            }
            (Stage::Greeting { .. }, HandshakeState::Startup(StartupState::Asked)) => {
                self.ask(&mut table, conn);
            }
            (Stage::Greeting { listener, arrival, .. }, state) if state.is_settled() => {
                tracing::debug!(why = in_words(&state), "a connection came to nothing");
                let (listener, arrival) = (*listener, *arrival);
                table.counters.failed += 1;
                table.dequeue(listener, arrival);
                table.remove(conn);
            }
            (Stage::Answering { .. }, state) if state.is_settled() => {
                if let Some(startup) = table.remove(conn) {
                    drop(table);
                    self.answered(startup, conn, &state);
                }
            }
            (Stage::Refusing, state) if state.is_settled() => {
                table.remove(conn);
            }
            _ => {}
        }
    }

    /// The acceptance was sent, or sending it failed.
    fn answered(&self, startup: Startup, conn: ConnId, state: &HandshakeState) {
        let Startup { handshake, device, stage: Stage::Answering { qp, notifier } } = startup
        else {
            return;
        };
        let event = match state {
            HandshakeState::Startup(StartupState::Agreed) => {
                match self.bind(handshake, &qp, notifier) {
                    Ok(()) => return,
                    Err(error) => {
                        tracing::warn!(%error, "an accepted connection is closed");
                        let (kind, status) = (EventKind::ConnectError, -error.errno());
                        StreamEvent::Failed { kind, status, private_data: Vec::new() }
                    }
                }
            }
            HandshakeState::Startup(StartupState::Failed(error)) => failed(error),
            _ => failed(&StartupError::Local),
        };
        self.registry.push_stream(device, conn, event);
    }

    /// Queues the request of a peer for its listener, or rejects it.
    fn ask(&self, table: &mut Table, conn: ConnId) {
        let Some(startup) = table.startups.get_mut(&conn) else { return };
        let Stage::Greeting { listener, device, arrival } =
            std::mem::replace(&mut startup.stage, Stage::Asked)
        else {
            return;
        };
        let request = describe(&startup.handshake, &device);
        table.dequeue(listener, arrival);
        let admitted = match (table.listeners.get(&listener), request) {
            (Some(Listening { id, port, backlog, .. }), Some((local, peer, kind))) => {
                let path = CmPath::new(Gid::from_ip(local.ip()), Gid::from_ip(peer.ip()));
                let (local, kind) = (route::with_port(local, *port), RequestKind::Stream(kind));
                let make = |events| Request {
                    events,
                    device,
                    conn,
                    path,
                    is_native: false,
                    local,
                    peer,
                    kind,
                };
                self.registry.request_stream(*id, *backlog, make)
            }
            _ => false,
        };
        if admitted {
            table.counters.asked += 1;
            return;
        }
        table.counters.refused += 1;
        let Some(startup) = table.startups.get_mut(&conn) else { return };
        startup.stage = Stage::Refusing;
        // A rejection without private data always fits.
        let _ = startup.handshake.reject(&[]);
        match startup.handshake.state().is_settled() {
            true => drop(table.remove(conn)),
            false => table.arm(conn),
        }
    }
}

/// The addresses of both sides, and the peer's request.
fn describe(
    handshake: &Handshake,
    device: &Device,
) -> Option<(SocketAddr, SocketAddr, StreamRequest)> {
    let local = canonical(handshake.local_addr().ok()?);
    let peer = canonical(handshake.peer_addr().ok()?);
    let most = most(device);
    // The peer's IRD limits this side's ORD.
    let depths = handshake.peer_depths().map_or(most, |(ird, ord)| Depths {
        ird: in_byte(ord).min(most.ird),
        ord: in_byte(ird).min(most.ord),
    });
    let private_data = handshake.private().to_vec();
    Some((local, peer, StreamRequest { private_data, depths }))
}

/// The depths that the device allows.
fn most(device: &Device) -> Depths {
    let attr = device.context.device_attr();
    Depths { ird: attr.max_qp_rd_atom, ord: attr.max_qp_init_rd_atom }
}

impl Table {
    /// Adds a connection without a request, and closes one if there are too many.
    fn queue(&mut self, listener: u32, conn: ConnId, (source, age): Arrival) {
        let Some(listening) = self.listeners.get_mut(&listener) else { return };
        listening.greeting.add(source, age, conn);
        if listening.greeting.len() > max_greeting() {
            self.displace(listener);
        }
    }

    /// Closes a connection of a listener without a request: the oldest of the address that has
    /// most.
    fn displace(&mut self, listener: u32) {
        let listening = self.listeners.get(&listener);
        let Some(conn) = listening.and_then(|listening| listening.greeting.largest()) else {
            return;
        };
        let gone = self.remove(conn);
        if let Some(Startup { stage: Stage::Greeting { arrival, .. }, .. }) = gone {
            self.counters.displaced += 1;
            self.dequeue(listener, arrival);
        }
    }

    fn dequeue(&mut self, listener: u32, (source, age): Arrival) {
        if let Some(listening) = self.listeners.get_mut(&listener) {
            listening.greeting.remove(source, age);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use vernic_engine::{Config, QpType, TransportChoice};
    use vernic_io::tcp::Bound;
    use vernic_wire::cm::PortSpace;

    use super::*;
    use crate::Manager;

    #[test]
    fn the_oldest_of_too_many_connections_goes() {
        let config = Config { transport: TransportChoice::Iwarp, ..Config::default() };
        let manager = Manager::new(config);
        let id = manager.create_id(None, PortSpace::TCP, QpType::Rc).unwrap();
        id.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
        id.listen(1).unwrap();
        let connect = |_| TcpStream::connect(id.local_addr().unwrap()).unwrap();
        let mut streams: Vec<_> = (0..MAX_GREETING + 1).map(connect).collect();
        // Reads the end of the stream; nothing else would end this.
        assert_eq!(std::io::Read::read(&mut streams[0], &mut [0]).unwrap(), 0);
        let until = Instant::now() + Duration::from_secs(20);
        while manager.startup_counters().begun < streams.len() as u64 {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
        let counters = manager.startup_counters();
        assert_eq!((counters.displaced, counters.failed), (1, 0));
        let table = lock(&id.shared.streams.table);
        assert_eq!(table.startups.len(), MAX_GREETING);
        drop(table);
        id.destroy();
        let table = lock(&id.shared.streams.table);
        assert!(table.startups.is_empty() && table.listeners.is_empty());
    }

    #[test]
    fn connections_of_one_address_that_ask_nothing_displace_no_others() {
        let config = Config { transport: TransportChoice::Iwarp, ..Config::default() };
        let manager = Manager::new(config);
        let id = manager.create_id(None, PortSpace::TCP, QpType::Rc).unwrap();
        id.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
        id.listen(1).unwrap();
        let to = id.local_addr().unwrap();
        let from = |ip: &str| {
            let socket = Bound::new(&format!("{ip}:0").parse().unwrap(), true, false).unwrap();
            socket.connect(&to).unwrap()
        };
        let until = Instant::now() + Duration::from_secs(20);
        let begun = |count| {
            while manager.startup_counters().begun < count {
                assert!(Instant::now() < until);
                std::thread::yield_now();
            }
        };
        let _first = from("127.0.0.2");
        begun(1);
        let _flood: Vec<_> = (0..3 * MAX_GREETING).map(|_| from("127.0.0.3")).collect();
        begun(1 + 3 * MAX_GREETING as u64);
        let _last = from("127.0.0.4");
        begun(2 + 3 * MAX_GREETING as u64);
        let table = lock(&id.shared.streams.table);
        let peers = table.startups.values().map(|startup| startup.handshake.peer_addr().unwrap());
        let mut peers: Vec<_> = peers.map(|peer| peer.ip().to_string()).collect();
        peers.sort();
        assert_eq!(peers, ["127.0.0.2", "127.0.0.3", "127.0.0.3", "127.0.0.4"]);
        assert_eq!(table.due.len(), peers.len(), "one time for each");
        drop(table);
        id.destroy();
        let table = lock(&id.shared.streams.table);
        assert_eq!((table.startups.len(), table.due.len()), (0, 0));
    }

    #[test]
    fn failures_look_as_the_kernels_do() {
        let seen = |event: &StreamEvent| match event {
            StreamEvent::Failed { kind, status, .. } => (*kind, -status),
            other => panic!("{other:?}"),
        };
        let late = (EventKind::Unreachable, libc::ETIMEDOUT);
        assert_eq!(seen(&unreachable(ErrorKind::TimedOut)), late);
        assert_eq!(seen(&failed(&StartupError::TimedOut)), late);
        let refused = (EventKind::Rejected, libc::ECONNREFUSED);
        assert_eq!(seen(&unreachable(ErrorKind::ConnectionRefused)), refused);
        let nowhere = (EventKind::ConnectError, libc::ENETUNREACH);
        assert_eq!(seen(&unreachable(ErrorKind::NetworkUnreachable)), nowhere);
        let wrong = failed(&StartupError::NotEnhanced);
        assert_eq!(seen(&wrong), (EventKind::ConnectError, libc::EPROTO));
    }
}
