//! `sendmsg`, `sendmmsg`, `recvmsg` and `recvmmsg` on UDP sockets, with their control messages.
//!
//! The calls of a ping-pong (`sendto`, `sendmsg`, `recvmsg`) are made by number. The C library's
//! functions for them are cancellation points of `pthread_cancel`. In a process of several threads
//! that costs two atomic operations each time: 5 % of the time of a polling ping-pong by `perf`.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::SockAddr;

/// Most messages per system call: bounds the stack that headers take (about 250 bytes each).
pub(crate) const MAX_MESSAGES: usize = 32;

/// Bytes for the control messages of one datagram. A received datagram has TOS or traffic class,
/// hop limit, GRO stride and overflow count, 24 bytes each with header and padding.
const CONTROL_BYTES: usize = 128;

#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; CONTROL_BYTES]);

/// One datagram, or one run of equal datagrams, to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The destination.
    pub dst: SocketAddr,
    /// The datagram, or several of them.
    pub bytes: &'a [u8],
    /// Bytes per datagram, if `bytes` holds several.
    pub segment: Option<u16>,
    /// TOS or traffic class, if other than the socket's.
    pub traffic_class: Option<u8>,
    /// TTL or hop limit, if other than the socket's.
    pub hop_limit: Option<u8>,
    /// Priority (`SO_PRIORITY`), if other than that of the socket or of the traffic class. Linux
    /// takes it from 6.14 on; above 6 it needs the right `CAP_NET_ADMIN` or `CAP_NET_RAW`.
    pub priority: Option<u8>,
}

impl<'a> Outgoing<'a> {
    /// A datagram with what the socket has for all.
    pub fn new(dst: SocketAddr, bytes: &'a [u8]) -> Self {
        Self { dst, bytes, segment: None, traffic_class: None, hop_limit: None, priority: None }
    }
}

/// Appends control messages to a [`Control`].
struct ControlWriter<'a> {
    control: &'a mut Control,
    len: usize,
}

impl ControlWriter<'_> {
    /// Appends one control message; the buffer is known to be long enough for all that
    /// [`Outgoing`] can ask for (checked).
    fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        let header = size_of::<libc::cmsghdr>();
        // SAFETY: plain arithmetic on a length.
        let space = unsafe { libc::CMSG_SPACE(data.len() as u32) } as usize;
        assert!(self.len + space <= CONTROL_BYTES, "control messages exceed their buffer");
        // SAFETY: `space` bytes at `len` are inside the buffer (asserted); `len` is a multiple
        // of the alignment because `CMSG_SPACE` rounds up and the buffer is aligned; header and
        // data fit into `space` by its definition.
        unsafe {
            let at = self.control.0.as_mut_ptr().cast::<u8>().add(self.len);
            std::ptr::write_bytes(at, 0, space);
            let head = at.cast::<libc::cmsghdr>();
            (*head).cmsg_level = level;
            (*head).cmsg_type = kind;
            (*head).cmsg_len = libc::CMSG_LEN(data.len() as u32) as _;
            debug_assert_eq!(header, libc::CMSG_LEN(0) as usize);
            std::ptr::copy_nonoverlapping(data.as_ptr(), libc::CMSG_DATA(head), data.len());
        }
        self.len += space;
    }

    fn put_all(&mut self, message: &Outgoing<'_>) {
        let v4 = message.dst.is_ipv4();
        if let Some(segment) = message.segment {
            self.put(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        }
        if let Some(class) = message.traffic_class {
            let (level, kind) = if v4 {
                (libc::IPPROTO_IP, libc::IP_TOS)
            } else {
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
            };
            self.put(level, kind, &i32::from(class).to_ne_bytes());
        }
        if let Some(hops) = message.hop_limit {
            let (level, kind) = if v4 {
                (libc::IPPROTO_IP, libc::IP_TTL)
            } else {
                (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)
            };
            self.put(level, kind, &i32::from(hops).to_ne_bytes());
        }
        // After the traffic class, from which the kernel takes a priority of IPv4 packets.
        if let Some(priority) = message.priority {
            self.put(libc::SOL_SOCKET, libc::SO_PRIORITY, &u32::from(priority).to_ne_bytes());
        }
    }
}

