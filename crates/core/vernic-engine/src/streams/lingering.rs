//! Lingering connections: TCP connections that no queue pair uses any more, but that still deliver
//! what was sent.
//!
//! A socket that is closed while received bytes are unread resets the connection (RFC 9293, 3.10.4;
//! RFC 2525, 2.17). The reset destroys what the peer has not received yet. That may be requests
//! which have completed, because a request completes when the socket has taken its bytes. So a
//! connection that its queue pair gives up goes on here: it sends what is left and closes its
//! sending half. Then it reads and discards what comes, until the peer has closed, too.
//!
//! Two cases delay this by up to a second each. If the peer may not be ready for the end of the
//! connection, its sending half is closed only when the peer has answered ([`Hold`]). If the peer
//! has not replied yet to the request for a connection, its reply is awaited first
//! ([`PendingStartup`]).
//!
//! ```text
//!    Streams --remove, close, abandon--> Orphans -- the peer closed, or it is lost --> closed
//!                                           \------ too long, too many bytes --------> reset
//!                                            \----- too many connections: see `make_room`
//! ```
//! Called by the lane ([`LingeringConnections`]), and when a device closes ([`settle`]). Limits:
//! [`Limits`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use vernic_io::tcp::{Connection, Interest, Ready, Received, Sent};
use vernic_proto::Time;
use vernic_proto::iwarp::{Agreed, Greeting};

use super::pending_startup::{Answer, PendingStartup};
use super::ready::Watch;
use crate::counters::StreamCounts;

/// Bounds on what lingering connections may cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Time in nanoseconds after which a lingering connection is given up.
    pub(super) nanos: u64,
    /// Bytes of the peer that are discarded for one connection before it is reset.
    pub(super) bytes: u64,
    /// Largest number of lingering connections. Beyond that, the one is removed that loses least by
    /// it.
    pub(super) count: usize,
}

/// The limits of a device. Half a minute allows several repetitions on a path that loses packets.
/// 256 MiB is what a fast peer sends on a long path until it learns that the connection ends. 256
/// lingering connections hold 128 MiB, because each has at most the bytes of one system call
/// (`transmit.rs`) left to send.
pub(super) const LIMITS: Limits = Limits { nanos: 30_000_000_000, bytes: 256 << 20, count: 256 };

/// The lowest key of a lingering connection in epoll; lower keys are queue pair numbers.
const KEYS: u64 = 1 << 32;

/// How long a device that is closed waits for its peers to acknowledge what was sent.
pub(crate) const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// How long a process that ends waits for its peers to acknowledge what was sent. After that, the
/// kernel goes on sending what is in the sockets, but resets a connection when its peer sends
/// something.
pub(crate) const EXIT_PATIENCE: Duration = Duration::from_millis(500);

/// Time in nanoseconds for which the end of a connection waits until the peer answers the
/// ready-to-receive indication.
const HOLD_NANOS: u64 = 1_000_000_000;

/// Time in nanoseconds until the ready-to-receive indication is repeated for the first time. Each
/// further pause is four times as long as the one before.
const REMIND_NANOS: u64 = 10_000_000;

/// Pause between two polls while a device closes. Polling is needed because acknowledgements cause
/// no event.
const CLOSE_PAUSE: Duration = Duration::from_millis(1);

/// A lingering connection: it has no queue pair any more, but delivers what was sent.
pub(crate) struct LingeringConnection {
    connection: Connection,
    /// Bytes that the socket had no room for yet.
    out: Vec<u8>,
    /// Whether the sending half is closed.
    is_shut: bool,
    /// Whether nothing more can be received: the peer has closed, or the connection is lost.
    ended: bool,
    /// Bytes of the peer that may still be discarded.
    bytes_left: u64,
    hold: Option<Hold>,
    /// The start-up that the peer has not replied to; `None` if the start-up is complete.
    pending_startup: Option<PendingStartup>,
}

/// A delay before a connection that has sent everything is closed, because the peer has not
/// answered the ready-to-receive indication, so it may not be ready for the end.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    /// Bytes that are sent to repeat the indication, so that the peer's program looks at the
    /// connection.
    again: Vec<u8>,
    /// Bytes that are sent before the connection is closed.
    last: Vec<u8>,
    /// The time of the next repetition, and the pause before it.
    next: (Time, u64),
    until: Time,
}

