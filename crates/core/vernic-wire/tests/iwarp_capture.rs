//! Every byte that two Linux kernels (siw) sent each other over iWARP, in a capture of rping,
//! rstream, perftest, NVMe-oF, iSER and NFS over RDMA: parsed, and put together again byte for
//! byte.

mod common;

use std::collections::BTreeMap;

use vernic_wire::ParseError;
use vernic_wire::iwarp::{
    CRC_LEN, DdpHeader, FpduHeader, Immediate, MpaEnhanced, MpaKey, MpaStart, QueueNumber,
    RdmapHeader, RdmapOpcode, ReadRequest, Segment, Terminate,
};
use vernic_wire::net::{EtherType, Ethernet, Ipv4};

const CAPTURE: &[u8] = include_bytes!("data/ulps_iwarp.pcap");
/// Frames of all kinds in the file.
const ALL_FRAMES: usize = 3326;
/// Directions of TCP connections that carry MPA.
const DIRECTIONS: usize = 22;
/// FPDUs in all of them.
const FPDUS: usize = 1774;

/// A direction of a TCP connection: addresses and ports, both ends.
type Direction = ([u8; 4], u16, [u8; 4], u16);

/// What TCP delivers in each direction: segments in order, repeated bytes left out.
fn streams() -> BTreeMap<Direction, Vec<u8>> {
    const PROTOCOL_TCP: u8 = 6;
    let frames = common::read_pcap(CAPTURE);
    assert_eq!(frames.len(), ALL_FRAMES);
    let mut segments: BTreeMap<Direction, BTreeMap<u32, &[u8]>> = BTreeMap::new();
    for frame in frames {
        let ethernet = Ethernet::parse(frame).unwrap();
        if ethernet.ethertype != EtherType::IPV4 {
            continue;
        }
        let packet = &frame[Ethernet::LEN..];
        let ip = Ipv4::parse(packet).unwrap();
        if ip.protocol != PROTOCOL_TCP {
            continue;
        }
        let tcp = &packet[Ipv4::LEN..usize::from(ip.total_length)];
        let u16_at = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let direction = (ip.src.octets(), u16_at(0), ip.dst.octets(), u16_at(2));
        let sequence = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
        let payload = &tcp[usize::from(tcp[12] >> 4) * 4..];
        if !payload.is_empty() {
            segments.entry(direction).or_default().entry(sequence).or_insert(payload);
        }
    }
    let streams: BTreeMap<_, _> = segments.into_iter().map(|(d, s)| (d, joined(&s))).collect();
    assert_eq!(streams.len(), DIRECTIONS);
    streams
}