/// Sends the first 32 of `messages`, in order; returns how many went out. An error is
/// about the first message: if the second fails, the call returns 1.
pub fn send_many<'a>(
    fd: BorrowedFd<'_>,
    messages: impl Iterator<Item = Outgoing<'a>>,
) -> io::Result<usize> {
    let mut addrs = [const { MaybeUninit::<SockAddr>::uninit() }; MAX_MESSAGES];
    let mut iovs = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_MESSAGES];
    let mut controls =
        [const { Control([const { MaybeUninit::uninit() }; CONTROL_BYTES]) }; MAX_MESSAGES];
    let mut heads = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_MESSAGES];
    let mut count = 0;
    for (i, message) in messages.take(MAX_MESSAGES).enumerate() {
        let (addr, addr_len) = SockAddr::new(&message.dst);
        let name = addrs[i].write(addr);
        let iov = iovs[i].write(libc::iovec {
            iov_base: message.bytes.as_ptr().cast_mut().cast(),
            iov_len: message.bytes.len(),
        });
        let mut control = ControlWriter { control: &mut controls[i], len: 0 };
        control.put_all(&message);
        let control_len = control.len;
        // SAFETY: an mmsghdr of zeros is valid.
        let head = heads[i].write(unsafe { std::mem::zeroed() });
        head.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
        head.msg_hdr.msg_namelen = addr_len;
        head.msg_hdr.msg_iov = iov;
        head.msg_hdr.msg_iovlen = 1;
        if control_len != 0 {
            head.msg_hdr.msg_control = controls[i].0.as_mut_ptr().cast();
            head.msg_hdr.msg_controllen = control_len as _;
        }
        count = i + 1;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the first `count` headers are written; each points to its own entry of the arrays
    // above and to `bytes`, all of which live through the call; the kernel only reads what the
    // headers point to, and writes `msg_len` into the headers.
    let sent = unsafe {
        match count {
            0 => 0,
            1 => {
                let head = &raw const (*heads[0].as_ptr()).msg_hdr;
                let sent = if (*head).msg_controllen == 0 {
                    // The same with `sendto`, which saves the kernel copying two more structures.
                    let iov = &*(*head).msg_iov;
                    let (name, len) = ((*head).msg_name.cast(), (*head).msg_namelen);
                    let (name, fd): (*const libc::sockaddr, _) = (name, fd.as_raw_fd());
                    libc::syscall(libc::SYS_sendto, fd, iov.iov_base, iov.iov_len, flags, name, len)
                } else {
                    libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), head, flags)
                };
                if sent < 0 { -1 } else { 1 }
            }
            n => libc::syscall(libc::SYS_sendmmsg, fd.as_raw_fd(), heads.as_mut_ptr(), n, flags),
        }
    };
    super::checked(sent)
}

/// A received datagram: its length, its sender, and its control messages.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Bytes in the datagram's buffer.
    pub len: usize,
    /// Bytes per datagram, if the kernel joined several (GRO).
    pub segment: Option<usize>,
    /// The sender. `None` if the kernel named none.
    pub src: Option<SocketAddr>,
    /// TOS or traffic class; 0 if unknown.
    pub traffic_class: u8,
    /// TTL or hop limit; 0 if unknown.
    pub hop_limit: u8,
    /// True if the datagram did not fit.
    pub truncated: bool,
    /// How many datagrams this socket has dropped since it was opened, if it has dropped any.
    pub overflow: Option<u32>,
}

impl Incoming {
    /// An empty entry: fills the list that [`recv_many`] overwrites.
    pub const NONE: Self = Self {
        len: 0,
        segment: None,
        src: None,
        traffic_class: 0,
        hop_limit: 0,
        truncated: false,
        overflow: None,
    };
}

/// Headers for `N` receives, on the stack.
struct RecvFrame<const N: usize> {
    addrs: [MaybeUninit<SockAddr>; N],
    iovs: [MaybeUninit<libc::iovec>; N],
    controls: [Control; N],
    heads: [MaybeUninit<libc::mmsghdr>; N],
}

