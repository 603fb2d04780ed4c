//! Packets that reached the wrong process: how they get to the right one.
//!
//! The processes of a user share port 4791, and the kernel spreads flows over them without knowing
//! QPNs. A process that gets a packet for another process's slot hands it over to the slot's owner.
//! It hands over a whole receive buffer at a time where all of it is for one process:
//!
//! - Packets of queue pairs go through a queue in memory (`handoff/queue.rs`). There is one queue
//!   for each pair of a process that hands over and one that takes, made with the first packet
//!   (`udp/exchange.rs`). It is as deep as a socket, since a burst may be over before its flow can
//!   be steered (`udp/steer.rs`).
//! - Datagrams of connection management have no slot. The engine sends those on by the name of
//!   their service, or by the slot in an id that they carry, to the `packets` socket of that slot
//!   or name. They are few, and repeated by their senders. Packets of queue pairs also go to this
//!   socket where a queue cannot be made, for want of a memory file or descriptor.
//!
//! Either way the packets follow a head that says how they came:
//!
//! ```text
//!  byte  0..4    4..6     6..8            8    9     10     11      12..36    36..60
//!       +-------+--------+---------------+----+-----+------+-------+---------+---------+--------
//!       | magic | stride | first segment | TC | hop | icrc | v1    | source  |  dest   | packets
//!       +-------+--------+---------------+----+-----+------+-------+---------+---------+--------
//!        address: GID (16), scope id (4), port (2), zero (2)          numbers big-endian
//! ```
//!
//! Packets that were handed over once are not handed over again ([`RxMeta::handed_over`]). So two
//! processes that each take the other for the owner do not send them back and forth.
//!
//! The receiver accepts a message or a queue only if the kernel says that it comes from its own
//! user. It checks the ICRC like that of any packet, unless the sender has checked it and says so.
//!
//! Limits: the queue of a Unix datagram socket (`net.unix.max_dgram_qlen`, 10 messages), and those
//! of `handoff/queue.rs`. Packets beyond them are dropped and counted.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use vernic_sys::{self as sys, user};
use vernic_wire::Gid;

use crate::address::{Address, LocalAddr};
use crate::batch::{Door, Icrc};
use crate::batch::{RxMeta, RxPacket};
use crate::endpoint::{arrival, receiver_of, sender_of};

pub(crate) mod queue;

const MAGIC: [u8; 4] = *b"VP\x00\x01";

/// Bytes before the packets.
pub(crate) const HEAD_BYTES: usize = 60;

/// The head of a message: describes the packets in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Bytes per packet; the last may be shorter.
    pub(crate) stride: u16,
    /// Index of the first packet in the buffer that the kernel returned.
    pub(crate) first_segment: u16,
    /// The origin of the packets: addresses, and how they came.
    pub(crate) meta: RxMeta,
}

impl Head {
    /// Makes the head of one packet whose ICRC was found good.
    pub(crate) fn of_verified(packet: &RxPacket<'_>) -> Self {
        // A datagram is shorter than 64 KiB, and an empty one is no packet.
        let stride = u16::try_from(packet.bytes.len()).unwrap_or(u16::MAX).max(1);
        let meta = RxMeta { icrc: Icrc::Good, ..*packet.meta };
        Self { stride, first_segment: packet.segment, meta }
    }

    pub(crate) fn emit(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.stride.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.first_segment.to_be_bytes());
        bytes[8] = self.meta.traffic_class;
        bytes[9] = self.meta.hop_limit;
        bytes[10] = u8::from(self.meta.icrc == Icrc::Good);
        bytes[11] = u8::from(matches!(self.meta.dst, Address::RoceV1(_)));
        emit_addr(&mut bytes[12..36], &sender_of(&self.meta));
        emit_addr(&mut bytes[36..60], &receiver_of(&self.meta));
        bytes
    }

    pub(crate) fn parse(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let number = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        if !bytes.starts_with(&MAGIC) || number(4) == 0 {
            return None;
        }
        let how = arrival(parse_addr(&bytes[12..36])?, parse_addr(&bytes[36..60])?);
        let how = match bytes[11] {
            1 => RxMeta {
                src: Address::RoceV1(how.src.gid()),
                dst: Address::RoceV1(how.dst.gid()),
                door: Door::Shared,
                ..how
            },
            _ => how,
        };
        let meta = RxMeta {
            traffic_class: bytes[8],
            hop_limit: bytes[9],
            icrc: if bytes[10] == 1 { Icrc::Good } else { Icrc::Unchecked },
            handed_over: true,
            ..how
        };
        Some(Self { stride: number(4), first_segment: number(6), meta })
    }
}

