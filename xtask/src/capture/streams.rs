//! Captured connections of iWARP: tshark's view of the FPDUs and that of `vernic-wire`, which must
//! agree.
//!
//! tshark puts the bytes of each TCP connection in order for itself, and here they are put in order
//! once more. It does not insist on the CRCs; that is done here.

use std::collections::BTreeMap;
use std::path::Path;

use vernic_wire::iwarp::{
    CRC_LEN, Crc32c, DdpHeader, FpduHeader, MpaKey, MpaStart, RdmapHeader, RdmapOpcode,
    ReadRequest, Segment, Terminate,
};

use crate::Result;
use crate::shell::run;

/// A direction of a connection: tshark's number of it, and the sender's port.
type Direction = (u32, u16);

/// FPDUs by direction and opcode.
type Seen = BTreeMap<(Direction, u8), usize>;

/// FPDUs by opcode.
pub(crate) type FpduCounts = BTreeMap<u8, usize>;

/// What tshark says of one frame.
struct Shown<'a> {
    direction: Direction,
    sequence: u32,
    /// Hexadecimal.
    payload: &'a str,
    opcodes: Vec<u8>,
    /// Malformed, or other than the RFCs say; empty if nothing is.
    complaints: &'a str,
}

/// The fields that tshark is asked for; those behind the opcodes are complaints.
const FIELDS: &[&str] = &[
    "tcp.stream",
    "tcp.srcport",
    "tcp.seq_raw",
    "tcp.payload",
    "iwarp_rdma.opcode",
    "_ws.malformed",
    "iwarp_mpa.bad_length",
    "iwarp_mpa.res.not_set0",
];

/// One capture. Both must see the same FPDUs in each direction, and all of each stream must be
/// such.
pub(crate) fn judge(file: &Path) -> Result<FpduCounts> {
    // It guesses what payloads are, and calls short ones malformed.
    let mut tshark = run("tshark -n -T fields --disable-protocol rpcordma");
    tshark = tshark.args(&["-E", "separator=|"]);
    for field in FIELDS {
        tshark = tshark.args(&["-e", field]);
    }
    let text = tshark.args(&["-r", &file.to_string_lossy()]).limit_min(5).output()?;
    judge_text(&text).map_err(|why| format!("{}: {why}", file.display()))
}

fn judge_text(text: &str) -> Result<FpduCounts> {
    let mut theirs = Seen::new();
    let mut segments: BTreeMap<Direction, Vec<(u32, Vec<u8>)>> = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        // What is not of TCP.
        let Some(shown) = shown(line) else { continue };
        let frame = index + 1;
        if !shown.complaints.is_empty() {
            return Err(format!("frame {frame}: tshark says: {}", shown.complaints));
        }
        for opcode in shown.opcodes {
            *theirs.entry((shown.direction, opcode)).or_default() += 1;
        }
        let bytes = bytes_of(shown.payload).ok_or(format!("frame {frame}: no payload"))?;
        segments.entry(shown.direction).or_default().push((shown.sequence, bytes));
    }
    let mut streams = BTreeMap::new();
    for (direction, segments) in segments {
        let name = |why| format!("connection {}, port {}: {why}", direction.0, direction.1);
        let bytes = joined(segments).map_err(name)?;
        if !bytes.is_empty() {
            streams.insert(direction, bytes);
        }
    }
    let mut ours = Seen::new();
    for (direction, bytes) in &streams {
        let name = |why| format!("connection {}, port {}: {why}", direction.0, direction.1);
        let other = streams.iter().find(|(other, _)| other.0 == direction.0 && *other != direction);
        let (_, other) = other.ok_or_else(|| name("nothing comes back".into()))?;
        for opcode in opcodes(bytes, other).map_err(name)? {
            *ours.entry((*direction, opcode)).or_default() += 1;
        }
    }
    let keys = ours.keys().chain(theirs.keys());
    if let Some(key) = keys.clone().find(|key| ours.get(key) != theirs.get(key)) {
        let ((connection, port), opcode) = *key;
        let [ours, theirs] = [&ours, &theirs].map(|seen| seen.get(key).copied().unwrap_or(0));
        let opcode = RdmapOpcode(opcode);
        return Err(format!(
            "connection {connection}, port {port}: {ours} of {opcode}, tshark shows {theirs}"
        ));
    }
    let mut counts = FpduCounts::new();
    for ((_, opcode), count) in ours {
        *counts.entry(opcode).or_default() += count;
    }
    Ok(counts)
}

