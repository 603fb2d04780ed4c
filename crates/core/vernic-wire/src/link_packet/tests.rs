extern crate std;

use std::string::ToString;
use std::vec;
use std::vec::Vec;

use super::*;
use crate::{Gid, Headers, Opcode, Packet, Psn, Qpn};

const LRH: Lrh = Lrh {
    virtual_lane: 2,
    version: 0,
    service_level: 3,
    reserved2: 0,
    next_header: Lrh::NEXT_BTH,
    dlid: 0x0102,
    reserved5: 0,
    packet_length: 0,
    slid: 0x0304,
};

/// An unfinished packet: the LRH, a GRH if the LRH says so, a BTH, and so many bytes of payload.
fn unfinished(lrh: Lrh, payload: usize) -> Vec<u8> {
    let grh_len = if lrh.next_header == Lrh::NEXT_GRH { Grh::LEN } else { 0 };
    let mut packet = vec![0x5A; Lrh::LEN + grh_len + Bth::LEN + payload + icrc::LEN + vcrc::LEN];
    lrh.emit(&mut packet);
    if grh_len > 0 {
        let grh = Grh {
            version: 6,
            traffic_class: 7,
            flow_label: 8,
            payload_length: 0,
            next_header: Grh::NEXT_HEADER_IBA,
            hop_limit: 9,
            sgid: Gid([1; 16]),
            dgid: Gid([2; 16]),
        };
        grh.emit(&mut packet[Lrh::LEN..]);
    }
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(5), Psn::new(6));
    bth.emit(&mut packet[Lrh::LEN + grh_len..]);
    packet
}

fn finished(lrh: Lrh, payload: usize) -> Vec<u8> {
    let mut packet = unfinished(lrh, payload);
    finish(&mut packet).unwrap();
    packet
}

/// What the receiver says after a change that its sender made before it made the VCRC.
fn after(packet: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> LinkError {
    let mut packet = packet.to_vec();
    change(&mut packet);
    vcrc::stamp(&mut packet);
    LinkPacket::parse(&packet).unwrap_err()
}

#[test]
fn the_example_packet_of_the_infiniband_specification_is_right() {
    // IBTA 7.8, table 29; see the tests of `icrc` and `vcrc`.
    const PACKET: [u8; 58] = [
        0x70, 0x12, 0x37, 0x5C, 0x00, 0x0E, 0x17, 0xD2, 0x0A, 0x20, 0x24, 0x87, 0x00, 0x87, 0xB1,
        0xB3, 0x00, 0x0D, 0xEC, 0x2A, 0x01, 0x71, 0x0A, 0x1C, 0x01, 0x5D, 0x40, 0x02, 0x38, 0xF2,
        0x7A, 0x05, 0x00, 0x00, 0x00, 0x0E, 0xBB, 0x88, 0x4D, 0x85, 0xFD, 0x5C, 0xFB, 0xA4, 0x72,
        0x8B, 0xC0, 0x69, 0x0E, 0xD4, 0x00, 0x00, 0x96, 0x25, 0xB7, 0x5A, 0x45, 0xFA,
    ];
    let packet = LinkPacket::parse(&PACKET).unwrap();
    assert!(packet.has_right_icrc());
    assert_eq!((packet.virtual_lane(), packet.lrh().dlid), (VirtualLane::new(7), 0x375C));
    let transport = Packet::parse(packet.transport().unwrap()).unwrap();
    assert_eq!(transport.opcode(), Opcode::RC_WRITE_ONLY);
    assert_eq!(packet.credit_blocks(), 1);
    let mut again = PACKET;
    again[52..].fill(0);
    again[5] = 0;
    finish(&mut again).unwrap();
    assert_eq!(again, PACKET);
}

#[test]
fn a_finished_local_packet_reads_as_it_was_built() {
    let bytes = finished(LRH, 32);
    let packet = LinkPacket::parse(&bytes).unwrap();
    assert_eq!(*packet.lrh(), Lrh { packet_length: 14, ..LRH });
    assert_eq!((packet.grh(), packet.is_raw()), (None, false));
    assert_eq!((packet.bytes(), packet.payload()), (&bytes[..], &bytes[8..56]));
    assert_eq!(packet.transport(), Some(&bytes[8..52]));
    assert!(packet.has_right_icrc());
    assert_eq!(packet.to_string(), "vl=2 lid 0x304 > 0x102 sl=3 words=14");
}

#[test]
fn a_finished_global_packet_has_both_lengths() {
    let bytes = finished(Lrh { next_header: Lrh::NEXT_GRH, ..LRH }, 32);
    let packet = LinkPacket::parse(&bytes).unwrap();
    assert_eq!(packet.lrh().packet_length, 24);
    assert_eq!(packet.grh().unwrap().payload_length, 48);
    assert_eq!(packet.transport(), Some(&bytes[48..92]));
    assert!(packet.has_right_icrc());
    assert_eq!(packet.credit_blocks(), 2);
}

#[test]
fn a_wrong_bit_is_found_by_the_vcrc_and_if_that_is_made_anew_by_the_icrc() {
    let mut bytes = finished(LRH, 4);
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(LinkPacket::parse(&bytes).unwrap_err(), LinkError::Crc, "bit {bit}");
        assert!(LinkError::Crc.is_physical());
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    // A switch that damages a packet inside makes a right VCRC over it.
    for bit in Lrh::LEN * 8..(bytes.len() - vcrc::LEN) * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        vcrc::stamp(&mut bytes);
        // Byte 4 of the BTH may change on the way.
        assert_eq!(LinkPacket::parse(&bytes).unwrap().has_right_icrc(), bit / 8 == 12, "bit {bit}");
    }
}

