//! The relay itself: two netdevs, a direction between each and the other, and a loop.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use vernic_sys::{self as sys, FrameKind, FrameRing, MAX_FRAME_HEAD, OutgoingFrame, PollFd};

use crate::direction::{Counts, Direction, Nanos};
use crate::impairment::Impairment;

/// Every EtherType, for packet sockets.
const ALL: u16 = libc::ETH_P_ALL as u16;
/// Bytes of a frame beyond the netdev's MTU: the longest usual head, and two tags.
const HEAD_BYTES: usize = 32;
/// Bytes of the longest frame that is received, whatever the MTU.
const MAX_FRAME_BYTES: usize = 68 * 1024;
/// Bytes of the ring of a netdev: some 10,000 frames of an MTU of 1500, or a quarter of a second of
/// 500 Mb/s.
const RING_BYTES: usize = 16 << 20;
/// Bytes of the smallest ring, where the system has not as much memory.
const MIN_RING_BYTES: usize = 1 << 20;
/// Frames that are sent by one call.
const BATCH: usize = 32;
/// Frames of one netdev that are taken in a turn, so that the other one has its turn.
const FRAMES_PER_TURN: usize = 128;

/// Why there is no relay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// A netdev does not exist.
    #[error("there is no netdev {name:?}; there are {present}")]
    NoNetdev {
        /// The name.
        name: String,
        /// The netdevs that there are.
        present: String,
    },
    /// One netdev is named twice.
    #[error("{0:?} is both ends: a relay is between two netdevs")]
    Same(String),
    /// A netdev is down, or went down.
    #[error(
        "{name} is down, so that no frame comes or leaves by it: `ip link set {name} up`, and start \
         the relay again"
    )]
    Down {
        /// The netdev.
        name: String,
    },
    /// A packet socket was not opened.
    #[error(
        "a packet socket on {name} was not opened: {source}. It takes CAP_NET_RAW: run as root, or \
         in a network namespace of your own (unshare -rn)"
    )]
    Socket {
        /// The netdev.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// There is no memory for frames that are received.
    #[error(
        "the system has no ring for the frames of {name}: {source}. It takes {} KiB of the kernel's \
         memory, and packet sockets with rings (PACKET_RX_RING)",
        MIN_RING_BYTES / 1024
    )]
    Ring {
        /// The netdev.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// A netdev went away, or the wait failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was tried.
        doing: String,
        /// What the system says.
        source: io::Error,
    },
}

/// One of the two netdevs.
#[derive(Debug)]
struct End {
    name: String,
    ifindex: u32,
    /// Something was at the other end of its cable when the relay was made.
    has_carrier: bool,
    /// The socket, which frames are sent by too.
    ring: FrameRing,
    /// Frames that were longer than this netdev's MTU, or than that of the one at the other end.
    too_long: u64,
    /// Frames whose checksums were left to a network card, which is not on this path.
    without_checksums: u64,
    /// Frames that the queue of the netdev at the other end dropped.
    refused: u64,
    /// Frames that found the ring full.
    missed: u64,
}

/// What a relay has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// From the first netdev to the second one, and back.
    pub directions: [Counts; 2],
    /// Frames of each that were longer than its MTU, or than that of the other netdev.
    pub too_long: [u64; 2],
    /// Frames of each whose checksums were left to a network card: a host drops them.
    pub without_checksums: [u64; 2],
    /// Frames of each that the queue of the other netdev dropped.
    pub refused: [u64; 2],
    /// Frames of each that found its ring full.
    pub missed: [u64; 2],
}

/// A relay between two netdevs.
#[derive(Debug)]
pub struct Relay {
    ends: [End; 2],
    /// From each end to the other.
    directions: [Direction; 2],
    /// Frames that have arrived and wait until the netdev there has room, a batch at most.
    leaving: [VecDeque<Vec<u8>>; 2],
    start: Instant,
}

