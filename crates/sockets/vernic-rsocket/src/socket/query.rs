//! Options as programs read them: what is stored, and what is looked up.

use std::ffi::c_int;

use super::{Inner, Socket, SocketKind};
use crate::Error;
use crate::family::Family;
use crate::options::{RDMA_DROPPED, RDMA_ROUTE, RDMA_UNREAD, RDMA_UNSENT, SOL_RDMA};
use crate::stream_socket::{State, StreamSocket};
use crate::wake::lock;

impl Socket {
    /// Reads an option, as bytes of C.
    ///
    /// # Errors
    /// [`Error::NoOption`].
    pub fn option(&self, level: c_int, option: c_int) -> Result<Vec<u8>, Error> {
        let number = |value: c_int| Ok(value.to_ne_bytes().to_vec());
        match (level, option) {
            (libc::SOL_SOCKET, libc::SO_TYPE) => number(match self.kind() {
                SocketKind::Stream => libc::SOCK_STREAM,
                SocketKind::Datagram => libc::SOCK_DGRAM,
            }),
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => number(match self.0.family {
                Family::V4 => libc::AF_INET,
                Family::V6 => libc::AF_INET6,
            }),
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => number(match self.kind() {
                SocketKind::Stream => libc::IPPROTO_TCP,
                SocketKind::Datagram => libc::IPPROTO_UDP,
            }),
            _ => match &self.0.inner {
                Inner::Stream(stream) => stream_option(stream, level, option),
                Inner::Datagram(datagram) => match (level, option) {
                    (libc::SOL_SOCKET, libc::SO_ERROR) => number(0),
                    (SOL_RDMA, RDMA_DROPPED) => {
                        number(datagram.dropped().min(c_int::MAX as u64) as c_int)
                    }
                    _ => lock(&datagram.options).get(level, option),
                },
            },
        }
    }
}

fn stream_option(stream: &StreamSocket, level: c_int, option: c_int) -> Result<Vec<u8>, Error> {
    let number = |value: c_int| Ok(value.to_ne_bytes().to_vec());
    let look = |look: fn(&crate::stream::Stream) -> u32| {
        number(stream.connected().map_or(0, |connection| connection.look(look) as c_int))
    };
    match (level, option) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            number(stream.take_failure().map_or(0, |failure| failure.errno))
        }
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            let listens = matches!(&*lock(&stream.state), State::Listening(_));
            number(listens.into())
        }
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => number(stream.mtu_bytes() as c_int),
        (libc::IPPROTO_TCP, libc::TCP_INFO) => Ok(tcp_info(stream)),
        (SOL_RDMA, RDMA_UNREAD) => look(|stream| stream.unread()),
        (SOL_RDMA, RDMA_UNSENT) => look(|stream| stream.unsent()),
        (SOL_RDMA, RDMA_ROUTE) => stream.route(),
        _ => lock(&stream.options).get(level, option),
    }
}

/// `struct tcp_info` as far as it has a meaning here: the state, 1 of an open connection, 7 of
/// none; the segment sizes; the window. All else is 0.
fn tcp_info(stream: &StreamSocket) -> Vec<u8> {
    const ESTABLISHED: u8 = 1;
    const CLOSE: u8 = 7;
    /// Bytes of the struct as of Linux 4.9, and places of fields in it.
    const LEN: usize = 192;
    const SND_MSS: usize = 16;
    const RCV_MSS: usize = 20;
    const SND_CWND: usize = 80;
    let mut info = vec![0; LEN];
    let connection = stream.connected();
    info[0] = match connection.is_some_and(|one| one.look(|stream| stream.is_connected())) {
        true => ESTABLISHED,
        false => CLOSE,
    };
    let mut field = |at: usize, value: u32| {
        info[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    };
    field(SND_MSS, stream.mtu_bytes());
    field(RCV_MSS, stream.mtu_bytes());
    field(SND_CWND, lock(&stream.options).limits.send_requests.into());
    info
}
