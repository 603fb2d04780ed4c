//! A whole data packet of an InfiniBand link: LRH to VCRC (IBTA 5.2, 7.3, 7.7, 7.8).
//!
//! Owns the view that the receiver of a link checks once and then reads, and what finishes a packet
//! under construction. What is behind the LRH of a transport packet is for
//! [`Packet`](crate::Packet).
//!
//! ```text
//!   +-----+-------+-------------------------------+------+------+
//!   | LRH | (GRH) | BTH, extensions, payload, pad | ICRC | VCRC |   transport packet, LNH 2 or 3
//!   +-----+-------+-------------------------------+------+------+
//!   | LRH | raw header, payload                          | VCRC |   raw packet, LNH 0 or 1
//!   +-----+----------------------------------------------+------+
//!   |<------------- PktLen, units of 4 bytes ----------->|
//! ```

use core::fmt;

use crate::{Bth, FlowControl, Grh, LinkError, Lrh, Mtu, VirtualLane, icrc, vcrc};

/// Bytes of headers and ICRC that a packet may have besides the payload that the MTU allows (IBTA
/// 7.7).
const OVERHEAD: usize = 124;
/// Bytes of the header of a raw packet that is no IPv6 (IBTA 5.3): reserved 16, EtherType 16.
const RAW_HEADER: usize = 4;
/// Bytes of an IPv6 header, behind the LRH of a raw packet that is IPv6.
const RAW_IPV6: usize = 40;
/// Payload of the management lane: one management datagram (IBTA 13.4.2).
const MANAGEMENT_MTU: Mtu = Mtu::B256;

/// What a port takes in: limits that are the port's own and not of the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkLimits {
    /// The most payload that a packet on a data lane may have.
    pub mtu: Mtu,
    /// How many data lanes are in operation, from lane 0 on: 1 to 15.
    pub data_lanes: u8,
}

/// A checked view of one data packet of an InfiniBand link.
///
/// [`LinkPacket::parse`] checks lengths, link version and VCRC; after it every accessor is
/// infallible.
#[derive(Clone, Copy)]
pub struct LinkPacket<'a> {
    bytes: &'a [u8],
    lrh: Lrh,
}

impl<'a> LinkPacket<'a> {
    /// Bytes of the longest packet, LRH to VCRC.
    pub const MAX_LEN: usize = Mtu::B4096.bytes() as usize + OVERHEAD + vcrc::LEN;
    /// Bytes of the shortest packet, LRH to VCRC: a raw one with nothing in it.
    pub const MIN_LEN: usize = Lrh::LEN + RAW_HEADER + vcrc::LEN;

