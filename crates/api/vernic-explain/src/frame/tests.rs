use vernic_wire::net::{Ethernet, MacAddr};
use vernic_wire::{FrameV1, Gid, Headers, Opcode, Qpn};

use super::*;

const SRC: &str = "10.0.0.1:50000";
const DST: &str = "10.0.0.2:4791";

/// BTH to ICRC of a SEND of so many bytes; the ICRC is right for the addresses.
fn send(psn: u32, len: usize, ident: u16) -> Vec<u8> {
    let mut bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11), Psn::new(psn));
    bth.pad = vernic_wire::packet::pad_of(len);
    let mut packet = vec![0; Headers::MAX_LEN];
    let header_len = Headers::new(bth).emit(&mut packet);
    packet.truncate(header_len);
    packet.resize(header_len + len.next_multiple_of(4) + icrc::LEN, 7);
    let (src, dst) = (SRC.parse().unwrap(), DST.parse().unwrap());
    vernic_wire::Frame::new(src, dst, 3, ident, &[]).flow().stamp(ident, &mut packet);
    packet
}

fn ethernet(payload: &[u8], ident: u16) -> Vec<u8> {
    let (src, dst) = (SRC.parse().unwrap(), DST.parse().unwrap());
    let mut bytes = vec![0; 100 + payload.len()];
    let len = vernic_wire::Frame::new(src, dst, 3, ident, payload).emit(&mut bytes);
    bytes.truncate(len);
    bytes
}

/// PSN, payload length and ICRC of each packet of a frame.
fn read(link: u16, bytes: &[u8]) -> Result<Vec<(u32, u32, Icrc)>, Unread> {
    let frame = Frame { time_ns: 0, direction: Direction::Unknown, link, bytes };
    let mut found = Vec::new();
    let count = packets(&frame, |p| found.push((p.bth.psn.value(), p.payload_len, p.icrc)))?;
    assert_eq!(count as usize, found.len());
    Ok(found)
}

#[test]
fn a_packet_is_found_behind_every_link_layer() {
    let plain = ethernet(&send(5, 30, 9), 9);
    let ip = &plain[Ethernet::LEN..];
    let expected = Ok(vec![(5, 30, Icrc::Right)]);
    assert_eq!(read(1, &plain), expected);
    let tagged = [&plain[..12], &[0x88, 0xA8, 0, 1, 0x81, 0, 0, 2], &plain[12..]].concat();
    assert_eq!(read(1, &tagged), expected);
    for link in [12, 101, 228] {
        assert_eq!(read(link, ip), expected);
    }
    assert_eq!(read(0, &[&[2, 0, 0, 0], ip].concat()), expected);
    let cooked = [&[0, 4, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0], ip].concat();
    assert_eq!(read(113, &cooked), expected);
    let cooked_2 = [&[8, 0, 0, 0, 0, 0, 0, 1, 0, 1, 4, 6, 0, 0, 0, 0, 0, 0, 0, 0], ip].concat();
    assert_eq!(read(276, &cooked_2), expected);
}

#[test]
fn cooked_captures_tell_the_direction() {
    let plain = ethernet(&send(5, 30, 9), 9);
    let head = [0, 4, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0];
    let bytes = [&head, &plain[Ethernet::LEN..]].concat();
    let frame = Frame { time_ns: 0, direction: Direction::Unknown, link: 113, bytes: &bytes };
    packets(&frame, |packet| assert_eq!(packet.direction, Direction::Out)).unwrap();
}

#[test]
fn a_frame_that_was_cut_is_read_as_far_as_its_headers_go() {
    let plain = ethernet(&send(5, 1000, 9), 9);
    assert_eq!(read(1, &plain[..100]), Ok(vec![(5, 1000, Icrc::Unknown)]));
    assert_eq!(read(1, &plain[..54]), Ok(vec![(5, 1000, Icrc::Unknown)]));
    for len in 0..54 {
        assert_eq!(read(1, &plain[..len]), Err(Unread::Cut), "{len}");
    }
}

#[test]
fn a_wrong_icrc_and_a_mark_are_seen() {
    let mut packet = send(5, 30, 9);
    packet[20] ^= 1;
    assert_eq!(read(1, &ethernet(&packet, 9)), Ok(vec![(5, 30, Icrc::Wrong)]));
    let mut unwritten = packet.clone();
    let at = unwritten.len() - icrc::LEN;
    unwritten[at..].fill(0);
    assert_eq!(read(1, &ethernet(&unwritten, 9)), Ok(vec![(5, 30, Icrc::Unknown)]));
    let bytes = ethernet(&packet, 9);
    let frame = Frame { time_ns: 0, direction: Direction::In, link: 1, bytes: &bytes };
    packets(&frame, |packet| assert!(packet.is_marked)).unwrap();
}

#[test]
fn a_frame_of_several_packets_is_taken_apart() {
    let run: Vec<u8> = (0..5).flat_map(|i| send(7 + i, 64, i as u16)).collect();
    let tail = send(12, 3, 5);
    let expected: Vec<_> = (7..12).map(|psn| (psn, 64, Icrc::Right)).collect();
    let expected = [expected, vec![(12, 3, Icrc::Right)]].concat();
    assert_eq!(read(1, &ethernet(&[run, tail].concat(), 0)), Ok(expected));
}

#[test]
fn what_is_not_roce_is_named() {
    let frame = |at: usize, value: u8| {
        let mut bytes = ethernet(&send(5, 30, 9), 9);
        bytes[at] = value;
        bytes
    };
    assert_eq!(read(1, &frame(23, 6)), Err(Unread::Tcp));
    assert_eq!(read(1, &frame(23, 1)), Err(Unread::Other));
    assert_eq!(read(1, &frame(37, 0)), Err(Unread::OtherUdp));
    assert_eq!(read(1, &frame(20, 0x20)), Err(Unread::Fragment));
    assert_eq!(read(1, &frame(13, 6)), Err(Unread::Other));
    assert_eq!(read(1, &frame(42, 0xFF)), Err(Unread::UnknownOpcode));
    assert_eq!(read(247, &frame(0, 0)), Err(Unread::Link(247)));
    assert!(Unread::Link(247).label().contains("InfiniBand"));
}

#[test]
fn roce_v1_is_read_with_its_icrc() {
    let grh = Grh {
        version: 6,
        traffic_class: 0,
        flow_label: 0,
        payload_length: 12 + 8 + 4,
        next_header: Grh::NEXT_HEADER_IBA,
        hop_limit: 64,
        sgid: Gid::from_ip("10.0.0.1".parse().unwrap()),
        dgid: Gid::from_ip("fe80::2".parse().unwrap()),
    };
    let mut packet = send(5, 8, 0);
    let at = packet.len() - icrc::LEN;
    let right = icrc::of_roce_v1(&grh, &packet[..at]).to_le_bytes();
    packet[at..].copy_from_slice(&right);
    let mac = MacAddr([0; 6]);
    let bytes = [&FrameV1::headers((mac, mac), &grh)[..], &packet].concat();
    assert_eq!(read(1, &bytes), Ok(vec![(5, 8, Icrc::Right)]));
    let frame = Frame { time_ns: 0, direction: Direction::In, link: 1, bytes: &bytes };
    packets(&frame, |p| assert_eq!(p.src, IpAddr::from([10, 0, 0, 1]))).unwrap();
}
