//! The status socket: reports the state of an open device to any process of the same user that
//! asks.
//!
//! Owns [`StatusSocket`]: a listening socket with the abstract name
//! `\0vernic/status/<device>/<number>`. The name is in `/proc/net/unix` of the network namespace,
//! so a reader can find all processes that use a device, and it vanishes with the process. The
//! number begins with the process id, as the process sees it, so that one process can be found. A
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
//!   columns peer route ...        of the next kind of line; tabs are between its words
//!   flow 16385 10.0.0.2 ...       what is under way, and the counters, of a queue pair
//!   failure 16385 no answer ...   why a queue pair failed
//!   offender 10.0.0.9 1 0 0 0     address; wrong source, not allowed, wrong keys, fatal NAKs sent
//!   end                           nothing was lost
//! ```
//!
//! A caller that wants something else than the status binds its socket to a name that says so, and
//! only then connects: to `\0vernic/ask/requests/<queue pair or all>/<number>` for the latest send
//! requests ([`Question::Requests`]).
//!
//! The engine makes the text (`vernic-engine/src/verbs/status.rs`), and serves the socket from its
//! background thread. Other programs read it by `vernic-paths`. Nothing here is on the data path.
//!
//! Limit: one descriptor per open device. Text that the socket's buffer does not take at once is
//! cut off, and so is `end`.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

use vernic_sys::random;
use vernic_sys::user;
use vernic_sys::{self as sys, OwnFd};

/// Callers that wait. The kernel refuses more, and they may ask again.
const BACKLOG: i32 = 64;

/// The most callers answered in one call.
const MAX_SERVED: usize = 16;

/// Bytes of a socket's buffer that are asked for, at least.
const LEAST_ROOM: usize = 1 << 18;

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
        let (pid, number) = (std::process::id(), random() as u32);
        let name = format!("vernic/status/{device}/{pid:08x}{number:08x}");
        sys::bind_abstract(socket.as_fd(), name.as_bytes())?;
        sys::listen(socket.as_fd(), BACKLOG)?;
        Ok(Self(socket))
    }

    /// Returns the descriptor, for polling: readable while a caller waits.
    pub fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Answers all callers that wait now; calls `tell` for the text of each question that they
    /// have. Never blocks.
    pub fn serve(&self, mut tell: impl FnMut(Question) -> String) {
        let mut told: Option<(Question, String)> = None;
        for _ in 0..MAX_SERVED {
            let Ok(asker) = sys::accept(self.0.as_fd()) else { return };
            let is_ours = |uid| user::is_own(uid) || uid == 0;
            if !sys::peer_credentials(asker.as_fd()).is_ok_and(|peer| is_ours(peer.uid)) {
                continue;
            }
            let name = sys::peer_name(asker.as_fd()).unwrap_or_default();
            let question = Question::of(&name);
            if told.as_ref().is_none_or(|(of, _)| *of != question) {
                told = Some((question, tell(question)));
            }
            let text = told.as_ref().map_or("", |(_, text)| text);
            // A thousand queue pairs take more than the default. The system's limit holds.
            let room = i32::try_from(text.len().max(LEAST_ROOM)).unwrap_or(i32::MAX);
            let _ = sys::set_option(asker.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, room);
            // A caller that is gone gets nothing; one whose buffer is too small sees that `end` is
            // missing.
            let _ = send_all(&asker, text.as_bytes());
        }
    }
}

/// What a caller wants to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The state of the device, as the head of this module has it.
    Status,
    /// The latest send requests of the queue pair of this number, or of the first queue pairs. The
    /// process notes times of requests for a second after each such question.
    Requests(Option<u32>),
}

/// How the names of sockets begin that ask for send requests.
const ASKS_REQUESTS: &str = "vernic/ask/requests/";

impl Question {
    /// The question of a caller with this name.
    fn of(name: &[u8]) -> Self {
        let text = std::str::from_utf8(name).unwrap_or_default();
        let Some(which) = text.strip_prefix(ASKS_REQUESTS) else { return Self::Status };
        let (number, _) = which.split_once('/').unwrap_or((which, ""));
        Self::Requests(number.parse().ok())
    }