    /// Checks `bytes`, which are LRH to VCRC, as the receiver of a link does (IBTA 7.3). The VCRC
    /// comes first, since no field of a damaged packet means anything.
    ///
    /// Checked too are the headers that the LRH says follow, by length, and the length of a packet
    /// on lane 15. What depends on the port is up to [`check_limits`](Self::check_limits). The ICRC
    /// is for the packet's last receiver: [`has_right_icrc`](Self::has_right_icrc).
    ///
    /// # Errors
    /// Any [`LinkError`] but `Lane`; each is a reason to discard the packet.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, LinkError> {
        if bytes.len() < Self::MIN_LEN {
            return Err(LinkError::truncated(Self::MIN_LEN, bytes.len()));
        }
        if bytes.len() > Self::MAX_LEN {
            return Err(LinkError::too_long(Self::MAX_LEN, bytes.len()));
        }
        if !vcrc::check(bytes) {
            return Err(LinkError::Crc);
        }
        let Ok(lrh) = Lrh::parse(bytes) else {
            return Err(LinkError::truncated(Lrh::LEN, bytes.len()));
        };
        if lrh.version != 0 {
            return Err(LinkError::Version(lrh.version));
        }
        if usize::from(lrh.packet_length) * 4 + vcrc::LEN != bytes.len() {
            let have = bytes.len() as u16;
            return Err(LinkError::Length { words: lrh.packet_length, have });
        }
        let need = min_len(lrh.next_header);
        if bytes.len() < need {
            return Err(LinkError::truncated(need, bytes.len()));
        }
        let packet = Self { bytes, lrh };
        if packet.virtual_lane().is_management() {
            packet.check_mtu(MANAGEMENT_MTU)?;
        }
        Ok(packet)
    }
    /// Checks what depends on the port that the packet comes in by: its length against the MTU, and
    /// its lane. Lane 15 is always in operation, and has an MTU of its own.
    ///
    /// # Errors
    /// [`LinkError::TooLong`] and [`LinkError::Lane`].
    #[inline]
    pub fn check_limits(&self, limits: LinkLimits) -> Result<(), LinkError> {
        let lane = self.virtual_lane();
        if lane.is_management() {
            return Ok(());
        }
        if lane.value() >= limits.data_lanes {
            return Err(LinkError::Lane(lane));
        }
        self.check_mtu(limits.mtu)
    }
    fn check_mtu(&self, mtu: Mtu) -> Result<(), LinkError> {
        let limit = mtu.bytes() as usize + OVERHEAD + vcrc::LEN;
        match self.bytes.len() <= limit {
            true => Ok(()),
            false => Err(LinkError::too_long(limit, self.bytes.len())),
        }
    }

    /// The local route header.
    #[inline]
    pub fn lrh(&self) -> &Lrh {
        &self.lrh
    }
    /// The lane that the packet came by.
    #[inline]
    pub fn virtual_lane(&self) -> VirtualLane {
        VirtualLane::new(self.lrh.virtual_lane)
    }
    /// Returns whether the packet is raw: of another protocol, without BTH and ICRC.
    #[inline]
    pub fn is_raw(&self) -> bool {
        is_raw(self.lrh.next_header)
    }
    /// The global route header, if there is one.
    #[inline]
    pub fn grh(&self) -> Option<Grh> {
        match self.lrh.next_header {
            Lrh::NEXT_GRH => Grh::parse(self.payload()).ok(),
            _ => None,
        }
    }
    /// All bytes, LRH to VCRC.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
    /// What is behind the LRH, up to the VCRC and without it.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[Lrh::LEN..self.bytes.len() - vcrc::LEN]
    }
    /// BTH to pad, as [`Packet::parse`](crate::Packet::parse) takes it; `None` of a raw packet.
    #[inline]
    pub fn transport(&self) -> Option<&'a [u8]> {
        transport_of(self.lrh.next_header, self.payload()).map(|(transport, _)| transport)
    }
    /// Returns whether the ICRC is right, for the packet's last receiver to check. Raw packets have
    /// none that could be wrong.
    pub fn has_right_icrc(&self) -> bool {
        match transport_of(self.lrh.next_header, self.payload()) {
            Some((transport, field)) => {
                let icrc = icrc::of_infiniband(&self.lrh, self.grh().as_ref(), transport);
                icrc.to_le_bytes() == *field
            }
            None => true,
        }
    }
    /// Blocks of 64 bytes that the packet takes of its receiver's buffer, by flow control: LRH to
    /// VCRC, rounded up; 1 to 66 (IBTA 7.9.4.1).
    #[inline]
    pub fn credit_blocks(&self) -> u16 {
        credit_blocks(self.bytes.len())
    }
}

impl fmt::Debug for LinkPacket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkPacket({self})")
    }
}

impl fmt::Display for LinkPacket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vl={} {}", self.lrh.virtual_lane, self.lrh)?;
        match self.grh() {
            Some(grh) => write!(f, " {grh}"),
            None => Ok(()),
        }
    }
}

/// Blocks of 64 bytes that a packet takes of its receiver's buffer, by flow control. `len` is its
/// bytes from LRH to VCRC; beyond 65,535 blocks the answer stays there.
#[inline]
pub const fn credit_blocks(len: usize) -> u16 {
    crate::error::saturate(len.div_ceil(FlowControl::BLOCK_BYTES as usize))
}

