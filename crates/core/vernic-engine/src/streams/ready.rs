//! Chooses the connections to receive from in a poll.
//!
//! A call of epoll costs as much as a receive, and yields nothing that a receive would not. So
//! connections that had something lately are received from without asking. Epoll is asked every
//! [`POLLS_PER_LOOK`]th time, and whenever there are no such connections, or many. The background
//! thread, which sleeps on epoll, always asks.

use std::io;

use vernic_io::tcp::{Connection, Interest, Readiness, Ready};

/// The most connections that are received from without asking epoll. With more, epoll is cheaper,
/// since one call reports many connections.
const MAX_BUSY: usize = 4;

/// Polls between two calls of epoll. A connection that was silent waits some microseconds at most
/// while a program spins.
const POLLS_PER_LOOK: u32 = 16;

/// Calls of epoll in a row that find nothing, after which no connection counts as busy: about a
/// millisecond of spinning.
const SILENT_LOOKS: u32 = 256;

/// The readiness of all connections, and which of them are busy.
pub(super) struct Watch {
    readiness: Readiness,
    busy: Vec<u64>,
    polls: u32,
    silent_looks: u32,
    /// Connections that wait for room to send, which only epoll reports.
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

    /// Watches a connection for bytes to receive.
    pub(super) fn add(&mut self, connection: &Connection, key: u64) -> io::Result<Interest> {
        let interest = Interest { receive: true, send: false };
        self.readiness.watch(connection, key, interest).map(|()| interest)
    }

    /// Watches a connection for something else.
    pub(super) fn change(
        &mut self,
        connection: &Connection,
        key: u64,
        from: Interest,
        to: Interest,
    ) {
        // This cannot fail for a connection that is watched.
        let _ = self.readiness.change(connection, key, to);
        self.full = self.full + usize::from(to.send) - usize::from(from.send);
    }

    /// Watches a connection under a new key. The connection was [removed](Self::remove) but not
    /// closed, or was never watched here.
    pub(super) fn rename(
        &mut self,
        connection: &Connection,
        key: u64,
        interest: Interest,
        was_watched: bool,
    ) {
        // This fails for a connection that could not be watched before. Such a connection reports
        // nothing until its time is over.
        let _ = match was_watched {
            true => self.readiness.change(connection, key, interest),
            false => self.readiness.watch(connection, key, interest),
        };
        self.full += usize::from(interest.send);
    }

    /// Forgets a connection that is about to be closed, or to get another key. The close itself
    /// takes it out of epoll.
    pub(super) fn remove(&mut self, key: u64, watched: Interest) {
        self.full -= usize::from(watched.send);
        self.busy.retain(|&busy| busy != key);
    }

    /// Appends the connections to handle to `ready`. With `all`, epoll is always asked.
    pub(super) fn poll(&mut self, all: bool, ready: &mut Vec<Ready>) {
        self.polls = self.polls.wrapping_add(1);
        let looks = self.busy.is_empty() || self.polls.is_multiple_of(POLLS_PER_LOOK);
        if !(all || looks || self.full > 0) {
            let busy = self.busy.iter();
            ready.extend(busy.map(|&key| Ready { key, receive: true, ..Ready::default() }));
            return;
        }
        // The one possible error is a signal; the ready connections come with the next call.
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

    /// Notes that a connection that was received from had something.
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
        // The first is tried although it has nothing, and the second is found although it was
        // silent.
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
