//! RoCE packets out of a frame.
//!
//! Owns the way from the link layer to the transport: Ethernet with tags, Linux cooked captures,
//! raw IP, loopback; IPv4 with options, IPv6 with extension headers; UDP port 4791, and the
//! EtherType of RoCEv1. A frame may be cut by a snapshot length: its headers are enough.
//!
//! A capture on the sending host sees what a program gave to the kernel: with segmentation offload
//! one frame that holds several packets, whose length it does not say. Such a frame is taken apart
//! where its ICRC is not that of one packet ([`stride`]).

use std::net::IpAddr;

use vernic_wire::icrc::{self, IcrcFlow, Verdict};
use vernic_wire::net::{EtherType, Ipv4, Ipv6, PROTOCOL_UDP, ROCE_V2_PORT, Udp};
use vernic_wire::{Aeth, AtomicEth, Bth, Deth, Grh, OpcodeInfo, Psn, Reth};

use crate::file::{Direction, Frame};

/// Link types (tcpdump's numbers) that are read.
mod link {
    pub(super) const NULL: u16 = 0;
    pub(super) const ETHERNET: u16 = 1;
    /// As BSD systems number raw IP.
    pub(super) const RAW_BSD: u16 = 12;
    pub(super) const RAW: u16 = 101;
    pub(super) const LOOP: u16 = 108;
    pub(super) const LINUX_SLL: u16 = 113;
    pub(super) const IPV4: u16 = 228;
    pub(super) const IPV6: u16 = 229;
    pub(super) const LINUX_SLL2: u16 = 276;
}

/// EtherTypes of tags: 802.1Q, 802.1ad, and what came before that.
const TAGS: [u16; 3] = [0x8100, 0x88A8, 0x9100];
/// Most tags, and most extension headers, of a frame.
const MAX_TAGS: usize = 8;

/// The ICRC of a packet that was captured before a network card wrote it.
const NOT_WRITTEN: [u8; icrc::LEN] = [0; icrc::LEN];

/// Protocol numbers.
mod protocol {
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const TCP: u8 = 6;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const DESTINATION_OPTIONS: u8 = 60;
}

/// The reason why a frame holds nothing to explain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Unread {
    /// A link layer of this type, which is not read.
    Link(u16),
    /// TCP, iWARP among it.
    Tcp,
    /// UDP to other ports than 4791.
    OtherUdp,
    /// Other than IP and RoCE.
    Other,
    /// A fragment of an IP packet.
    Fragment,
    /// Cut before the end of the headers.
    Cut,
    /// To a port or of a type of RoCE, with headers that contradict each other.
    Malformed,
    /// An opcode that no standard defines.
    UnknownOpcode,
}

impl Unread {
    /// What such frames are, as a phrase that follows a count.
    pub fn label(self) -> String {
        match self {
            Self::Link(247) => "InfiniBand packets (`tshark -r` reads them)".into(),
            Self::Link(197) => "records of an InfiniBand fabric (`tshark -r` reads them)".into(),
            Self::Link(number) => format!("frames of link type {number}"),
            Self::Tcp => "TCP (iWARP: `tshark -Y iwarp_ddp`)".into(),
            Self::OtherUdp => "UDP to other ports than 4791".into(),
            Self::Other => "other than IP and RoCE".into(),
            Self::Fragment => "fragments of IP packets, which RoCE does not have".into(),
            Self::Cut => "cut within their headers (capture with a larger snapshot length)".into(),
            Self::Malformed => "malformed".into(),
            Self::UnknownOpcode => "of an unknown opcode".into(),
        }
    }
}

/// What the last 4 bytes of a packet are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icrc {
    /// The right ICRC.
    Right,
    /// Another.
    Wrong,
    /// The frame is cut, or was captured before a network card wrote the ICRC (4 zeros), or its IP
    /// header is none that an ICRC is defined for.
    Unknown,
}

/// A RoCE packet of either version.
#[derive(Clone, Copy, Debug)]
pub struct RocePacket<'a> {
    /// Source: an IP address, or that of a GID.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
    /// Received or sent, where the file tells.
    pub direction: Direction,
    /// Whether a switch marked it: congestion experienced.
    pub is_marked: bool,
    /// The base transport header.
    pub bth: Bth,
    /// Bytes of payload on the wire, pad not counted.
    pub payload_len: u32,
    /// Whether its ICRC is right.
    pub icrc: Icrc,
    /// What was captured from the BTH on, without the ICRC.
    transport: &'a [u8],
}

