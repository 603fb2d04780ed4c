//! tshark as the judge of what we emit: one packet of every opcode, over IPv4 and IPv6; nothing may
//! be malformed and every field must read as it was written.
//!
//! Needs `tshark` (Debian and Ubuntu: `apt-get install tshark`). Without it the tests say so on
//! stderr and check nothing; with `VERNIC_REQUIRE_TOOLS=1` they fail instead.

mod common;

use std::net::SocketAddr;

use vernic_wire::Frame;
use vernic_wire::icrc;
use vernic_wire::net::ROCE_V2_PORT;
use vernic_wire::opcode::PayloadRule;
use vernic_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, CreditCode, Deth, Feth, HeaderSet, Headers, Ieth, ImmDt,
    Kind, NakCode, Opcode, Pkey, Placement, Psn, Qkey, Qpn, Rdeth, Reth, Rkey, RnrTimer,
    Selectivity, Service, Srqn, Syndrome, Xrceth,
};

/// How much of a packet tshark can judge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Depth {
    /// All headers.
    Full,
    /// The BTH; the rest it shows as bytes, for it does not know these opcodes (4.0): XRC's
    /// headers, FLUSH, ATOMIC WRITE, CNP.
    Bth,
    /// The BTH, and what follows wrongly: it takes the reliable datagram opcodes for those of a
    /// vendor's dynamically connected transport, which has 8 bytes more. Scapy judges these, see
    /// `golden.rs`.
    Wrong,
}

fn depth(opcode: Opcode) -> Depth {
    let info = opcode.info();
    match (info.service, info.kind) {
        (Service::Rd, _) => Depth::Wrong,
        (Service::Xrc | Service::Cnp, _) | (_, Kind::Flush | Kind::AtomicWrite) => Depth::Bth,
        _ => Depth::Full,
    }
}

fn headers(opcode: Opcode, index: u32) -> Headers {
    let mut bth = Bth::new(opcode, Qpn::new(0x10_0000 + index), Psn::new(0xFF_FFF0 + index));
    bth.solicited = index.is_multiple_of(2);
    bth.ack_req = index.is_multiple_of(3);
    bth.migreq = !index.is_multiple_of(5);
    bth.pkey = Pkey(0x8000 | index as u16);
    let syndromes = [
        Syndrome::ack(CreditCode(5)),
        Syndrome::rnr(RnrTimer::new(12)),
        Syndrome::nak(NakCode::REMOTE_ACCESS),
    ];
    Headers {
        bth,
        rdeth: Some(Rdeth { reserved: 0, ee_context: 0x77_0000 + index }),
        deth: Some(Deth::new(Qkey(0x1111_0000 + index), Qpn::new(0x22_0000 + index))),
        xrceth: Some(Xrceth::new(Srqn::new(0x33_0000 + index))),
        feth: Some(Feth::new(Selectivity::RANGE, Placement::GLOBAL)),
        reth: Some(Reth {
            addr: 0x1234_5678_9ABC_0000 + u64::from(index),
            rkey: Rkey(0x4444_0000 + index),
            length: 0x1_0000 + index,
        }),
        atomic: Some(AtomicEth {
            addr: 0x7FFF_0000_1000 + u64::from(index) * 8,
            rkey: Rkey(0x5555_0000 + index),
            swap_or_add: u64::MAX - u64::from(index),
            compare: 0x0102_0304_0506_0708,
        }),
        aeth: Some(Aeth { syndrome: syndromes[index as usize % 3], msn: 0xFF_0000 + index }),
        atomic_ack: Some(AtomicAckEth { original: 0xAAAA_BBBB_CCCC_0000 + u64::from(index) }),
        imm: Some(ImmDt(0x6666_0000 + index)),
        ieth: Some(Ieth { rkey: Rkey(0x8888_0000 + index) }),
    }
}

