//! What the processes of this host tell of a device that they have open.
//!
//! Each has a listening socket `\0vernic/status/<device>/<number>` in the network namespace. Who
//! connects is told a text, one line for each thing that is known, and `end`. Everybody of this
//! user is asked at the same time (root asks all); what counts is the sum over them. A process that
//! does not answer in time makes the sum unknown, not smaller.

use std::ffi::c_int;
use std::io::{self, Read as _};
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long all processes together are waited for. One that runs answers in a millisecond; one that
/// is stopped does not.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause before one with a full queue is asked again.
const PAUSE: Duration = Duration::from_millis(10);
/// Longest text that is read of one process.
const MAX_TEXT_BYTES: u64 = 1 << 20;
/// Most processes asked: one per process slot of a host.
const MAX_PROCESSES: usize = 1024;

/// A process did not say in time what it counts, or not all of it.
#[derive(Debug)]
pub(crate) struct Silent;

/// The texts of all processes of this user that have the device open.
pub(crate) fn ask(device: &str) -> Result<Vec<String>, Silent> {
    let end = Instant::now() + PATIENCE;
    let names = names(device).map_err(|_| Silent)?;
    // All are asked before the first is waited for.
    let asked: Result<Vec<_>, _> = names.iter().map(|name| connect(name, end)).collect();
    let texts = asked?.into_iter().flatten().map(|stream| read(stream, end));
    texts.filter_map(Result::transpose).collect()
}

/// The sum of a value over texts: of the lines that begin with these words. One that lacks it has
/// not counted it.
pub(crate) fn sum(texts: &[String], words: [&str; 2]) -> u64 {
    let values = texts.iter().flat_map(|text| lines(text, words[0])).filter_map(|rest| {
        let (name, value) = rest.split_once(' ')?;
        (name == words[1]).then_some(value)?.parse::<u64>().ok()
    });
    values.fold(0, u64::wrapping_add)
}

/// What follows a word in the lines that begin with it.
pub(crate) fn lines<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| line.strip_prefix(word)?.strip_prefix(' '))
}

/// Names of the sockets of a device, without the zero that they begin with.
fn names(device: &str) -> io::Result<Vec<String>> {
    let list = std::fs::read("/proc/net/unix")?;
    let list = String::from_utf8_lossy(&list);
    let start = format!("@vernic/status/{device}/");
    let of_device = |line: &str| {
        let name = line.split_ascii_whitespace().last()?;
        name.starts_with(&start).then(|| name[1..].to_owned())
    };
    let mut names: Vec<_> = list.lines().filter_map(of_device).collect();
    // A connection that is open now has the same name.
    names.sort();
    names.dedup();
    names.truncate(MAX_PROCESSES);
    Ok(names)
}

/// A connection; none if nobody is there any more, or the process is somebody else's.
fn connect(name: &str, end: Instant) -> Result<Option<UnixStream>, Silent> {
    loop {
        match try_connect(name) {
            Ok(stream) => return Ok(is_for_us(&stream).then_some(stream)),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Ok(None),
            Err(_) if Instant::now() >= end => return Err(Silent),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn try_connect(name: &str) -> io::Result<UnixStream> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0) } as c_int;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else's.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // SAFETY: a sockaddr_un of zeros is valid.
    let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let path = addr.sun_path.get_mut(1..=name.len()).ok_or(io::ErrorKind::InvalidInput)?;
    path.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from as _);
    let len = offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    // SAFETY: pointer and length describe `addr`, which lives through the call.
    match unsafe { libc::connect(fd, (&raw const addr).cast(), len as libc::socklen_t) } {
        0 => Ok(stream),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the process at the other end, as the kernel names it, is this user's. Root hears
/// everybody.
fn is_for_us(stream: &UnixStream) -> bool {
    // SAFETY: a ucred is integers.
    let mut peer: libc::ucred = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (fd, at) = (stream.as_raw_fd(), (&raw mut peer).cast());
    // SAFETY: the kernel writes at most `len` bytes into `peer`, which is that long.
    let got =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &raw mut len) };
    // SAFETY: no arguments, cannot fail.
    let user = unsafe { libc::geteuid() };
    got == 0 && (user == 0 || peer.uid == user)
}

/// The text of a process; none if it ended before it said anything.
fn read(stream: UnixStream, end: Instant) -> Result<Option<String>, Silent> {
    let mut text = String::new();
    let left = end.saturating_duration_since(Instant::now()).max(PAUSE);
    let prepared = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(left)));
    match prepared.and_then(|()| stream.take(MAX_TEXT_BYTES).read_to_string(&mut text)) {
        Ok(0) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        Ok(_) if text.ends_with("\nend\n") => Ok(Some(text)),
        _ => Err(Silent),
    }
}