#[test]
fn routers_may_change_what_the_icrc_leaves_out_of_a_global_packet() {
    let mut bytes = finished(Lrh { next_header: Lrh::NEXT_GRH, ..LRH }, 4);
    // LIDs, service level and lane of the next subnet; traffic class, flow label, hop limit.
    for at in [0, 2, 3, 6, 7, 9, 10, 11, 15] {
        bytes[at] ^= 0x50;
    }
    bytes[1] ^= 0xF0;
    vcrc::stamp(&mut bytes);
    assert!(LinkPacket::parse(&bytes).unwrap().has_right_icrc());
    bytes[16] ^= 1;
    vcrc::stamp(&mut bytes);
    assert!(!LinkPacket::parse(&bytes).unwrap().has_right_icrc());
}

#[test]
fn another_lane_is_another_vcrc_and_the_same_icrc() {
    for payload in [0, 4, 256, 4096] {
        let before = finished(LRH, payload);
        for lane in 0..15 {
            let mut bytes = before.clone();
            set_virtual_lane(&mut bytes, VirtualLane::new(lane));
            let packet = LinkPacket::parse(&bytes).unwrap();
            assert_eq!(packet.virtual_lane(), VirtualLane::new(lane));
            assert!(packet.has_right_icrc());
            assert_eq!(bytes[1..bytes.len() - 2], before[1..before.len() - 2]);
        }
    }
}

#[test]
fn a_damaged_packet_is_still_damaged_on_another_lane() {
    let mut bytes = finished(LRH, 64);
    bytes[40] ^= 1;
    set_virtual_lane(&mut bytes, VirtualLane::new(5));
    assert_eq!(LinkPacket::parse(&bytes).unwrap_err(), LinkError::Crc);
}

#[test]
fn bytes_of_a_length_that_no_packet_has_go_to_another_lane_with_a_right_vcrc() {
    for len in [10, 11, 12, 8194, 9001] {
        let mut bytes = vec![0x21; len];
        vcrc::stamp(&mut bytes);
        set_virtual_lane(&mut bytes, VirtualLane::new(9));
        assert_eq!(bytes[0], 0x91);
        assert!(vcrc::check(&bytes), "{len}");
    }
}

#[test]
fn link_version_and_length_field_are_checked() {
    let bytes = finished(LRH, 32);
    assert_eq!(after(&bytes, |bytes| bytes[0] |= 1), LinkError::Version(1));
    for words in [0, 13, 15] {
        let error = after(&bytes, |bytes| bytes[5] = words);
        assert_eq!(error, LinkError::Length { words: words.into(), have: 58 });
        assert!(!error.is_physical());
    }
    let longer = after(&bytes, |bytes| bytes.push(0));
    assert_eq!(longer, LinkError::Length { words: 14, have: 59 });
}