impl Hold {
    /// Returns the delay for a connection whose ready-to-receive indication was sent; `last` is
    /// sent after the delay. `None` if the peer sends no answer to this kind of indication.
    pub(crate) fn new(agreed: &Agreed, last: Vec<u8>, now: Time) -> Option<Self> {
        let Greeting { again, .. } = Greeting::of(agreed)?;
        let next = (now + REMIND_NANOS, REMIND_NANOS);
        Some(Self { again, last, next, until: now + HOLD_NANOS })
    }

    fn deadline(&self) -> Time {
        self.next.0.min(self.until)
    }
}

/// The progress of a lingering connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Both ends have closed the connection.
    Over,
    /// The connection is lost, or as many bytes of the peer were discarded as the limits allow.
    Useless,
    Waits,
}

impl LingeringConnection {
    pub(super) fn new(connection: Connection, out: Vec<u8>, ended: bool, limits: &Limits) -> Self {
        let bytes_left = limits.bytes;
        let (is_shut, hold, pending_startup) = Default::default();
        Self { connection, out, is_shut, ended, bytes_left, hold, pending_startup }
    }

    /// Makes the end of the connection wait for an answer to the ready-to-receive indication.
    pub(super) fn held(self, hold: Option<Hold>) -> Self {
        Self { hold, ..self }
    }

    /// Makes the connection wait for the peer's reply to the start-up.
    pub(super) fn asked(self, pending_startup: PendingStartup) -> Self {
        Self { pending_startup: Some(pending_startup), ..self }
    }

    /// Sends what is left, and discards what has come. Reads at most one buffer; more is left to
    /// the next call.
    fn go_on(&mut self, buffer: &mut [u8], now: Time) -> Step {
        let mut heard = 0;
        if !self.ended {
            match self.connection.recv(buffer) {
                Received::Bytes(len) => {
                    heard = len;
                    self.bytes_left = self.bytes_left.saturating_sub(len as u64);
                    if self.bytes_left == 0 {
                        return Step::Useless;
                    }
                }
                Received::Nothing => {}
                Received::End => self.ended = true,
                Received::Lost(_) => return Step::Useless,
            }
        }
        if self.pending_startup.is_none() {
            self.wait_for_answer(heard > 0 || self.ended, now);
        } else if !self.wait_for_reply(&buffer[..heard], now) {
            return Step::Useless;
        }
        while !self.out.is_empty() {
            match self.connection.send(&self.out) {
                Sent::Bytes(len) => drop(self.out.drain(..len)),
                Sent::Full => break,
                Sent::Lost(_) => return Step::Useless,
            }
        }
        let waits = self.hold.is_some() || self.pending_startup.is_some();
        if self.out.is_empty() && !waits && !self.is_shut {
            self.is_shut = true;
            self.connection.shutdown();
        }
        if self.ended && self.is_shut { Step::Over } else { Step::Waits }
    }

    /// Handles bytes of the peer's reply. Returns false if there is nothing to send or to wait for.
    fn wait_for_reply(&mut self, bytes: &[u8], now: Time) -> bool {
        let Some(pending_startup) = &mut self.pending_startup else { return true };
        match pending_startup.hear(bytes, self.ended, now) {
            Answer::NotYet => return true,
            Answer::Never => return false,
            Answer::Refused(last) => self.out = last,
            Answer::Accepted(agreed) => {
                self.out = Greeting::of(&agreed).map(|greeting| greeting.first).unwrap_or_default();
                self.hold = Hold::new(&agreed, Vec::new(), now);
            }
        }
        self.pending_startup = None;
        true
    }

    /// Ends the delay if the peer has answered or the time is over. Otherwise repeats the
    /// indication if it is time.
    fn wait_for_answer(&mut self, is_heard: bool, now: Time) {
        let Some(hold) = &mut self.hold else { return };
        if is_heard || now >= hold.until {
            self.out.append(&mut hold.last);
            self.hold = None;
        } else if now >= hold.next.0 {
            let pause = 4 * hold.next.1;
            hold.next = (now + pause, pause);
            if self.out.is_empty() {
                self.out.extend_from_slice(&hold.again);
            }
        }
    }

    /// Returns the time at which a connection that waits for the peer has something to do.
    fn deadline(&self) -> Option<Time> {
        let reply = self.pending_startup.as_ref().map(PendingStartup::deadline);
        reply.or_else(|| self.hold.as_ref().map(Hold::deadline))
    }