/// Segments by sequence number as one stream. No direction of the capture wraps or has a gap.
fn joined(segments: &BTreeMap<u32, &[u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut next = *segments.keys().next().unwrap();
    for (&sequence, segment) in segments {
        let seen = next.checked_sub(sequence).expect("a gap in the capture") as usize;
        if let Some(new) = segment.get(seen..) {
            bytes.extend_from_slice(new);
            next += new.len() as u32;
        }
    }
    bytes
}

/// Parses the start-up frame, emits it again, and returns it with its length.
fn start_up(bytes: &[u8]) -> (MpaStart, usize) {
    let start = MpaStart::parse(bytes).unwrap();
    let len = MpaStart::LEN + usize::from(start.private_len);
    let mut out = bytes[..len].to_vec();
    out[..MpaStart::LEN].fill(0);
    start.emit(&mut out);
    if start.enhanced {
        let enhanced = MpaEnhanced::parse(&bytes[MpaStart::LEN..]).unwrap();
        out[MpaStart::LEN..MpaStart::LEN + MpaEnhanced::LEN].fill(0);
        enhanced.emit(&mut out[MpaStart::LEN..]);
    }
    assert_eq!(out, bytes[..len], "{start}");
    (start, len)
}

/// The RDMAP header that the table prescribes, emitted again; what follows it is payload.
fn reemit_rdmap(opcode: RdmapOpcode, body: &[u8], out: &mut Vec<u8>) {
    let info = opcode.info().unwrap();
    let at = out.len();
    match info.header {
        RdmapHeader::None => {}
        RdmapHeader::ReadRequest => {
            out.resize(at + ReadRequest::LEN, 0);
            ReadRequest::parse(body).unwrap().emit(&mut out[at..]);
        }
        RdmapHeader::Terminate => {
            out.resize(at + Terminate::MAX_LEN, 0);
            let len = Terminate::parse(body).unwrap().emit(&mut out[at..]);
            out.truncate(at + len);
        }
        RdmapHeader::Immediate => {
            out.resize(at + Immediate::LEN, 0);
            Immediate::parse(body).unwrap().emit(&mut out[at..]);
        }
        other => panic!("siw has no {other:?}"),
    }
    let payload = &body[out.len() - at..];
    assert!(info.payload || payload.is_empty(), "{opcode} with payload");
    out.extend_from_slice(payload);
}

#[test]
fn every_byte_is_parsed_and_reemitted() {
    let (mut fpdus, mut headers) = (0, BTreeMap::<u8, usize>::new());
    for (direction, bytes) in streams() {
        let (start, mut at) = start_up(&bytes);
        assert!(!start.markers && !start.crc && !start.rejected && start.enhanced, "{start}");
        while at < bytes.len() {
            let fpdu = FpduHeader::parse(&bytes[at..]).unwrap();
            let whole = &bytes[at..at + fpdu.fpdu_len()];
            let ulpdu_end = FpduHeader::LEN + usize::from(fpdu.ulpdu_len);
            let segment = Segment::parse(&whole[FpduHeader::LEN..ulpdu_end]).unwrap();
            let control = segment.header.control();
            let mut out = vec![0; FpduHeader::LEN + segment.header.len()];
            fpdu.emit(&mut out);
            segment.header.emit(&mut out[FpduHeader::LEN..]);
            reemit_rdmap(control.opcode, segment.body, &mut out);
            // siw's pad is not always 0, as it must be; with no CRC agreed it sends 0 for that.
            out.extend_from_slice(&whole[ulpdu_end..whole.len() - CRC_LEN]);
            out.extend_from_slice(&[0; CRC_LEN]);
            assert_eq!(out, whole, "{direction:?} at {at}: {segment}");
            let info = control.opcode.info().unwrap();
            assert_eq!(info.is_tagged(), matches!(segment.header, DdpHeader::Tagged(_)));
            *headers.entry(control.opcode.0).or_default() += 1;
            fpdus += 1;
            at += whole.len();
        }
    }
    assert_eq!(fpdus, FPDUS);
    // What the capture is kept for.
    let counts = [
        (RdmapOpcode::WRITE, 1028),
        (RdmapOpcode::READ_REQUEST, 12),
        (RdmapOpcode::READ_RESPONSE, 145),
        (RdmapOpcode::SEND, 515),
        (RdmapOpcode::SEND_INV, 74),
    ];
    assert!(headers.into_iter().eq(counts.map(|(opcode, count)| (opcode.0, count))));
}

#[test]
fn messages_of_a_queue_are_numbered_from_one_without_a_gap() {
    for (direction, bytes) in streams() {
        let (_, mut at) = start_up(&bytes);
        let mut next = BTreeMap::new();
        while at < bytes.len() {
            let fpdu = FpduHeader::parse(&bytes[at..]).unwrap();
            let ulpdu = &bytes[at + FpduHeader::LEN..][..usize::from(fpdu.ulpdu_len)];
            if let DdpHeader::Untagged(header) = Segment::parse(ulpdu).unwrap().header {
                let due = next.entry(header.queue.0).or_insert(1);
                assert_eq!(header.msn.0, *due, "{direction:?}: {header}");
                *due += u32::from(header.control.last);
                let queue = header.control.opcode.info().unwrap().queue;
                assert_eq!(queue, Some(header.queue), "{header}");
                assert!(header.queue != QueueNumber::ATOMIC_RESPONSE);
            }
            at += fpdu.fpdu_len();
        }
    }
}

#[test]
fn each_connection_has_a_request_and_its_reply() {
    let keys: Vec<_> = streams()
        .into_iter()
        .map(|((src, sport, dst, dport), bytes)| {
            let pair = [(src, sport), (dst, dport)];
            (*pair.iter().min().unwrap(), *pair.iter().max().unwrap(), start_up(&bytes).0.key)
        })
        .collect();
    let count = |key| keys.iter().filter(|(.., k)| *k == key).count();
    assert_eq!((count(MpaKey::Request), count(MpaKey::Reply)), (11, 11));
}

#[test]
fn a_stream_cut_anywhere_is_truncated_and_never_wrong() {
    let streams = streams();
    let (_, bytes) = streams.iter().min_by_key(|(_, bytes)| bytes.len()).unwrap();
    for len in 0..MpaStart::LEN {
        let have = len as u16;
        assert_eq!(MpaStart::parse(&bytes[..len]), Err(ParseError::Truncated { need: 20, have }));
    }
}