#[test]
fn headers_that_the_lrh_announces_must_be_there() {
    let shortest = |next_header: u8, words: u8| {
        let mut bytes = vec![0; usize::from(words) * 4 + vcrc::LEN];
        Lrh { next_header, packet_length: words.into(), ..LRH }.emit(&mut bytes);
        vcrc::stamp(&mut bytes);
        LinkPacket::parse(&bytes).map(|packet| packet.is_raw())
    };
    for (next_header, words) in [(0, 3), (1, 12), (2, 6), (3, 16)] {
        assert_eq!(shortest(next_header, words), Ok(next_header < 2));
        let need = u16::from(words) * 4 + 2;
        let error = LinkError::Truncated { need, have: need - 4 };
        let error =
            if next_header == 0 { LinkError::Truncated { need: 14, have: 10 } } else { error };
        assert_eq!(shortest(next_header, words - 1), Err(error));
    }
    for len in 0..LinkPacket::MIN_LEN {
        let error = LinkError::Truncated { need: 14, have: len as u16 };
        assert_eq!(LinkPacket::parse(&vec![0; len]).unwrap_err(), error);
    }
}

#[test]
fn the_longest_packet_has_the_largest_mtu_and_all_headers() {
    let payload = |len: usize| len - Lrh::LEN - Bth::LEN - icrc::LEN - vcrc::LEN;
    let longest = finished(LRH, payload(LinkPacket::MAX_LEN));
    let packet = LinkPacket::parse(&longest).unwrap();
    assert_eq!((packet.lrh().packet_length, packet.credit_blocks()), (1055, 66));
    let mut longer = unfinished(LRH, payload(LinkPacket::MAX_LEN + 4));
    let error = LinkError::TooLong { limit: 4222, have: 4226 };
    assert_eq!(finish(&mut longer), Err(error));
    assert_eq!(LinkPacket::parse(&longer).unwrap_err(), error);
}

#[test]
fn the_headers_of_every_opcode_leave_room_for_a_payload_of_the_whole_mtu() {
    let headers = Lrh::LEN + Grh::LEN + Headers::MAX_LEN + icrc::LEN;
    assert!(headers <= OVERHEAD, "{headers}");
}

#[test]
fn the_management_lane_takes_no_more_than_a_datagram() {
    let lrh = Lrh { virtual_lane: 15, ..LRH };
    let narrow = LinkLimits { mtu: Mtu::B256, data_lanes: 1 };
    let datagram = finished(lrh, 8 + 256);
    let packet = LinkPacket::parse(&datagram).unwrap();
    assert_eq!(packet.check_limits(narrow), Ok(()));
    let error = LinkPacket::parse(&finished(lrh, 512)).unwrap_err();
    assert_eq!(error, LinkError::TooLong { limit: 382, have: 538 });
}

#[test]
fn mtu_and_lanes_are_those_of_the_port() {
    let bytes = finished(LRH, 1024);
    let packet = LinkPacket::parse(&bytes).unwrap();
    let check = |mtu, data_lanes| packet.check_limits(LinkLimits { mtu, data_lanes });
    assert_eq!(check(Mtu::B1024, 3), Ok(()));
    assert_eq!(check(Mtu::B512, 3), Err(LinkError::TooLong { limit: 638, have: 1050 }));
    assert_eq!(check(Mtu::B1024, 2), Err(LinkError::Lane(VirtualLane::new(2))));
}

#[test]
fn a_raw_packet_has_a_vcrc_and_no_icrc() {
    let mut bytes = vec![0x5A; 8 + 4 + 20 + 2];
    Lrh { next_header: 0, ..LRH }.emit(&mut bytes);
    finish(&mut bytes).unwrap();
    let packet = LinkPacket::parse(&bytes).unwrap();
    assert!(packet.is_raw() && packet.has_right_icrc());
    assert_eq!((packet.transport(), packet.grh()), (None, None));
    assert_eq!(packet.payload(), [0x5A; 24]);
}

#[test]
fn a_packet_of_a_wrong_length_is_not_finished() {
    for payload in [1, 2, 3] {
        let mut packet = unfinished(LRH, payload);
        let before = packet.clone();
        let have = 26 + payload as u16;
        assert_eq!(finish(&mut packet), Err(LinkError::Length { words: 6, have }));
        assert_eq!(packet, before);
    }
    for len in 0..26 {
        let mut packet = unfinished(LRH, 0);
        packet.truncate(len);
        assert!(matches!(finish(&mut packet), Err(LinkError::Truncated { .. })), "{len}");
    }
}

#[test]
fn blocks_are_rounded_up() {
    assert_eq!([1, 64, 65, 128, 129].map(credit_blocks), [1, 1, 2, 2, 3]);
    assert_eq!(credit_blocks(usize::MAX), u16::MAX);
}
