//! The relay itself: two netdevs, a direction between each and the other, and a loop.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use vernic_sys::{
    self as sys, FrameKind, IncomingFrame, MAX_FRAME_HEAD, OutgoingFrame, OwnFd, PollFd,
};

use crate::direction::{Counts, Direction, Nanos};
use crate::impairment::Impairment;

/// Every EtherType, for packet sockets.
const ALL: u16 = libc::ETH_P_ALL as u16;
/// Bytes of the longest frame, which several segments may be that no netdev has cut yet.
const FRAME_BYTES: usize = 68 * 1024;
/// Frames that are received at once.
const BATCH: usize = 32;
/// Bytes that the system may keep for a socket, so that a burst does not overflow it.
const SOCKET_BYTES: i32 = 64 << 20;
/// Batches of one netdev that are taken in a turn, so that the other one has its turn.
const BATCHES_PER_TURN: usize = 4;

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
    socket: OwnFd,
    /// Frames that were longer than the netdev at the other end takes.
    too_long: u64,
    /// Frames that a socket had no room for.
    refused: u64,
    /// Frames that the system dropped before they were read.
    missed: u32,
}

/// What a relay has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// From the first netdev to the second one, and back.
    pub directions: [Counts; 2],
    /// Frames of each that were longer than what the other netdev sends.
    pub too_long: [u64; 2],
    /// Frames of each that the other netdev had no room for.
    pub refused: [u64; 2],
    /// Frames of each that the system dropped before they were read.
    pub missed: [u32; 2],
}

/// A relay between two netdevs.
#[derive(Debug)]
pub struct Relay {
    ends: [End; 2],
    /// From each end to the other.
    directions: [Direction; 2],
    start: Instant,
    buffers: Vec<u8>,
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
            start: Instant::now(),
            buffers: vec![0; BATCH * FRAME_BYTES],
        })
    }
    /// Carries frames until `stop` is readable.
    ///
    /// # Errors
    /// [`RelayError::Io`].
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> Result<(), RelayError> {
        loop {
            for at in 0..2 {
                self.receive(at)?;
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
            refused: [a.refused, b.refused],
            missed: [a.missed, b.missed],
        }
    }
    fn now(&self) -> Nanos {
        self.start.elapsed().as_nanos() as Nanos
    }
    /// Takes what has come by a netdev.
    fn receive(&mut self, at: usize) -> Result<(), RelayError> {
        for _ in 0..BATCHES_PER_TURN {
            let end = &mut self.ends[at];
            let mut incoming = [IncomingFrame::NONE; BATCH];
            let taken =
                sys::recv_frames(end.socket.as_fd(), &mut self.buffers, FRAME_BYTES, &mut incoming);
            let count = match taken {
                Ok(count) => count,
                Err(error) if sys::is_for_later(&error) => return Ok(()),
                Err(source) => return Err(end.io("receive by", source)),
            };
            let now = self.start.elapsed().as_nanos() as Nanos;
            for (frame, buffer) in incoming[..count].iter().zip(self.buffers.chunks(FRAME_BYTES)) {
                end.missed = frame.overflow.unwrap_or(end.missed);
                // What the relay itself sends there comes back to its socket.
                if frame.kind != FrameKind::Sent && !frame.truncated {
                    self.directions[at].handle(&buffer[..frame.len], now);
                }
            }
            if count < BATCH {
                return Ok(());
            }
        }
        Ok(())
    }
    /// Sends what has arrived at the end opposite to `at`.
    fn send(&mut self, at: usize) -> Result<(), RelayError> {
        let (now, mut frames) = (self.now(), Vec::new());
        loop {
            frames.clear();
            let direction = &mut self.directions[at];
            frames.extend(std::iter::from_fn(|| direction.poll(now)).take(BATCH));
            if frames.is_empty() {
                return Ok(());
            }
            let mut rest = frames.as_slice();
            while !rest.is_empty() {
                let done = self.send_some(at, rest)?;
                rest = &rest[done..];
            }
        }
    }
    /// Sends the first of some frames. Returns how many are done with: at least one.
    fn send_some(&mut self, at: usize, frames: &[Vec<u8>]) -> Result<usize, RelayError> {
        let [a, b] = &mut self.ends;
        let (from, to) = if at == 0 { (a, b) } else { (b, a) };
        let ifindex = to.ifindex;
        let outgoing = frames.iter().map(|frame| {
            let head = [0; MAX_FRAME_HEAD];
            OutgoingFrame { ifindex, head, head_len: 0, body: frame }
        });
        match sys::send_frames(to.socket.as_fd(), ALL, outgoing) {
            Ok(count) => Ok(count.max(1)),
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                from.too_long += 1;
                Ok(1)
            }
            Err(error)
                if sys::is_for_later(&error) || error.raw_os_error() == Some(libc::ENOBUFS) =>
            {
                from.refused += 1;
                Ok(1)
            }
            Err(source) => Err(to.io("send by", source)),
        }
    }
    /// Sleeps until there is something to do. Returns whether `stop` is readable.
    fn wait(&self, stop: BorrowedFd<'_>) -> Result<bool, RelayError> {
        let due = self.directions.iter().filter_map(Direction::next_deadline).min();
        let left = due.map(|due| Duration::from_nanos(due.saturating_sub(self.now())));
        let [a, b] = &self.ends;
        let mut fds =
            [a.socket.as_raw_fd(), b.socket.as_raw_fd(), stop.as_raw_fd()].map(PollFd::readable);
        let waited = sys::poll(&mut fds, left);
        waited.map_err(|source| RelayError::Io { doing: "wait for frames".to_owned(), source })?;
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
        let socket = sys::frame_socket().map_err(failed)?;
        let fd = socket.as_fd();
        sys::enable_frame_details(fd).map_err(failed)?;
        // Without the right to do that, the system's own bound holds.
        let forced = [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE];
        for option in forced {
            let _ = sys::set_option(fd, libc::SOL_SOCKET, option, SOCKET_BYTES);
        }
        // A system that cannot leave them out (before Linux 4.20) brings them, and they are passed
        // over.
        let _ = sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1);
        let ifindex = interface.index;
        sys::bind_frames(fd, ifindex, ALL).map_err(failed)?;
        let name = name.to_owned();
        Ok(Self { name, ifindex, socket, too_long: 0, refused: 0, missed: 0 })
    }
    fn io(&self, doing: &str, source: io::Error) -> RelayError {
        RelayError::Io { doing: format!("{doing} {}", self.name), source }
    }
}
