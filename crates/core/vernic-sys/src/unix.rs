//! Datagrams between processes of one host: Unix sockets with abstract names and credentials.

use std::io;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The process that sent a datagram or is connected to a socket, as the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process id of the sender.
    pub pid: u32,
    /// User id of the sender.
    pub uid: u32,
}

/// Returns the abstract address `\0name`; `None` if the name is too long (107 bytes).
fn abstract_addr(name: &[u8]) -> Option<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: a sockaddr_un of zeros is valid.
    let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let path = addr.sun_path.get_mut(1..=name.len())?;
    for (to, from) in path.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let len = offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    Some((addr, len as libc::socklen_t))
}

/// Returns the address of a socket at a path; `None` if the path is too long (107 bytes) or has a
/// zero byte.
fn path_addr(path: &Path) -> Option<(libc::sockaddr_un, libc::socklen_t)> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: a sockaddr_un of zeros is valid.
    let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The byte behind the path stays 0.
    if bytes.is_empty() || bytes.len() >= addr.sun_path.len() || bytes.contains(&0) {
        return None;
    }
    for (to, from) in addr.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Some((addr, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

/// Binds a Unix socket to a path, which becomes a file: `AddrInUse` if there is one already, and
/// `InvalidInput` if the path is longer than 107 bytes.
pub fn bind_path(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let (addr, len) = path_addr(path).ok_or_else(too_long)?;
    // SAFETY: pointer and length describe `addr`, which lives through the call.
    super::check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
    Ok(())
}

/// Connects a Unix socket to a path: `NotFound` if there is no file, `ConnectionRefused` if no
/// process listens at it.
pub fn connect_path(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let (addr, len) = path_addr(path).ok_or_else(too_long)?;
    // SAFETY: pointer and length describe `addr`, which lives through the call.
    super::check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
    Ok(())
}

fn too_long() -> io::Error {
    io::Error::from(io::ErrorKind::InvalidInput)
}

/// Binds a Unix socket to the abstract name `\0name`; an empty name lets the kernel choose.
pub fn bind_abstract(fd: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let (addr, mut len) = abstract_addr(name).ok_or_else(too_long)?;
    if name.is_empty() {
        len = size_of::<libc::sa_family_t>() as libc::socklen_t;
    }
    // SAFETY: pointer and length describe `addr`, which lives through the call.
    super::check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
    Ok(())
}

/// Connects a Unix socket to the abstract name `\0name`: `ConnectionRefused` if no socket has it.
pub fn connect_abstract(fd: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let (addr, len) = abstract_addr(name).ok_or_else(too_long)?;
    // SAFETY: pointer and length describe `addr`, which lives through the call.
    super::check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
    Ok(())
}

/// Returns the abstract name of the socket that is connected to this one, without its leading zero;
/// empty if that has no name, or a path.
pub fn peer_name(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    // SAFETY: a sockaddr_un of zeros is valid.
    let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    let to = (&raw mut addr).cast();
    // SAFETY: pointer and length describe `addr`; both live through the call.
    super::check(unsafe { libc::getpeername(fd.as_raw_fd(), to, &raw mut len) })?;
    let path = (len as usize).saturating_sub(offset_of!(libc::sockaddr_un, sun_path));
    let name = addr.sun_path.iter().take(path).map(|byte| *byte as u8);
    match addr.sun_path.first() {
        Some(0) => Ok(name.skip(1).collect()),
        _ => Ok(Vec::new()),
    }
}

/// Opens a socket that is connected to itself, closed on exec: what is written to it makes it
/// readable. `kind` may have flags such as `SOCK_NONBLOCK`. The socket holds some messages, not any
/// number, and others cannot send to it.
pub fn bell(kind: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | kind;
    // SAFETY: no pointers are passed.
    let raw = super::check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: just created, and owned by no other value.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    // An empty name lets the kernel choose one.
    bind_abstract(socket.as_fd(), b"")?;
    // SAFETY: a sockaddr_un of zeros is valid.
    let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    let to = (&raw mut addr).cast();
    // SAFETY: pointer and length describe `addr`; both live through the call.
    super::check(unsafe { libc::getsockname(raw, to, &raw mut len) })?;
    // SAFETY: pointer and length describe `addr`, the name that the kernel has just written.
    super::check(unsafe { libc::connect(raw, (&raw const addr).cast(), len) })?;
    Ok(socket)
}

/// Sends one datagram, `head` followed by `body`, to the abstract name `\0name`. Never blocks.
pub fn send_abstract(fd: BorrowedFd<'_>, name: &[u8], head: &[u8], body: &[u8]) -> io::Result<()> {
    send_with_file(fd, name, head, body, None)
}

/// Does what [`send_abstract`] does, and passes a file to the receiver.
pub fn send_with_file(
    fd: BorrowedFd<'_>,
    name: &[u8],
    head: &[u8],
    body: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut control = Control([0; 64]);
    let (mut addr, len) = abstract_addr(name).ok_or_else(too_long)?;
    let mut iov = [head, body]
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    // SAFETY: a msghdr of zeros is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut addr).cast();
    message.msg_namelen = len;
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = iov.len();
    if let Some(file) = file {
        let file = file.as_raw_fd();
        let bytes = size_of::<RawFd>() as u32;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: plain arithmetic on a length.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as _;
        // SAFETY: a control message with one descriptor is shorter than `control`, which is aligned
        // for its header, so the first header is inside, and its data too.
        unsafe {
            let cmsg = libc::CMSG_FIRSTHDR(&raw const message);
            (*cmsg).cmsg_level = libc::SOL_SOCKET;
            (*cmsg).cmsg_type = libc::SCM_RIGHTS;
            (*cmsg).cmsg_len = libc::CMSG_LEN(bytes) as _;
            std::ptr::write_unaligned(libc::CMSG_DATA(cmsg).cast::<RawFd>(), file);
        }
    }
    let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    // SAFETY: the header points to `addr`, `iov`, `control`, `head` and `body`, which live through
    // the call and which the kernel only reads.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, flags) };
    super::checked(sent).map(drop)
}

/// A datagram that [`recv_abstract`] received.
#[derive(Debug)]
pub struct UnixIncoming {
    /// Bytes received, over both parts.
    pub len: usize,
    /// The sender, if the socket has `SO_PASSCRED`.
    pub credentials: Option<Credentials>,
    /// The abstract name of the sender and its length; 0 if it has none.
    pub name: ([u8; 107], usize),
    /// Whether the datagram did not fit.
    pub truncated: bool,
    /// The file that the sender passed, if any; of several, the first.
    pub file: Option<OwnedFd>,
}

impl UnixIncoming {
    /// Returns the abstract name of the sender, without the leading zero; empty if there is none.
    pub fn sender(&self) -> &[u8] {
        &self.name.0[..self.name.1]
    }
}

#[repr(C, align(8))]
struct Control([u8; 64]);

/// Receives one datagram: its first bytes into `head`, the rest into `body`. Never blocks.
pub fn recv_abstract(
    fd: BorrowedFd<'_>,
    head: &mut [u8],
    body: &mut [u8],
) -> io::Result<UnixIncoming> {
    let mut addr = MaybeUninit::<libc::sockaddr_un>::zeroed();
    let mut control = Control([0; 64]);
    let mut iov = [
        libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() },
        libc::iovec { iov_base: body.as_mut_ptr().cast(), iov_len: body.len() },
    ];
    // SAFETY: a msghdr of zeros is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = addr.as_mut_ptr().cast();
    message.msg_namelen = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = iov.len();
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header points to `addr`, `iov`, `control`, `head` and `body`, which live
    // through the call and are as long as it says.
    let n = super::checked(unsafe {
        libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut message, flags)
    })?;
    let mut name = ([0; 107], 0);
    // SAFETY: zeroed before the call, so initialised.
    let addr = unsafe { addr.assume_init_ref() };
    let path_len = (message.msg_namelen as usize)
        .saturating_sub(offset_of!(libc::sockaddr_un, sun_path))
        .min(addr.sun_path.len());
    if path_len > 1 && addr.sun_path[0] == 0 {
        for (to, from) in name.0.iter_mut().zip(&addr.sun_path[1..path_len]) {
            *to = *from as u8;
        }
        name.1 = path_len - 1;
    }
    // SAFETY: the call above filled `message`, whose control buffer is still alive.
    let (credentials, file) = unsafe { attachments(&message) };
    Ok(UnixIncoming {
        len: n,
        credentials,
        file,
        name,
        truncated: message.msg_flags & libc::MSG_TRUNC != 0,
    })
}