/// Headers with their pad, and BTH to ICRC, the ICRC still 0; payload lengths have every remainder
/// by 4.
fn transport(mut headers: Headers, index: u32) -> (Headers, Vec<u8>) {
    let payload_len = match headers.bth.opcode.info().payload {
        PayloadRule::None | PayloadRule::UpTo(_) => 0,
        PayloadRule::Exactly(n) => usize::from(n),
        PayloadRule::Any => 32 + index as usize % 4,
    };
    headers.bth.pad = vernic_wire::packet::pad_of(payload_len);
    let mut bytes = vec![0; Headers::MAX_LEN];
    let len = headers.emit(&mut bytes);
    bytes.truncate(len);
    bytes.extend((0..payload_len).map(|at| 0xC0 + at as u8));
    bytes.resize(bytes.len() + usize::from(headers.bth.pad) + icrc::LEN, 0);
    (headers, bytes)
}

/// One packet of `opcode`: its headers, pad set, and the frame.
fn packet(src: &str, dst: &str, opcode: Opcode, index: u32) -> (Headers, Vec<u8>) {
    let (src, dst) = (format!("{src}:{}", 0xC000 + index), format!("{dst}:{ROCE_V2_PORT}"));
    let (src, dst): (SocketAddr, SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
    let ident = index as u16;
    let (headers, mut payload) = transport(headers(opcode, index), index);
    Frame::new(src, dst, 2, ident, &[]).flow().stamp(ident, &mut payload);
    let frame = Frame::new(src, dst, 2, ident, &payload);
    let mut bytes = vec![0; frame.header_len() + payload.len()];
    frame.emit(&mut bytes);
    (headers, bytes)
}

/// What tshark must read in a frame: field name and value.
fn expectation(headers: &Headers, payload: &[u8]) -> Vec<(&'static str, Value)> {
    let bth = &headers.bth;
    let info = bth.opcode.info();
    let mut fields = vec![
        ("infiniband.bth.opcode", Value::Number(bth.opcode.0.into())),
        ("infiniband.bth.se", Value::Number(bth.solicited.into())),
        ("infiniband.bth.m", Value::Number(bth.migreq.into())),
        ("infiniband.bth.padcnt", Value::Number(bth.pad.into())),
        ("infiniband.bth.tver", Value::Number(0)),
        ("infiniband.bth.p_key", Value::Number(bth.pkey.0.into())),
        ("infiniband.bth.destqp", Value::Number(bth.dest_qpn.value().into())),
        ("infiniband.bth.a", Value::Number(bth.ack_req.into())),
        ("infiniband.bth.psn", Value::Number(bth.psn.value().into())),
    ];
    if depth(bth.opcode) != Depth::Full {
        return fields;
    }
    let mut number = |prescribed: HeaderSet, name, value: u64| {
        let value = if info.has(prescribed) { Value::Number(value) } else { Value::Absent };
        fields.push((name, value));
    };
    let (deth, aeth) = (headers.deth.unwrap(), headers.aeth.unwrap());
    let (atomic, ack) = (headers.atomic.unwrap(), headers.atomic_ack.unwrap());
    number(HeaderSet::DETH, "infiniband.deth.q_key", deth.qkey.0.into());
    number(HeaderSet::DETH, "infiniband.deth.srcqp", deth.src_qpn.value().into());
    number(HeaderSet::AETH, "infiniband.aeth.syndrome", aeth.syndrome.0.into());
    number(HeaderSet::AETH, "infiniband.aeth.msn", aeth.msn.into());
    number(HeaderSet::ATOMIC, "infiniband.atomiceth.swapdt", atomic.swap_or_add);
    number(HeaderSet::ATOMIC, "infiniband.atomiceth.cmpdt", atomic.compare);
    number(HeaderSet::ATOMIC_ACK, "infiniband.atomicacketh.origremdt", ack.original);
    // tshark uses the RETH's names for the AtomicETH's address and key.
    let range = if info.has(HeaderSet::ATOMIC) {
        Some((atomic.addr, atomic.rkey, Value::Absent))
    } else if info.has(HeaderSet::RETH) {
        headers.reth.map(|reth| (reth.addr, reth.rkey, Value::Number(reth.length.into())))
    } else {
        None
    };
    let (addr, rkey, length) = match range {
        Some((addr, rkey, length)) => (Value::Number(addr), Value::Number(rkey.0.into()), length),
        None => (Value::Absent, Value::Absent, Value::Absent),
    };
    let bytes = |prescribed: HeaderSet, value: u32| {
        if info.has(prescribed) { Value::bytes(&value.to_be_bytes()) } else { Value::Absent }
    };
    fields.extend([
        ("infiniband.reth.va", addr),
        ("infiniband.reth.r_key", rkey),
        ("infiniband.reth.dmalen", length),
        ("infiniband.immdt", bytes(HeaderSet::IMM, headers.imm.unwrap().0)),
        ("infiniband.ieth", bytes(HeaderSet::IETH, headers.ieth.unwrap().rkey.0)),
    ]);
    let (transport, icrc) = payload.split_last_chunk::<{ icrc::LEN }>().unwrap();
    fields.push(("infiniband.invariant.crc", Value::Number(u32::from_be_bytes(*icrc).into())));
    // tshark shows the pad as part of the data, and takes the first 4 bytes of UD for an IPoIB
    // header.
    let skipped = if info.service == Service::Ud { 4 } else { 0 };
    fields.push(("data.data", Value::bytes(&transport[headers.len() + skipped..])));
    fields
}

/// A field's value: absent, a number, or bytes as hex digits.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Value {
    Absent,
    Number(u64),
    Bytes(String),
}

