//! The FPDUs that RFC 5044 prints, with and without a marker inside: read, and made again.

use vernic_wire::Rkey;
use vernic_wire::iwarp::{
    CRC_LEN, Control, Crc32c, DdpHeader, FpduHeader, INTERVAL, Marker, Msn, QueueNumber,
    RdmapOpcode, Segment, Untagged, markers_in, pad_of,
};

/// RFC 5044, figure 5: the first FPDU of a stream, so it begins with a marker.
fn figure_5() -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0, 0, 0x2A, 0x41, 0x43];
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    bytes.extend([0; 24]);
    bytes.extend([0x52, 0x23, 0x99, 0x83]);
    bytes
}

/// RFC 5044, figure 6: one at 0x1ec of the stream, with a marker before its payload.
fn figure_6() -> Vec<u8> {
    let mut bytes = vec![0, 0x2A, 0x41, 0x43];
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]);
    bytes.extend([0, 0, 0, 0x14]);
    bytes.extend([0; 24]);
    bytes.extend([0x84, 0x92, 0x58, 0x98]);
    bytes
}

fn send(msn: u32) -> DdpHeader {
    DdpHeader::Untagged(Untagged {
        control: Control::new(RdmapOpcode::SEND, true),
        invalidate: Rkey(0),
        queue: QueueNumber::SEND,
        msn: Msn(msn),
        offset: 0,
    })
}

/// Lays an FPDU out at a place of the stream, a byte at a time.
fn made(position: u32, msn: u32) -> Vec<u8> {
    let mut content = vec![0; FpduHeader::LEN + DdpHeader::MAX_LEN + 24];
    FpduHeader { ulpdu_len: 42 }.emit(&mut content);
    send(msn).emit(&mut content[FpduHeader::LEN..]);
    content.resize(content.len() + pad_of(42), 0);
    let (mut out, mut length_at) = (Vec::new(), None);
    let marker = |out: &mut Vec<u8>, length_at: Option<usize>| {
        if (position + out.len() as u32).is_multiple_of(INTERVAL) {
            let mut bytes = [0; Marker::LEN];
            let distance = length_at.map_or(0, |at| out.len() - at) as u16;
            Marker::new(distance).emit(&mut bytes);
            out.extend(bytes);
        }
    };
    for byte in content {
        marker(&mut out, length_at);
        length_at.get_or_insert(out.len());
        out.push(byte);
    }
    marker(&mut out, length_at);
    let crc = Crc32c::of(&out);
    out.extend(crc);
    out
}

#[test]
fn the_printed_fpdus_have_a_right_crc_over_all_but_the_crc() {
    for bytes in [figure_5(), figure_6()] {
        let (covered, crc) = bytes.split_last_chunk::<CRC_LEN>().unwrap();
        assert_eq!(Crc32c::of(covered), *crc);
    }
}

#[test]
fn the_printed_fpdus_read_as_they_are_annotated() {
    let bytes = figure_5();
    assert_eq!(Marker::parse(&bytes), Ok(Marker::new(0)));
    let header = FpduHeader::parse(&bytes[4..]).unwrap();
    assert_eq!((header.ulpdu_len, header.fpdu_len()), (42, 48));
    let segment = Segment::parse(&bytes[6..48]).unwrap();
    assert_eq!((segment.header, segment.body), (send(1), &[0; 24][..]));
    let bytes = figure_6();
    assert_eq!(Segment::parse(&bytes[2..20]).unwrap().header, send(2));
    assert_eq!(Marker::parse(&bytes[20..]).unwrap().distance(), 0x14);
}

#[test]
fn made_again_they_are_the_same() {
    assert_eq!(made(0, 1), figure_5());
    assert_eq!(made(0x1EC, 2), figure_6());
}

#[test]
fn markers_are_counted_where_the_figures_have_them() {
    let len = FpduHeader { ulpdu_len: 42 }.fpdu_len() as u32;
    assert_eq!((markers_in(0, len), markers_in(0x1EC, len), markers_in(4, len)), (1, 1, 0));
}
