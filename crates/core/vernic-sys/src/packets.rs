//! Connections between processes of one host that keep message boundaries (`SOCK_SEQPACKET`), and
//! files that travel with the messages.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use super::fork::OwnFd;
use super::unix::Credentials;

/// Most files that one message carries.
pub(crate) const MAX_FILES: usize = 4;

/// Room for the control message of [`MAX_FILES`] descriptors, aligned for its header.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Returns the process at the other end of a connection: the one that called `connect`, or
/// `listen`.
pub fn peer_credentials(fd: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut cred = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the kernel writes at most `len` bytes into `cred`, which is that long.
    super::check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, cred.as_mut_ptr().cast(), &raw mut len)
    })?;
    // SAFETY: zeroed before, so initialised whatever the kernel left out; any value is valid.
    let cred = unsafe { cred.assume_init() };
    Ok(Credentials { pid: cred.pid as u32, uid: cred.uid })
}

/// Sends one message with up to 4 files over a connection. Never blocks.
///
/// # Errors
/// `InvalidInput` for more files; errors of the system: `WouldBlock` if there is no room.
pub fn send_packet(fd: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    if files.len() > MAX_FILES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut control = Control([0; 64]);
    let (iov_base, iov_len) = (bytes.as_ptr().cast_mut().cast(), bytes.len());
    let mut iov = libc::iovec { iov_base, iov_len };
    // SAFETY: a msghdr of zeros is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    if !files.is_empty() {
        let len = size_of_val(files) as u32;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: plain arithmetic on a length.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(len) } as _;
        // SAFETY: a control message with `MAX_FILES` descriptors is shorter than `control`, which
        // is aligned for its header, so the first header is inside, and its data too.
        unsafe {
            let cmsg = libc::CMSG_FIRSTHDR(&raw const message);
            (*cmsg).cmsg_level = libc::SOL_SOCKET;
            (*cmsg).cmsg_type = libc::SCM_RIGHTS;
            (*cmsg).cmsg_len = libc::CMSG_LEN(len) as _;
            for (i, file) in files.iter().enumerate() {
                let at = libc::CMSG_DATA(cmsg).cast::<RawFd>().add(i);
                std::ptr::write_unaligned(at, file.as_raw_fd());
            }
        }
    }
    let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    // SAFETY: the header points to `iov`, `control` and `bytes`, which live through the call and
    // which the kernel only reads.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, flags) };
    super::checked(sent).map(drop)
}

/// A received message of a connection.
#[derive(Debug)]
pub struct Packet {
    /// Bytes received; 0 is the end of the connection.
    pub len: usize,
    /// Whether the message was longer than the buffer, or had more files than a message may have.
    pub truncated: bool,
    /// Whether the message had files for which this process had no descriptor left.
    pub lost_files: bool,
    /// The files that came with the message.
    pub files: Vec<OwnFd>,
}

/// Receives one message of a connection, with its files, which no child of `fork` inherits. Never
/// blocks.
///
/// # Errors
/// Errors of the system: `WouldBlock` if there is no message.
pub fn recv_packet(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<Packet> {
    let mut control = Control([0; 64]);
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: a msghdr of zeros is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC);
    let (len, files, unmarked) = OwnFd::open_many(|opened| {
        // SAFETY: the header points to `iov`, `control` and `buf`, which live through the call and
        // are as long as it says.
        let len = super::checked(unsafe {
            libc::syscall(libc::SYS_recvmsg, fd, &raw mut message, flags)
        })?;
        // SAFETY: the call above filled `message`, whose control buffer is still alive.
        unsafe { descriptors(&message, opened) };
        Ok(len)
    })?;
    let had = |flag| message.msg_flags & flag != 0;
    let truncated = had(libc::MSG_TRUNC) || files.len() > MAX_FILES;
    // The control buffer holds more descriptors than a sender may send. So if the kernel dropped
    // some of a message that kept to that limit, this process had reached its own limit of open
    // files.
    let lost_files = !truncated && (had(libc::MSG_CTRUNC) || unmarked != 0);
    Ok(Packet { len, truncated, lost_files, files })
}

/// Collects the descriptors among the control messages. The kernel closes those that found no room.
///
/// # Safety
/// `message` must have been filled by a receive call, and its control buffer be alive. To be called
/// once per receive call.
unsafe fn descriptors(message: &libc::msghdr, found: &mut Vec<RawFd>) {
    // SAFETY: the kernel wrote well-formed control messages of `msg_controllen` bytes in all.
    unsafe {
        let mut cmsg = libc::CMSG_FIRSTHDR(message);
        while !cmsg.is_null() {
            if ((*cmsg).cmsg_level, (*cmsg).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let len = (*cmsg).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                for i in 0..len / size_of::<RawFd>() {
                    let at = libc::CMSG_DATA(cmsg).cast::<RawFd>().add(i);
                    found.push(std::ptr::read_unaligned(at));
                }
            }
            cmsg = libc::CMSG_NXTHDR(message, cmsg);
        }
    }
}

/// Receives one message of a connection, whose files are not taken. Never blocks, never allocates.
/// Returns the bytes of the message, which may be more than the buffer holds; 0 is the end of the
/// connection.
///
/// # Errors
/// Errors of the system: `WouldBlock` if there is no message.
pub fn recv_message(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    let (fd, at, len) = (fd.as_raw_fd(), buf.as_mut_ptr(), buf.len());
    let none = std::ptr::null_mut::<libc::sockaddr>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: pointer and length describe `buf`; no address is asked for.
    super::checked(unsafe { libc::syscall(libc::SYS_recvfrom, fd, at, len, flags, none, none) })
}

/// Opens both ends of a connection within this process.
pub fn packet_pair() -> io::Result<(OwnFd, OwnFd)> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let ((), mut ends, _) = OwnFd::open_many(|opened| {
        let mut ends = [-1; 2];
        // SAFETY: the kernel writes two descriptors to `ends`, which has room for them.
        super::check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
        opened.extend(ends);
        Ok(())
    })?;
    match (ends.pop(), ends.pop()) {
        (Some(a), Some(b)) => Ok((a, b)),
        _ => Err(io::ErrorKind::Other.into()),
    }
}