/// Returns the credentials and the first descriptor among the control messages. The kernel closes
/// descriptors that found no room; further ones that found room are closed here.
///
/// # Safety
/// `message` must have been filled by a receive call, and its control buffer be alive. To be called
/// once per receive call.
unsafe fn attachments(message: &libc::msghdr) -> (Option<Credentials>, Option<OwnedFd>) {
    let mut found = None;
    let mut file = None;
    // SAFETY: the kernel wrote well-formed control messages of `msg_controllen` bytes in all; each
    // descriptor in them was opened for this call, and is owned by no other value.
    unsafe {
        let mut cmsg = libc::CMSG_FIRSTHDR(message);
        while !cmsg.is_null() {
            let data_len = (*cmsg).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            match ((*cmsg).cmsg_level, (*cmsg).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS)
                    if data_len >= size_of::<libc::ucred>() =>
                {
                    let cred: libc::ucred = std::ptr::read_unaligned(libc::CMSG_DATA(cmsg).cast());
                    found = Some(Credentials { pid: cred.pid as u32, uid: cred.uid });
                }
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for i in 0..data_len / size_of::<libc::c_int>() {
                        let fd = std::ptr::read_unaligned(
                            libc::CMSG_DATA(cmsg).cast::<libc::c_int>().add(i),
                        );
                        let fd = OwnedFd::from_raw_fd(fd);
                        if file.is_none() {
                            file = Some(fd);
                        }
                    }
                }
                _ => {}
            }
            cmsg = libc::CMSG_NXTHDR(message, cmsg);
        }
    }
    (found, file)
}
