//! Whether anybody listens at a TCP port of this host.
//!
//! Called by connection management, for requests that nobody listens for; never by the data path.
//! It does not wait. (Other hosts are not asked: a datagram that is no RoCE packet brings kernels with `rdma_rxe` down.)

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use crate::sys;

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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

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
}
