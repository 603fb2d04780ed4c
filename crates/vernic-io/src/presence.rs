//! Whether anybody is there: at a TCP port of this host, at the RoCE port of another.
//!
//! Called by connection management, for requests that nobody listens for; never by the data path.
//! Neither question waits.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use crate::sys::{self, OwnFd};

/// `SOCK_DIAG_BY_FAMILY`, question and answer.
const BY_FAMILY: u16 = 20;
/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Bytes of a question, `struct inet_diag_req_v2` behind the header.
const QUESTION: usize = HEADER + 56;
/// Where an answer (`struct inet_diag_msg`) has the state of the socket.
const STATE: usize = HEADER + 1;
/// State of a socket that listens (`TCP_LISTEN`).
const LISTEN: u8 = 10;

/// Whether a TCP socket of this host, in this network namespace, listens where a connection to `local`
/// would come in; two system calls and a descriptor for their time, whatever the number of sockets.
///
/// # Errors
/// Of the system. A kernel without `sock_diag` for TCP says that nobody listens.
pub fn listens_by_tcp(local: SocketAddr) -> io::Result<bool> {
    let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_SOCK_DIAG)?;
    sys::write_all(socket.as_fd(), &question(local))?;
    // An answer is 88 bytes and its attributes; what is beyond the buffer is left out.
    let mut answer = [0; 512];
    let len = sys::read(socket.as_fd(), &mut answer)?;
    let kind = u16::from_ne_bytes([answer[4], answer[5]]);
    Ok(len > STATE && kind == BY_FAMILY && answer[STATE] == LISTEN)
}

/// Asks for the socket that would get a segment from nowhere in particular to `local`.
fn question(local: SocketAddr) -> [u8; QUESTION] {
    let mut bytes = [0; QUESTION];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &(QUESTION as u32).to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    put(HEADER, &[family as u8, libc::IPPROTO_TCP as u8]);
    // All states.
    put(HEADER + 4, &u32::MAX.to_ne_bytes());
    put(HEADER + 8, &local.port().to_be_bytes());
    match local.ip() {
        IpAddr::V4(ip) => put(HEADER + 12, &ip.octets()),
        IpAddr::V6(ip) => put(HEADER + 12, &ip.octets()),
    }
    if let SocketAddr::V6(v6) = local {
        put(HEADER + 44, &v6.scope_id().to_ne_bytes());
    }
    // The cookie of no socket in particular.
    put(HEADER + 48, &u64::MAX.to_ne_bytes());
    bytes
}

/// A datagram of no bytes to a port of another host. One that nobody receives at is told by that host at
/// once (ICMP, port unreachable); receivers of RoCE drop what is shorter than its headers.
#[derive(Debug)]
pub struct Probe(OwnFd);

impl Probe {
    /// Sends it from `local`, an address of this host.
    ///
    /// # Errors
    /// Of the system: there is no way to there, or no descriptor left.
    pub fn send(local: IpAddr, remote: SocketAddr) -> io::Result<Self> {
        let family = if remote.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let socket = sys::socket(family, libc::SOCK_DGRAM, 0)?;
        let scope = match remote {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let local = match local {
            IpAddr::V4(ip) => (ip, 0).into(),
            IpAddr::V6(ip) => std::net::SocketAddrV6::new(ip, 0, 0, scope).into(),
        };
        sys::bind(socket.as_fd(), &local)?;
        sys::connect(socket.as_fd(), &remote)?;
        sys::send(socket.as_fd(), &[])?;
        Ok(Self(socket))
    }

    /// Whether that host has said that nobody receives there. Told once.
    pub fn is_refused(&self) -> bool {
        let answer = sys::recv(self.0.as_fd(), &mut [0]);
        answer.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::time::{Duration, Instant};

    use super::*;

    /// A port that nobody has.
    fn free(ip: &str) -> SocketAddr {
        let taken = TcpListener::bind((ip, 0)).unwrap();
        taken.local_addr().unwrap()
    }

    #[test]
    fn a_port_is_listened_on_at_its_address_or_at_all() {
        for (at, asked) in [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "::1")] {
            let listener = TcpListener::bind((at, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let asked = SocketAddr::new(asked.parse().unwrap(), port);
            assert!(listens_by_tcp(asked).unwrap(), "{asked} of {at}");
            drop(listener);
            assert!(!listens_by_tcp(asked).unwrap(), "{asked} without {at}");
        }
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = other.local_addr().unwrap().port();
        assert!(!listens_by_tcp(([127, 0, 0, 2], port).into()).unwrap());
    }

    #[test]
    fn a_socket_of_all_families_listens_for_ipv4_too() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens_by_tcp(([127, 0, 0, 1], port).into()).unwrap());
    }

    #[test]
    fn a_port_without_a_receiver_refuses_and_one_with_it_does_not() {
        for ip in ["127.0.0.1", "::1"] {
            let local = ip.parse().unwrap();
            let probe = Probe::send(local, free(ip)).unwrap();
            let deadline = Instant::now() + Duration::from_secs(30);
            while !probe.is_refused() {
                assert!(Instant::now() < deadline, "no word of it");
                std::thread::yield_now();
            }
            let receiver = UdpSocket::bind((ip, 0)).unwrap();
            let probe = Probe::send(local, receiver.local_addr().unwrap()).unwrap();
            assert_eq!(receiver.recv(&mut [0; 16]).unwrap(), 0);
            assert!(!probe.is_refused());
        }
    }
}
