//! Decides which connections to receive from in a poll, and when to ask epoll.
//!
//! A call of epoll costs as much as a receive, and only says what a receive would find out. So
//! connections that recently had something (the busy ones) are received from without asking epoll.
//! Epoll is asked at every [`POLLS_PER_LOOK`]th poll, and at each poll while no connection is busy,
//! too many are, or some wait for room to send. The background thread, which sleeps on epoll,
//! always asks.

use std::io;

use vernic_io::tcp::{Connection, Interest, Readiness, Ready};

/// Largest number of connections that are received from without asking epoll. With more, epoll
/// costs less, because one call reports many connections.
const MAX_BUSY: usize = 4;

/// The number of polls for each call of epoll. While a program spins, a connection that had nothing
/// for a while waits for some microseconds at most.
const POLLS_PER_LOOK: u32 = 16;

/// The number of calls of epoll in a row that find nothing after which no connection is busy any
/// more. While a program spins they take about a millisecond.
const SILENT_LOOKS: u32 = 256;

/// The epoll instance of all connections, and which of them are busy.
pub(super) struct Watch {
    readiness: Readiness,
    busy: Vec<u64>,
    polls: u32,
    silent_looks: u32,
    /// The number of connections that wait for room to send, which only epoll reports.
    full: usize,
}

