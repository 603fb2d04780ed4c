//! Invariant CRC (ICRC): the last 4 bytes of every packet (IBTA 7.8.1, A17.3.3).
//!
//! Owns the computation over IPv4, IPv6 (RoCEv2), GRH (RoCEv1) and LRH (InfiniBand), and the
//! algebra that verifies a packet whose IPv4 Identification the receiver cannot see. Called by
//! links, per packet; calls `crc32fast`. No allocation, no state but [`IdentSolver`]'s cache.
//!
//! The ICRC is the CRC-32 of Ethernet (reflected, polynomial 0x04C11DB7, start and end inverted),
//! stored with its low byte first, over a pseudo packet in which everything a router may change is
//! all ones:
//!
//! ```text
//!   +----------+----------------------------------+-------------------+-------------------+------+
//!   | 8 x 0xFF | IPv4: all but TOS, TTL, checksum | UDP: all but      | BTH: all but      | rest |
//!   | (no LRH) | IPv6: all but class, label, hops | checksum          | byte 4 (F B resv6)|      |
//!   +----------+----------------------------------+-------------------+-------------------+------+
//! ```
//!
//! The IPv4 Identification is covered, but a UDP socket neither chooses nor sees it. When sending,
//! the link arranges for a known value. When receiving: a CRC is linear, so the difference between
//! the received ICRC and the one computed with a guessed Identification is the difference of the
//! two Identifications times a power of x that depends only on how many bytes follow.
//! [`IdentSolver`] divides by that power; the packet is good if what is left fits into the 16 bits
//! of the field. That is a check of 16 bits where a right guess is one of 32: guess well (0, index
//! in the batch, successor of the flow's last) and solve only what is left.

use core::net::{IpAddr, Ipv6Addr};

use crate::net::{Ip, Ipv4, Ipv6, PROTOCOL_UDP, Udp};
use crate::{Bth, Grh, Lrh};

mod algebra;
mod state;

pub use algebra::{IdentSolver, solve_ident};
use state::{FieldRows, State};

/// Bytes of an ICRC.
pub const LEN: usize = 4;

/// All ones in the place of the LRH.
const NO_LRH: usize = 8;
/// Longest pseudo header: no LRH, IPv6, UDP.
const MAX_PREFIX: usize = NO_LRH + Ipv6::LEN + Udp::LEN;

/// Fields of 16 bits that vary by packet, by the bytes from their first to the transport.
static IPV4_LENGTH: FieldRows = FieldRows::at(Ipv4::LEN - 2 + Udp::LEN);
static IPV4_IDENT: FieldRows = FieldRows::at(Ipv4::LEN - 4 + Udp::LEN);
static IPV6_LENGTH: FieldRows = FieldRows::at(Ipv6::LEN - 4 + Udp::LEN);
static UDP_LENGTH: FieldRows = FieldRows::at(Udp::LEN - 4);

/// What comparing a packet's ICRC with the computed one says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Verdict {
    /// All 32 bits agree: packet and guessed Identification are right.
    Good,
    /// They differ. Over IPv4 the reason can be another Identification: ask [`IdentSolver`].
    Differs {
        /// Received ICRC xor computed ICRC; never 0.
        diff: u32,
    },
    /// Shorter than a BTH and an ICRC.
    Truncated,
}

/// One direction of one flow (addresses and ports), ready for ICRCs.
///
/// Make one per flow and reuse it; it is 8 bytes. IPv4-mapped IPv6 addresses count as IPv4, as a
/// dual-stack socket reports them. Packets over IPv4 are taken to have no options and DF set, as
/// A17.3.1.1 requires and Linux rxe sends.
///
/// What the flow fixes is hashed once; the fields that vary by packet come in by linearity: each of
/// their bytes adds a table entry to the CRC's state before the transport bytes, and so does the
/// mask over BTH byte 4. The transport bytes then take one pass, in place.
#[derive(Clone, Copy, Debug)]
pub struct IcrcFlow {
    /// State behind the UDP header, lengths and Identification taken as 0.
    base: State,
    ipv4: bool,
}

