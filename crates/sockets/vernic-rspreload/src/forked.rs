//! Connections that go over to RDMA with their first use, maybe in a child of the process that made
//! them.
//!
//! A connection over RDMA stays with the process that made it. Servers that accept and then fork
//! are served all the same if both sides set `RDMAV_FORK_SAFE`: connections are made over TCP, and
//! go over to RDMA with the first use on the accepting side. That side listens by RDMA on the same
//! port, says so with four zero bytes over TCP, and the other side, which waits for them before its
//! first use, connects. The exchange is that of rdma-core's library.
//!
//! Limits, as there: a server that waits (`poll`) for its client to speak before it reads or writes
//! waits in vain, since the client waits for the four bytes; and one child at a time listens on the
//! port (`turn.rs`).

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use crate::address::Address;
use crate::rdmacm::{self, close_rsocket, set_int};
use crate::real::{errno, next, set_errno};
use crate::sockets::{leave, new_rsocket, set_nonblocking};
use crate::table::{Entry, Move, Stage};
use crate::turn::Turn;

/// What the accepting side says when it listens by RDMA.
const READY: [u8; 4] = [0; 4];

/// Pause between two looks of a thread that waits for another one's exchange, which takes some
/// round trips and may take as long as the peer likes.
const PAUSE: Duration = Duration::from_micros(50);

/// Has a connection over TCP go over to RDMA, if it waits for its first use. If that fails it stays
/// where it is. Of the threads that find it so one does it, and the others wait for that.
pub(crate) fn go_over(fd: c_int, entry: &Arc<Entry>) {
    let before = errno();
    // Each turn waits for a thread that does it, and which is there.
    while matches!(entry.stage(), Stage::Passive | Stage::Active) {
        match entry.begin_move() {
            Move::Ours => {
                move_over(fd, entry);
                entry.end_move();
            }
            // It is for the parent, whose thread this process does not have.
            Move::Parents => leave(entry),
            Move::Others => std::thread::sleep(PAUSE),
            // The handler of a signal, in the middle of it.
            Move::Within => break,
        }
    }
    set_errno(before);
}

/// The exchange, by the thread that has the move.
fn move_over(fd: c_int, entry: &Arc<Entry>) {
    let number = match entry.stage() {
        Stage::Passive => accept(fd),
        Stage::Active => connect(fd),
        _ => return,
    };
    match number {
        Some(number) => {
            copy_options(fd, number);
            entry.set_number(number);
            entry.set_stage(Stage::Rdma);
            // SAFETY: no pointers. Its descriptor stays the program's.
            unsafe { next::shutdown(fd, libc::SHUT_RDWR) };
        }
        None => leave(entry),
    }
}

/// What a program is likely to have set on the TCP socket.
fn copy_options(fd: c_int, number: c_int) {
    for (level, option) in [
        (libc::SOL_SOCKET, libc::SO_REUSEADDR),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    ] {
        let mut value: c_int = 0;
        let mut length = size_of::<c_int>() as libc::socklen_t;
        let place = ptr::from_mut(&mut value).cast();
        // SAFETY: room for an `int`.
        if unsafe { next::getsockopt(fd, level, option, place, &raw mut length) } == 0 {
            set_int(number, level, option, value);
        }
    }
    // SAFETY: no pointers.
    unsafe {
        let flags = next::fcntl(fd, libc::F_GETFL, 0).max(0);
        rdmacm::rfcntl(number, libc::F_SETFL, flags.into());
    }
}

/// The accepting side.
fn accept(fd: c_int) -> Option<c_int> {
    let own = Address::of_tcp(fd, false)?.anywhere();
    // Each turn but the last waits for one who has the port, and was waited for in vain.
    loop {
        let turn = Turn::take()?;
        match accept_at(fd, &own) {
            Err(libc::EADDRINUSE) if !turn.is_alone() => {}
            accepted => return accepted.ok(),
        }
    }
}

/// Listens at `own`, says so, and accepts: the number of the connection, or why there is none.
fn accept_at(fd: c_int, own: &Address) -> Result<c_int, c_int> {
    let family = c_int::from(u16::from_ne_bytes([own.bytes[0], own.bytes[1]]));
    let listener = new_rsocket(family, libc::SOCK_STREAM);
    if listener < 0 {
        return Err(errno());
    }
    set_int(listener, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    // SAFETY: addresses and bytes of ours, with their lengths.
    let accepted = unsafe {
        let listens = rdmacm::rbind(listener, own.raw(), own.length) == 0
            && rdmacm::rlisten(listener, 1) == 0
            && next::write(fd, READY.as_ptr().cast(), READY.len()) == READY.len() as isize;
        match listens {
            true => rdmacm::raccept(listener, ptr::null_mut(), ptr::null_mut()),
            false => -1,
        }
    };
    close_rsocket(listener);
    if accepted >= 0 { Ok(accepted) } else { Err(errno()) }
}

/// The connecting side.
fn connect(fd: c_int) -> Option<c_int> {
    // SAFETY: no pointers.
    let flags = unsafe { next::fcntl(fd, libc::F_GETFL, 0) }.max(0);
    set_nonblocking(fd, false);
    let mut said = [0xFF_u8; READY.len()];
    let place = said.as_mut_ptr().cast();
    // SAFETY: room for so many bytes. They are left where they are: if it is no such server, they
    // are the program's.
    let count = unsafe { next::recv(fd, place, said.len(), libc::MSG_PEEK) };
    set_nonblocking(fd, flags & libc::O_NONBLOCK != 0);
    if count != READY.len() as isize || said != READY {
        return None;
    }
    let peer = Address::of_tcp(fd, true)?;
    let family = c_int::from(u16::from_ne_bytes([peer.bytes[0], peer.bytes[1]]));
    let number = new_rsocket(family, libc::SOCK_STREAM);
    if number < 0 {
        return None;
    }
    // SAFETY: an address, and its length.
    if unsafe { rdmacm::rconnect(number, peer.raw(), peer.length) } != 0 {
        close_rsocket(number);
        return None;
    }
    Some(number)
}
