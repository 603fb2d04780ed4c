//! Connections that no queue pair has any more, until what they were given has arrived.
//!
//! A socket that is closed while bytes of the peer are unread resets the connection (RFC 9293,
//! 3.10.4; RFC 2525, 2.17), and with it goes what the peer has not received: requests among it that
//! were completed, since a request is complete when the socket has taken it. So a connection whose
//! queue pair lets go of it says what is left, closes its sending half, and is read and thrown away
//! until the peer has closed, too. Where the peer may not be in full operation yet, the end waits
//! until something comes of it, a second at most ([`Hold`]); and before that for its reply, a
//! second at most, where it was asked for a connection that nobody wants any more ([`Unanswered`]).
//!
//! ```text
//!   Streams --remove, close, abandon--> Orphans -- the peer closed, or it is lost --> closed
//!                                          \------ too long, too many bytes --------> reset
//!                                           \----- too many orphans: an acknowledged one goes,
//!                                                  else one that the socket has whole,
//!                                                  else the oldest is reset
//! ```
//! Called by the lane ([`Orphans`]), and when a device closes ([`settle`]). Limits: [`Limits`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use vernic_io::tcp::{Connection, Interest, Ready, Received, Sent};
use vernic_proto::Time;
use vernic_proto::iwarp::{Agreed, Greeting};

use super::ready::Watch;
use super::unanswered::{Answer, Unanswered};
use crate::counters::StreamCounts;

/// What orphans may cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Nanoseconds that one lives.
    pub(super) nanos: u64,
    /// Bytes of the peer that are thrown away for one.
    pub(super) bytes: u64,
    /// How many there are; beyond that the one goes that loses least by it.
    pub(super) count: usize,
}

/// Half a minute: several repetitions on a path that loses packets. 256 MiB: what a fast peer sends
/// until it hears of the end, on a long path. 256 orphans, each with a call's bytes to send at
/// most: 128 MiB.
pub(super) const LIMITS: Limits = Limits { nanos: 30_000_000_000, bytes: 256 << 20, count: 256 };

/// Keys of orphans among what is watched: above the numbers of queue pairs.
const KEYS: u64 = 1 << 32;

/// How long a device that closes waits for peers to acknowledge what they were sent.
pub(crate) const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// How long a process that ends does. What their sockets have the system sends on, though a peer
/// that says something more has it reset them.
pub(crate) const EXIT_PATIENCE: Duration = Duration::from_millis(500);

/// Nanoseconds that the end waits for an answer to the first word.
const HOLD_NANOS: u64 = 1_000_000_000;

/// Nanoseconds after which a peer is reminded of the first word; each time it takes four times as
/// long.
const REMIND_NANOS: u64 = 10_000_000;

/// Pause between two looks meanwhile: nothing tells of acknowledgements.
const CLOSE_PAUSE: Duration = Duration::from_millis(1);

/// A connection that nobody has.
pub(crate) struct Orphan {
    connection: Connection,
    /// Made and not taken by the socket.
    out: Vec<u8>,
    /// The sending half is closed.
    is_shut: bool,
    /// Nothing more comes.
    ended: bool,
    /// Bytes that may still be thrown away.
    bytes_left: u64,
    hold: Option<Hold>,
    /// The peer was asked for the connection, and its reply is not here.
    unanswered: Option<Unanswered>,
}

/// Why an orphan does not end though it has said all: the peer has not answered the first word, and
/// may not be prepared for an end.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    /// What is said now and then, so that it looks.
    again: Vec<u8>,
    /// What is said last.
    last: Vec<u8>,
    /// When it is reminded next, and how long that is after the last time.
    next: (Time, u64),
    until: Time,
}

impl Hold {
    /// Of a connection whose first word was sent, and what is to be said last; none where the first
    /// word is not answered.
    pub(crate) fn new(agreed: &Agreed, last: Vec<u8>, now: Time) -> Option<Self> {
        let Greeting { again, .. } = Greeting::of(agreed)?;
        let next = (now + REMIND_NANOS, REMIND_NANOS);
        Some(Self { again, last, next, until: now + HOLD_NANOS })
    }

    fn deadline(&self) -> Time {
        self.next.0.min(self.until)
    }
}