impl Value {
    fn bytes(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::Absent;
        }
        Self::Bytes(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }
    /// Reads what tshark prints where `like` is expected.
    fn read(text: &str, like: &Self) -> Self {
        if text.is_empty() {
            return Self::Absent;
        }
        if matches!(like, Self::Bytes(_)) {
            return Self::Bytes(text.replace(':', ""));
        }
        common::number(text).map_or(Self::Bytes(text.to_owned()), Self::Number)
    }
}

/// Every known opcode, over `src` to `dst`, read by tshark and compared field by field.
fn judge(file: &str, src: &str, dst: &str) {
    let opcodes = (0..=255).map(Opcode).filter(|opcode| opcode.is_known());
    let packets: Vec<_> = opcodes.zip(0..).map(|(opcode, i)| packet(src, dst, opcode, i)).collect();
    let frames: Vec<_> = packets.iter().map(|(_, frame)| frame.clone()).collect();
    assert_eq!(frames.len(), 87);
    let expectations: Vec<_> = packets
        .iter()
        .map(|(headers, bytes)| {
            (headers.bth.opcode, expectation(headers, Frame::parse(bytes).unwrap().payload))
        })
        .collect();
    // Those of a packet that is judged in full are all the names there are.
    let names = expectations[0].1.iter().map(|(name, _)| *name);
    let fields: Vec<_> = ["_ws.malformed", "_ws.expert.message", "ip.checksum.status"]
        .into_iter()
        .chain(names)
        .collect();
    let options = ["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"];
    let Some(rows) = common::dissect(file, &frames, &options, &fields) else { return };
    for ((opcode, expected), row) in expectations.iter().zip(&rows) {
        if depth(*opcode) != Depth::Wrong {
            assert_eq!((&row[0][..], &row[1][..]), ("", ""), "{opcode}: malformed or suspicious");
        }
        assert!(row[2].is_empty() || row[2] == "1", "{opcode}: IP checksum {}", row[2]);
        for ((name, value), text) in expected.iter().zip(&row[3..]) {
            assert_eq!(Value::read(text, value), *value, "{opcode}: {name} reads {text}");
        }
    }
}

#[test]
fn every_opcode_over_ipv4_reads_as_written() {
    judge("opcodes-ipv4.pcap", "10.0.0.1", "10.0.0.2");
}

#[test]
fn every_opcode_over_ipv6_reads_as_written() {
    judge("opcodes-ipv6.pcap", "[fe80::1]", "[fe80::2]");
}