impl<'a> RocePacket<'a> {
    /// The opcode's row.
    pub fn info(&self) -> &'static OpcodeInfo {
        self.bth.opcode.info()
    }
    /// The AETH, if the opcode has one.
    pub fn aeth(&self) -> Option<Aeth> {
        Aeth::parse(self.header(self.info().at.aeth)?).ok()
    }
    /// The RETH, if the opcode has one.
    pub fn reth(&self) -> Option<Reth> {
        Reth::parse(self.header(self.info().at.reth)?).ok()
    }
    /// The AtomicETH, if the opcode has one.
    pub fn atomic(&self) -> Option<AtomicEth> {
        AtomicEth::parse(self.header(self.info().at.atomic)?).ok()
    }
    /// The DETH, if the opcode has one.
    pub fn deth(&self) -> Option<Deth> {
        Deth::parse(self.header(self.info().at.deth)?).ok()
    }
    /// As much of the payload as was captured.
    pub fn payload(&self) -> &'a [u8] {
        let rest = self.transport.get(usize::from(self.info().header_len)..).unwrap_or_default();
        &rest[..rest.len().min(self.payload_len as usize)]
    }
    fn header(&self, at: u8) -> Option<&'a [u8]> {
        if at == 0 { None } else { self.transport.get(usize::from(at)..) }
    }
}

/// What lies below the transport.
#[derive(Clone, Copy)]
struct Below {
    src: IpAddr,
    dst: IpAddr,
    direction: Direction,
    is_marked: bool,
}

/// Gives each RoCE packet of a frame to `take`, and returns their number.
///
/// # Errors
/// [`Unread`] where the frame holds none.
pub(crate) fn packets<'a>(
    frame: &Frame<'a>,
    take: impl FnMut(&RocePacket<'a>),
) -> Result<u32, Unread> {
    let (ethertype, bytes, direction) = network_layer(frame)?;
    match ethertype {
        EtherType::IPV4 => ipv4(bytes, direction, take),
        EtherType::IPV6 => ipv6(bytes, direction, take),
        EtherType::ROCE_V1 => roce_v1(bytes, direction, take),
        _ => Err(Unread::Other),
    }
}

fn be16(bytes: &[u8], at: usize) -> Result<u16, Unread> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Unread::Cut)?;
    Ok(u16::from_be_bytes(*field))
}

fn from(bytes: &[u8], at: usize) -> Result<&[u8], Unread> {
    bytes.get(at..).ok_or(Unread::Cut)
}

/// The network layer of a frame: what it is, its bytes, and the direction.
fn network_layer<'a>(frame: &Frame<'a>) -> Result<(EtherType, &'a [u8], Direction), Unread> {
    let bytes = frame.bytes;
    // Packet types of Linux: 4 is what this host sent.
    let cooked = |kind: u16| if kind == 4 { Direction::Out } else { Direction::In };
    let (mut ethertype, mut at, direction) = match frame.link {
        link::ETHERNET => (be16(bytes, 12)?, 14, frame.direction),
        link::LINUX_SLL => (be16(bytes, 14)?, 16, cooked(be16(bytes, 0)?)),
        link::LINUX_SLL2 => {
            (be16(bytes, 0)?, 20, cooked(u16::from(*bytes.get(10).ok_or(Unread::Cut)?)))
        }
        link::RAW | link::RAW_BSD | link::IPV4 | link::IPV6 => {
            (by_version(bytes)?, 0, frame.direction)
        }
        link::NULL | link::LOOP => (by_version(from(bytes, 4)?)?, 4, frame.direction),
        other => return Err(Unread::Link(other)),
    };
    let mut tags = 0;
    while TAGS.contains(&ethertype) && tags < MAX_TAGS {
        ethertype = be16(bytes, at + 2)?;
        at += 4;
        tags += 1;
    }
    Ok((EtherType(ethertype), from(bytes, at)?, direction))
}