/// How far an orphan is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Both ends are done.
    Over,
    /// The connection is lost, or the peer had its share.
    Useless,
    Waits,
}

impl Orphan {
    pub(super) fn new(connection: Connection, out: Vec<u8>, ended: bool, limits: &Limits) -> Self {
        let bytes_left = limits.bytes;
        let (is_shut, hold, unanswered) = Default::default();
        Self { connection, out, is_shut, ended, bytes_left, hold, unanswered }
    }

    /// Its end waits for an answer.
    pub(super) fn held(self, hold: Option<Hold>) -> Self {
        Self { hold, ..self }
    }

    /// Its end waits for the reply first.
    pub(super) fn asked(self, unanswered: Unanswered) -> Self {
        Self { unanswered: Some(unanswered), ..self }
    }

    /// Says what is left, and throws away what came: a buffer at most, the rest is for the next
    /// call.
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
        if self.unanswered.is_none() {
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
        let waits = self.hold.is_some() || self.unanswered.is_some();
        if self.out.is_empty() && !waits && !self.is_shut {
            self.is_shut = true;
            self.connection.shutdown();
        }
        if self.ended && self.is_shut { Step::Over } else { Step::Waits }
    }

    /// Sees what came of the reply; false if there is nothing to say or to wait for.
    fn wait_for_reply(&mut self, bytes: &[u8], now: Time) -> bool {
        let Some(unanswered) = &mut self.unanswered else { return true };
        match unanswered.hear(bytes, self.ended, now) {
            Answer::NotYet => return true,
            Answer::Never => return false,
            Answer::Refused(last) => self.out = last,
            Answer::Accepted(agreed) => {
                self.out = Greeting::of(&agreed).map(|greeting| greeting.first).unwrap_or_default();
                self.hold = Hold::new(&agreed, Vec::new(), now);
            }
        }
        self.unanswered = None;
        true
    }

    /// Sees whether there is anything to wait for, and reminds the peer.
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

    /// When something is due while it waits for an answer.
    fn deadline(&self) -> Option<Time> {
        let reply = self.unanswered.as_ref().map(Unanswered::deadline);
        reply.or_else(|| self.hold.as_ref().map(Hold::deadline))
    }

    /// Nothing that was said over it is lost if it is closed.
    fn is_settled(&self) -> bool {
        self.unanswered.is_some() || self.is_shut && self.connection.is_acknowledged()
    }

    fn wants(&self) -> Interest {
        Interest { receive: !self.ended, send: !self.out.is_empty() }
    }
}

/// One that is watched.
struct Watched {
    key: u64,
    orphan: Orphan,
    interest: Interest,
    until: Time,
}

/// Those of a device.
pub(super) struct Orphans {
    limits: Limits,
    next: u64,
    /// The oldest first: so are their keys and their ends.
    list: VecDeque<Watched>,
    /// When the next one that waits for an answer has something to do.
    due: Option<Time>,
}