impl Relay {
    /// Makes a relay between two netdevs, which does the same in both directions.
    ///
    /// # Errors
    /// [`RelayError`].
    pub fn new(names: [&str; 2], impairment: Impairment) -> Result<Self, RelayError> {
        let [one, other] = names;
        if one == other {
            return Err(RelayError::Same(one.to_owned()));
        }
        Ok(Self {
            ends: [End::open(one)?, End::open(other)?],
            directions: [Direction::new(impairment, 0), Direction::new(impairment, 1)],
            leaving: [VecDeque::new(), VecDeque::new()],
            start: Instant::now(),
        })
    }
    /// Returns the netdevs that had no carrier when the relay was made. Nothing passes until the
    /// other ends of their cables are up.
    pub fn without_carrier(&self) -> impl Iterator<Item = &str> {
        self.ends.iter().filter(|end| !end.has_carrier).map(|end| end.name.as_str())
    }
    /// Carries frames until `stop` is readable.
    ///
    /// # Errors
    /// [`RelayError::Down`], [`RelayError::Io`].
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> Result<(), RelayError> {
        let ended = self.carry(stop);
        let counted = self.ends.iter_mut().try_for_each(End::count_missed);
        ended.and(counted)
    }
    fn carry(&mut self, stop: BorrowedFd<'_>) -> Result<(), RelayError> {
        loop {
            for at in 0..2 {
                self.receive(at);
                self.send(at)?;
            }
            if self.wait(stop)? {
                return Ok(());
            }
        }
    }
    /// Returns what has been done.
    pub fn report(&self) -> Report {
        let [a, b] = &self.ends;
        Report {
            directions: [*self.directions[0].counts(), *self.directions[1].counts()],
            too_long: [a.too_long, b.too_long],
            without_checksums: [a.without_checksums, b.without_checksums],
            refused: [a.refused, b.refused],
            missed: [a.missed, b.missed],
        }
    }
    fn now(&self) -> Nanos {
        self.start.elapsed().as_nanos() as Nanos
    }
    /// Takes what has come by a netdev.
    fn receive(&mut self, at: usize) {
        let now = self.now();
        let (end, direction) = (&mut self.ends[at], &mut self.directions[at]);
        for _ in 0..FRAMES_PER_TURN {
            let mut frame = direction.buffer();
            match end.ring.take(&mut frame) {
                None => return direction.recycle(frame),
                // What the relay itself sends there comes back to its socket.
                Some(taken) if taken.kind == FrameKind::Sent => direction.recycle(frame),
                Some(taken) if taken.truncated => {
                    end.too_long += 1;
                    direction.recycle(frame);
                }
                Some(taken) => {
                    end.without_checksums += u64::from(!taken.has_checksums);
                    direction.handle(frame, now);
                }
            }
        }
    }
    /// Sends what has arrived at the end opposite to `at`, as long as there is room.
    fn send(&mut self, at: usize) -> Result<(), RelayError> {
        let now = self.now();
        loop {
            let (leaving, direction) = (&mut self.leaving[at], &mut self.directions[at]);
            let wanted = BATCH - leaving.len();
            leaving.extend(std::iter::from_fn(|| direction.poll(now)).take(wanted));
            if leaving.is_empty() || !self.send_some(at)? {
                return Ok(());
            }
        }
    }
    /// Sends the first of the frames that are leaving. Returns whether there was room.
    fn send_some(&mut self, at: usize) -> Result<bool, RelayError> {
        let [a, b] = &mut self.ends;
        let (from, to) = if at == 0 { (a, b) } else { (b, a) };
        let ifindex = to.ifindex;
        let outgoing = self.leaving[at].iter().map(|frame| {
            let head = [0; MAX_FRAME_HEAD];
            OutgoingFrame { ifindex, head, head_len: 0, body: frame }
        });
        let done = match sys::send_frames(to.ring.as_fd(), ALL, outgoing) {
            Ok(count) => count,
            Err(error) if sys::is_for_later(&error) => return Ok(false),
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                from.too_long += 1;
                1
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                from.refused += 1;
                1
            }
            Err(source) => return Err(to.io("send by", source)),
        };
        let direction = &mut self.directions[at];
        self.leaving[at].drain(..done).for_each(|frame| direction.recycle(frame));
        Ok(true)
    }
    /// Sleeps until there is something to do. Returns whether `stop` is readable.
    fn wait(&self, stop: BorrowedFd<'_>) -> Result<bool, RelayError> {
        let is_stuck = [0, 1].map(|at| !self.leaving[at].is_empty());
        let free = self.directions.iter().zip(is_stuck).filter(|(_, is_stuck)| !is_stuck);
        let due = free.filter_map(|(direction, _)| direction.next_deadline()).min();
        let left = due.map(|due| Duration::from_nanos(due.saturating_sub(self.now())));
        let [a, b] = self.ends.each_ref().map(|end| end.ring.as_fd().as_raw_fd());
        // Nothing is asked about a negative descriptor.
        let stuck_at = |fd: RawFd, is_stuck| PollFd::writable(if is_stuck { fd } else { -1 });
        let [from, to] = [a, b].map(PollFd::readable);
        let stop = PollFd::readable(stop.as_raw_fd());
        let mut fds = [from, to, stop, stuck_at(b, is_stuck[0]), stuck_at(a, is_stuck[1])];
        let waited = sys::poll(&mut fds, left);
        waited.map_err(|source| RelayError::Io { doing: "wait for frames".to_owned(), source })?;
        for (end, fd) in self.ends.iter().zip(fds) {
            if fd.has_failed() {
                return Err(end.io("receive by", end.error()));
            }
        }
        Ok(fds[2].is_ready())
    }
}