    /// Whether closing the connection now loses nothing that was sent.
    fn is_settled(&self) -> bool {
        self.pending_startup.is_some() || self.is_shut && self.connection.is_acknowledged()
    }

    fn wants(&self) -> Interest {
        Interest { receive: !self.ended, send: !self.out.is_empty() }
    }
}

/// A lingering connection that epoll watches.
struct Watched {
    key: u64,
    left: LingeringConnection,
    interest: Interest,
    until: Time,
}

/// The lingering connections of a device.
pub(super) struct LingeringConnections {
    limits: Limits,
    next: u64,
    /// The connections, oldest first, so that keys and end times are in ascending order.
    list: VecDeque<Watched>,
    /// The earliest time at which a connection that waits for the peer has something to do.
    due: Option<Time>,
}

impl LingeringConnections {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, next: KEYS, list: VecDeque::new(), due: None }
    }

    /// Whether a key in epoll belongs to a lingering connection.
    pub(super) fn owns(key: u64) -> bool {
        key >= KEYS
    }

    /// Takes over a connection. `watched` is the key and the interest with which epoll watches it;
    /// `None` if epoll does not.
    pub(super) fn adopt(
        &mut self,
        watch: &mut Watch,
        buffer: &mut [u8],
        counts: &StreamCounts,
        watched: Option<(u64, Interest)>,
        mut left: LingeringConnection,
        now: Time,
    ) {
        if let Some((key, interest)) = watched {
            watch.remove(key, interest);
        }
        if left.go_on(buffer, now) != Step::Waits {
            return;
        }
        let (key, interest) = (self.next, left.wants());
        self.next += 1;
        watch.rename(&left.connection, key, interest, watched.is_some());
        let until = now + self.limits.nanos;
        let one = Watched { key, left, interest, until };
        self.due = [self.due, one.left.deadline()].into_iter().flatten().min();
        self.list.push_back(one);
        if self.list.len() > self.limits.count {
            self.make_room(watch, counts);
        }
    }

    /// Removes one connection because there is one too many. In order of preference:
    ///
    /// 1. one that loses nothing: its peer has acknowledged everything, or has not replied to the
    ///    start-up;
    /// 2. one that has handed all its bytes to the socket: the kernel goes on sending them after
    ///    the close, unless the peer sends something, which resets the connection;
    /// 3. the oldest, which is reset.
    fn make_room(&mut self, watch: &mut Watch, counts: &StreamCounts) {
        let is_whole = |one: &Watched| one.left.is_shut;
        let at = self.list.iter().position(|one| one.left.is_settled());
        if let Some(at) = at.or_else(|| self.list.iter().position(is_whole)) {
            if let Some(Watched { key, left, interest, .. }) = self.list.remove(at) {
                watch.remove(key, interest);
                counts.left_to_system.add(u64::from(!left.connection.is_acknowledged()));
            }
            return;
        }
        self.give_up(watch, counts);
    }

    /// Gives up the oldest connection. Resets it unless its peer has acknowledged everything.
    fn give_up(&mut self, watch: &mut Watch, counts: &StreamCounts) {
        let Some(Watched { key, left, interest, .. }) = self.list.pop_front() else { return };
        watch.remove(key, interest);
        if !(left.is_shut && left.connection.is_acknowledged()) {
            counts.reset_unacknowledged.add(1);
            left.connection.reset();
        }
    }

    /// Handles that a lingering connection is ready.
    pub(super) fn handle_ready(
        &mut self,
        watch: &mut Watch,
        buffer: &mut [u8],
        ready: &Ready,
        now: Time,
    ) {
        if let Ok(at) = self.list.binary_search_by_key(&ready.key, |one| one.key) {
            self.go_on(watch, buffer, at, ready.broken, now);
        }
    }

    /// Continues the connection at index `at` of the list, and removes it if it is done. It is also
    /// done if it is `broken` and nothing more can be received.
    fn go_on(&mut self, watch: &mut Watch, buffer: &mut [u8], at: usize, broken: bool, now: Time) {
        let Watched { key, left, interest, .. } = &mut self.list[at];
        if left.go_on(buffer, now) == Step::Waits && !(left.ended && broken) {
            let wants = left.wants();
            if wants != *interest {
                watch.change(&left.connection, *key, *interest, wants);
                *interest = wants;
            }
            self.due = [self.due, left.deadline()].into_iter().flatten().min();
            return;
        }
        watch.remove(*key, *interest);
        self.list.remove(at);
    }

    /// Gives up connections that have lingered for too long, and continues those that wait for the
    /// peer.
    pub(super) fn handle_timeout(
        &mut self,
        watch: &mut Watch,
        buffer: &mut [u8],
        counts: &StreamCounts,
        now: Time,
    ) {
        while self.list.front().is_some_and(|one| one.until <= now) {
            self.give_up(watch, counts);
        }
        if self.due.is_some_and(|due| due <= now) {
            for at in (0..self.list.len()).rev() {
                if self.list[at].left.deadline().is_some_and(|deadline| deadline <= now) {
                    self.go_on(watch, buffer, at, false, now);
                }
            }
            self.due = self.list.iter().filter_map(|one| one.left.deadline()).min();
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        [self.due, self.list.front().map(|one| one.until)].into_iter().flatten().min()
    }

    /// Removes all lingering connections, and returns them to be finished by [`settle`].
    pub(super) fn take(&mut self) -> impl Iterator<Item = LingeringConnection> + use<> {
        std::mem::take(&mut self.list).into_iter().map(|one| one.left)
    }
}