impl Orphans {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, next: KEYS, list: VecDeque::new(), due: None }
    }

    /// Whether a key is an orphan's.
    pub(super) fn owns(key: u64) -> bool {
        key >= KEYS
    }

    /// Takes a connection, with what it has not taken; `watched`: under which key it was watched,
    /// for what.
    pub(super) fn adopt(
        &mut self,
        watch: &mut Watch,
        buffer: &mut [u8],
        counts: &StreamCounts,
        watched: Option<(u64, Interest)>,
        mut orphan: Orphan,
        now: Time,
    ) {
        if let Some((key, interest)) = watched {
            watch.remove(key, interest);
        }
        if orphan.go_on(buffer, now) != Step::Waits {
            return;
        }
        let (key, interest) = (self.next, orphan.wants());
        self.next += 1;
        watch.rename(&orphan.connection, key, interest, watched.is_some());
        let until = now + self.limits.nanos;
        let one = Watched { key, orphan, interest, until };
        self.due = [self.due, one.orphan.deadline()].into_iter().flatten().min();
        self.list.push_back(one);
        if self.list.len() > self.limits.count {
            self.make_room(watch, counts);
        }
    }

    /// There is one too many. Of what its peer has acknowledged nothing is lost, nor of one that
    /// was only asked for; what the socket has, the system goes on sending when it is closed,
    /// unless the peer says something more.
    fn make_room(&mut self, watch: &mut Watch, counts: &StreamCounts) {
        let is_whole = |one: &Watched| one.orphan.is_shut;
        let at = self.list.iter().position(|one| one.orphan.is_settled());
        if let Some(at) = at.or_else(|| self.list.iter().position(is_whole)) {
            if let Some(Watched { key, orphan, interest, .. }) = self.list.remove(at) {
                watch.remove(key, interest);
                counts.left_to_system.add(u64::from(!orphan.connection.is_acknowledged()));
            }
            return;
        }
        self.give_up(watch, counts);
    }

    /// The oldest has had its time.
    fn give_up(&mut self, watch: &mut Watch, counts: &StreamCounts) {
        let Some(Watched { key, orphan, interest, .. }) = self.list.pop_front() else { return };
        watch.remove(key, interest);
        if !(orphan.is_shut && orphan.connection.is_acknowledged()) {
            counts.reset_unacknowledged.add(1);
            orphan.connection.reset();
        }
    }

    /// One of them is ready.
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

    /// Goes on with the one at `at`, which is over if it is `broken`.
    fn go_on(&mut self, watch: &mut Watch, buffer: &mut [u8], at: usize, broken: bool, now: Time) {
        let Watched { key, orphan, interest, .. } = &mut self.list[at];
        if orphan.go_on(buffer, now) == Step::Waits && !(orphan.ended && broken) {
            let wants = orphan.wants();
            if wants != *interest {
                watch.change(&orphan.connection, *key, *interest, wants);
                *interest = wants;
            }
            self.due = [self.due, orphan.deadline()].into_iter().flatten().min();
            return;
        }
        watch.remove(*key, *interest);
        self.list.remove(at);
    }

    /// Gives up those whose time is over, and goes on with those that wait for an answer.
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
                if self.list[at].orphan.deadline().is_some_and(|deadline| deadline <= now) {
                    self.go_on(watch, buffer, at, false, now);
                }
            }
            self.due = self.list.iter().filter_map(|one| one.orphan.deadline()).min();
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        [self.due, self.list.front().map(|one| one.until)].into_iter().flatten().min()
    }

    /// All of them, to be settled.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Orphan> + use<> {
        std::mem::take(&mut self.list).into_iter().map(|one| one.orphan)
    }
}

