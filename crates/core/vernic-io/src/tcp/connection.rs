//! A connection.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use vernic_mem::{RacySlice, RacySliceMut};

use crate::sys::{self, OwnFd};

/// Longest silence that the kernel can be told to notice, seconds (`MAX_TCP_KEEPIDLE`).
const MAX_KEEP_ALIVE_S: u64 = 32767;

/// Most pieces of memory of one call.
pub const MAX_PIECES: usize = sys::MAX_PIECES;

/// What a connection had to say.
#[derive(Debug)]
pub enum Received {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// The peer has closed its half, behind all bytes that were received before.
    End,
    /// The connection is lost.
    Lost(io::Error),
}

/// What became of bytes to be sent.
#[derive(Debug)]
pub enum Sent {
    /// So many were taken, at least one, or none of none.
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

/// How far a connection has come that is being made.
#[derive(Debug)]
pub enum Connecting {
    /// The peer has not answered.
    Pending,
    /// The connection is made.
    Done,
    /// The connection cannot be made.
    Failed(io::Error),
}

/// Whether the peer's TCP answers. What its program does, it may answer without that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vitals {
    /// Something was repeated, or asked of a peer without room, and no answer has come.
    pub waits: bool,
    /// Time since the last acknowledgement came.
    pub silent: Duration,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    pub(super) fd: OwnFd,
}

impl Connection {
    pub(super) fn new(fd: OwnFd) -> Result<Self, io::Error> {
        // FPDUs leave when they are made; an engine has nothing to gain from waiting for more.
        sys::set_option(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        Ok(Self { fd })
    }

    /// How far it has come.
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

    /// The address of the peer.
    ///
    /// # Errors
    /// Of the system: it is not connected, or no longer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        sys::peer_addr(self.fd.as_fd())
    }

    /// Its own address.
    ///
    /// # Errors
    /// Of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        sys::local_addr(self.fd.as_fd())
    }

    /// Whether both ends have one address, so that both are within this host. False where it cannot
    /// be told.
    pub fn is_within_host(&self) -> bool {
        let ip = |addr: io::Result<SocketAddr>| addr.ok().map(|addr| addr.ip());
        let local = ip(self.local_addr());
        local.is_some() && local == ip(self.peer_addr())
    }

    /// Bytes of payload in a segment, the effective maximum segment size (RFC 5044, 2): 1460 and
    /// the like, less what options take.
    ///
    /// # Errors
    /// Of the system.
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

    /// Receives into pieces of memory, one after the other, which must not be empty and be
    /// [`MAX_PIECES`] at most.
    pub fn recv_pieces(&self, pieces: &mut [RacySliceMut<'_>]) -> Received {
        Received::of(sys::recv_pieces(self.fd.as_fd(), pieces))
    }

    /// Sends as much of some pieces of memory, [`MAX_PIECES`] at most, as there is room for.
    pub fn send_pieces(&self, pieces: &[RacySlice<'_>]) -> Sent {
        if pieces.iter().all(RacySlice::is_empty) {
            return Sent::Bytes(0);
        }
        Sent::of(sys::send_pieces(self.fd.as_fd(), pieces))
    }

    /// Asks a peer that has been silent for a while whether it is there; if nothing answers for
    /// `timeout`, in whole seconds, the connection is lost (RFC 9293, 3.8.4). That is while nothing
    /// is on its way: then [`vitals`](Self::vitals) tell.
    ///
    /// # Errors
    /// Of the system: none is known.
    pub fn keep_alive(&self, timeout: Duration) -> io::Result<()> {
        let seconds = timeout.as_secs().clamp(1, MAX_KEEP_ALIVE_S) as i32;
        // Half of the time it is silent, in the other half it is asked, up to four times.
        let probes = seconds.clamp(1, 4);
        let idle = (seconds / 2).max(1);
        let pause = ((seconds - idle) / probes).max(1);
        let fd = self.fd.as_fd();
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle)?;
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, pause)?;
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, probes)?;
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)
    }

    /// Whether the peer answers.
    ///
    /// # Errors
    /// Of the system: none is known.
    pub fn vitals(&self) -> io::Result<Vitals> {
        let info = sys::tcp_info(self.fd.as_fd())?;
        let waits = info.tcpi_probes > 0 || info.tcpi_retransmits > 0;
        Ok(Vitals { waits, silent: Duration::from_millis(info.tcpi_last_ack_recv.into()) })
    }

    /// Whether the peer's TCP has acknowledged all that was sent, and the closing of the sending
    /// half if that was closed. True of a connection that is lost.
    pub fn is_acknowledged(&self) -> bool {
        sys::unacknowledged(self.fd.as_fd()).is_ok_and(|bytes| bytes == 0)
    }

    /// Closes the sending half, behind what was sent. Of a connection that is lost that is nothing.
    pub fn shutdown(&self) {
        let _ = sys::shutdown_write(self.fd.as_fd());
    }

    /// Closes it so that the peer hears of a reset.
    pub fn reset(self) {
        // struct linger: on, for no time. Where that is refused the peer hears of a close.
        let linger = [1_i32.to_ne_bytes(), 0_i32.to_ne_bytes()].concat();
        let _ = sys::set_option_bytes(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &linger);
    }
}