/// Finishes a packet under construction: fills in the length fields of LRH and GRH, the ICRC of a
/// transport packet, and the VCRC.
///
/// `packet` is LRH to pad, with 6 bytes of room behind for ICRC and VCRC; of a raw packet LRH to
/// payload, with 2 bytes of room. All other fields of the headers are taken as they are.
///
/// # Errors
/// [`LinkError::Truncated`] and [`LinkError::TooLong`] if no packet has that length, and
/// [`LinkError::Length`] if it is no multiple of 4 bytes without the VCRC; `packet` is unchanged
/// then.
pub fn finish(packet: &mut [u8]) -> Result<(), LinkError> {
    let len = packet.len();
    if len > LinkPacket::MAX_LEN {
        return Err(LinkError::too_long(LinkPacket::MAX_LEN, len));
    }
    let Ok(mut lrh) = Lrh::parse(packet) else {
        return Err(LinkError::truncated(LinkPacket::MIN_LEN, len));
    };
    let need = min_len(lrh.next_header);
    if len < need {
        return Err(LinkError::truncated(need, len));
    }
    lrh.packet_length = ((len - vcrc::LEN) / 4) as u16;
    if usize::from(lrh.packet_length) * 4 + vcrc::LEN != len {
        return Err(LinkError::Length { words: lrh.packet_length, have: len as u16 });
    }
    lrh.emit(packet);
    let payload = &mut packet[Lrh::LEN..len - vcrc::LEN];
    let mut grh = None;
    if lrh.next_header == Lrh::NEXT_GRH
        && let Ok(mut header) = Grh::parse(payload)
    {
        header.payload_length = (payload.len() - Grh::LEN) as u16;
        header.emit(payload);
        grh = Some(header);
    }
    if let Some((transport, _)) = transport_of(lrh.next_header, payload) {
        let icrc = icrc::of_infiniband(&lrh, grh.as_ref(), transport);
        let at = payload.len() - icrc::LEN;
        payload[at..].copy_from_slice(&icrc.to_le_bytes());
    }
    vcrc::stamp(packet);
    Ok(())
}

/// Puts `packet`, which is LRH to VCRC, on another lane, as a hop does: changes the field of the
/// LRH, and the VCRC by what follows from that. The ICRC does not cover the lane.
///
/// Takes the same short time for every length. A packet whose VCRC was wrong has a wrong one after
/// it as well.
///
/// # Panics
/// If `packet` is shorter than LRH and VCRC: the caller's mistake.
pub fn set_virtual_lane(packet: &mut [u8], lane: VirtualLane) {
    let (covered, field) = packet.split_at_mut(packet.len() - vcrc::LEN);
    let covered_len = covered.len();
    let first = lane.value() << 4 | covered[0] & 0x0F;
    let change = first ^ covered[0];
    covered[0] = first;
    let (words, before) = (covered_len / 4, [field[0], field[1]]);
    match vcrc::after_change_of_first_byte(before, change, words) {
        Some(after) if covered_len % 4 == 0 => field.copy_from_slice(&after),
        _ => vcrc::stamp(packet),
    }
}

const fn is_raw(next_header: u8) -> bool {
    next_header < Lrh::NEXT_BTH
}

/// Bytes that headers and CRCs take, LRH to VCRC. The next header has 2 bits.
const fn min_len(next_header: u8) -> usize {
    let behind_lrh = match next_header {
        0 => RAW_HEADER,
        1 => RAW_IPV6,
        Lrh::NEXT_BTH => Bth::LEN + icrc::LEN,
        _ => Grh::LEN + Bth::LEN + icrc::LEN,
    };
    Lrh::LEN + behind_lrh + vcrc::LEN
}

/// BTH to pad, and the ICRC, of what is behind the LRH; `None` of a raw packet.
fn transport_of(next_header: u8, payload: &[u8]) -> Option<(&[u8], &[u8; icrc::LEN])> {
    let at = match next_header {
        Lrh::NEXT_BTH => 0,
        Lrh::NEXT_GRH => Grh::LEN,
        _ => return None,
    };
    payload.get(at..)?.split_last_chunk()
}

#[cfg(test)]
mod tests;
