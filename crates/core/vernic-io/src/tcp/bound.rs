//! Sockets that have an address: to listen on, and to connect from.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use vernic_sys::{self as sys, OwnFd};

use super::Connection;
use crate::address::LocalAddr;

/// The queue of a listening socket: connections whose handshake is done and which are not accepted
/// yet. The kernel's own default bound (`net.core.somaxconn`) cuts it where that is lower.
const BACKLOG: i32 = 1024;

fn family(addr: &SocketAddr) -> i32 {
    if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

/// A socket that has an address of this machine, and a port that no other socket listens on: to
/// listen, or to connect from.
#[derive(Debug)]
pub struct Bound {
    fd: OwnFd,
}

impl Bound {
    /// Binds a socket to an address and a port; port 0 takes a free port. With `v6_only` the IPv6
    /// wildcard stands for IPv6 alone; else it stands for IPv4 as well.
    ///
    /// No other socket of any process gets the port, unless both sockets say that they `share` it:
    /// then one of them may listen. A port whose earlier owner has connections in TIME-WAIT may be
    /// taken. Such a port is not exclusive until this socket listens.
    ///
    /// # Errors
    /// The system's error: the address is not this machine's, or the port is taken.
    pub fn new(addr: &SocketAddr, v6_only: bool, share: bool) -> io::Result<Self> {
        let fd = sys::socket(family(addr), libc::SOCK_STREAM, 0)?;
        if addr.is_ipv6() {
            let only = i32::from(v6_only);
            sys::set_option(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only)?;
        }
        let this = Self { fd };
        if share {
            this.set_reuse()?;
        }
        match sys::bind(this.fd.as_fd(), addr) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && !share => {
                // A port stays exclusive to a socket that did not set this option itself.
                this.set_reuse()?;
                sys::bind(this.fd.as_fd(), addr)?;
            }
            bound => bound?,
        }
        Ok(this)
    }

    /// Lets the port be taken again while connections over it are in TIME-WAIT. Connections inherit
    /// this from the socket that made them.
    fn set_reuse(&self) -> io::Result<()> {
        sys::set_option(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
    }

    /// Sets the type of service, or traffic class, of everything that is sent. Connections that
    /// this socket accepts once it listens inherit it. Its two low bits are TCP's (ECN).
    ///
    /// # Errors
    /// The system's error: none is known.
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        let (level, name) = match self.local_addr()? {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        sys::set_option(self.fd.as_fd(), level, name, tos.into())
    }

    /// Returns the address, with the port that was chosen.
    ///
    /// # Errors
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        sys::local_addr(self.fd.as_fd())
    }

    /// Listens for connections from now on.
    ///
    /// # Errors
    /// The system's error: another socket listens on the port. This socket stays as it is.
    pub fn listen(self) -> Result<Listener, (Self, io::Error)> {
        match self.set_reuse().and_then(|()| sys::listen(self.fd.as_fd(), BACKLOG)) {
            Ok(()) => Ok(Listener { fd: self.fd }),
            Err(error) => Err((self, error)),
        }
    }

    /// Begins to connect to `peer`. [`Connection::connecting`] reports the progress; bytes can be
    /// sent once the connection is made.
    ///
    /// # Errors
    /// The system's error: there is no route to the peer, or no process listens there.
    pub fn connect(self, peer: &SocketAddr) -> io::Result<Connection> {
        self.set_reuse()?;
        let connection = Connection::new(self.fd)?;
        match sys::connect(connection.fd.as_fd(), peer) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(connection),
        }
    }
}

impl Connection {
    /// Begins to connect to `peer`, from an address of this machine.
    /// [`connecting`](Self::connecting) reports the progress; bytes can be sent once the connection
    /// is made.
    ///
    /// # Errors
    /// The system's error: the address is not this machine's, or there is no route to the peer.
    pub fn connect(local: LocalAddr, peer: &SocketAddr) -> io::Result<Self> {
        Bound::new(&local.with_port(0), true, false)?.connect(peer)
    }
}

/// A socket that takes connections.
#[derive(Debug)]
pub struct Listener {
    pub(super) fd: OwnFd,
}

impl Listener {
    /// Listens on an address; port 0 chooses one. An IPv6 wildcard takes IPv6 only.
    ///
    /// # Errors
    /// The system's error: the address is not this machine's, or the port is taken.
    pub fn bind(addr: &SocketAddr) -> io::Result<Self> {
        Bound::new(addr, true, false)?.listen().map_err(|(_, error)| error)
    }

    /// Returns the address that the socket listens on, its port chosen.
    ///
    /// # Errors
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        sys::local_addr(self.fd.as_fd())
    }

    /// Accepts the next connection, if there is one.
    ///
    /// # Errors
    /// The system's error: no descriptor is left. A connection that was lost before it was accepted
    /// does not count as a connection.
    pub fn accept(&self) -> io::Result<Option<Connection>> {
        match sys::accept(self.fd.as_fd()) {
            Ok(fd) => Connection::new(fd).map(Some),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            },
        }
    }
}