impl IcrcFlow {
    /// The flow from `src`:`sport` to `dst`:`dport`. A mix of an IPv4 and an IPv6 address is taken
    /// as IPv6 with the former mapped.
    pub fn new(src: IpAddr, dst: IpAddr, sport: u16, dport: u16) -> Self {
        let udp = Udp { sport, dport, length: 0, checksum: 0xFFFF };
        let mut prefix = [0xFF; MAX_PREFIX];
        let (ip, ipv4) = match (src.to_canonical(), dst.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let ip = Ipv4 {
                    tos: 0xFF,
                    total_length: 0,
                    ident: 0,
                    flags_and_offset: Ipv4::DF,
                    ttl: 0xFF,
                    protocol: PROTOCOL_UDP,
                    checksum: 0xFFFF,
                    src,
                    dst,
                };
                (Ip::V4(ip), true)
            }
            (src, dst) => {
                let ip = Ipv6 {
                    traffic_class: 0xFF,
                    flow_label: 0xF_FFFF,
                    payload_length: 0,
                    next_header: PROTOCOL_UDP,
                    hop_limit: 0xFF,
                    src: to_ipv6(src),
                    dst: to_ipv6(dst),
                };
                (Ip::V6(ip), false)
            }
        };
        let udp_at = NO_LRH + ip.len();
        ip.emit(&mut prefix[NO_LRH..]);
        udp.emit(&mut prefix[udp_at..]);
        Self { base: State::START.update(&prefix[..udp_at + Udp::LEN]), ipv4 }
    }

    /// Whether packets of the flow have an IPv4 header, and so an Identification.
    #[inline]
    pub const fn is_ipv4(&self) -> bool {
        self.ipv4
    }

    /// The ICRC of `transport`, which is BTH to pad, without the ICRC. `ident` is the IPv4
    /// Identification, without meaning over IPv6. The result's little-endian bytes go on the wire.
    ///
    /// Bytes beyond what the length fields can say (65,535) have no right ICRC, and neither has
    /// less than a BTH; the result is then a number without meaning.
    #[inline]
    pub fn compute(&self, ident: u16, transport: &[u8]) -> u32 {
        self.sized(transport.len()).compute(ident, transport)
    }

    /// The flow's packets of one length: of `transport_len` bytes from BTH to pad.
    #[inline]
    pub fn sized(&self, transport_len: usize) -> SizedFlow {
        let udp_len = (Udp::LEN + transport_len + LEN) as u16;
        let share = if self.ipv4 {
            IPV4_LENGTH.of(udp_len.wrapping_add(Ipv4::LEN as u16))
        } else {
            IPV6_LENGTH.of(udp_len)
        };
        let base = self.base.add(share ^ UDP_LENGTH.of(udp_len));
        SizedFlow { base, ipv4: self.ipv4, transport_len }
    }

    /// Writes the ICRC into the last 4 bytes of `packet`, which is BTH to pad and 4 bytes of room.
    ///
    /// # Panics
    /// If `packet` is shorter than 4 bytes: the caller's mistake.
    #[inline]
    pub fn stamp(&self, ident: u16, packet: &mut [u8]) {
        self.sized(packet.len() - LEN).stamp(ident, packet);
    }

    /// Compares the last 4 bytes of `packet` with the ICRC of the rest, as if its Identification
    /// were `ident_guess` (without meaning over IPv6).
    #[inline]
    pub fn check(&self, ident_guess: u16, packet: &[u8]) -> Verdict {
        self.sized(packet.len().saturating_sub(LEN)).check(ident_guess, packet)
    }
}

/// The packets of one length of a flow: [`IcrcFlow::sized`]. Consecutive packets mostly have one
/// length, whose share is then looked up once.
#[derive(Clone, Copy, Debug)]
pub struct SizedFlow {
    /// State behind the UDP header, the Identification taken as 0.
    base: State,
    ipv4: bool,
    transport_len: usize,
}

impl SizedFlow {
    /// Bytes of its packets, with the ICRC.
    #[inline]
    pub const fn packet_len(&self) -> usize {
        self.transport_len + LEN
    }

    /// As [`IcrcFlow::compute`]. Of a packet of another length the result is a number without
    /// meaning.
    #[inline]
    pub fn compute(&self, ident: u16, transport: &[u8]) -> u32 {
        debug_assert_eq!(transport.len(), self.transport_len);
        let share = if self.ipv4 { IPV4_IDENT.of(ident) } else { 0 };
        self.base.add(share).finish(transport)
    }

    /// As [`IcrcFlow::check`], of a packet of this length.
    #[inline]
    pub fn check(&self, ident_guess: u16, packet: &[u8]) -> Verdict {
        match packet.split_last_chunk::<LEN>() {
            Some((transport, icrc)) if transport.len() >= Bth::LEN => {
                match self.compute(ident_guess, transport) ^ u32::from_le_bytes(*icrc) {
                    0 => Verdict::Good,
                    diff => Verdict::Differs { diff },
                }
            }
            _ => Verdict::Truncated,
        }
    }

    /// As [`IcrcFlow::stamp`], of a packet of this length.
    ///
    /// # Panics
    /// If `packet` is shorter than 4 bytes: the caller's mistake.
    #[inline]
    pub fn stamp(&self, ident: u16, packet: &mut [u8]) {
        let (transport, icrc) = packet.split_at_mut(packet.len() - LEN);
        icrc.copy_from_slice(&self.compute(ident, transport).to_le_bytes());
    }
}

pub(crate) fn to_ipv6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// The ICRC of a RoCEv1 packet: GRH on Ethernet, no LRH (IBTA A16). `transport` is BTH to pad.
pub fn of_roce_v1(grh: &Grh, transport: &[u8]) -> u32 {
    let mut prefix = [0xFF; NO_LRH + Grh::LEN];
    let masked = Grh { traffic_class: 0xFF, flow_label: 0xF_FFFF, hop_limit: 0xFF, ..*grh };
    masked.emit(&mut prefix[NO_LRH..]);
    State::START.update(&prefix).finish(transport)
}

/// The ICRC of a packet on an InfiniBand link, with a GRH or without. `transport` is BTH to pad.
///
/// Of a packet without a GRH the LRH stays the same on its way, but for the virtual lane. Routers
/// give a packet with a GRH another LRH, so that none of its bits is covered (IBTA 7.8.1).
pub fn of_infiniband(lrh: &Lrh, grh: Option<&Grh>, transport: &[u8]) -> u32 {
    if let Some(grh) = grh {
        return of_roce_v1(grh, transport);
    }
    let mut prefix = [0; Lrh::LEN];
    Lrh { virtual_lane: 0xF, ..*lrh }.emit(&mut prefix);
    State::START.update(&prefix).finish(transport)
}

#[cfg(test)]
mod tests;
