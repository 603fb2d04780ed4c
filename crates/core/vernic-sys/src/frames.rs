//! Packet sockets: whole Ethernet frames of one EtherType (`packet(7)`), and filters for them.
//!
//! Opening such a socket takes `CAP_NET_RAW` in the user namespace that owns the network namespace.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::message::MAX_MESSAGES;
use super::{OwnFd, check, checked, set_option_bytes, socket};

/// Longest head of an [`OutgoingFrame`]: Ethernet and GRH, and room for a tag.
pub const MAX_FRAME_HEAD: usize = 64;

/// Bytes for the control messages of a received frame: auxiliary data and overflow count.
const CONTROL_BYTES: usize = 96;

/// Bit of `tp_status` that says that the frame had a tag (`TP_STATUS_VLAN_VALID`).
const VLAN_VALID: u32 = 1 << 4;

#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; CONTROL_BYTES]);

/// Opens a packet socket that receives nothing yet.
///
/// # Errors
/// `EPERM` without `CAP_NET_RAW`; `EAFNOSUPPORT` where the system has no packet sockets.
pub fn frame_socket() -> io::Result<OwnFd> {
    socket(libc::AF_PACKET, libc::SOCK_RAW, 0)
}

/// Whether [`frame_socket`] would succeed. Opens none: closing a packet socket takes the kernel a
/// grace period, some ten milliseconds. Asks for a kind that no packet socket has, and the kernel
/// looks at the rights of the process before it looks at the kind.
///
/// # Errors
/// Those of [`frame_socket`].
pub fn may_open_frame_socket() -> io::Result<()> {
    match socket(libc::AF_PACKET, libc::SOCK_SEQPACKET, 0) {
        Err(error) if error.raw_os_error() != Some(libc::ESOCKTNOSUPPORT) => Err(error),
        _ => Ok(()),
    }
}

fn link_address(ifindex: u32, ethertype: u16) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ethertype.to_be(),
        sll_ifindex: ifindex as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

/// Starts to receive the frames of a netdev that have this EtherType.
pub fn bind_frames(fd: BorrowedFd<'_>, ifindex: u32, ethertype: u16) -> io::Result<()> {
    let addr = link_address(ifindex, ethertype);
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: pointer and length describe `addr`, which lives through the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
    Ok(())
}

/// Lets a netdev receive, or no longer receive, frames to a multicast address.
pub fn set_frame_membership(
    fd: BorrowedFd<'_>,
    ifindex: u32,
    mac: [u8; 6],
    join: bool,
) -> io::Result<()> {
    // struct packet_mreq: index, type (2), length of the address (2), address (8).
    let mut request = [0; 16];
    request[..4].copy_from_slice(&ifindex.to_ne_bytes());
    request[4..6].copy_from_slice(&(libc::PACKET_MR_MULTICAST as u16).to_ne_bytes());
    request[6..8].copy_from_slice(&6u16.to_ne_bytes());
    request[8..14].copy_from_slice(&mac);
    let name = if join { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
    set_option_bytes(fd, libc::SOL_PACKET, name, &request)
}

/// One instruction of a classic BPF program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// The operation (`BPF_*`).
    pub code: u16,
    /// The number of instructions that a true comparison skips.
    pub if_true: u8,
    /// The number of instructions that a false comparison skips.
    pub if_false: u8,
    /// The constant of the instruction.
    pub value: u32,
}

/// Lets a socket receive only what a program accepts. Replaces the program of an earlier call in
/// one step.
///
/// # Errors
/// `EINVAL` for a program that the kernel does not accept.
pub fn attach_filter(fd: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    let mut program: Vec<libc::sock_filter> = program
        .iter()
        .map(|i| libc::sock_filter { code: i.code, jt: i.if_true, jf: i.if_false, k: i.value })
        .collect();
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let request = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: `request` describes `program`; both live through the call, which only reads them.
    check(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const request).cast(), size)
    })?;
    Ok(())
}

/// A frame to be sent: its headers, and what follows them.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingFrame<'a> {
    /// The netdev that it leaves by.
    pub ifindex: u32,
    /// The headers, from the destination's address on.
    pub head: [u8; MAX_FRAME_HEAD],
    /// Bytes of `head` that count.
    pub head_len: usize,
    /// What follows.
    pub body: &'a [u8],
}

