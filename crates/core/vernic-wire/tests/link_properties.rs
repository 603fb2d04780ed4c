//! Properties of the packets of an InfiniBand link over arbitrary fields and bytes: what is
//! finished is what a receiver takes, whatever the lengths, and hops change what hops may change.

use proptest::prelude::*;
use vernic_wire::{
    FlowControl, FlowControlOp, Grh, LinkError, LinkPacket, Lrh, VirtualLane, icrc, link_packet,
    vcrc,
};

/// Bytes that [`link_packet::finish`] takes: an LRH of version 0 on a data lane, and anything
/// behind.
fn unfinished() -> impl Strategy<Value = Vec<u8>> {
    (0..=3_u8, 0..15_u8, 16..=1055_usize)
        .prop_flat_map(|(next_header, lane, words)| {
            let len = words * 4 + vcrc::LEN;
            (Just((next_header, lane)), prop::collection::vec(any::<u8>(), len))
        })
        .prop_map(|((next_header, lane), mut bytes)| {
            bytes[0] = lane << 4;
            bytes[1] = bytes[1] & 0xFC | next_header;
            bytes
        })
}

fn is_transport(bytes: &[u8]) -> bool {
    bytes[1] & 3 >= Lrh::NEXT_BTH
}

proptest! {
    #[test]
    fn what_is_finished_is_taken_and_keeps_all_but_lengths_and_crcs(bytes in unfinished()) {
        let mut finished = bytes.clone();
        link_packet::finish(&mut finished).unwrap();
        let packet = LinkPacket::parse(&finished).unwrap();
        prop_assert!(packet.has_right_icrc());
        prop_assert_eq!(packet.is_raw(), !is_transport(&bytes));
        prop_assert_eq!(usize::from(packet.credit_blocks()), bytes.len().div_ceil(64));
        let crcs = if packet.is_raw() { vcrc::LEN } else { icrc::LEN + vcrc::LEN };
        let grh_length = Lrh::LEN + 4..Lrh::LEN + 6;
        for at in 0..bytes.len() - crcs {
            // Of the LRH's length field the upper 5 bits are reserved, and kept.
            let changed = match at {
                4 => 0x07,
                5 => 0xFF,
                _ if packet.grh().is_some() && grh_length.contains(&at) => 0xFF,
                _ => 0,
            };
            prop_assert_eq!(finished[at] & !changed, bytes[at] & !changed, "byte {}", at);
        }
        if let Some(grh) = packet.grh() {
            prop_assert_eq!(usize::from(grh.payload_length), packet.payload().len() - Grh::LEN);
        }
    }

    #[test]
    fn hops_change_the_lane_and_nothing_that_the_receiver_checks(
        bytes in unfinished(),
        lanes in prop::collection::vec(0..15_u8, 1..5),
    ) {
        let mut packet = bytes;
        link_packet::finish(&mut packet).unwrap();
        let sent = packet.clone();
        for lane in lanes {
            link_packet::set_virtual_lane(&mut packet, VirtualLane::new(lane));
            let here = LinkPacket::parse(&packet).unwrap();
            prop_assert_eq!(here.virtual_lane().value(), lane);
            prop_assert!(here.has_right_icrc());
            prop_assert_eq!(here.payload(), &sent[Lrh::LEN..sent.len() - vcrc::LEN]);
        }
    }

    #[test]
    fn a_burst_of_up_to_16_bits_is_found_wherever_it_is(
        bytes in unfinished(),
        at: prop::sample::Index,
        burst in 1..=u16::MAX,
    ) {
        let mut packet = bytes;
        link_packet::finish(&mut packet).unwrap();
        // The last of its bits is within the packet for every burst.
        let first = at.index(packet.len() * 8 - 15);
        for bit in (0..16).filter(|bit| burst >> bit & 1 != 0) {
            packet[(first + bit) / 8] ^= 1 << ((first + bit) % 8);
        }
        prop_assert_eq!(LinkPacket::parse(&packet).unwrap_err(), LinkError::Crc);
    }

    #[test]
    fn no_bytes_make_a_parser_of_the_link_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..128),
        right_crc: bool,
    ) {
        if right_crc && bytes.len() >= vcrc::LEN {
            vcrc::stamp(&mut bytes);
        }
        if let Err(error) = LinkPacket::parse(&bytes) {
            prop_assert!(!error.to_string().is_empty());
        }
        prop_assert_eq!(
            FlowControl::parse(&bytes).is_ok(),
            bytes.len() == FlowControl::LEN && vcrc::check(&bytes)
        );
        if let Err(error) = link_packet::finish(&mut bytes) {
            prop_assert!(!error.is_physical());
        }
    }

    #[test]
    fn every_flow_control_packet_reads_as_written(
        op in 0..16_u8,
        lane in 0..16_u8,
        total_sent in 0..FlowControl::MODULUS,
        credit_limit in 0..FlowControl::MODULUS,
    ) {
        let (op, virtual_lane) = (FlowControlOp(op), VirtualLane::new(lane));
        let packet = FlowControl { op, total_sent, virtual_lane, credit_limit };
        let mut bytes = [0; FlowControl::LEN];
        packet.emit(&mut bytes);
        prop_assert_eq!(FlowControl::parse(&bytes), Ok(packet));
    }
}
