//! Properties over arbitrary bytes and packets: `emit(parse(b)) == b`, and nothing panics.

use proptest::prelude::*;
use vernic_wire::Frame;
use vernic_wire::icrc::{IcrcFlow, IdentSolver, Verdict, solve_ident};
use vernic_wire::mad::MadHeader;
use vernic_wire::net::{Ethernet, Ipv4, Ipv6, Udp};
use vernic_wire::opcode::PayloadRule;
use vernic_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Grh, Ieth, ImmDt, Lrh, Opcode, Packet, Rdeth,
    Reth, Xrceth,
};

/// Bytes of a packet that [`Packet::parse`] must accept; everything that may vary varies.
fn valid_packet() -> impl Strategy<Value = Vec<u8>> {
    let known: Vec<Opcode> = (0..=255).map(Opcode).filter(|opcode| opcode.is_known()).collect();
    (prop::sample::select(known), 0..=1024_usize, 0..=3_u8)
        .prop_flat_map(|(opcode, words, pad)| {
            let (body, pad) = match opcode.info().payload {
                PayloadRule::None => (0, 0),
                PayloadRule::Exactly(n) | PayloadRule::UpTo(n) => (usize::from(n), 0),
                PayloadRule::Any if words == 0 => (0, 0),
                PayloadRule::Any => (words * 4, pad),
            };
            let len = usize::from(opcode.info().header_len) + body;
            (Just((opcode, pad)), prop::collection::vec(any::<u8>(), len))
        })
        .prop_map(|((opcode, pad), mut bytes)| {
            bytes[0] = opcode.0;
            bytes[1] = bytes[1] & 0xC0 | pad << 4;
            bytes
        })
}

proptest! {
    #[test]
    fn every_valid_packet_is_emitted_as_it_was_parsed(bytes in valid_packet()) {
        let packet = Packet::parse(&bytes).unwrap();
        let headers = packet.headers();
        let mut out = vec![0; bytes.len()];
        let at = headers.emit(&mut out);
        prop_assert_eq!(at, headers.len());
        prop_assert_eq!(at + packet.payload().len() + packet.padding().len(), bytes.len());
        out[at..].copy_from_slice(&[packet.payload(), packet.padding()].concat());
        prop_assert_eq!(&out, &bytes);
    }

    #[test]
    fn field_accessors_and_bth_agree(bytes in valid_packet()) {
        let packet = Packet::parse(&bytes).unwrap();
        let bth = packet.bth();
        prop_assert_eq!(packet.opcode(), bth.opcode);
        prop_assert_eq!(packet.dest_qpn(), bth.dest_qpn);
        prop_assert_eq!(packet.psn(), bth.psn);
        prop_assert_eq!(packet.ack_req(), bth.ack_req);
        prop_assert_eq!(packet.solicited(), bth.solicited);
        prop_assert_eq!(packet.headers().present(), packet.info().headers);
    }

    #[test]
    fn no_bytes_make_the_packet_parser_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..128),
        opcode: u8,
        plausible: bool,
    ) {
        if plausible && bytes.len() > 1 {
            bytes[0] = opcode;
            bytes[1] &= 0xF0;
        }
        match Packet::parse(&bytes) {
            Ok(packet) => prop_assert!(packet.to_string().starts_with(packet.info().name)),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn no_bytes_make_the_frame_parser_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..128),
        plausible in 0..3_usize,
    ) {
        if plausible > 0 && bytes.len() > 24 {
            bytes[12..15].copy_from_slice(&[[0x08, 0x00, 0x45], [0x86, 0xDD, 0x60]][plausible - 1]);
            bytes[16] = 0;
            bytes[20] = 0x11;
            bytes[23] = 0x11;
        }
        match Frame::parse(&bytes) {
            Ok(frame) => {
                let mut out = vec![0; bytes.len()];
                prop_assert_eq!(frame.emit(&mut out), bytes.len());
                prop_assert_eq!(&out, &bytes);
                let _ = frame.check_icrc();
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn every_identification_is_found(
        ident: u16, guess: u16, sport: u16, src: u32, dst: u32, bytes in valid_packet()
    ) {
        let flow = IcrcFlow::new(
            std::net::Ipv4Addr::from(src).into(),
            std::net::Ipv4Addr::from(dst).into(),
            sport,
            4791,
        );
        let mut packet = [&bytes[..], &[0; 4]].concat();
        flow.stamp(ident, &mut packet);
        prop_assert_eq!(flow.check(ident, &packet), Verdict::Good);
        if let Verdict::Differs { diff } = flow.check(guess, &packet) {
            prop_assert_eq!(solve_ident(diff, bytes.len()), Some(ident ^ guess));
            prop_assert_eq!(IdentSolver::new().solve(diff, bytes.len()), Some(ident ^ guess));
        } else {
            prop_assert_eq!(ident, guess);
        }
    }

    #[test]
    fn icrc_equals_a_crc_of_the_masked_bytes(
        ident: u16, sport: u16, v6: bool, bytes in valid_packet()
    ) {
        let (src, dst) = if v6 { ("[fe80::1]", "[2001:db8::2]") } else { ("10.0.0.1", "10.9.8.7") };
        let src = format!("{src}:{sport}").parse().unwrap();
        let dst = format!("{dst}:4791").parse().unwrap();
        let unstamped = [&bytes[..], &[0; 4]].concat();
        let frame = Frame::new(src, dst, 0, ident, &unstamped);
        let mut stamped = unstamped.clone();
        frame.flow().stamp(ident, &mut stamped);
        let (_, icrc) = stamped.split_at(bytes.len());
        prop_assert_eq!(icrc, reference_icrc(&frame, &bytes).to_le_bytes());
    }
}

/// The ICRC as its definition says: the frame's bytes, masked one by one, bit by bit.
fn reference_icrc(frame: &Frame<'_>, transport: &[u8]) -> u32 {
    let mut bytes = vec![0; frame.header_len()];
    frame.emit_headers(&mut bytes);
    let ip = Ethernet::LEN;
    let masked: &[usize] = if frame.ip.len() == Ipv4::LEN {
        &[ip + 1, ip + 8, ip + 10, ip + 11, ip + 26, ip + 27]
    } else {
        bytes[ip] |= 0x0F;
        &[ip + 1, ip + 2, ip + 3, ip + 7, ip + 46, ip + 47]
    };
    for at in masked {
        bytes[*at] = 0xFF;
    }
    let bth = bytes.len();
    bytes.extend_from_slice(transport);
    bytes[bth + 4] = 0xFF;
    let mut crc = !0_u32;
    for byte in [0xFF; 8].iter().chain(&bytes[ip..]) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 != 0 { 0xEDB8_8320 } else { 0 };
        }
    }
    !crc
}