fn shown(line: &str) -> Option<Shown<'_>> {
    let mut fields = line.splitn(6, '|');
    let mut next = || fields.next().unwrap_or("");
    let direction = (next().parse().ok()?, next().parse().ok()?);
    let sequence = next().parse().ok()?;
    let (payload, opcodes) = (next(), next());
    let opcode = |text: &str| u8::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    Some(Shown {
        direction,
        sequence,
        payload,
        opcodes: opcodes.split(',').filter_map(opcode).collect(),
        complaints: next().trim_matches('|'),
    })
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()).collect()
}

/// Segments of one direction as a stream. Bytes that came again are left out.
fn joined(mut segments: Vec<(u32, Vec<u8>)>) -> Result<Vec<u8>> {
    let Some(first) = segments.first().map(|(sequence, _)| *sequence) else {
        return Ok(Vec::new());
    };
    // Sequence numbers wrap. The SYN has one of its own.
    let offset = |sequence: u32| i64::from(sequence.wrapping_sub(first) as i32);
    segments.retain(|(_, bytes)| !bytes.is_empty());
    segments.sort_by_key(|(sequence, _)| offset(*sequence));
    let mut joined = Vec::new();
    let mut next = segments.first().map_or(0, |(sequence, _)| offset(*sequence));
    for (sequence, bytes) in segments {
        let seen = usize::try_from(next - offset(sequence))
            .map_err(|_| format!("bytes are missing behind {}", joined.len()))?;
        if let Some(new) = bytes.get(seen..) {
            joined.extend_from_slice(new);
            next += new.len() as i64;
        }
    }
    Ok(joined)
}

/// Whether the sender of a start-up frame asks for CRCs, and the frame's length.
fn start_up(bytes: &[u8], key: Option<MpaKey>) -> Result<(MpaStart, usize)> {
    let start = MpaStart::parse(bytes).map_err(|e| e.to_string())?;
    if key.is_some_and(|key| key == start.key) {
        return Err("both ends send the same start-up frame".into());
    }
    if start.markers {
        return Err("markers are asked for, which siw has none of".into());
    }
    Ok((start, MpaStart::LEN + usize::from(start.private_len)))
}

/// The opcodes of a stream's FPDUs, each of which must be whole and well-formed. The last one may
/// be cut off: the connection ended.
fn opcodes(bytes: &[u8], other: &[u8]) -> Result<Vec<u8>> {
    let (start, mut at) = start_up(bytes, None)?;
    let (answer, _) = start_up(other, Some(start.key))?;
    let has_crc = start.crc || answer.crc;
    let mut opcodes = Vec::new();
    while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= FpduHeader::LEN) {
        let fpdu = FpduHeader::parse(rest).map_err(|e| format!("byte {at}: {e}"))?;
        let Some(whole) = rest.get(..fpdu.fpdu_len()) else { break };
        let (covered, crc) = whole.split_at(whole.len() - CRC_LEN);
        if has_crc && crc != Crc32c::of(covered) {
            return Err(format!("byte {at}: wrong CRC"));
        }
        let ulpdu = &whole[FpduHeader::LEN..][..usize::from(fpdu.ulpdu_len)];
        opcodes.push(opcode(ulpdu).map_err(|why| format!("byte {at}: {why}"))?);
        at += whole.len();
    }
    Ok(opcodes)
}