    /// The name for a socket that asks; `None` if any does.
    fn name(self) -> Option<String> {
        let Self::Requests(qpn) = self else { return None };
        let which = qpn.map_or_else(|| "all".to_owned(), |qpn| qpn.to_string());
        Some(format!("{ASKS_REQUESTS}{which}/{:016x}", random()))
    }
}

/// Longest text that is read of one process.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// The most processes asked: one per process slot of a host.
const MAX_PROCESSES: usize = 1024;

/// Returns what the processes of this user tell of a device (for root, those of all users). Waits
/// for one of them for `of_one` at most, and for all together for `of_all`.
///
/// # Errors
/// A process did not tell in time, or not everything. No further one is asked then.
pub fn ask_all(device: &str, of_one: Duration, of_all: Duration) -> io::Result<Vec<String>> {
    let until = Instant::now() + of_all;
    let texts = names(&format!("{device}/"))?;
    let ask = |name: &String| ask(name, Question::Status, until.min(Instant::now() + of_one));
    texts.iter().map(ask).filter_map(Result::transpose).collect()
}

/// Returns what the processes of this user answer to a question about all their devices (for root,
/// those of all users), and how many of them did not: each may take `of_one`, and all together
/// `of_all`. With `pid`, only the process with this process id is asked, as it sees that itself.
///
/// # Errors
/// The list of sockets (`/proc/net/unix`) cannot be read.
pub fn ask_each(
    question: Question,
    pid: Option<u32>,
    of_one: Duration,
    of_all: Duration,
) -> io::Result<(Vec<String>, usize)> {
    let until = Instant::now() + of_all;
    let (mut texts, mut silent) = (Vec::new(), 0);
    for name in names("")? {
        if pid.is_some_and(|pid| !is_of(&name, pid)) {
            continue;
        }
        match ask(&name, question, until.min(Instant::now() + of_one)) {
            Ok(text) => texts.extend(text),
            Err(_) => silent += 1,
        }
    }
    Ok((texts, silent))
}

/// Returns what a process of this user tells of its devices, and waits `patience` at most. Nothing
/// is told by a process of another PID namespace.
///
/// # Errors
/// The process did not tell in time, or not everything, or the list of sockets cannot be read.
pub fn ask_process(pid: u32, patience: Duration) -> io::Result<Vec<String>> {
    let until = Instant::now() + patience;
    let texts = names("")?.into_iter().filter(|name| is_of(name, pid)).map(|name| {
        let told = ask_one(&name, Question::Status, until)?;
        Ok(told.filter(|(of, _)| *of == pid).map(|(_, text)| text))
    });
    texts.filter_map(Result::transpose).collect()
}

/// Whether a status socket of this name is of the process with this process id.
fn is_of(name: &str, pid: u32) -> bool {
    name.rsplit_once('/').is_some_and(|(_, last)| last.starts_with(&format!("{pid:08x}")))
}

/// The names of status sockets that go on so.
fn names(rest: &str) -> io::Result<BTreeSet<String>> {
    let list = std::fs::read("/proc/net/unix")?;
    let list = String::from_utf8_lossy(&list);
    let start = format!("@vernic/status/{rest}");
    let names = list.lines().filter_map(|line| line.split_ascii_whitespace().last());
    let names = names.filter(|name| name.starts_with(&start));
    // A connection that is open now has the same name.
    Ok(names.map(|name| name[1..].to_owned()).take(MAX_PROCESSES).collect())
}

/// Returns what the process with this socket answers; `None` if it has ended, or is another user's.
fn ask(name: &str, question: Question, until: Instant) -> io::Result<Option<String>> {
    Ok(ask_one(name, question, until)?.map(|(_, text)| text))
}

