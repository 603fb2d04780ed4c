//! tshark as the judge of what we emit for iWARP: start-up frames, one FPDU of every opcode, every
//! Terminate code, with CRCs, without and with markers; nothing may be malformed, and every field
//! must read as it was written.
//!
//! Needs `tshark` (Debian and Ubuntu: `apt-get install tshark`). Without it the tests say so on
//! stderr and check nothing; with `VERNIC_REQUIRE_TOOLS=1` they fail instead.

mod common;

use std::net::Ipv4Addr;

use vernic_wire::Rkey;
use vernic_wire::iwarp::{
    AtomicCode, AtomicRequest, AtomicResponse, Control, Crc32c, DdpHeader, DepthCode, FpduHeader,
    INTERVAL, Immediate, Marker, MpaEnhanced, MpaKey, MpaStart, Msn, RdmapHeader, RdmapOpcode,
    ReadRequest, TERM_CODES, Tagged, TermCode, Terminate, Untagged, markers_in, pad_of,
};
use vernic_wire::net::{EtherType, Ethernet, Ipv4, MacAddr};

/// Field names and what must stand there.
type Fields = Vec<(&'static str, u64)>;

/// A TCP connection between two hosts, as frames; side 0 is the initiator.
struct Conversation {
    frames: Vec<Vec<u8>>,
    /// What must be read in each frame.
    expected: Vec<Fields>,
    sequence: [u32; 2],
    /// Bytes of FPDUs and markers that each side has sent.
    sent: [u32; 2],
    markers: bool,
}

impl Conversation {
    fn new(markers: bool) -> Self {
        let mut conversation = Self {
            frames: Vec::new(),
            expected: Vec::new(),
            sequence: [1000, 5000],
            sent: [0, 0],
            markers,
        };
        const SYN: u8 = 2;
        const ACK: u8 = 16;
        for (side, flags) in [(0, SYN), (1, SYN | ACK)] {
            conversation.frame(side, flags, &[], Vec::new());
            conversation.sequence[side] += 1;
        }
        conversation.frame(0, ACK, &[], Vec::new());
        conversation
    }

    fn frame(&mut self, side: usize, flags: u8, payload: &[u8], expected: Fields) {
        let hosts = [Ipv4Addr::new(10, 9, 0, 2), Ipv4Addr::new(10, 9, 0, 1)];
        let ports = [40_000_u16, 7_174];
        const TCP_LEN: usize = 20;
        let mut ip = Ipv4 {
            tos: 0,
            total_length: (Ipv4::LEN + TCP_LEN + payload.len()) as u16,
            ident: 0,
            flags_and_offset: Ipv4::DF,
            ttl: 64,
            protocol: 6,
            checksum: 0,
            src: hosts[side],
            dst: hosts[1 - side],
        };
        ip.checksum = ip.computed_checksum();
        let mut bytes = vec![0; Ethernet::LEN + Ipv4::LEN + TCP_LEN];
        let (src, dst) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        Ethernet { src, dst, ethertype: EtherType::IPV4 }.emit(&mut bytes);
        ip.emit(&mut bytes[Ethernet::LEN..]);
        let tcp = &mut bytes[Ethernet::LEN + Ipv4::LEN..];
        tcp[..2].copy_from_slice(&ports[side].to_be_bytes());
        tcp[2..4].copy_from_slice(&ports[1 - side].to_be_bytes());
        tcp[4..8].copy_from_slice(&self.sequence[side].to_be_bytes());
        tcp[8..12].copy_from_slice(&self.sequence[1 - side].to_be_bytes());
        tcp[12..16].copy_from_slice(&[5 << 4, flags, 0xFF, 0xFF]);
        bytes.extend_from_slice(payload);
        self.sequence[side] += payload.len() as u32;
        self.frames.push(bytes);
        self.expected.push(expected);
    }

    fn start(&mut self, side: usize, enhanced: Option<MpaEnhanced>, private: &[u8]) {
        let enhanced_len = enhanced.map_or(0, |_| MpaEnhanced::LEN);
        let start = MpaStart {
            key: if side == 0 { MpaKey::Request } else { MpaKey::Reply },
            markers: self.markers,
            crc: true,
            rejected: false,
            enhanced: enhanced.is_some(),
            reserved: 0,
            revision: if enhanced.is_some() { 2 } else { 1 },
            private_len: (enhanced_len + private.len()) as u16,
        };
        let mut bytes = vec![0; MpaStart::LEN + enhanced_len];
        start.emit(&mut bytes);
        if let Some(enhanced) = enhanced {
            enhanced.emit(&mut bytes[MpaStart::LEN..]);
        }
        bytes.extend_from_slice(private);
        let expected = vec![
            ("iwarp_mpa.marker_flag", u64::from(start.markers)),
            ("iwarp_mpa.crc_flag", 1),
            ("iwarp_mpa.rej_flag", 0),
            ("iwarp_mpa.rev", u64::from(start.revision)),
            ("iwarp_mpa.pdlength", u64::from(start.private_len)),
        ];
        self.frame(side, 24, &bytes, expected);
    }

    /// One FPDU in a TCP segment of its own.
    fn fpdu(&mut self, side: usize, header: &DdpHeader, body: &[u8], mut expected: Fields) {
        let ulpdu_len = header.len() + body.len();
        let mut content = vec![0; FpduHeader::LEN + header.len()];
        FpduHeader { ulpdu_len: ulpdu_len as u16 }.emit(&mut content);
        header.emit(&mut content[FpduHeader::LEN..]);
        content.extend_from_slice(body);
        content.resize(content.len() + pad_of(ulpdu_len), 0);
        let (mut bytes, mut length_at) = (Vec::new(), 0);
        for word in content.chunks(4) {
            let position = self.sent[side] + bytes.len() as u32;
            if self.markers && position.is_multiple_of(INTERVAL) {
                let mut marker = [0; Marker::LEN];
                Marker::new((bytes.len() - length_at) as u16).emit(&mut marker);
                bytes.extend(marker);
                length_at += if length_at == 0 && bytes.len() == 4 { 4 } else { 0 };
            }
            bytes.extend_from_slice(word);
        }
        if self.markers && (self.sent[side] + bytes.len() as u32).is_multiple_of(INTERVAL) {
            let mut marker = [0; Marker::LEN];
            Marker::new((bytes.len() - length_at) as u16).emit(&mut marker);
            bytes.extend(marker);
        }
        let crc = Crc32c::of(&bytes);
        bytes.extend(crc);
        self.sent[side] += bytes.len() as u32;
        expected.push(("iwarp_mpa.ulpdulength", ulpdu_len as u64));
        expected.push(("iwarp_mpa.crc_check", u64::from(u32::from_be_bytes(crc))));
        expected.extend(ddp_fields(header));
        self.frame(side, 24, &bytes, expected);
    }

    /// Whether the initiator's next FPDU, with a ULPDU of this length, would end where a marker
    /// begins.
    fn ends_at_marker(&self, ulpdu_len: usize) -> bool {
        let len = FpduHeader { ulpdu_len: ulpdu_len as u16 }.fpdu_len() as u32;
        let markers = markers_in(self.sent[0], len);
        (self.sent[0] + len + markers * Marker::LEN as u32).is_multiple_of(INTERVAL)
    }

    /// Whether tshark reads all of it as it was written.
    fn judge(&self, name: &str) {
        let mut names: Vec<_> = self.expected.iter().flatten().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        let fields: Vec<_> = ["_ws.malformed", "_ws.expert.message"]
            .into_iter()
            .chain(names.iter().copied())
            .collect();
        let options =
            ["-o", "tcp.analyze_sequence_numbers:FALSE", "--disable-protocol", "rpcordma"];
        let Some(rows) = common::dissect(name, &self.frames, &options, &fields) else { return };
        for (at, (expected, row)) in self.expected.iter().zip(&rows).enumerate() {
            if expected.is_empty() {
                continue;
            }
            assert_eq!(row[0], "", "frame {}: malformed", at + 1);
            assert!(!row[1].contains("CRC") && !row[1].contains("MPA"), "{}: {}", at + 1, row[1]);
            for (name, value) in expected {
                let column = 2 + names.iter().position(|n| n == name).unwrap();
                assert_eq!(common::number(&row[column]), Some(*value), "frame {}: {name}", at + 1);
            }
        }
    }
}

fn ddp_fields(header: &DdpHeader) -> Fields {
    let control = header.control();
    let mut fields = vec![
        ("iwarp_ddp.tagged_flag", u64::from(control.tagged)),
        ("iwarp_ddp.last_flag", u64::from(control.last)),
        ("iwarp_ddp.dv", 1),
        ("iwarp_rdma.version", 1),
        ("iwarp_rdma.opcode", u64::from(control.opcode.0)),
    ];
    match header {
        DdpHeader::Tagged(header) => fields.extend([
            ("iwarp_ddp.stag", u64::from(header.stag.0)),
            ("iwarp_ddp.tagged_offset", header.offset),
        ]),
        DdpHeader::Untagged(header) => {
            fields.extend([
                ("iwarp_ddp.qn", u64::from(header.queue.0)),
                ("iwarp_ddp.msn", u64::from(header.msn.0)),
                ("iwarp_ddp.mo", u64::from(header.offset)),
            ]);
            if control.opcode.info().is_some_and(|info| info.invalidates) {
                fields.push(("iwarp_rdma.inval_stag", u64::from(header.invalidate.0)));
            }
        }
    }
    fields
}

fn header_of(opcode: RdmapOpcode, index: u32) -> DdpHeader {
    let control = Control::new(opcode, true);
    match opcode.info().unwrap().queue {
        None => DdpHeader::Tagged(Tagged {
            control,
            stag: Rkey(0x1111_0000 + index),
            offset: 0x1234_5678_9ABC_0000 + u64::from(index),
        }),
        Some(queue) => DdpHeader::Untagged(Untagged {
            control,
            invalidate: Rkey(if control.opcode.info().unwrap().invalidates { 0x77 } else { 0 }),
            queue,
            msn: Msn(0xFFFF_FF00 + index),
            offset: 0,
        }),
    }
}

/// The RDMAP header that an opcode has, in bytes and in tshark's words.
fn rdmap_of(opcode: RdmapOpcode, index: u32) -> (Vec<u8>, Fields) {
    match opcode.info().unwrap().header {
        // Lengths with every remainder by 4; opaque to tshark.
        RdmapHeader::None => (vec![0xC5; 40 + index as usize % 4], Vec::new()),
        RdmapHeader::Immediate => {
            let mut bytes = vec![0; Immediate::LEN];
            Immediate { data: 0x0102_0304_0506_0708 }.emit(&mut bytes);
            (bytes, Vec::new())
        }
        RdmapHeader::ReadRequest => {
            let read = ReadRequest {
                sink_stag: Rkey(0x2222_0000),
                sink_offset: 0x1111_2222_3333_4444,
                size: 0xFFFF_0000,
                source_stag: Rkey(0x3333_0000),
                source_offset: u64::MAX - 9,
            };
            let mut bytes = vec![0; ReadRequest::LEN];
            read.emit(&mut bytes);
            let fields = vec![
                ("iwarp_rdma.sinkstag", u64::from(read.sink_stag.0)),
                ("iwarp_rdma.sinkto", read.sink_offset),
                ("iwarp_rdma.rdmardsz", u64::from(read.size)),
                ("iwarp_rdma.srcstag", u64::from(read.source_stag.0)),
                ("iwarp_rdma.srcto", read.source_offset),
            ];
            (bytes, fields)
        }
        RdmapHeader::AtomicRequest => {
            let atomic = AtomicRequest {
                reserved: 0,
                code: AtomicCode::CMP_SWAP,
                request_id: 0x4444_0000,
                stag: Rkey(0x5555_0000),
                offset: 0x7FFF_0000_1000,
                data: 0x0102_0304_0506_0708,
                mask: u64::MAX,
                compare: 0x1112_1314_1516_1718,
                compare_mask: 0xFF00_FF00_FF00_FF00,
            };
            let mut bytes = vec![0; AtomicRequest::LEN];
            atomic.emit(&mut bytes);
            let fields = vec![
                ("iwarp_rdma.atomic.opcode", u64::from(atomic.code.0)),
                ("iwarp_rdma.atomic.request_identifier", u64::from(atomic.request_id)),
                ("iwarp_rdma.atomic.remote_stag", u64::from(atomic.stag.0)),
                ("iwarp_rdma.atomic.remote_tagged_offset", atomic.offset),
                ("iwarp_rdma.atomic.swap_data", atomic.data),
                ("iwarp_rdma.atomic.swap_mask", atomic.mask),
                ("iwarp_rdma.atomic.compare_data", atomic.compare),
                ("iwarp_rdma.atomic.compare_mask", atomic.compare_mask),
            ];
            (bytes, fields)
        }
        RdmapHeader::AtomicResponse => {
            let answer = AtomicResponse { request_id: 0x6666_0000, original: u64::MAX - 5 };
            let mut bytes = vec![0; AtomicResponse::LEN];
            answer.emit(&mut bytes);
            let fields = vec![
                ("iwarp_rdma.atomic.original_request_identifier", u64::from(answer.request_id)),
                ("iwarp_rdma.atomic.original_remote_data_value", answer.original),
            ];
            (bytes, fields)
        }
        RdmapHeader::Terminate => terminate_of(TermCode::MPA_CRC),
    }
}

/// A Terminate with this code, in bytes and in tshark's words.
fn terminate_of(code: TermCode) -> (Vec<u8>, Fields) {
    let mut bytes = vec![0; Terminate::MAX_LEN];
    let len = Terminate::new(code).emit(&mut bytes);
    bytes.truncate(len);
    let mut fields = vec![("iwarp_rdma.term_layer", u64::from(code.layer))];
    let (type_field, code_field) = match (code.layer, code.error_type) {
        (0, 0) => ("iwarp_rdma.term_etype_rdma", None),
        (0, _) => ("iwarp_rdma.term_etype_rdma", Some("iwarp_rdma.term_errcode_rdma")),
        (1, 1) => ("iwarp_rdma.term_etype_ddp", Some("iwarp_rdma.term_errcode_ddp_tagged")),
        (1, 2) => ("iwarp_rdma.term_etype_ddp", Some("iwarp_rdma.term_errcode_ddp_untagged")),
        (1, _) => ("iwarp_rdma.term_etype_ddp", None),
        _ => ("iwarp_rdma.term_etype_llp", Some("iwarp_rdma.term_errcode_llp")),
    };
    fields.push((type_field, u64::from(code.error_type)));
    fields.extend(code_field.map(|name| (name, u64::from(code.code))));
    (bytes, fields)
}

fn every_opcode(conversation: &mut Conversation) {
    for opcode in (0..16).map(RdmapOpcode).filter(|opcode| opcode.info().is_some()) {
        let index = u32::from(opcode.0);
        let (body, fields) = rdmap_of(opcode, index);
        conversation.fpdu(index as usize % 2, &header_of(opcode, index), &body, fields);
    }
}

fn start_up(conversation: &mut Conversation) {
    let enhanced = MpaEnhanced {
        peer_to_peer: true,
        rtr_write: true,
        ird: DepthCode::new(16),
        ord: DepthCode::new(8),
        ..MpaEnhanced::default()
    };
    conversation.start(0, Some(enhanced), b"hello");
    conversation.start(1, Some(enhanced), &[]);
}

#[test]
fn every_opcode_reads_as_written() {
    let mut conversation = Conversation::new(false);
    start_up(&mut conversation);
    every_opcode(&mut conversation);
    conversation.judge("iwarp-opcodes.pcap");
}

#[test]
fn every_terminate_code_reads_as_written() {
    let mut conversation = Conversation::new(false);
    start_up(&mut conversation);
    for (row, index) in TERM_CODES.iter().zip(0..) {
        let (body, fields) = terminate_of(row.code);
        conversation.fpdu(0, &header_of(RdmapOpcode::TERMINATE, index), &body, fields);
    }
    conversation.judge("iwarp-terminate.pcap");
}

#[test]
fn the_private_data_of_revision_one_reads_as_written() {
    let mut conversation = Conversation::new(false);
    conversation.start(0, None, &[7; 512]);
    conversation.start(1, None, &[]);
    every_opcode(&mut conversation);
    conversation.judge("iwarp-revision-one.pcap");
}

#[test]
fn markers_are_found_where_they_were_put() {
    let mut conversation = Conversation::new(true);
    start_up(&mut conversation);
    // Payloads of such lengths that markers fall into headers, payload, pad and between FPDUs.
    for index in 0..200 {
        let (mut body, header) = (vec![0xA5; index * 7 % 1400], header_of(RdmapOpcode::WRITE, 1));
        // tshark (4.0) takes a marker just behind an FPDU for a part of it, and then waits for
        // more.
        if conversation.ends_at_marker(header.len() + body.len()) {
            body.extend([0xA5; 4]);
        }
        conversation.fpdu(0, &header, &body, Vec::new());
    }
    conversation.judge("iwarp-markers.pcap");
    let markers = conversation.sent[0].div_ceil(INTERVAL);
    assert!(markers > 200, "{markers} markers");
}