/// The device closes, or its process ends: waits until the peers have acknowledged what they were
/// sent, for `patience` at most. What was acknowledged arrives, whatever becomes of the connection.
pub(crate) fn settle(mut orphans: Vec<Orphan>, clock: impl Fn() -> Time, patience: Duration) {
    let mut buffer = vec![0; 1 << 16];
    let until = Instant::now() + patience;
    loop {
        orphans.retain_mut(|orphan| {
            let waits = orphan.go_on(&mut buffer, clock()) == Step::Waits;
            waits && !(orphan.is_shut && orphan.connection.is_acknowledged())
        });
        if orphans.is_empty() || Instant::now() >= until {
            break;
        }
        std::thread::sleep(CLOSE_PAUSE);
    }
    if !orphans.is_empty() {
        let count = orphans.len();
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
        orphans: Orphans,
        buffer: Vec<u8>,
        counts: StreamCounts,
        /// Of the next orphan.
        asked: Option<Unanswered>,
    }

    impl Fixture {
        fn new() -> Self {
            let (watch, orphans) = (Watch::new().unwrap(), Orphans::new(FEW));
            let (counts, asked) = Default::default();
            Self { watch, orphans, buffer: vec![0; 1 << 16], counts, asked }
        }

        /// An orphan with something to say, and its peer.
        fn orphan(&mut self, key: u64, out: &[u8], now: Time) -> TcpStream {
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
            let orphan = Orphan::new(connection, out.to_vec(), false, &FEW);
            let orphan = Orphan { unanswered: self.asked.take(), ..orphan };
            let Self { watch, orphans, buffer, counts, .. } = self;
            orphans.adopt(watch, buffer, counts, Some((key, interest)), orphan, now);
            peer
        }

        /// Until so many are left.
        fn until(&mut self, count: usize) {
            let until = Instant::now() + Duration::from_secs(20);
            let mut ready = Vec::new();
            while self.orphans.list.len() > count {
                assert!(Instant::now() < until, "{} are left", self.orphans.list.len());
                self.watch.poll(true, &mut ready);
                for one in ready.drain(..) {
                    assert!(Orphans::owns(one.key));
                    let Self { watch, orphans, buffer, .. } = self;
                    orphans.handle_ready(watch, buffer, &one, Time(0));
                }
            }
        }
    }

    #[test]
    fn all_arrives_though_the_peer_goes_on_sending_and_then_it_is_over() {
        let mut fixture = Fixture::new();
        let out = vec![7; 8 << 20];
        let mut peer = fixture.orphan(5, &out, Time(0));
        let mut writer = peer.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            writer.write_all(&[1; 100_000]).unwrap();
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all
        });
        fixture.until(0);
        assert!(thread.join().unwrap() == out);
        assert_eq!(fixture.orphans.next_deadline(), None);
    }

    #[test]
    fn one_that_sends_without_end_or_never_closes_is_given_up() {
        let mut fixture = Fixture::new();
        let mut peer = fixture.orphan(5, b"end", Time(0));
        let thread = std::thread::spawn(move || while peer.write_all(&[1; 1 << 16]).is_ok() {});
        fixture.until(0);
        thread.join().unwrap();
        let _silent = fixture.orphan(6, b"end", Time(10));
        let Fixture { watch, orphans, buffer, counts, .. } = &mut fixture;
        orphans.handle_timeout(watch, buffer, counts, Time(1009));
        assert_eq!(orphans.list.len(), 1);
        orphans.handle_timeout(watch, buffer, counts, Time(1010));
        assert!(orphans.list.is_empty());
    }

    /// More than a socket takes whose peer reads nothing.
    const MUCH: usize = 64 << 20;

    #[test]
    fn of_too_many_one_goes_whose_peer_has_everything() {
        let mut fixture = Fixture::new();
        let mut slow = fixture.orphan(1, &vec![7; MUCH], Time(1));
        let quick: Vec<_> = (2..5).map(|n| fixture.orphan(n, b"end", Time(n))).collect();
        // Which of those have been acknowledged by then is the system's business.
        let kept: Vec<_> = fixture.orphans.list.iter().map(|one| one.until).collect();
        assert_eq!((kept.len(), kept[0]), (2, Time(1001)));
        assert_eq!(fixture.counts.snapshot().reset_unacknowledged, 0);
        // And what they were sent arrives, in order to its end.
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
        let _slow = fixture.orphan(1, &vec![7; MUCH], Time(1));
        let mut startup = Startup::initiate(StartupConfig::default(), &[], Time(2)).unwrap();
        startup.handle_sent(startup.transmit().len());
        fixture.asked = Unanswered::new(startup, Time(2));
        assert!(fixture.asked.is_some());
        let _asked = fixture.orphan(2, b"", Time(2));
        let _other = fixture.orphan(3, &vec![7; MUCH], Time(3));
        let kept: Vec<_> = fixture.orphans.list.iter().map(|one| one.until).collect();
        assert_eq!(kept, [Time(1001), Time(1003)]);
        assert_eq!(fixture.counts.snapshot().reset_unacknowledged, 0);
    }

    #[test]
    fn of_too_many_that_their_sockets_do_not_have_whole_the_oldest_is_reset_and_counted() {
        let mut fixture = Fixture::new();
        let mut peers: Vec<_> =
            (0..3).map(|n| fixture.orphan(n, &vec![7; MUCH], Time(n))).collect();
        let kept: Vec<_> = fixture.orphans.list.iter().map(|one| one.until).collect();
        assert_eq!(kept, [Time(1001), Time(1002)]);
        let counts = fixture.counts.snapshot();
        assert_eq!((counts.reset_unacknowledged, counts.left_to_system), (1, 0));
        peers.remove(0).read_to_end(&mut Vec::new()).unwrap_err();
    }

    #[test]
    fn a_device_that_closes_waits_until_its_peers_have_what_they_were_sent() {
        let mut fixture = Fixture::new();
        let out = vec![7; 8 << 20];
        let mut peer = fixture.orphan(5, &out, Time(0));
        let thread = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all
        });
        settle(fixture.orphans.take().collect(), || Time(0), CLOSE_PATIENCE);
        assert!(thread.join().unwrap() == out);
    }
}