fn by_version(bytes: &[u8]) -> Result<u16, Unread> {
    match bytes.first().ok_or(Unread::Cut)? >> 4 {
        4 => Ok(EtherType::IPV4.0),
        6 => Ok(EtherType::IPV6.0),
        _ => Err(Unread::Other),
    }
}

/// The lower two bits of TOS and traffic class, where a switch has met congestion.
fn is_marked(traffic_class: u8) -> bool {
    traffic_class & 3 == 3
}

fn ipv4<'a>(
    bytes: &'a [u8],
    direction: Direction,
    take: impl FnMut(&RocePacket<'a>),
) -> Result<u32, Unread> {
    /// More fragments, and the offset.
    const FRAGMENT: u16 = 0x3FFF;
    let header = Ipv4::from_bytes(bytes.first_chunk().ok_or(Unread::Cut)?);
    let header_len = usize::from(bytes[0] & 0xF) * 4;
    if bytes[0] >> 4 != 4 || header_len < Ipv4::LEN {
        return Err(Unread::Malformed);
    }
    if header.flags_and_offset & FRAGMENT != 0 {
        return Err(Unread::Fragment);
    }
    let below = Below {
        src: header.src.into(),
        dst: header.dst.into(),
        direction,
        is_marked: is_marked(header.tos),
    };
    let is_plain = header_len == Ipv4::LEN && header.flags_and_offset == Ipv4::DF;
    let ident = is_plain.then_some(header.ident);
    udp(from(bytes, header_len)?, header.protocol, &below, ident, take)
}

fn ipv6<'a>(
    bytes: &'a [u8],
    direction: Direction,
    take: impl FnMut(&RocePacket<'a>),
) -> Result<u32, Unread> {
    let header = Ipv6::from_bytes(bytes.first_chunk().ok_or(Unread::Cut)?);
    if bytes[0] >> 4 != 6 {
        return Err(Unread::Malformed);
    }
    let (mut next, mut at) = (header.next_header, Ipv6::LEN);
    for _ in 0..MAX_TAGS {
        match next {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                let words = usize::from(*bytes.get(at + 1).ok_or(Unread::Cut)?);
                next = bytes[at];
                at += 8 + words * 8;
            }
            protocol::FRAGMENT => return Err(Unread::Fragment),
            _ => break,
        }
    }
    let below = Below {
        src: header.src.into(),
        dst: header.dst.into(),
        direction,
        is_marked: is_marked(header.traffic_class),
    };
    // An ICRC covers the next header, so that extension headers leave none that is defined.
    let ident = (at == Ipv6::LEN).then_some(0);
    udp(from(bytes, at)?, next, &below, ident, take)
}

/// A UDP datagram. `ident` is the Identification, or none where no ICRC is defined.
fn udp<'a>(
    bytes: &'a [u8],
    protocol: u8,
    below: &Below,
    ident: Option<u16>,
    mut take: impl FnMut(&RocePacket<'a>),
) -> Result<u32, Unread> {
    match protocol {
        PROTOCOL_UDP => {}
        protocol::TCP => return Err(Unread::Tcp),
        _ => return Err(Unread::Other),
    }
    let header = Udp::parse(bytes).map_err(|_| Unread::Cut)?;
    if header.dport != ROCE_V2_PORT {
        return Err(Unread::OtherUdp);
    }
    let len = usize::from(header.length).checked_sub(Udp::LEN).ok_or(Unread::Malformed)?;
    let captured = &bytes[Udp::LEN..];
    let captured = &captured[..captured.len().min(len)];
    let flow = IcrcFlow::new(below.src, below.dst, header.sport, header.dport);
    let icrc = |ident: Option<u16>, packet: &[u8]| match ident {
        Some(ident) if flow.check(ident, packet) == Verdict::Good => Icrc::Right,
        Some(_) if !packet.ends_with(&NOT_WRITTEN) => Icrc::Wrong,
        _ => Icrc::Unknown,
    };
    if captured.len() < len {
        take(&transport(captured, len, below, Icrc::Unknown)?);
        return Ok(1);
    }
    let found = icrc(ident, captured);
    if let (Icrc::Wrong, Some(ident)) = (found, ident)
        && let Some(stride) = stride(captured, |first| flow.check(ident, first) == Verdict::Good)
    {
        let mut count = 0;
        for (packet, index) in captured.chunks(stride).zip(0_u16..) {
            let found = icrc(Some(ident.wrapping_add(index)), packet);
            if let Ok(packet) = transport(packet, packet.len(), below, found) {
                take(&packet);
                count += 1;
            }
        }
        return Ok(count);
    }
    take(&transport(captured, len, below, found)?);
    Ok(1)
}

