//! A TCP connection.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use vernic_mem::{RacySlice, RacySliceMut};
use vernic_sys::{self as sys, OwnFd};

/// Longest silence that the kernel can be set to notice, in seconds (`MAX_TCP_KEEPIDLE`).
const MAX_KEEP_ALIVE_S: u64 = 32767;

/// The most pieces of memory in one call.
pub const MAX_PIECES: usize = sys::MAX_PIECES;

/// The result of receiving.
#[derive(Debug)]
pub enum Received {
    /// The number of bytes received, at least one.
    Bytes(usize),
    /// Nothing has come now.
    Nothing,
    /// The peer has closed its half; all bytes that it sent before were received.
    End,
    /// The connection is lost.
    Lost(io::Error),
}

/// The result of sending.
#[derive(Debug)]
pub enum Sent {
    /// The number of bytes taken: at least one, unless there were none to send.
    Bytes(usize),
    /// There is no room now.
    Full,
    /// The connection is lost.
    Lost(io::Error),
}

impl Received {
    fn of(result: io::Result<usize>) -> Self {
        match result {
            Ok(0) => Self::End,
            Ok(len) => Self::Bytes(len),
            Err(error) if sys::is_for_later(&error) => Self::Nothing,
            Err(error) => Self::Lost(error),
        }
    }
}

impl Sent {
    fn of(result: io::Result<usize>) -> Self {
        match result {
            Ok(len) => Self::Bytes(len),
            Err(error) if sys::is_for_later(&error) => Self::Full,
            Err(error) => Self::Lost(error),
        }
    }
}

/// The progress of a connection that is being made.
#[derive(Debug)]
pub enum Connecting {
    /// The peer has not answered.
    Pending,
    /// The connection is made.
    Done,
    /// The connection cannot be made.
    Failed(io::Error),
}

/// The liveness of the peer's TCP, which may answer even if the peer's program does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vitals {
    /// Whether a segment was repeated, or a peer without room was probed, and no answer has come.
    pub waits: bool,
    /// Time since the last acknowledgement came.
    pub silent: Duration,
}

/// A connection with a peer.
#[derive(Debug)]
pub struct Connection {
    pub(super) fd: OwnFd,
}

impl Connection {
    pub(super) fn new(fd: OwnFd) -> Result<Self, io::Error> {
        // FPDUs leave when they are made; an engine gains nothing from waiting for more.
        sys::set_option(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        Ok(Self { fd })
    }

    /// Returns the progress of making the connection.
    pub fn connecting(&self) -> Connecting {
        match sys::option(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR) {
            Ok(0) => {}
            Ok(errno) => return Connecting::Failed(io::Error::from_raw_os_error(errno)),
            Err(error) => return Connecting::Failed(error),
        }
        match sys::peer_addr(self.fd.as_fd()) {
            Ok(_) => Connecting::Done,
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Connecting::Pending,
            Err(error) => Connecting::Failed(error),
        }
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// The system's error: the connection is not made, or is lost.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        sys::peer_addr(self.fd.as_fd())
    }

    /// Returns this end's address.
    ///
    /// # Errors
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        sys::local_addr(self.fd.as_fd())
    }

    /// Whether both ends have one address, so that both are within this host. False where that is
    /// unknown.
    pub fn is_within_host(&self) -> bool {
        let ip = |addr: io::Result<SocketAddr>| addr.ok().map(|addr| addr.ip());
        let local = ip(self.local_addr());
        local.is_some() && local == ip(self.peer_addr())
    }

    /// Returns the bytes of payload in a segment, the effective maximum segment size (RFC 5044, 2):
    /// 1460 and the like, less what options take.
    ///
    /// # Errors
    /// The system's error.
    pub fn segment_bytes(&self) -> io::Result<u32> {
        let bytes = sys::option(self.fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_MAXSEG)?;
        Ok(bytes.max(0) as u32)
    }

