//! Sockets that have an address: to listen, and to connect from.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use super::Connection;
use crate::address::LocalAddr;
use crate::sys::{self, OwnFd};

/// A listening socket's queue: connections whose handshake is done and which nobody has accepted.
/// The kernel's own default bound (`net.core.somaxconn`) cuts it where that is lower.
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
    /// Takes an address and a port; port 0 takes one that is free. `v6_only` lets the IPv6 wildcard
    /// stand for IPv6 alone; else it stands for IPv4 as well. No other socket gets the port, of
    /// whichever process, unless both say that they `share` it: then one of them may listen. A port
    /// whose earlier owner has connections in TIME-WAIT may be taken, and then that is not so until
    /// it listens.
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
                // A socket that did not say so itself still has it for itself.
                this.set_reuse()?;
                sys::bind(this.fd.as_fd(), addr)?;
            }
            bound => bound?,
        }
        Ok(this)
    }

    /// Lets the port be taken anew while connections over it are in TIME-WAIT: they have this from
    /// the socket that made them.
    fn set_reuse(&self) -> io::Result<()> {
        sys::set_option(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
    }

    /// The type of service, or traffic class, of all that is sent, also of connections that it will
    /// take when it listens. Its two low bits are TCP's (ECN).
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

    /// The address, with the port that was chosen.
    ///
    /// # Errors
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        sys::local_addr(self.fd.as_fd())
    }

    /// Takes connections from now on.
    ///
    /// # Errors
    /// The system's error: another socket listens on the port. This one stays as it is.
    pub fn listen(self) -> Result<Listener, (Self, io::Error)> {
        match self.set_reuse().and_then(|()| sys::listen(self.fd.as_fd(), BACKLOG)) {
            Ok(()) => Ok(Listener { fd: self.fd }),
            Err(error) => Err((self, error)),
        }
    }

    /// Begins to connect to `peer`. [`Connection::connecting`] tells how it goes; it can be sent to
    /// when it is done.
    ///
    /// # Errors
    /// The system's error: there is no way to the peer, or nobody listens there.
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
    /// [`connecting`](Self::connecting) tells how it goes; it can be sent to when it is done.
    ///
    /// # Errors
    /// The system's error: the address is not this machine's, there is no way to the peer.
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

    /// The address that it listens on, its port chosen.
    ///
    /// # Errors
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        sys::local_addr(self.fd.as_fd())
    }

    /// The next connection, if there is one.
    ///
    /// # Errors
    /// The system's error: no descriptor is left. A connection that was lost before it was taken is
    /// none.
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