/// Sends the first 32 of `frames`, in order; returns how many went out. An error is about the
/// first frame: if the second fails, the call returns 1. Never blocks.
pub fn send_frames<'a>(
    fd: BorrowedFd<'_>,
    ethertype: u16,
    frames: impl Iterator<Item = OutgoingFrame<'a>>,
) -> io::Result<usize> {
    let mut heads = [const { MaybeUninit::<OutgoingFrame<'a>>::uninit() }; MAX_MESSAGES];
    let mut addrs = [const { MaybeUninit::<libc::sockaddr_ll>::uninit() }; MAX_MESSAGES];
    let mut iovs = [const { MaybeUninit::<[libc::iovec; 2]>::uninit() }; MAX_MESSAGES];
    let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_MESSAGES];
    let mut count = 0;
    for (i, frame) in frames.take(MAX_MESSAGES).enumerate() {
        let frame = heads[i].write(frame);
        let addr = addrs[i].write(link_address(frame.ifindex, ethertype));
        let head = &mut frame.head[..frame.head_len.min(MAX_FRAME_HEAD)];
        let iov = iovs[i].write([
            libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() },
            libc::iovec {
                iov_base: frame.body.as_ptr().cast_mut().cast(),
                iov_len: frame.body.len(),
            },
        ]);
        messages[i].write(libc::mmsghdr {
            msg_hdr: libc::msghdr {
                msg_name: std::ptr::from_mut(addr).cast(),
                msg_namelen: size_of::<libc::sockaddr_ll>() as libc::socklen_t,
                msg_iov: iov.as_mut_ptr(),
                msg_iovlen: 2,
                msg_control: std::ptr::null_mut(),
                msg_controllen: 0,
                msg_flags: 0,
            },
            msg_len: 0,
        });
        count = i + 1;
    }
    if count == 0 {
        return Ok(0);
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the first `count` headers are written; each points to its own entries of the arrays
    // above and to a `body`, all of which live through the call; the kernel only reads what the
    // headers point to, and writes `msg_len` into the headers.
    checked(unsafe {
        let (fd, messages) = (fd.as_raw_fd(), messages.as_mut_ptr());
        libc::syscall(libc::SYS_sendmmsg, fd, messages, count, flags)
    })
}

/// How a frame came to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A frame to the netdev's own address.
    Own,
    /// A frame to a multicast address, or to all.
    Group,
    /// A frame to another station, or on a VLAN that the netdev does not have.
    Foreign,
    /// A frame that this host sent.
    Sent,
}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub struct IncomingFrame {
    /// Bytes in the frame's buffer.
    pub len: usize,
    /// How it came.
    pub kind: FrameKind,
    /// The tag that the kernel took out of it (802.1Q), if it had one.
    pub tag: Option<u16>,
    /// Whether the frame did not fit.
    pub truncated: bool,
    /// How many frames this socket has dropped since it was opened, if it has dropped any.
    pub overflow: Option<u32>,
}

impl IncomingFrame {
    /// An empty entry: fills the list that [`recv_frames`] overwrites.
    pub const NONE: Self =
        Self { len: 0, kind: FrameKind::Own, tag: None, truncated: false, overflow: None };
}