    /// Receives into `buf`, which must not be empty.
    pub fn recv(&self, buf: &mut [u8]) -> Received {
        Received::of(sys::recv(self.fd.as_fd(), buf))
    }

    /// Sends as many of `bytes` as there is room for.
    pub fn send(&self, bytes: &[u8]) -> Sent {
        if bytes.is_empty() {
            return Sent::Bytes(0);
        }
        Sent::of(sys::send(self.fd.as_fd(), bytes))
    }

    /// Receives into pieces of memory, one after the other. The pieces must not be empty, and be
    /// [`MAX_PIECES`] at most.
    pub fn recv_pieces(&self, pieces: &mut [RacySliceMut<'_>]) -> Received {
        Received::of(sys::recv_pieces(self.fd.as_fd(), pieces))
    }

    /// Sends as many bytes of some pieces of memory, [`MAX_PIECES`] at most, as there is room for.
    pub fn send_pieces(&self, pieces: &[RacySlice<'_>]) -> Sent {
        if pieces.iter().all(RacySlice::is_empty) {
            return Sent::Bytes(0);
        }
        Sent::of(sys::send_pieces(self.fd.as_fd(), pieces))
    }

    /// Lets the kernel probe a peer that has been silent for a while. If nothing answers for
    /// `timeout`, in whole seconds, the connection is lost (RFC 9293, 3.8.4). This works while
    /// nothing is in flight; while something is, [`vitals`](Self::vitals) shows whether the peer
    /// answers.
    ///
    /// # Errors
    /// The system's error: none is known.
    pub fn keep_alive(&self, timeout: Duration) -> io::Result<()> {
        let seconds = timeout.as_secs().clamp(1, MAX_KEEP_ALIVE_S) as i32;
        // Half of the time the kernel waits; in the other half it probes, up to four times.
        let probes = seconds.clamp(1, 4);
        let idle = (seconds / 2).max(1);
        let pause = ((seconds - idle) / probes).max(1);
        let fd = self.fd.as_fd();
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle)?;
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, pause)?;
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, probes)?;
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)
    }

    /// Limits the rate at which the kernel sends, in bytes per second; `None` ends the limit. It
    /// needs no queueing discipline: without one that paces (`fq`), TCP paces by itself.
    ///
    /// # Errors
    /// The system's error: none is known.
    pub fn limit_rate(&self, bytes_per_s: Option<u64>) -> io::Result<()> {
        let value = bytes_per_s.unwrap_or(u64::MAX).to_ne_bytes();
        let fd = self.fd.as_fd();
        sys::set_option_bytes(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &value)
    }

    /// Returns whether the peer answers.
    ///
    /// # Errors
    /// The system's error: none is known.
    pub fn vitals(&self) -> io::Result<Vitals> {
        let info = sys::tcp_info(self.fd.as_fd())?;
        let waits = info.tcpi_probes > 0 || info.tcpi_retransmits > 0;
        Ok(Vitals { waits, silent: Duration::from_millis(info.tcpi_last_ack_recv.into()) })
    }

    /// Whether the peer's TCP has acknowledged everything that was sent, and the closing of the
    /// sending half if that was closed. True for a connection that is lost.
    pub fn is_acknowledged(&self) -> bool {
        sys::unacknowledged(self.fd.as_fd()).is_ok_and(|bytes| bytes == 0)
    }

    /// Closes the sending half, after everything that was sent. Has no effect on a lost connection.
    pub fn shutdown(&self) {
        let _ = sys::shutdown_write(self.fd.as_fd());
    }

    /// Closes the connection so that the peer receives a reset.
    pub fn reset(self) {
        // struct linger: on, for no time. Where that is refused the peer receives an ordinary
        // close.
        let linger = [1_i32.to_ne_bytes(), 0_i32.to_ne_bytes()].concat();
        let _ = sys::set_option_bytes(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &linger);
    }
}