macro_rules! headers_round_trip {
    ($($name:ident: $header:ty $(, $at:literal = $value:literal)?;)*) => {
        proptest! {
            $(
                #[test]
                fn $name(bytes: [u8; <$header>::LEN], cut in 0..<$header>::LEN) {
                    #[allow(unused_mut)]
                    let mut bytes = bytes;
                    $(bytes[$at] = $value;)?
                    let header = <$header>::parse(&bytes).unwrap();
                    let mut out = [0; <$header>::LEN];
                    header.emit(&mut out);
                    prop_assert_eq!(out, bytes);
                    prop_assert!(<$header>::parse(&bytes[..cut]).is_err());
                    prop_assert!(!header.to_string().is_empty());
                }
            )*
        }
    };
}

headers_round_trip! {
    every_bth_round_trips: Bth;
    every_reth_round_trips: Reth;
    every_aeth_round_trips: Aeth;
    every_atomic_eth_round_trips: AtomicEth;
    every_atomic_ack_eth_round_trips: AtomicAckEth;
    every_deth_round_trips: Deth;
    every_immdt_round_trips: ImmDt;
    every_ieth_round_trips: Ieth;
    every_rdeth_round_trips: Rdeth;
    every_xrceth_round_trips: Xrceth;
    every_feth_round_trips: Feth;
    every_grh_round_trips: Grh;
    every_lrh_round_trips: Lrh;
    every_mad_header_round_trips: MadHeader;
    every_ethernet_header_round_trips: Ethernet;
    every_ipv4_header_round_trips: Ipv4, 0 = 0x45;
    every_ipv6_header_round_trips: Ipv6, 0 = 0x6A;
    every_udp_header_round_trips: Udp;
}