impl End {
    fn open(name: &str) -> Result<Self, RelayError> {
        let failed = |source| RelayError::Socket { name: name.to_owned(), source };
        let interfaces = sys::interfaces().map_err(failed)?;
        let found = interfaces.iter().find(|interface| interface.name == name);
        let Some(interface) = found else {
            let names: Vec<_> = interfaces.iter().map(|one| one.name.as_str()).collect();
            let (name, present) = (name.to_owned(), names.join(", "));
            return Err(RelayError::NoNetdev { name, present });
        };
        let has = |flag: i32| interface.flags & flag as u32 != 0;
        let (is_up, has_carrier) = (has(libc::IFF_UP), has(libc::IFF_RUNNING));
        if !is_up {
            return Err(RelayError::Down { name: name.to_owned() });
        }
        let ring = ring_of(name)?;
        let fd = ring.as_fd();
        // A system that cannot leave them out (before Linux 4.20) brings them, and they are passed
        // over.
        let _ = sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1);
        let ifindex = interface.index;
        sys::bind_frames(fd, ifindex, ALL).map_err(failed)?;
        let name = name.to_owned();
        let (too_long, without_checksums, refused, missed) = (0, 0, 0, 0);
        Ok(Self { name, ifindex, has_carrier, ring, too_long, without_checksums, refused, missed })
    }
    fn io(&self, doing: &str, source: io::Error) -> RelayError {
        // The system says the same of a netdev that there is no more.
        let is_there =
            || sys::interfaces().is_ok_and(|all| all.iter().any(|one| one.index == self.ifindex));
        if source.raw_os_error() == Some(libc::ENETDOWN) && is_there() {
            return RelayError::Down { name: self.name.clone() };
        }
        RelayError::Io { doing: format!("{doing} {}", self.name), source }
    }
    /// Returns the error that the socket has.
    fn error(&self) -> io::Error {
        let code = sys::option(self.ring.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR);
        code.map_or_else(|error| error, io::Error::from_raw_os_error)
    }
    /// Adds the frames that found the ring full.
    fn count_missed(&mut self) -> Result<(), RelayError> {
        let dropped = self.ring.take_dropped();
        self.missed += u64::from(dropped.map_err(|source| self.io("ask about", source))?);
        Ok(())
    }
}

/// Returns a ring for the frames of a netdev, which is not bound to it yet. It is as large as the
/// system allows.
fn ring_of(name: &str) -> Result<FrameRing, RelayError> {
    let failed = |source| RelayError::Socket { name: name.to_owned(), source };
    let mut ring_bytes = RING_BYTES;
    loop {
        let socket = sys::frame_socket().map_err(failed)?;
        let mtu = sys::mtu_of(socket.as_fd(), name).map_err(failed)? as usize;
        let frame_bytes = (mtu + HEAD_BYTES).min(MAX_FRAME_BYTES);
        match FrameRing::new(socket, frame_bytes, ring_bytes) {
            Ok(ring) => return Ok(ring),
            Err(_) if ring_bytes > MIN_RING_BYTES => ring_bytes /= 2,
            Err(source) => return Err(RelayError::Ring { name: name.to_owned(), source }),
        }
    }
}