impl Watch {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            readiness: Readiness::new()?,
            busy: Vec::with_capacity(MAX_BUSY),
            polls: 0,
            silent_looks: 0,
            full: 0,
        })
    }

    pub(super) fn raw_fd(&self) -> std::os::fd::RawFd {
        self.readiness.raw_fd()
    }

    /// Starts to watch a connection for bytes to receive.
    pub(super) fn add(&mut self, connection: &Connection, key: u64) -> io::Result<Interest> {
        let interest = Interest { receive: true, send: false };
        self.readiness.watch(connection, key, interest).map(|()| interest)
    }

    /// Changes what a connection is watched for.
    pub(super) fn change(
        &mut self,
        connection: &Connection,
        key: u64,
        from: Interest,
        to: Interest,
    ) {
        // A change cannot fail for a connection that is watched.
        let _ = self.readiness.change(connection, key, to);
        self.full = self.full + usize::from(to.send) - usize::from(from.send);
    }

    /// Watches a connection under a new key. If `was_watched`, the connection is in epoll still and
    /// was [removed](Self::remove) only here; otherwise it never was in epoll.
    pub(super) fn rename(
        &mut self,
        connection: &Connection,
        key: u64,
        interest: Interest,
        was_watched: bool,
    ) {
        // This fails for a connection that epoll could not watch before either. It is then only
        // handled when its time is over.
        let _ = match was_watched {
            true => self.readiness.change(connection, key, interest),
            false => self.readiness.watch(connection, key, interest),
        };
        self.full += usize::from(interest.send);
    }

    /// Forgets a connection that is about to be closed or to get another key. Closing the socket
    /// removes it from epoll.
    pub(super) fn remove(&mut self, key: u64, watched: Interest) {
        self.full -= usize::from(watched.send);
        self.busy.retain(|&busy| busy != key);
    }

    /// Appends the connections to handle to `ready`. Asks epoll in any case if `all` is set.
    pub(super) fn poll(&mut self, all: bool, ready: &mut Vec<Ready>) {
        self.polls = self.polls.wrapping_add(1);
        let looks = self.busy.is_empty() || self.polls.is_multiple_of(POLLS_PER_LOOK);
        if !(all || looks || self.full > 0) {
            let busy = self.busy.iter();
            ready.extend(busy.map(|&key| Ready { key, receive: true, ..Ready::default() }));
            return;
        }
        // The only possible error is an interruption by a signal. The next call then reports the
        // ready connections.
        let _ = self.readiness.poll(ready);
        let speaking = ready.iter().filter(|one| one.receive);
        let count = speaking.clone().count();
        if count > 0 {
            self.busy.clear();
            if count <= MAX_BUSY {
                self.busy.extend(speaking.map(|one| one.key));
            }
            self.silent_looks = 0;
        } else {
            self.silent_looks += 1;
            if self.silent_looks == SILENT_LOOKS {
                self.busy.clear();
            }
        }
    }

    /// Notes that some connection had something to receive.
    pub(super) fn note_received(&mut self) {
        self.silent_looks = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use vernic_io::tcp::{Listener, Received, Sent};

    use super::*;

    const LO: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn pairs(count: usize) -> Vec<(Connection, Connection)> {
        let listener = Listener::bind(&SocketAddr::new(LO, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let connect = |_| {
            let ours = Connection::connect(LO.into(), &addr).unwrap();
            loop {
                if let Some(theirs) = listener.accept().unwrap() {
                    return (ours, theirs);
                }
                std::thread::yield_now();
            }
        };
        (0..count).map(connect).collect()
    }

    fn say(from: &Connection, to: &Connection) {
        assert!(matches!(from.send(b"x"), Sent::Bytes(1)));
        while matches!(to.recv(&mut [0; 9]), Received::Nothing) {}
        assert!(matches!(from.send(b"y"), Sent::Bytes(1)));
    }

    fn keys(watch: &mut Watch, all: bool) -> Vec<u64> {
        let mut ready = Vec::new();
        watch.poll(all, &mut ready);
        ready.iter().map(|one| one.key).collect()
    }

    /// Polls until epoll reports `count` connections.
    fn look(watch: &mut Watch, count: usize) -> Vec<u64> {
        loop {
            let found = keys(watch, true);
            if found.len() == count {
                return found;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_spoke_last_is_tried_first_and_the_others_soon() {
        let pairs = pairs(2);
        let mut watch = Watch::new().unwrap();
        for (key, (_, theirs)) in pairs.iter().enumerate() {
            watch.add(theirs, key as u64).unwrap();
        }
        assert!(keys(&mut watch, false).is_empty());
        say(&pairs[0].0, &pairs[0].1);
        assert_eq!(look(&mut watch, 1), [0]);
        while !matches!(pairs[0].1.recv(&mut [0; 9]), Received::Nothing) {}
        // The first connection is tried although it has nothing, and the second is found although
        // it has had nothing before.
        say(&pairs[1].0, &pairs[1].1);
        let found: Vec<_> = (0..POLLS_PER_LOOK).flat_map(|_| keys(&mut watch, false)).collect();
        assert!(found.contains(&0) && found.contains(&1), "{found:?}");
        watch.remove(1, Interest { receive: true, send: false });
        assert!(watch.busy.is_empty());
    }

    #[test]
    fn silence_room_to_send_and_crowds_are_epolls_business() {
        let pairs = pairs(MAX_BUSY + 1);
        let mut watch = Watch::new().unwrap();
        for (key, (_, theirs)) in pairs.iter().enumerate() {
            watch.add(theirs, key as u64).unwrap();
        }
        say(&pairs[0].0, &pairs[0].1);
        look(&mut watch, 1);
        assert_eq!(keys(&mut watch, false), [0]);
        // A full socket.
        let (before, after) =
            (Interest { receive: true, send: false }, Interest { receive: false, send: true });
        watch.change(&pairs[1].1, 1, before, after);
        assert!(keys(&mut watch, false).contains(&1));
        watch.change(&pairs[1].1, 1, after, before);
        while !matches!(pairs[0].1.recv(&mut [0; 9]), Received::Nothing) {}
        for _ in 0..SILENT_LOOKS {
            keys(&mut watch, true);
        }
        assert!(watch.busy.is_empty());
        for (ours, theirs) in &pairs {
            say(ours, theirs);
        }
        look(&mut watch, MAX_BUSY + 1);
        assert!(watch.busy.is_empty());
    }
}
