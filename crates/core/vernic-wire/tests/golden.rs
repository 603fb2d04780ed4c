//! Frames made by an independent implementation (scapy, see `tools/golden/make.py`), each with the
//! values of its fields: built here from the values they must come out the same byte for byte, and
//! parsed they must give the same values.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use vernic_wire::icrc::{self, Verdict};
use vernic_wire::net::{Ip, MacAddr, ROCE_V2_PORT};
use vernic_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, HeaderSet, Headers, ImmDt, Opcode, Packet, Pkey, Psn,
    Qkey, Qpn, Rdeth, Reth, Rkey, Syndrome,
};
use vernic_wire::{Frame, FrameV1, Gid, Grh};

const GOLDEN: &str = include_str!("data/golden.txt");
/// Opcodes scapy 2.5 knows (RC and RD 21 each, UC 12, UD 2, CNP), three frames for each.
const LINES: usize = 57 * 3;

/// How the names of frames of RoCEv1 begin, of which there is one for each opcode.
const V1: &str = "ROCEV1:";

/// One line of the file.
struct Golden {
    name: &'static str,
    values: BTreeMap<&'static str, &'static str>,
}

impl Golden {
    /// Those of RoCEv2.
    fn all() -> Vec<Self> {
        let all: Vec<_> = Self::every().filter(|golden| !golden.name.starts_with(V1)).collect();
        assert_eq!(all.len(), LINES);
        all
    }
    /// Packets of RoCEv1.
    fn all_v1() -> Vec<Self> {
        let all: Vec<_> = Self::every().filter(|golden| golden.name.starts_with(V1)).collect();
        assert_eq!(all.len(), LINES / 3);
        all
    }
    fn every() -> impl Iterator<Item = Self> {
        let lines = GOLDEN.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| {
            let (name, values) = line.split_once(' ').unwrap();
            Self { name, values: values.split(' ').filter_map(|v| v.split_once('=')).collect() }
        })
    }
    /// A number; 0 where the line does not have it.
    fn number(&self, name: &str) -> u64 {
        let hex = self.values.get(name).map_or("0", |value| value.strip_prefix("0x").unwrap());
        u64::from_str_radix(hex, 16).unwrap()
    }
    fn u32(&self, name: &str) -> u32 {
        self.number(name).try_into().unwrap()
    }
    fn u8(&self, name: &str) -> u8 {
        self.number(name).try_into().unwrap()
    }
    fn flag(&self, name: &str) -> bool {
        self.number(name) != 0
    }
    fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }
    fn bytes(&self, name: &str) -> Vec<u8> {
        let hex = self.values[name];
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(byte).collect()
    }
    /// Our name for scapy's opcode.
    fn our_name(&self) -> String {
        self.name
            .replace("RDMA_", "")
            .replace("_WITH_IMMEDIATE", "_IMM")
            .replace("ACKNOWLEDGE", "ACK")
            .replace("COMPARE_SWAP", "CMP_SWAP")
    }
    fn headers(&self) -> Headers {
        Headers {
            bth: Bth {
                opcode: Opcode(self.u8("opcode")),
                solicited: self.flag("solicited"),
                migreq: self.flag("migreq"),
                pad: self.u8("pad"),
                version: 0,
                pkey: Pkey(self.number("pkey") as u16),
                fecn: self.flag("fecn"),
                becn: self.flag("becn"),
                reserved6: self.u8("reserved6"),
                dest_qpn: Qpn::new(self.u32("dest_qpn")),
                ack_req: self.flag("ack_req"),
                reserved7: self.u8("reserved7"),
                psn: Psn::new(self.u32("psn")),
            },
            rdeth: self.has("ee_context").then(|| Rdeth {
                reserved: self.u8("rdeth_reserved"),
                ee_context: self.u32("ee_context"),
            }),
            deth: self.has("qkey").then(|| Deth {
                qkey: Qkey(self.u32("qkey")),
                reserved: self.u8("deth_reserved"),
                src_qpn: Qpn::new(self.u32("src_qpn")),
            }),
            reth: self.has("addr").then(|| Reth {
                addr: self.number("addr"),
                rkey: Rkey(self.u32("rkey")),
                length: self.u32("length"),
            }),
            atomic: self.has("atomic_addr").then(|| AtomicEth {
                addr: self.number("atomic_addr"),
                rkey: Rkey(self.u32("atomic_rkey")),
                swap_or_add: self.number("swap_or_add"),
                compare: self.number("compare"),
            }),
            aeth: self
                .has("syndrome")
                .then(|| Aeth { syndrome: Syndrome(self.u8("syndrome")), msn: self.u32("msn") }),
            atomic_ack: self
                .has("original_data")
                .then(|| AtomicAckEth { original: self.number("original_data") }),
            imm: self.has("imm").then(|| ImmDt(self.u32("imm"))),
            xrceth: None,
            feth: None,
            ieth: None,
        }
    }
    /// BTH to ICRC, the ICRC still 0.
    fn transport(&self) -> Vec<u8> {
        let mut bytes = vec![0; Headers::MAX_LEN];
        let len = self.headers().emit(&mut bytes);
        bytes.truncate(len);
        bytes.extend(self.bytes("payload"));
        bytes.resize(bytes.len() + usize::from(self.u8("pad")) + icrc::LEN, 0);
        bytes
    }
    /// The frame around `payload`.
    fn frame<'a>(&self, payload: &'a [u8]) -> Frame<'a> {
        let address = |name| self.values[name].parse::<IpAddr>().unwrap();
        let src = SocketAddr::new(address("src"), self.number("sport") as u16);
        let dst = SocketAddr::new(address("dst"), ROCE_V2_PORT);
        let ident = self.number("ident") as u16;
        let mut frame = Frame::new(src, dst, self.u8("tos"), ident, payload);
        frame.ethernet.src = MacAddr([2, 0, 0, 0, 0, 1]);
        frame.ethernet.dst = MacAddr([2, 0, 0, 0, 0, 2]);
        frame.udp.checksum = 0;
        match &mut frame.ip {
            Ip::V4(ip) => {
                ip.ttl = self.u8("ttl");
                ip.checksum = ip.computed_checksum();
            }
            Ip::V6(ip) => {
                ip.hop_limit = self.u8("ttl");
                ip.flow_label = self.u32("flow_label");
            }
        }
        frame
    }
}