/// Returns what the process with this socket answers, and its process id; `None` if it has ended,
/// or is another user's.
fn ask_one(name: &str, question: Question, until: Instant) -> io::Result<Option<(u32, String)>> {
    let socket = sys::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0)?;
    if let Some(name) = question.name() {
        sys::bind_abstract(socket.as_fd(), name.as_bytes())?;
    }
    match sys::connect_abstract(socket.as_fd(), name.as_bytes()) {
        // As many callers wait as may, so that it does not answer for long.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
        Err(_) => return Ok(None),
        Ok(()) => {}
    }
    let peer = sys::peer_credentials(socket.as_fd())?;
    if !user::is_own(peer.uid) && sys::effective_uid() != 0 {
        return Ok(None);
    }
    let (mut text, mut buf) = (Vec::new(), [0; 4096]);
    // Each round reads some of a text that has an end, or waits until there is some.
    loop {
        match sys::recv(socket.as_fd(), &mut buf) {
            Ok(0) => break,
            Ok(len) if text.len() + len > MAX_TEXT_BYTES => {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            Ok(len) => text.extend_from_slice(&buf[..len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                sys::poll(&mut [sys::PollFd::readable(socket.as_raw_fd())], Some(left))?;
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) => return Err(error),
        }
    }
    match text.ends_with(b"\nend\n") {
        _ if text.is_empty() => Ok(None),
        true => Ok(Some((peer.pid, String::from_utf8_lossy(&text).into_owned()))),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
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
            socket.serve(|_| "device x\nend\n".into());
        }
        for asker in &mut askers {
            let mut text = String::new();
            asker.read_to_string(&mut text).unwrap();
            assert_eq!(text, "device x\nend\n");
        }
        sockets[0].serve(|_| unreachable!("nobody asks"));
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
        socket.serve(|_| "x".repeat(1 << 24));
        let mut text = Vec::new();
        slow.read_to_end(&mut text).unwrap();
        assert!(!text.is_empty() && text.len() < 1 << 24, "{}", text.len());
    }

    #[test]
    fn one_process_is_asked_by_its_id() {
        let device = format!("w{}", std::process::id());
        let socket = StatusSocket::open(&device).unwrap();
        let (pid, long) = (std::process::id(), Duration::from_secs(10));
        let told = std::thread::scope(|scope| {
            let asks = scope.spawn(|| ask_process(pid, long));
            while !asks.is_finished() {
                socket.serve(|_| "device w\nend\n".into());
                std::thread::yield_now();
            }
            asks.join().unwrap().unwrap_or_default()
        });
        // Tests beside this one have sockets too, which nobody may serve.
        assert!(told.is_empty() || told.iter().any(|text| text == "device w\nend\n"), "{told:?}");
        assert_eq!(ask_process(u32::MAX, long).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn all_processes_of_a_device_are_asked_and_one_that_is_silent_is_an_error() {
        let device = format!("v{}", std::process::id());
        let patience = Duration::from_millis(50);
        let long = Duration::from_secs(10);
        assert_eq!(ask_all(&device, long, patience).unwrap(), Vec::<String>::new());
        let sockets = [(); 2].map(|()| StatusSocket::open(&device).unwrap());
        for (of_one, of_all) in [(patience, long), (long, patience)] {
            let start = Instant::now();
            let error = ask_all(&device, of_one, of_all).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(start.elapsed() < long);
        }
        let told = std::thread::scope(|scope| {
            let asks = scope.spawn(|| ask_all(&device, long, long));
            while !asks.is_finished() {
                sockets.iter().for_each(|socket| socket.serve(|_| "device v\nend\n".into()));
                std::thread::yield_now();
            }
            asks.join().unwrap().unwrap()
        });
        assert_eq!(told, ["device v\nend\n"; 2]);
        let cut = std::thread::scope(|scope| {
            let asks = scope.spawn(|| ask_all(&device, long, long));
            while !asks.is_finished() {
                sockets.iter().for_each(|socket| socket.serve(|_| "device v\n".into()));
                std::thread::yield_now();
            }
            asks.join().unwrap().unwrap_err()
        });
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    }
}
