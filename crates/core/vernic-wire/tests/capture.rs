//! Every frame of a capture between two Linux kernels (rdma_rxe): parsed, put together again byte
//! for byte, and its ICRC verified with the Identification seen and with it unknown.

mod common;

use std::collections::BTreeMap;

use vernic_wire::Frame;
use vernic_wire::icrc::{self, IcrcFlow, IdentSolver, Verdict};
use vernic_wire::net::{Ip, Ipv4};
use vernic_wire::{Opcode, Packet, ParseError};

const CAPTURE: &[u8] = include_bytes!("data/ulps_rocev2.pcap");
/// Frames of all kinds in the file, ARP and TCP among them.
const ALL_FRAMES: usize = 3140;
/// RoCEv2 frames in the file.
const FRAMES: usize = 3011;

/// The RoCEv2 frames, each with its number in the file and its bytes. All others are of another
/// protocol and rejected as such, none as truncated.
fn frames() -> impl Iterator<Item = (usize, Frame<'static>, &'static [u8])> {
    let raw = common::read_pcap(CAPTURE);
    assert_eq!(raw.len(), ALL_FRAMES);
    raw.into_iter().enumerate().filter_map(|(index, bytes)| match Frame::parse(bytes) {
        Ok(frame) => frame.is_roce_v2().then_some((index, frame, bytes)),
        Err(ParseError::Field { .. }) => None,
        Err(error) => panic!("frame {index}: {error}"),
    })
}

fn transport(frame: &Frame<'static>) -> &'static [u8] {
    &frame.payload[..frame.payload.len() - icrc::LEN]
}

#[test]
fn every_frame_is_parsed_and_reemitted_byte_for_byte() {
    let mut reemitted = 0;
    for (index, frame, bytes) in frames() {
        let packet = Packet::parse(transport(&frame)).unwrap_or_else(|e| panic!("{index}: {e}"));
        let mut payload = vec![0; frame.payload.len()];
        let at = packet.headers().emit(&mut payload);
        let body = [packet.payload(), packet.padding()].concat();
        payload[at..at + body.len()].copy_from_slice(&body);
        frame.flow().stamp(frame.ident(), &mut payload);
        let mut out = vec![0; bytes.len()];
        let len = Frame { payload: &payload, ..frame }.emit(&mut out);
        assert_eq!(&out[..len], bytes, "frame {index}: {packet}");
        reemitted += 1;
    }
    assert_eq!(reemitted, FRAMES);
}

#[test]
fn every_ip_header_checksum_is_right() {
    for (index, frame, _) in frames() {
        let Ip::V4(ip) = frame.ip else { panic!("frame {index} is not IPv4") };
        assert_eq!(ip.checksum, ip.computed_checksum(), "frame {index}");
        assert_eq!(ip.flags_and_offset, Ipv4::DF, "frame {index}");
    }
}

#[test]
fn every_icrc_is_good_with_the_identification_seen() {
    let good = frames().filter(|(_, frame, _)| frame.check_icrc() == Verdict::Good).count();
    assert_eq!(good, FRAMES);
}

#[test]
fn every_icrc_is_good_with_the_identification_unknown() {
    let mut solver = IdentSolver::new();
    let mut solved = 0;
    for (index, frame, _) in frames() {
        let len = transport(&frame).len();
        match frame.flow().check(0, frame.payload) {
            Verdict::Good => assert_eq!(frame.ident(), 0, "frame {index}"),
            Verdict::Differs { diff } => {
                assert_eq!(solver.solve(diff, len), Some(frame.ident()), "frame {index}");
                assert_eq!(icrc::solve_ident(diff, len), Some(frame.ident()), "frame {index}");
            }
            Verdict::Truncated => panic!("frame {index}"),
        }
        solved += 1;
    }
    assert_eq!(solved, FRAMES);
}

#[test]
fn corruption_is_not_explained_by_an_identification() {
    let mut solver = IdentSolver::new();
    let mut seed = 0x9E37_79B9_u32;
    let mut passed = 0;
    for (_, frame, _) in frames() {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mut bytes = frame.payload.to_vec();
        let bit = (seed >> 8) as usize % (bytes.len() * 8);
        if bit / 8 == 4 {
            continue; // BTH byte 4 is not covered
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
        let flow: IcrcFlow = frame.flow();
        let Verdict::Differs { diff } = flow.check(frame.ident(), &bytes) else {
            panic!("one flipped bit went unseen")
        };
        passed += u32::from(solver.solve(diff, transport(&frame).len()).is_some());
    }
    // By chance one of 65,536 passes; this seed has none among its 3,000.
    assert_eq!(passed, 0);
}

#[test]
fn the_capture_holds_the_opcodes_that_it_is_kept_for() {
    let mut counts: BTreeMap<u8, usize> = BTreeMap::new();
    for (_, frame, _) in frames() {
        *counts.entry(transport(&frame)[0]).or_default() += 1;
    }
    for opcode in [
        Opcode::RC_SEND_FIRST,
        Opcode::RC_SEND_MIDDLE,
        Opcode::RC_SEND_LAST,
        Opcode::RC_SEND_ONLY,
        Opcode::RC_SEND_ONLY_INV,
        Opcode::RC_WRITE_FIRST,
        Opcode::RC_WRITE_MIDDLE,
        Opcode::RC_WRITE_LAST,
        Opcode::RC_WRITE_ONLY,
        Opcode::RC_READ_REQUEST,
        Opcode::RC_READ_RESPONSE_FIRST,
        Opcode::RC_READ_RESPONSE_MIDDLE,
        Opcode::RC_READ_RESPONSE_LAST,
        Opcode::RC_READ_RESPONSE_ONLY,
        Opcode::RC_ACK,
        Opcode::RC_ATOMIC_ACK,
        Opcode::RC_FETCH_ADD,
        Opcode::UD_SEND_ONLY,
    ] {
        assert!(counts.contains_key(&opcode.0), "{opcode}");
    }
    assert_eq!(counts.values().sum::<usize>(), FRAMES);
}
