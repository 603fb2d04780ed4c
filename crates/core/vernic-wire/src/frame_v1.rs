//! A whole Ethernet frame of RoCEv1 (IBTA A16).
//!
//! ```text
//!   +----------+-----+-----------------------+---------+
//!   | Ethernet | GRH | BTH to ICRC           | trailer |
//!   +----------+-----+-----------------------+---------+
//!     14         40    GRH's payload length    what Ethernet added, usually 0
//! ```
//!
//! The shortest frame has 70 bytes, more than Ethernet's least, so nothing has to be added to it.
//! A tag (802.1Q) is not part of it: systems put it in and take it out.

use core::fmt;

use crate::net::{EtherType, Ethernet, MacAddr};
use crate::{Bth, Grh, ParseError, icrc};

/// Bytes of the headers.
const HEADER_LEN: usize = Ethernet::LEN + Grh::LEN;

/// A frame: its headers as reprs, the packet and the trailer as slices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameV1<'a> {
    /// Link header.
    pub ethernet: Ethernet,
    /// Network header.
    pub grh: Grh,
    /// The packet, from the BTH to the ICRC.
    pub packet: &'a [u8],
    /// What follows the packet.
    pub trailer: &'a [u8],
}

impl<'a> FrameV1<'a> {
    /// Bytes of the headers.
    pub const HEADER_LEN: usize = HEADER_LEN;

    /// The headers of a frame between two stations.
    pub fn headers((src, dst): (MacAddr, MacAddr), grh: &Grh) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        Ethernet { dst, src, ethertype: EtherType::ROCE_V1 }.emit(&mut bytes);
        grh.emit(&mut bytes[Ethernet::LEN..]);
        bytes
    }

    /// Takes a frame apart.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] where headers are cut short, or the GRH's length says more than
    /// there is, or less than a BTH and an ICRC; [`ParseError::Field`] where the frame is of
    /// another EtherType, or no packet follows the GRH.
    pub fn parse(frame: &'a [u8]) -> Result<Self, ParseError> {
        let ethernet = Ethernet::parse(frame)?;
        if ethernet.ethertype != EtherType::ROCE_V1 {
            return Err(ParseError::Field { field: "EtherType", value: ethernet.ethertype.0 });
        }
        let grh = Grh::parse(&frame[Ethernet::LEN..])?;
        for (field, value, right) in [
            ("GRH version", grh.version, 6),
            ("GRH next header", grh.next_header, Grh::NEXT_HEADER_IBA),
        ] {
            if value != right {
                return Err(ParseError::Field { field, value: value.into() });
            }
        }
        let (rest, len) = (&frame[Self::HEADER_LEN..], usize::from(grh.payload_length));
        let Some((packet, trailer)) = rest.split_at_checked(len) else {
            return Err(ParseError::truncated(len, rest.len()));
        };
        if len < Bth::LEN + icrc::LEN {
            return Err(ParseError::truncated(Bth::LEN + icrc::LEN, len));
        }
        Ok(Self { ethernet, grh, packet, trailer })
    }

    /// Whether the last 4 bytes of the packet are its ICRC.
    pub fn is_icrc_right(&self) -> bool {
        self.packet.split_last_chunk::<{ icrc::LEN }>().is_some_and(|(transport, found)| {
            icrc::of_roce_v1(&self.grh, transport) == u32::from_le_bytes(*found)
        })
    }
}

impl fmt::Display for FrameV1<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.ethernet, self.grh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gid;

    const LEN: usize = FrameV1::HEADER_LEN + 16;

    fn frame() -> [u8; LEN] {
        let mut bytes = [0x11; LEN];
        let macs = (MacAddr([2; 6]), MacAddr([4; 6]));
        let grh = Grh {
            version: 6,
            traffic_class: 3,
            flow_label: 4,
            payload_length: 16,
            next_header: Grh::NEXT_HEADER_IBA,
            hop_limit: 64,
            sgid: Gid([1; 16]),
            dgid: Gid([2; 16]),
        };
        let head = FrameV1::headers(macs, &grh);
        bytes[..FrameV1::HEADER_LEN].copy_from_slice(&head);
        let sum = icrc::of_roce_v1(&grh, &bytes[FrameV1::HEADER_LEN..LEN - 4]);
        bytes[LEN - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    #[test]
    fn a_frame_has_its_icrc_and_no_byte_of_the_trailer() {
        let mut padded = [0xEE; LEN + 6];
        padded[..LEN].copy_from_slice(&frame());
        let parsed = FrameV1::parse(&padded).unwrap();
        assert_eq!((parsed.packet.len(), parsed.trailer), (16, &[0xEE; 6][..]));
        assert!(parsed.is_icrc_right());
        // What routers may change is not covered.
        for (at, is_covered) in [(15, false), (18, true), (21, false), (22, true), (58, false)] {
            let mut changed = padded;
            changed[at] ^= 0x0F;
            let right = FrameV1::parse(&changed).map(|frame| frame.is_icrc_right());
            assert_eq!(right != Ok(true), is_covered, "byte {at}");
        }
    }

    #[test]
    fn every_cut_frame_is_truncated() {
        for cut in 0..LEN {
            let error = FrameV1::parse(&frame()[..cut]).unwrap_err();
            assert!(matches!(error, ParseError::Truncated { .. }), "{cut}: {error}");
        }
    }

    #[test]
    fn what_is_no_packet_behind_a_grh_is_named() {
        let with = |at: usize, value: u8| {
            let mut bytes = frame();
            bytes[at] = value;
            FrameV1::parse(&bytes).unwrap_err()
        };
        assert_eq!(with(13, 0x14), ParseError::Field { field: "EtherType", value: 0x8914 });
        assert_eq!(with(14, 0x40), ParseError::Field { field: "GRH version", value: 4 });
        assert_eq!(with(20, 17), ParseError::Field { field: "GRH next header", value: 17 });
        assert_eq!(with(19, 15), ParseError::Truncated { need: 16, have: 15 });
        assert_eq!(with(19, 17), ParseError::Truncated { need: 17, have: 16 });
    }
}