fn emit_addr(to: &mut [u8], addr: &SocketAddr) {
    to[..16].copy_from_slice(&Gid::from_ip(addr.ip()).0);
    if let SocketAddr::V6(v6) = addr {
        to[16..20].copy_from_slice(&v6.scope_id().to_be_bytes());
    }
    to[20..22].copy_from_slice(&addr.port().to_be_bytes());
}

fn parse_addr(from: &[u8]) -> Option<SocketAddr> {
    let (gid, rest) = from.split_first_chunk::<16>()?;
    let (scope, rest) = rest.split_first_chunk::<4>()?;
    let port = u16::from_be_bytes(*rest.first_chunk()?);
    Some(LocalAddr::new(Gid(*gid).to_ip(), u32::from_be_bytes(*scope)).with_port(port))
}

/// The result of handing packets over to another process of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoverResult {
    /// The packets are in the owner's queue.
    Yes,
    /// No process has the slot or name.
    NoOwner,
    /// The owner does not keep up, or the system is short of memory.
    Full,
}

/// Sends `packets` to the `packets` socket called `name`, through any Unix datagram socket that
/// has a name. Never blocks.
pub(crate) fn send(
    through: BorrowedFd<'_>,
    name: &[u8],
    head: &Head,
    packets: &[u8],
) -> HandoverResult {
    match sys::send_abstract(through, name, &head.emit(), packets) {
        Ok(()) => HandoverResult::Yes,
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => HandoverResult::NoOwner,
        Err(_) => HandoverResult::Full,
    }
}

/// The result of [`recv`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandoverReceived {
    /// Packets, this many bytes of them at the start of the buffer.
    Packets(Head, usize),
    /// A message that is malformed or from another user.
    Rejected,
    /// No message.
    Empty,
}

/// Takes one message from a `packets` socket. Never blocks.
pub(crate) fn recv(packets_socket: BorrowedFd<'_>, buffer: &mut [u8]) -> HandoverReceived {
    let mut head = [0; HEAD_BYTES];
    let Ok(incoming) = sys::recv_abstract(packets_socket, &mut head, buffer) else {
        return HandoverReceived::Empty;
    };
    let trusted = incoming.credentials.is_some_and(|c| user::is_own(c.uid));
    let body = incoming.len.checked_sub(HEAD_BYTES);
    match (Head::parse(&head), body) {
        (Some(head), Some(len)) if trusted && !incoming.truncated && len != 0 => {
            HandoverReceived::Packets(head, len)
        }
        _ => HandoverReceived::Rejected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_survives_the_trip() {
        let meta = RxMeta {
            traffic_class: 3,
            hop_limit: 64,
            icrc: Icrc::Good,
            ..arrival("[fe80::1%3]:50000".parse().unwrap(), "10.0.0.1:4791".parse().unwrap())
        };
        let bytes = Head { stride: 1040, first_segment: 5, meta }.emit();
        let head = Head::parse(&bytes).unwrap();
        assert_eq!((head.stride, head.first_segment), (1040, 5));
        assert_eq!((head.meta.src, head.meta.dst), (meta.src, meta.dst));
        assert_eq!(
            (sender_of(&head.meta), receiver_of(&head.meta)),
            (sender_of(&meta), receiver_of(&meta))
        );
        assert_eq!((head.meta.traffic_class, head.meta.hop_limit), (3, 64));
        assert_eq!(head.meta.icrc, Icrc::Good);
        assert!(head.meta.handed_over, "it does not go on from there");
    }

    #[test]
    fn rubbish_is_no_head() {
        assert!(Head::parse(&[0; HEAD_BYTES]).is_none());
        assert!(Head::parse(&[0xFF; HEAD_BYTES]).is_none());
        let mut no_stride = [0; HEAD_BYTES];
        no_stride[..4].copy_from_slice(&MAGIC);
        assert!(Head::parse(&no_stride).is_none());
    }
}
