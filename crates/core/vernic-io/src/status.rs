//! The status socket: reports the state of an open device to any process of the same user that
//! asks.
//!
//! Owns [`StatusSocket`]: a listening socket with the abstract name
//! `\0vernic/status/<device>/<number>`. The name is in `/proc/net/unix` of the network namespace,
//! so a reader can find all processes that use a device, and it vanishes with the process. A
//! process that connects receives a text, and the connection ends. The kernel names both ends:
//! another user (but for root) receives nothing, and a reader sees which process answers.
//!
//! ```text
//!   device vernic0          one line each; readers skip kinds of lines that they do not know
//!   pid 4711
//!   resource pd 1
//!   port port_xmit_data 17        what is shown in ports/1/counters
//!   hw rx_packets 17              what is shown in ports/1/hw_counters
//!   qp 16385 2 3 16386 7 9        number, type, state, peer's number, receive PSN, send PSN
//!   offender 10.0.0.9 1 0 0 0     address; wrong source, not allowed, wrong keys, fatal NAKs sent
//!   end                           nothing was lost
//! ```
//!
//! The engine makes the text (`vernic-engine/src/status.rs`), and serves the socket from its
//! background thread. Other programs read it by `vernic-paths`. Nothing here is on the data path.
//!
//! Limit: one descriptor per open device. Text that the socket's buffer does not take at once is
//! cut off, and so is `end`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use vernic_sys::random;
use vernic_sys::user;
use vernic_sys::{self as sys, OwnFd};

/// Callers that wait. The kernel refuses more, and they may ask again.
const BACKLOG: i32 = 64;

/// The most callers answered in one call.
const MAX_SERVED: usize = 16;

/// The status socket of a device. See the module's documentation.
#[derive(Debug)]
pub struct StatusSocket(OwnFd);

impl StatusSocket {
    /// Opens the socket of a device.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn open(device: &str) -> io::Result<Self> {
        let socket = sys::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0)?;
        let name = format!("vernic/status/{device}/{:016x}", random());
        sys::bind_abstract(socket.as_fd(), name.as_bytes())?;
        sys::listen(socket.as_fd(), BACKLOG)?;
        Ok(Self(socket))
    }

    /// Returns the descriptor, for polling: readable while a caller waits.
    pub fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Answers all callers that wait now; calls `tell` for the text if there are any. Never blocks.
    pub fn serve(&self, tell: impl FnOnce() -> String) {
        let (mut tell, mut text) = (Some(tell), String::new());
        for _ in 0..MAX_SERVED {
            let Ok(asker) = sys::accept(self.0.as_fd()) else { return };
            let is_ours = |uid| user::is_own(uid) || uid == 0;
            if !sys::peer_credentials(asker.as_fd()).is_ok_and(|peer| is_ours(peer.uid)) {
                continue;
            }
            if let Some(tell) = tell.take() {
                text = tell();
            }
            // A caller that is gone gets nothing; one whose buffer is too small sees that `end` is
            // missing.
            let _ = send_all(&asker, text.as_bytes());
        }
    }
}

/// Sends all bytes if there is room; never waits for room.
fn send_all(asker: &OwnFd, mut bytes: &[u8]) -> io::Result<()> {
    // Each round sends at least a byte.
    while !bytes.is_empty() {
        let sent = sys::send(asker.as_fd(), bytes)?;
        bytes = &bytes[sent.min(bytes.len())..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixStream};

    use super::*;

    /// Returns the names of sockets of this device, as any process finds them.
    fn names(device: &str) -> Vec<String> {
        let list = std::fs::read_to_string("/proc/net/unix").unwrap();
        let start = format!("@vernic/status/{device}/");
        let names = list.lines().filter_map(|line| line.split_whitespace().last());
        names.filter(|name| name.starts_with(&start)).map(|name| name[1..].to_owned()).collect()
    }

    fn connect(name: &str) -> UnixStream {
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
    }

    #[test]
    fn who_asks_is_told_until_the_socket_is_gone() {
        let device = format!("t{}", std::process::id());
        let sockets = [(); 2].map(|()| StatusSocket::open(&device).unwrap());
        let found = names(&device);
        assert_eq!(found.len(), 2, "each process of a device has its own: {found:?}");
        let mut askers: Vec<_> = (0..3).map(|_| connect(&found[0])).collect();
        for socket in &sockets {
            socket.serve(|| "device x\nend\n".into());
        }
        for asker in &mut askers {
            let mut text = String::new();
            asker.read_to_string(&mut text).unwrap();
            assert_eq!(text, "device x\nend\n");
        }
        sockets[0].serve(|| unreachable!("nobody asks"));
        drop(sockets);
        assert!(names(&device).is_empty());
    }

    #[test]
    fn one_that_is_gone_or_takes_less_harms_nobody() {
        let device = format!("u{}", std::process::id());
        let socket = StatusSocket::open(&device).unwrap();
        let name = names(&device).remove(0);
        drop(connect(&name));
        let mut slow = connect(&name);
        socket.serve(|| "x".repeat(1 << 24));
        let mut text = Vec::new();
        slow.read_to_end(&mut text).unwrap();
        assert!(!text.is_empty() && text.len() < 1 << 24, "{}", text.len());
    }
}
