extern crate std;

use std::string::ToString;
use std::vec::Vec;

use super::*;
use crate::opcode::{OPCODES, PayloadRule};
use crate::{Qkey, Rkey, Srqn, Syndrome};

fn filled(opcode: Opcode) -> Headers {
    let all = Headers {
        bth: Bth::new(opcode, Qpn::new(0x11_2233), Psn::new(0x44_5566)),
        rdeth: Some(Rdeth { reserved: 0, ee_context: 7 }),
        deth: Some(Deth::new(Qkey(0x8001_0000), Qpn::new(9))),
        xrceth: Some(Xrceth::new(Srqn::new(8))),
        feth: Some(Feth::default()),
        reth: Some(Reth { addr: 1, rkey: Rkey(2), length: 3 }),
        atomic: Some(AtomicEth { addr: 1, rkey: Rkey(2), swap_or_add: 3, compare: 4 }),
        aeth: Some(Aeth { syndrome: Syndrome::ACK, msn: 5 }),
        atomic_ack: Some(AtomicAckEth { original: 6 }),
        imm: Some(ImmDt(0xAABB_CCDD)),
        ieth: Some(Ieth { rkey: Rkey(10) }),
    };
    let has = |header| opcode.info().has(header);
    Headers {
        bth: all.bth,
        rdeth: all.rdeth.filter(|_| has(HeaderSet::RDETH)),
        deth: all.deth.filter(|_| has(HeaderSet::DETH)),
        xrceth: all.xrceth.filter(|_| has(HeaderSet::XRCETH)),
        feth: all.feth.filter(|_| has(HeaderSet::FETH)),
        reth: all.reth.filter(|_| has(HeaderSet::RETH)),
        atomic: all.atomic.filter(|_| has(HeaderSet::ATOMIC)),
        aeth: all.aeth.filter(|_| has(HeaderSet::AETH)),
        atomic_ack: all.atomic_ack.filter(|_| has(HeaderSet::ATOMIC_ACK)),
        imm: all.imm.filter(|_| has(HeaderSet::IMM)),
        ieth: all.ieth.filter(|_| has(HeaderSet::IETH)),
    }
}

fn known() -> impl Iterator<Item = Opcode> {
    (0..=255).map(Opcode).filter(|opcode| opcode.is_known())
}

fn packet(opcode: Opcode) -> Vec<u8> {
    let headers = filled(opcode);
    let mut bytes = std::vec![0; Headers::MAX_LEN];
    let len = headers.emit(&mut bytes);
    bytes.truncate(len);
    if let PayloadRule::Exactly(n) = opcode.info().payload {
        bytes.resize(len + n as usize, 0xEE);
    }
    bytes
}

#[test]
fn every_opcode_round_trips_with_all_its_headers() {
    for opcode in known() {
        let bytes = packet(opcode);
        let parsed = Packet::parse(&bytes).unwrap();
        assert_eq!(parsed.headers(), filled(opcode), "{opcode}");
        assert_eq!(parsed.headers().present(), opcode.info().headers, "{opcode}");
        assert_eq!(parsed.as_bytes(), bytes);
    }
}

#[test]
fn every_opcode_is_truncated_at_every_shorter_length() {
    for opcode in known() {
        let bytes = packet(opcode);
        for len in 0..opcode.info().header_len as usize {
            let need =
                if len < Bth::LEN { Bth::LEN as u16 } else { opcode.info().header_len.into() };
            let error = ParseError::Truncated { need, have: len as u16 };
            assert_eq!(Packet::parse(&bytes[..len]).unwrap_err(), error, "{opcode}");
        }
    }
}

#[test]
fn undefined_opcodes_are_named_in_the_error() {
    for code in (0..=255).filter(|code| !Opcode(*code).is_known()) {
        let mut bytes = [0; 12];
        bytes[0] = code;
        assert_eq!(Packet::parse(&bytes).unwrap_err(), ParseError::UnknownOpcode(code));
    }
    assert_eq!(OPCODES.iter().filter(|row| row.kind == crate::Kind::Unknown).count(), 169);
}

#[test]
fn pad_is_cut_from_the_payload() {
    let mut bytes = packet(Opcode::RC_SEND_ONLY);
    bytes.extend_from_slice(b"hello\0\0\0");
    bytes[1] |= 3 << 4;
    let parsed = Packet::parse(&bytes).unwrap();
    assert_eq!(parsed.payload(), b"hello");
    assert_eq!(parsed.padding(), [0, 0, 0]);
}

#[test]
fn pad_beyond_the_payload_and_odd_lengths_are_rejected() {
    let mut bytes = packet(Opcode::RC_SEND_ONLY);
    bytes[1] |= 1 << 4;
    assert_eq!(Packet::parse(&bytes).unwrap_err(), ParseError::BadPad { pad: 1, len: 0 });
    bytes[1] &= !(1 << 4);
    bytes.extend_from_slice(b"hello");
    assert_eq!(Packet::parse(&bytes).unwrap_err(), ParseError::BadPad { pad: 0, len: 5 });
}

#[test]
fn a_version_other_than_zero_is_rejected() {
    let mut bytes = packet(Opcode::RC_SEND_ONLY);
    bytes[1] |= 1;
    assert_eq!(Packet::parse(&bytes).unwrap_err(), ParseError::BadVersion(1));
}

#[test]
fn a_payload_that_the_opcode_forbids_is_rejected_on_answers_and_left_to_the_responder_on_requests()
{
    for opcode in known().filter(|opcode| opcode.info().payload != PayloadRule::Any) {
        let mut bytes = packet(opcode);
        let len = match opcode.info().payload {
            PayloadRule::Exactly(n) | PayloadRule::UpTo(n) => n + 4,
            _ => 4,
        };
        let end = usize::from(opcode.info().header_len) + usize::from(len);
        bytes.resize(end, 0);
        match Packet::parse(&bytes) {
            Ok(parsed) => assert!(opcode.info().is_request() && !parsed.payload_fits(), "{opcode}"),
            Err(error) => {
                assert!(!opcode.info().is_request(), "{opcode}");
                assert_eq!(error, ParseError::PayloadLength { opcode: opcode.info().name, len });
            }
        }
    }
    let mut short = packet(Opcode::RC_ATOMIC_WRITE);
    short.truncate(short.len() - 4);
    assert!(!Packet::parse(&short).unwrap().payload_fits());
    assert!(Packet::parse(&packet(Opcode::RC_ATOMIC_WRITE)).unwrap().payload_fits());
}

#[test]
fn max_len_is_that_of_the_table() {
    let longest = OPCODES.iter().map(|row| row.header_len).max().unwrap();
    assert_eq!(Headers::MAX_LEN, longest as usize);
}

#[test]
fn pads_bring_lengths_to_multiples_of_four() {
    assert_eq!([0, 1, 2, 3, 4, 5].map(pad_of), [0, 3, 2, 1, 0, 3]);
}

#[test]
fn packets_read_as_a_trace() {
    let bytes = packet(Opcode::RC_WRITE_ONLY_IMM);
    assert_eq!(
        Packet::parse(&bytes).unwrap().to_string(),
        "RC_WRITE_ONLY_IMM qp=0x112233 psn=4478310 addr=0x1 rkey=0x00000002 len=3 \
         imm=0xaabbccdd payload=0"
    );
}