/// Length of each packet but the last, of a datagram that holds several: where a packet of the same
/// queue pair with the next PSN follows one whose ICRC is right.
fn stride(datagram: &[u8], is_whole: impl Fn(&[u8]) -> bool) -> Option<usize> {
    /// Headers, pad and ICRC of the longest packet.
    const MAX_STRIDE: usize = 4096 + vernic_wire::Headers::MAX_LEN + 3 + icrc::LEN;
    let first = Bth::parse(datagram).ok()?;
    let shortest = usize::from(first.opcode.info().header_len) + icrc::LEN;
    let longest = MAX_STRIDE.min(datagram.len().checked_sub(Bth::LEN + icrc::LEN)?);
    (shortest..=longest).step_by(4).find(|stride| {
        let next = Bth::parse(&datagram[*stride..]).ok();
        let follows = |next: Bth| {
            let apart = next.psn.distance_from(first.psn);
            next.opcode.is_known()
                && next.version == 0
                && next.dest_qpn == first.dest_qpn
                // READ requests take as many PSNs as their answers have packets.
                && (1..Psn::HALF).contains(&apart)
        };
        next.is_some_and(follows) && is_whole(&datagram[..*stride])
    })
}

fn roce_v1<'a>(
    bytes: &'a [u8],
    direction: Direction,
    mut take: impl FnMut(&RocePacket<'a>),
) -> Result<u32, Unread> {
    let grh = Grh::parse(bytes).map_err(|_| Unread::Cut)?;
    if grh.version != 6 || grh.next_header != Grh::NEXT_HEADER_IBA {
        return Err(Unread::Malformed);
    }
    let below = Below {
        src: grh.sgid.to_ip(),
        dst: grh.dgid.to_ip(),
        direction,
        is_marked: is_marked(grh.traffic_class),
    };
    let len = usize::from(grh.payload_length);
    let captured = &bytes[Grh::LEN..];
    let captured = &captured[..captured.len().min(len)];
    let found = match captured.split_last_chunk::<{ icrc::LEN }>() {
        Some((packet, found)) if captured.len() == len => {
            let is_right = icrc::of_roce_v1(&grh, packet) == u32::from_le_bytes(*found);
            match is_right {
                true => Icrc::Right,
                false if *found == NOT_WRITTEN => Icrc::Unknown,
                false => Icrc::Wrong,
            }
        }
        _ => Icrc::Unknown,
    };
    take(&transport(captured, len, &below, found)?);
    Ok(1)
}

/// A packet of `len` bytes, BTH to ICRC, of which `captured` are there.
fn transport<'a>(
    captured: &'a [u8],
    len: usize,
    below: &Below,
    icrc: Icrc,
) -> Result<RocePacket<'a>, Unread> {
    let bth = Bth::parse(captured).map_err(|_| Unread::Cut)?;
    let info = bth.opcode.info();
    if !bth.opcode.is_known() {
        return Err(Unread::UnknownOpcode);
    }
    let header_len = usize::from(info.header_len);
    let around = header_len + usize::from(bth.pad) + icrc::LEN;
    let payload_len = len.checked_sub(around).ok_or(Unread::Malformed)?;
    if bth.version != 0 {
        return Err(Unread::Malformed);
    }
    let end = captured.len().min(len - icrc::LEN);
    if end < header_len {
        return Err(Unread::Cut);
    }
    let Below { src, dst, direction, is_marked } = *below;
    Ok(RocePacket {
        src,
        dst,
        direction,
        is_marked,
        bth,
        payload_len: u32::try_from(payload_len).unwrap_or(u32::MAX),
        icrc,
        transport: &captured[..end],
    })
}

#[cfg(test)]
mod tests;