/// The opcode of a segment, whose headers must be those that it prescribes.
fn opcode(ulpdu: &[u8]) -> Result<u8> {
    let segment = Segment::parse(ulpdu).map_err(|e| e.to_string())?;
    let opcode = segment.header.control().opcode;
    let info = opcode.info().ok_or_else(|| format!("{opcode} is none of RDMAP"))?;
    if info.is_tagged() != matches!(segment.header, DdpHeader::Tagged(_)) {
        return Err(format!("{opcode} on the wrong kind of buffer"));
    }
    let parsed = match info.header {
        RdmapHeader::ReadRequest => ReadRequest::parse(segment.body).map(drop),
        RdmapHeader::Terminate => Terminate::parse(segment.body).map(drop),
        _ => Ok(()),
    };
    parsed.map_err(|e| format!("{opcode}: {e}"))?;
    Ok(opcode.0)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use vernic_wire::Rkey;
    use vernic_wire::iwarp::{Control, Msn, QueueNumber, Untagged, pad_of};

    use super::*;

    fn start(key: MpaKey, crc: bool) -> Vec<u8> {
        let start = MpaStart {
            key,
            markers: false,
            crc,
            rejected: false,
            enhanced: false,
            reserved: 0,
            revision: 1,
            private_len: 0,
        };
        let mut bytes = vec![0; MpaStart::LEN];
        start.emit(&mut bytes);
        bytes
    }

    fn send(payload: &[u8]) -> Vec<u8> {
        let header = DdpHeader::Untagged(Untagged {
            control: Control::new(RdmapOpcode::SEND, true),
            invalidate: Rkey(0),
            queue: QueueNumber::SEND,
            msn: Msn(1),
            offset: 0,
        });
        let len = header.len() + payload.len();
        let mut bytes = vec![0; FpduHeader::LEN + header.len()];
        FpduHeader { ulpdu_len: len as u16 }.emit(&mut bytes);
        header.emit(&mut bytes[FpduHeader::LEN..]);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + pad_of(len), 0);
        let crc = Crc32c::of(&bytes);
        bytes.extend(crc);
        bytes
    }

    fn line(port: u16, sequence: u32, bytes: &[u8], opcodes: &str, complaint: &str) -> String {
        let mut hex = String::new();
        for byte in bytes {
            write!(hex, "{byte:02x}").unwrap();
        }
        format!("0|{port}|{sequence}|{hex}|{opcodes}|{complaint}||\n")
    }

    /// A connection whose initiator sends one FPDU after the start-up, in these segments.
    fn conversation(segments: &[(u32, &[u8], &str)]) -> String {
        let begin = |port, sequence, key| {
            line(port, sequence, &[], "", "")
                + &line(port, sequence.wrapping_add(1), &start(key, port == 1), "", "")
        };
        let mut text = String::from("|||||||\n") + &begin(1, u32::MAX, MpaKey::Request);
        text += &begin(2, 500, MpaKey::Reply);
        for (offset, bytes, opcodes) in segments {
            text += &line(1, MpaStart::LEN as u32 + offset, bytes, opcodes, "");
        }
        text
    }

    #[test]
    fn fpdus_are_counted_in_each_direction_however_tcp_cuts_them() {
        let fpdu = send(&[7; 100]);
        let (head, tail) = fpdu.split_at(50);
        let one = FpduCounts::from([(RdmapOpcode::SEND.0, 1)]);
        for segments in [
            &[(0, &fpdu[..], "0x03")][..],
            &[(0, head, ""), (50, tail, "0x03")],
            &[(0, head, ""), (0, head, ""), (50, tail, "0x03")],
            &[(50, tail, ""), (0, head, "0x03")],
        ] {
            assert_eq!(judge_text(&conversation(segments)), Ok(one.clone()));
        }
    }

    #[test]
    fn what_tshark_and_we_read_differently_is_found() {
        let fpdu = send(&[7; 100]);
        let unseen = judge_text(&conversation(&[(0, &fpdu, "")])).unwrap_err();
        assert!(unseen.contains("tshark shows 0"), "{unseen}");
        let other = judge_text(&conversation(&[(0, &fpdu, "0x00")])).unwrap_err();
        assert!(other.contains("tshark shows"), "{other}");
        let mut text = conversation(&[(0, &fpdu, "0x03")]);
        text += &line(1, 900, &[], "", "Malformed Packet (iWARP_DDP_RDMAP)");
        assert!(judge_text(&text).unwrap_err().contains("Malformed"));
    }

    #[test]
    fn a_wrong_crc_a_gap_and_a_foreign_opcode_are_found() {
        let fpdu = send(&[7; 100]);
        let mut wrong = fpdu.clone();
        wrong[40] ^= 1;
        let found = judge_text(&conversation(&[(0, &wrong, "0x03")])).unwrap_err();
        assert!(found.contains("wrong CRC"), "{found}");
        let gap = judge_text(&conversation(&[(4, &fpdu, "0x03")])).unwrap_err();
        assert!(gap.contains("missing"), "{gap}");
        let mut foreign = fpdu;
        foreign[FpduHeader::LEN + 1] |= 0x0F;
        let crc_at = foreign.len() - CRC_LEN;
        let crc = Crc32c::of(&foreign[..crc_at]);
        foreign[crc_at..].copy_from_slice(&crc);
        let found = judge_text(&conversation(&[(0, &foreign, "0x0f")])).unwrap_err();
        assert!(found.contains("none of RDMAP"), "{found}");
    }
}
