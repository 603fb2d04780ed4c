extern crate std;

use std::vec;

use super::*;

fn flow() -> IcrcFlow {
    IcrcFlow::new("10.99.0.2".parse().unwrap(), "10.99.0.1".parse().unwrap(), 49_152, 4791)
}

#[test]
fn the_solver_finds_every_kind_of_identification_at_every_length() {
    let flow = flow();
    let mut solver = IdentSolver::new();
    let step = if cfg!(miri) { 100 } else { 4 };
    for len in (12..300).step_by(step).chain([1036, 4108, 4124, 9000]) {
        let mut packet = vec![0x5A; len + LEN];
        for (ident, guess) in [(1, 0), (5737, 0), (0xFFFF, 0), (0x8000, 0x7FFF), (0, 1)] {
            flow.stamp(ident, &mut packet);
            assert_eq!(flow.check(ident, &packet), Verdict::Good);
            let Verdict::Differs { diff } = flow.check(guess, &packet) else {
                panic!("ident {ident} guessed as {guess} passed")
            };
            assert_eq!(solve_ident(diff, len), Some(guess ^ ident), "{len}");
            assert_eq!(solver.solve(diff, len), Some(guess ^ ident), "{len}");
        }
    }
}

#[test]
fn a_flipped_bit_is_found_wherever_it_is() {
    let flow = flow();
    let mut packet = [0x5A; 44];
    flow.stamp(3, &mut packet);
    let step = if cfg!(miri) { 31 } else { 1 };
    for bit in (0..44 * 8).step_by(step).filter(|bit| bit / 8 != 4) {
        packet[bit / 8] ^= 1 << (bit % 8);
        let Verdict::Differs { diff } = flow.check(3, &packet) else { panic!("bit {bit}") };
        assert_eq!(solve_ident(diff, 40), None, "bit {bit}");
        packet[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn congestion_marks_do_not_change_the_icrc() {
    let flow = flow();
    let mut packet = [0x5A; 44];
    flow.stamp(3, &mut packet);
    packet[4] = 0xC0;
    assert_eq!(flow.check(3, &packet), Verdict::Good);
}

#[test]
fn packets_without_room_for_a_bth_are_truncated() {
    let flow = flow();
    for len in 0..16 {
        assert_eq!(flow.check(0, &[0; 15][..len.min(15)]), Verdict::Truncated);
    }
}

#[test]
fn mapped_addresses_are_ipv4() {
    let mapped = IcrcFlow::new(
        "::ffff:10.99.0.2".parse().unwrap(),
        "::ffff:10.99.0.1".parse().unwrap(),
        49_152,
        4791,
    );
    assert_eq!(mapped.compute(7, &[9; 40]), flow().compute(7, &[9; 40]));
    assert!(mapped.is_ipv4());
}

/// The definition: bit by bit over bytes that are masked already.
fn reference(bytes: impl Iterator<Item = u8>) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 != 0 { 0xEDB8_8320 } else { 0 };
        }
    }
    !crc
}

#[test]
fn the_example_packet_of_the_infiniband_specification_has_its_icrc() {
    // IBTA 7.8, table 29: a local RDMA WRITE ONLY of 14 bytes; the ICRC is bytes 52 to 55.
    const PACKET: [u8; 56] = [
        0x70, 0x12, 0x37, 0x5C, 0x00, 0x0E, 0x17, 0xD2, 0x0A, 0x20, 0x24, 0x87, 0x00, 0x87, 0xB1,
        0xB3, 0x00, 0x0D, 0xEC, 0x2A, 0x01, 0x71, 0x0A, 0x1C, 0x01, 0x5D, 0x40, 0x02, 0x38, 0xF2,
        0x7A, 0x05, 0x00, 0x00, 0x00, 0x0E, 0xBB, 0x88, 0x4D, 0x85, 0xFD, 0x5C, 0xFB, 0xA4, 0x72,
        0x8B, 0xC0, 0x69, 0x0E, 0xD4, 0x00, 0x00, 0x96, 0x25, 0xB7, 0x5A,
    ];
    let lrh = Lrh::parse(&PACKET).unwrap();
    assert_eq!(lrh.next_header, Lrh::NEXT_BTH);
    assert_eq!(usize::from(lrh.packet_length) * 4, PACKET.len());
    let (transport, icrc) = PACKET[Lrh::LEN..].split_last_chunk().unwrap();
    let packet = crate::Packet::parse(transport).unwrap();
    assert_eq!(packet.opcode(), crate::Opcode::RC_WRITE_ONLY);
    assert_eq!(packet.reth().unwrap().length as usize, packet.payload().len());
    assert_eq!(of_infiniband(&lrh, None, transport).to_le_bytes(), *icrc);
}

#[test]
fn grh_fields_that_routers_change_are_masked() {
    let grh = Grh {
        version: 6,
        traffic_class: 0x12,
        flow_label: 0x3_4567,
        payload_length: 44,
        next_header: Grh::NEXT_HEADER_IBA,
        hop_limit: 9,
        sgid: crate::Gid([1; 16]),
        dgid: crate::Gid([2; 16]),
    };
    let lrh = Lrh { virtual_lane: 3, next_header: Lrh::NEXT_GRH, dlid: 4, ..Lrh::default() };
    let transport = [0x5A; 40];
    let grh_bytes = [[0x6F, 0xFF, 0xFF, 0xFF, 0, 44, 0x1B, 0xFF].as_slice(), &[1; 16], &[2; 16]];
    let rest = [&transport[..4], &[0xFF], &transport[5..]];
    let masked = [0xFF; 8].into_iter().chain(grh_bytes.into_iter().chain(rest).flatten().copied());
    let expected = reference(masked);
    assert_eq!(of_roce_v1(&grh, &transport), expected);
    // Routers change all of the LRH, so that none of it counts where there is a GRH.
    assert_eq!(of_infiniband(&lrh, Some(&grh), &transport), expected);
}