impl<const N: usize> RecvFrame<N> {
    fn new() -> Self {
        Self {
            addrs: [const { MaybeUninit::uninit() }; N],
            iovs: [const { MaybeUninit::uninit() }; N],
            controls: [const { Control([const { MaybeUninit::uninit() }; CONTROL_BYTES]) }; N],
            heads: [const { MaybeUninit::uninit() }; N],
        }
    }

    /// Points one header after the other to a buffer, and to the memory for its address and control
    /// messages. Returns how many headers were prepared.
    #[inline]
    fn prepare<'b>(&mut self, buffers: impl Iterator<Item = &'b mut [u8]>) -> usize {
        let Self { addrs, iovs, controls, heads } = self;
        let places = heads.iter_mut().zip(iovs).zip(addrs).zip(controls);
        let mut count = 0;
        for ((((head, iov), addr), control), buffer) in places.zip(buffers) {
            let iov = iov
                .write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
            // The family stays 0 (unspecified) if the kernel names no sender.
            let addr = addr.write(SockAddr::UNSPECIFIED);
            head.write(libc::mmsghdr {
                msg_hdr: libc::msghdr {
                    msg_name: std::ptr::from_mut(addr).cast(),
                    msg_namelen: size_of::<SockAddr>() as libc::socklen_t,
                    msg_iov: iov,
                    msg_iovlen: 1,
                    msg_control: control.0.as_mut_ptr().cast(),
                    msg_controllen: CONTROL_BYTES as _,
                    msg_flags: 0,
                },
                msg_len: 0,
            });
            count += 1;
        }
        count
    }

    /// Returns what the kernel wrote about message `i`.
    ///
    /// # Safety
    /// A receive call must have filled header `i` after [`prepare`](Self::prepare).
    unsafe fn decode(&self, i: usize) -> Incoming {
        // SAFETY: filled, as the caller promises; the family of the address was set to 0 before.
        let (head, src) =
            unsafe { (self.heads[i].assume_init_ref(), SockAddr::decode(self.addrs[i].as_ptr())) };
        let mut incoming = Incoming {
            len: head.msg_len as usize,
            segment: None,
            src,
            traffic_class: 0,
            hop_limit: 0,
            truncated: head.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            overflow: None,
        };
        // SAFETY: the kernel set `msg_controllen` to what it wrote into the control buffer, and
        // wrote well-formed messages; CMSG_FIRSTHDR and CMSG_NXTHDR stay inside that length.
        unsafe {
            let mut cmsg = libc::CMSG_FIRSTHDR(&raw const head.msg_hdr);
            while !cmsg.is_null() {
                read_control(cmsg, &mut incoming);
                cmsg = libc::CMSG_NXTHDR(&raw const head.msg_hdr, cmsg);
            }
        }
        incoming
    }
}

/// Copies the value of one control message to `incoming`.
///
/// # Safety
/// `cmsg` must point to a whole control message.
unsafe fn read_control(cmsg: *const libc::cmsghdr, incoming: &mut Incoming) {
    // SAFETY: the message is whole, so `cmsg_len` bytes from its header can be read.
    let (level, kind, data) = unsafe {
        let len = (*cmsg).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
        let data = std::slice::from_raw_parts(libc::CMSG_DATA(cmsg), len);
        ((*cmsg).cmsg_level, (*cmsg).cmsg_type, data)
    };
    let int = || Some(i32::from_ne_bytes(data.get(..4)?.try_into().ok()?));
    match (level, kind) {
        (libc::SOL_UDP, libc::UDP_GRO) => {
            incoming.segment = int().and_then(|n| usize::try_from(n).ok()).filter(|&n| n != 0);
        }
        // IPv4 gives the TOS as one byte, IPv6 the traffic class as an int.
        (libc::IPPROTO_IP, libc::IP_TOS) => {
            incoming.traffic_class = data.first().copied().unwrap_or(0);
        }
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            incoming.traffic_class = int().unwrap_or(0) as u8;
        }
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
            incoming.hop_limit = int().unwrap_or(0) as u8;
        }
        (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => incoming.overflow = int().map(|n| n as u32),
        _ => {}
    }
}