/// Asks for [`IncomingFrame::tag`] and [`IncomingFrame::overflow`].
pub fn enable_frame_details(fd: BorrowedFd<'_>) -> io::Result<()> {
    super::set_option(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
    super::set_option(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)
}

/// Receives up to 32 frames, each into its own `stride` bytes of `buffers`, and fills the first
/// entries of `sink`, in order. Never blocks. Returns how many there were.
pub fn recv_frames(
    fd: BorrowedFd<'_>,
    buffers: &mut [u8],
    stride: usize,
    sink: &mut [IncomingFrame],
) -> io::Result<usize> {
    let mut addrs = [const { MaybeUninit::<libc::sockaddr_ll>::uninit() }; MAX_MESSAGES];
    let mut iovs = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_MESSAGES];
    let mut controls =
        [const { Control([const { MaybeUninit::uninit() }; CONTROL_BYTES]) }; MAX_MESSAGES];
    let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_MESSAGES];
    let mut count = 0;
    for (i, buffer) in
        buffers.chunks_exact_mut(stride).take(sink.len().min(MAX_MESSAGES)).enumerate()
    {
        let addr = addrs[i].write(link_address(0, 0));
        let iov = iovs[i]
            .write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
        messages[i].write(libc::mmsghdr {
            msg_hdr: libc::msghdr {
                msg_name: std::ptr::from_mut(addr).cast(),
                msg_namelen: size_of::<libc::sockaddr_ll>() as libc::socklen_t,
                msg_iov: iov,
                msg_iovlen: 1,
                msg_control: controls[i].0.as_mut_ptr().cast(),
                msg_controllen: CONTROL_BYTES as _,
                msg_flags: 0,
            },
            msg_len: 0,
        });
        count = i + 1;
    }
    // SAFETY: `count` headers are prepared and point to the arrays above and to `buffers`, which
    // live through the call and are as long as they say.
    let n = checked(unsafe {
        let (fd, messages, flags) = (fd.as_raw_fd(), messages.as_mut_ptr(), libc::MSG_DONTWAIT);
        let forever = std::ptr::null_mut::<libc::timespec>();
        libc::syscall(libc::SYS_recvmmsg, fd, messages, count, flags, forever)
    })?;
    for (i, out) in sink.iter_mut().enumerate().take(n) {
        // SAFETY: the kernel filled the first `n` headers; each address was written before.
        let (message, addr) =
            unsafe { (messages[i].assume_init_ref(), addrs[i].assume_init_ref()) };
        *out = IncomingFrame {
            len: message.msg_len as usize,
            kind: kind_of(addr.sll_pkttype),
            truncated: message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            ..IncomingFrame::NONE
        };
        // SAFETY: the kernel set `msg_controllen` to what it wrote into the control buffer, and
        // wrote well-formed messages; CMSG_FIRSTHDR and CMSG_NXTHDR stay inside that length.
        unsafe {
            let mut cmsg = libc::CMSG_FIRSTHDR(&raw const message.msg_hdr);
            while !cmsg.is_null() {
                read_control(cmsg, out);
                cmsg = libc::CMSG_NXTHDR(&raw const message.msg_hdr, cmsg);
            }
        }
    }
    Ok(n)
}

pub(crate) fn kind_of(packet_type: u8) -> FrameKind {
    match packet_type {
        libc::PACKET_HOST => FrameKind::Own,
        libc::PACKET_BROADCAST | libc::PACKET_MULTICAST => FrameKind::Group,
        libc::PACKET_OUTGOING => FrameKind::Sent,
        _ => FrameKind::Foreign,
    }
}

/// Copies the value of one control message to `frame`.
///
/// # Safety
/// `cmsg` must point to a whole control message.
unsafe fn read_control(cmsg: *const libc::cmsghdr, frame: &mut IncomingFrame) {
    // SAFETY: the message is whole, so `cmsg_len` bytes from its header can be read.
    let (level, kind, data) = unsafe {
        let len = (*cmsg).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
        let data = std::slice::from_raw_parts(libc::CMSG_DATA(cmsg), len);
        ((*cmsg).cmsg_level, (*cmsg).cmsg_type, data)
    };
    let word = |at: usize| Some(u32::from_ne_bytes(data.get(at..at + 4)?.try_into().ok()?));
    match (level, kind) {
        // struct tpacket_auxdata: status, length, captured length, two offsets (2), tag (2), ...
        (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
            let tag = data.get(16..18).and_then(|tag| tag.try_into().ok());
            if word(0).is_some_and(|status| status & VLAN_VALID != 0) {
                frame.tag = tag.map(u16::from_ne_bytes);
            }
        }
        (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => frame.overflow = word(0),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_a_frame_socket_could_be_opened_is_what_opening_one_says() {
        let error = |result: io::Result<()>| result.err().and_then(|error| error.raw_os_error());
        assert_eq!(error(may_open_frame_socket()), error(frame_socket().map(drop)));
    }
}