#[test]
fn frames_of_roce_v1_are_those_of_scapy() {
    for golden in Golden::all_v1() {
        let mut packet = golden.transport();
        let gid = |name| Gid::from_ip(golden.values[name].parse().unwrap());
        let grh = Grh {
            version: 6,
            traffic_class: golden.u8("tos"),
            flow_label: golden.u32("flow_label"),
            payload_length: packet.len() as u16,
            next_header: Grh::NEXT_HEADER_IBA,
            hop_limit: golden.u8("ttl"),
            sgid: gid("src"),
            dgid: gid("dst"),
        };
        let end = packet.len() - icrc::LEN;
        let sum = icrc::of_roce_v1(&grh, &packet[..end]);
        packet[end..].copy_from_slice(&sum.to_le_bytes());
        let macs = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let expected = golden.bytes("frame");
        let built = [&FrameV1::headers(macs, &grh)[..], &packet].concat();
        assert_eq!(built, expected, "{}", golden.name);
        let frame = FrameV1::parse(&expected).unwrap();
        assert!(frame.is_icrc_right() && frame.trailer.is_empty(), "{}", golden.name);
        assert_eq!((frame.grh, frame.packet), (grh, &packet[..]), "{}", golden.name);
    }
}

#[test]
fn opcodes_have_the_numbers_that_scapy_gives_them() {
    for golden in Golden::all() {
        let opcode = Opcode(golden.u8("opcode"));
        assert_eq!(opcode.info().name, golden.our_name());
    }
}

#[test]
fn the_table_prescribes_the_headers_that_scapy_frames_have() {
    for golden in Golden::all() {
        let headers = golden.headers();
        assert_eq!(headers.present(), headers.bth.opcode.info().headers, "{}", golden.name);
        assert!(!headers.present().contains(HeaderSet::XRCETH));
    }
}

#[test]
fn built_from_the_values_every_frame_equals_that_of_scapy() {
    for golden in Golden::all() {
        let mut payload = golden.transport();
        let unstamped = payload.clone();
        golden.frame(&unstamped).flow().stamp(golden.number("ident") as u16, &mut payload);
        let expected = golden.bytes("frame");
        let mut out = vec![0; expected.len()];
        assert_eq!(golden.frame(&payload).emit(&mut out), expected.len(), "{}", golden.name);
        assert_eq!(out, expected, "{}", golden.name);
    }
}

#[test]
fn parsed_every_frame_of_scapy_gives_its_values() {
    for golden in Golden::all() {
        let bytes = golden.bytes("frame");
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!(frame.check_icrc(), Verdict::Good, "{}", golden.name);
        assert!(frame.is_roce_v2() && frame.trailer.is_empty());
        assert_eq!(frame, golden.frame(frame.payload));
        let packet = Packet::parse(&frame.payload[..frame.payload.len() - icrc::LEN]).unwrap();
        assert_eq!(packet.headers(), golden.headers(), "{}", golden.name);
        assert_eq!(packet.payload(), golden.bytes("payload"), "{}", golden.name);
    }
}