/// Receives one datagram into `buffer`. Never blocks.
pub fn recv_one(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Incoming> {
    let mut frame = RecvFrame::<1>::new();
    frame.prepare(std::iter::once(buffer));
    // SAFETY: header 0 is prepared and points to `frame` and `buffer`, which live through the
    // call and are as long as it says.
    let n = super::checked(unsafe {
        let head = frame.heads[0].assume_init_mut();
        let head = &raw mut head.msg_hdr;
        libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), head, libc::MSG_DONTWAIT)
    })?;
    // SAFETY: header 0 was written by `prepare`, and filled by the call above.
    unsafe {
        frame.heads[0].assume_init_mut().msg_len = n as u32;
        Ok(frame.decode(0))
    }
}

/// Receives up to 32 datagrams, each into its own `buffer_bytes` of `buffers`, and
/// fills the first entries of `sink`, in order. Never blocks. Returns how many there were.
#[inline]
pub fn recv_many(
    fd: BorrowedFd<'_>,
    buffers: &mut [u8],
    buffer_bytes: usize,
    sink: &mut [Incoming],
) -> io::Result<usize> {
    let mut frame = RecvFrame::<MAX_MESSAGES>::new();
    let count = frame.prepare(buffers.chunks_exact_mut(buffer_bytes).take(sink.len()));
    // SAFETY: `count` headers are prepared and point to `frame` and `buffers`, which live
    // through the call and are as long as they say.
    let n = super::checked(unsafe {
        let (heads, flags) = (frame.heads.as_mut_ptr(), libc::MSG_DONTWAIT);
        let forever = std::ptr::null_mut::<libc::timespec>();
        libc::syscall(libc::SYS_recvmmsg, fd.as_raw_fd(), heads, count, flags, forever)
    })?;
    for (i, out) in sink.iter_mut().enumerate().take(n) {
        // SAFETY: the kernel filled the first `n` headers.
        *out = unsafe { frame.decode(i) };
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::fd::AsFd;

    use super::*;

    /// Asks for the priority of received packets (Linux 6.14). The `libc` crate does not name it.
    const SO_RCVPRIORITY: i32 = 82;

    /// Receives one datagram, and returns its priority.
    fn priority(fd: BorrowedFd<'_>) -> u32 {
        let mut buffer = [0; 64];
        let mut frame = RecvFrame::<1>::new();
        frame.prepare(std::iter::once(&mut buffer[..]));
        // SAFETY: header 0 is prepared and points to `frame` and `buffer`, which live through the
        // call; the kernel then fills it, and leaves well-formed control messages in it.
        unsafe {
            let head = &raw mut frame.heads[0].assume_init_mut().msg_hdr;
            assert!(libc::recvmsg(fd.as_raw_fd(), head, 0) > 0);
            let mut cmsg = libc::CMSG_FIRSTHDR(head);
            while !cmsg.is_null() {
                if ((*cmsg).cmsg_level, (*cmsg).cmsg_type) == (libc::SOL_SOCKET, libc::SO_PRIORITY)
                {
                    return libc::CMSG_DATA(cmsg).cast::<u32>().read_unaligned();
                }
                cmsg = libc::CMSG_NXTHDR(head, cmsg);
            }
        }
        panic!("no priority came with the datagram");
    }

    #[test]
    fn a_priority_goes_before_that_of_the_traffic_class_and_is_of_its_packet_alone() {
        let fd = crate::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
        let fd = fd.as_fd();
        crate::bind(fd, &(Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        if crate::set_option(fd, libc::SOL_SOCKET, SO_RCVPRIORITY, 1).is_err() {
            // Before Linux 6.14 there are no priorities by control message.
            return;
        }
        let to_itself = Outgoing::new(crate::local_addr(fd).unwrap(), &[7]);
        // The kernel takes 2 from this traffic class (bulk).
        let class = Some(8);
        let send = |message| {
            assert_eq!(send_many(fd, std::iter::once(message)).unwrap(), 1);
            priority(fd)
        };
        assert_eq!(send(Outgoing { priority: Some(5), traffic_class: class, ..to_itself }), 5);
        assert_eq!(send(Outgoing { traffic_class: class, ..to_itself }), 2);
        assert_eq!(send(to_itself), 0);
    }
}
