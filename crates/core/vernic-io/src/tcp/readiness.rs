//! Readiness of many sockets, behind one descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use vernic_sys::{self as sys, EpollOp, OwnFd};

use super::{Connection, Listener};

/// The events that a connection is watched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Whether to wait for bytes, connections, or the end.
    pub receive: bool,
    /// Whether to wait for room, or the outcome of connecting.
    pub send: bool,
}

impl Interest {
    fn events(self) -> u32 {
        let mut events = 0;
        if self.receive {
            events |= libc::EPOLLIN as u32;
        }
        if self.send {
            events |= libc::EPOLLOUT as u32;
        }
        events
    }
}

/// The events that a watched socket is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// The key that was given when the socket was watched.
    pub key: u64,
    /// Something can be received.
    pub receive: bool,
    /// Something can be sent.
    pub send: bool,
    /// The connection is lost, or closed by both ends. Reported whatever was waited for.
    pub broken: bool,
}

/// A list of watched sockets, behind one descriptor that is readable while any of them is ready. A
/// socket that is closed leaves the list by itself.
#[derive(Debug)]
pub struct Readiness {
    fd: OwnFd,
}

impl Readiness {
    /// Makes a list that watches nothing.
    ///
    /// # Errors
    /// The system's error: no descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fd: sys::epoll()? })
    }

    /// Returns the descriptor to sleep on.
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Watches a connection.
    ///
    /// # Errors
    /// The system's error: its bound of watched descriptors is reached, or this one is watched
    /// already.
    pub fn watch(&self, connection: &Connection, key: u64, interest: Interest) -> io::Result<()> {
        let (epoll, fd) = (self.fd.as_fd(), connection.fd.as_fd());
        sys::epoll_watch(epoll, EpollOp::Add, fd, key, interest.events())
    }

    /// Watches a listener.
    ///
    /// # Errors
    /// The errors of [`watch`](Self::watch).
    pub fn watch_listener(&self, listener: &Listener, key: u64) -> io::Result<()> {
        let interest = Interest { receive: true, send: false };
        let (epoll, fd) = (self.fd.as_fd(), listener.fd.as_fd());
        sys::epoll_watch(epoll, EpollOp::Add, fd, key, interest.events())
    }

    /// Changes the events that a connection is watched for.
    ///
    /// # Errors
    /// The system's error: the connection is not watched.
    pub fn change(&self, connection: &Connection, key: u64, interest: Interest) -> io::Result<()> {
        let (epoll, fd) = (self.fd.as_fd(), connection.fd.as_fd());
        sys::epoll_watch(epoll, EpollOp::Change, fd, key, interest.events())
    }

    /// Stops watching a listener.
    ///
    /// # Errors
    /// The system's error: the listener is not watched.
    pub fn unwatch_listener(&self, listener: &Listener) -> io::Result<()> {
        let (epoll, fd) = (self.fd.as_fd(), listener.fd.as_fd());
        sys::epoll_watch(epoll, EpollOp::Remove, fd, 0, 0)
    }

    /// Stops watching a connection, so that not even its loss is reported.
    ///
    /// # Errors
    /// The system's error: the connection is not watched.
    pub fn unwatch(&self, connection: &Connection) -> io::Result<()> {
        let (epoll, fd) = (self.fd.as_fd(), connection.fd.as_fd());
        sys::epoll_watch(epoll, EpollOp::Remove, fd, 0, 0)
    }

    /// Appends the sockets that are ready to `ready`, 64 at most; the others come with a later
    /// call.
    ///
    /// # Errors
    /// The system's error: none is known.
    pub fn poll(&self, ready: &mut Vec<Ready>) -> io::Result<usize> {
        sys::epoll_ready(self.fd.as_fd(), |key, events| {
            let has = |bits: i32| events & bits as u32 != 0;
            let broken = has(libc::EPOLLERR | libc::EPOLLHUP);
            let (receive, send) = (has(libc::EPOLLIN), has(libc::EPOLLOUT));
            ready.push(Ready { key, receive, send, broken });
        })
    }
}