/// Waits until the peers have acknowledged what was sent to them, but at most for `patience`.
/// Called when the device closes or its process ends. Bytes that were acknowledged are not lost by
/// a reset.
pub(crate) fn settle(
    mut lingering: Vec<LingeringConnection>,
    clock: impl Fn() -> Time,
    patience: Duration,
) {
    let mut buffer = vec![0; 1 << 16];
    let until = Instant::now() + patience;
    loop {
        lingering.retain_mut(|left| {
            let waits = left.go_on(&mut buffer, clock()) == Step::Waits;
            waits && !(left.is_shut && left.connection.is_acknowledged())
        });
        if lingering.is_empty() || Instant::now() >= until {
            break;
        }
        std::thread::sleep(CLOSE_PAUSE);
    }
    if !lingering.is_empty() {
        let count = lingering.len();
        tracing::warn!(
            count,
            "connections are closed though their peers have not acknowledged all that was sent"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};

    use vernic_io::tcp::Listener;
    use vernic_proto::iwarp::{Startup, StartupConfig};

    use super::*;

    const FEW: Limits = Limits { nanos: 1000, bytes: 1 << 20, count: 2 };

    struct Fixture {
        watch: Watch,
        lingering: LingeringConnections,
        buffer: Vec<u8>,
        counts: StreamCounts,
        /// The start-up that the next connection waits for.
        asked: Option<PendingStartup>,
    }

    impl Fixture {
        fn new() -> Self {
            let (watch, lingering) = (Watch::new().unwrap(), LingeringConnections::new(FEW));
            let (counts, asked) = Default::default();
            Self { watch, lingering, buffer: vec![0; 1 << 16], counts, asked }
        }

        /// Makes a lingering connection with bytes to send, and returns its peer.
        fn linger(&mut self, key: u64, out: &[u8], now: Time) -> TcpStream {
            let home = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
            let listener = Listener::bind(&home).unwrap();
            let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let connection = loop {
                if let Some(connection) = listener.accept().unwrap() {
                    break connection;
                }
                std::thread::yield_now();
            };
            let interest = self.watch.add(&connection, key).unwrap();
            let left = LingeringConnection::new(connection, out.to_vec(), false, &FEW);
            let left = LingeringConnection { pending_startup: self.asked.take(), ..left };
            let Self { watch, lingering, buffer, counts, .. } = self;
            lingering.adopt(watch, buffer, counts, Some((key, interest)), left, now);
            peer
        }

        /// Handles readiness until only `count` connections are left.
        fn until(&mut self, count: usize) {
            let until = Instant::now() + Duration::from_secs(20);
            let mut ready = Vec::new();
            while self.lingering.list.len() > count {
                assert!(Instant::now() < until, "{} are left", self.lingering.list.len());
                self.watch.poll(true, &mut ready);
                for one in ready.drain(..) {
                    assert!(LingeringConnections::owns(one.key));
                    let Self { watch, lingering, buffer, .. } = self;
                    lingering.handle_ready(watch, buffer, &one, Time(0));
                }
            }
        }
    }

    #[test]
    fn all_arrives_though_the_peer_goes_on_sending_and_then_it_is_over() {
        let mut fixture = Fixture::new();
        let out = vec![7; 8 << 20];
        let mut peer = fixture.linger(5, &out, Time(0));
        let mut writer = peer.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            writer.write_all(&[1; 100_000]).unwrap();
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all
        });
        fixture.until(0);
        assert!(thread.join().unwrap() == out);
        assert_eq!(fixture.lingering.next_deadline(), None);
    }

    #[test]
    fn one_that_sends_without_end_or_never_closes_is_given_up() {
        let mut fixture = Fixture::new();
        let mut peer = fixture.linger(5, b"end", Time(0));
        let thread = std::thread::spawn(move || while peer.write_all(&[1; 1 << 16]).is_ok() {});
        fixture.until(0);
        thread.join().unwrap();
        let _silent = fixture.linger(6, b"end", Time(10));
        let Fixture { watch, lingering, buffer, counts, .. } = &mut fixture;
        lingering.handle_timeout(watch, buffer, counts, Time(1009));
        assert_eq!(lingering.list.len(), 1);
        lingering.handle_timeout(watch, buffer, counts, Time(1010));
        assert!(lingering.list.is_empty());
    }

    /// More bytes than a socket takes while its peer reads nothing.
    const MUCH: usize = 64 << 20;

    #[test]
    fn of_too_many_one_goes_whose_peer_has_everything() {
        let mut fixture = Fixture::new();
        let mut slow = fixture.linger(1, &vec![7; MUCH], Time(1));
        let quick: Vec<_> = (2..5).map(|n| fixture.linger(n, b"end", Time(n))).collect();
        // The system determines which of these have been acknowledged by then.
        let kept: Vec<_> = fixture.lingering.list.iter().map(|one| one.until).collect();
        assert_eq!((kept.len(), kept[0]), (2, Time(1001)));
        assert_eq!(fixture.counts.snapshot().reset_unacknowledged, 0);
        // The bytes sent to these peers arrive, and the connections end without a reset.
        for mut peer in quick {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            assert_eq!(all, b"end");
        }
        let thread = std::thread::spawn(move || slow.read_to_end(&mut Vec::new()).unwrap());
        fixture.until(0);
        assert_eq!(thread.join().unwrap(), MUCH);
    }

    #[test]
    fn of_too_many_one_goes_that_a_peer_was_only_asked_for() {
        let mut fixture = Fixture::new();
        let _slow = fixture.linger(1, &vec![7; MUCH], Time(1));
        let mut startup = Startup::initiate(StartupConfig::default(), &[], Time(2)).unwrap();
        startup.handle_sent(startup.transmit().len());
        fixture.asked = PendingStartup::new(startup, Time(2));
        assert!(fixture.asked.is_some());
        let _asked = fixture.linger(2, b"", Time(2));
        let _other = fixture.linger(3, &vec![7; MUCH], Time(3));
        let kept: Vec<_> = fixture.lingering.list.iter().map(|one| one.until).collect();
        assert_eq!(kept, [Time(1001), Time(1003)]);
        assert_eq!(fixture.counts.snapshot().reset_unacknowledged, 0);
    }

    #[test]
    fn of_too_many_that_their_sockets_do_not_have_whole_the_oldest_is_reset_and_counted() {
        let mut fixture = Fixture::new();
        let mut peers: Vec<_> =
            (0..3).map(|n| fixture.linger(n, &vec![7; MUCH], Time(n))).collect();
        let kept: Vec<_> = fixture.lingering.list.iter().map(|one| one.until).collect();
        assert_eq!(kept, [Time(1001), Time(1002)]);
        let counts = fixture.counts.snapshot();
        assert_eq!((counts.reset_unacknowledged, counts.left_to_system), (1, 0));
        peers.remove(0).read_to_end(&mut Vec::new()).unwrap_err();
    }

    #[test]
    fn a_device_that_closes_waits_until_its_peers_have_what_they_were_sent() {
        let mut fixture = Fixture::new();
        let out = vec![7; 8 << 20];
        let mut peer = fixture.linger(5, &out, Time(0));
        let thread = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all
        });
        settle(fixture.lingering.take().collect(), || Time(0), CLOSE_PATIENCE);
        assert!(thread.join().unwrap() == out);
    }
}
