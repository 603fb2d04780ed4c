//! Streams of FPDUs, cut, damaged and placed in every way.

use vernic_wire::iwarp::{Control, Msn, QueueNumber, RdmapOpcode, Untagged};

use super::*;
use crate::iwarp::agreed::{Agreed, Role, RtrSet};
use crate::iwarp::layout::{Fpdu, Item, Layout, MAX_FPDU, Source};
use crate::test_host::TestHost;

/// Remembers segments; a receive is wanted for those with this number.
#[derive(Default)]
struct Recorder {
    /// Complete segments: number and payload.
    segments: Vec<(u32, Vec<u8>)>,
    payload: Vec<u8>,
    begun: Option<u32>,
    /// Bytes that were placed for segments that never became complete.
    refuses: Option<u32>,
    holds: Option<u32>,
}

impl Sink for Recorder {
    type Error = Violation;

    fn is_placeable(&self, _: &DdpHeader) -> bool {
        true
    }
    fn begin(&mut self, header: &DdpHeader, _: u32) -> Result<(), Refusal<Violation>> {
        let DdpHeader::Untagged(header) = header else { return Ok(()) };
        if self.holds == Some(header.msn.0) {
            return Err(Refusal::Hold);
        }
        if self.refuses == Some(header.msn.0) {
            return Err(Refusal::Error(Violation::Msn));
        }
        self.begun = Some(header.msn.0);
        self.payload.clear();
        Ok(())
    }
    fn place(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Violation> {
        assert_eq!(offset as usize, self.payload.len());
        self.payload.extend_from_slice(bytes);
        Ok(())
    }
    fn end(&mut self) -> Result<(), Violation> {
        let payload = std::mem::take(&mut self.payload);
        self.segments.push((self.begun.take().unwrap(), payload));
        Ok(())
    }
}

/// How a connection frames, and when it places.
#[derive(Clone, Copy, Debug)]
struct Mode {
    crc: bool,
    markers: bool,
    direct: bool,
}

const MODES: [Mode; 6] = [
    Mode { crc: false, markers: false, direct: false },
    Mode { crc: true, markers: false, direct: false },
    Mode { crc: true, markers: false, direct: true },
    Mode { crc: false, markers: true, direct: false },
    Mode { crc: true, markers: true, direct: false },
    Mode { crc: true, markers: true, direct: true },
];

impl Mode {
    fn deframer(self) -> Deframer {
        let mut deframer = Deframer::new(self.crc, self.markers);
        deframer.set_direct(self.direct);
        deframer
    }
    fn layout(self) -> Layout {
        Layout::new(&Agreed {
            role: Role::Initiator,
            revision: 1,
            crc: self.crc,
            tx_markers: self.markers,
            rx_markers: false,
            ird: 0,
            ord: 0,
            peer_depths: None,
            rtr: RtrSet::empty(),
        })
    }
}

const LENGTHS: [u32; 9] = [0, 1, 30, 474, 475, 3, 600, 1100, 2];

fn payload(msn: u32, len: u32) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + msn * 31) as u8).collect()
}

/// FPDUs with these payloads, one behind the other, and where each ends.
fn stream(mode: Mode, lengths: &[u32]) -> (Vec<u8>, Vec<usize>) {
    let (mut layout, mut host) = (mode.layout(), TestHost::new());
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    let mut buf = vec![0; MAX_FPDU];
    for (&len, msn) in lengths.iter().zip(1..) {
        host.send_buf[..len as usize].copy_from_slice(&payload(msn, len));
        let header = DdpHeader::Untagged(Untagged {
            control: Control::new(RdmapOpcode::SEND, true),
            invalidate: vernic_wire::Rkey(0),
            queue: QueueNumber::SEND,
            msn: Msn(msn),
            offset: 0,
        });
        let source = Source::Send { slot: 0, offset: 0 };
        let fpdu = Fpdu::new(Item::Request, &header, &[], source, len);
        let written = layout.write(&fpdu, &mut host, &mut buf).unwrap();
        layout.commit(&fpdu);
        bytes.extend_from_slice(&buf[..written]);
        ends.push(bytes.len());
    }
    (bytes, ends)
}

fn expected(lengths: &[u32]) -> Vec<(u32, Vec<u8>)> {
    lengths.iter().zip(1..).map(|(&len, msn)| (msn, payload(msn, len))).collect()
}

/// An owner that receives `chunk` bytes at a time into a buffer, and keeps what is not consumed.
fn receive(
    deframer: &mut Deframer,
    sink: &mut Recorder,
    stream: &[u8],
    chunk: usize,
) -> Result<(), Refusal<Violation>> {
    let mut buffer = Vec::new();
    for piece in stream.chunks(chunk) {
        buffer.extend_from_slice(piece);
        let (consumed, result) = deframer.handle_bytes(&buffer, sink);
        buffer.drain(..consumed);
        result?;
        if let Need::Bytes(need) = deframer.need() {
            assert!(need > buffer.len(), "{need} bytes wanted, {} there", buffer.len());
            assert!(need <= MAX_FPDU);
        }
    }
    assert!(buffer.is_empty() && deframer.is_at_boundary());
    Ok(())
}

#[test]
fn a_stream_cut_anywhere_gives_the_same_segments() {
    for mode in MODES {
        let (bytes, _) = stream(mode, &LENGTHS);
        let chunks = if cfg!(miri) { vec![1, 511] } else { (1..70).chain([512, 9000]).collect() };
        for chunk in chunks {
            let (mut deframer, mut sink) = (mode.deframer(), Recorder::default());
            receive(&mut deframer, &mut sink, &bytes, chunk).unwrap();
            assert_eq!(sink.segments, expected(&LENGTHS), "{mode:?} by {chunk}");
            assert_eq!(deframer.fpdus(), LENGTHS.len() as u64);
        }
    }
}

#[test]
fn one_cut_at_each_byte_gives_the_same_segments() {
    let lengths = [5, 600, 0];
    for mode in MODES {
        let (bytes, _) = stream(mode, &lengths);
        for cut in (1..bytes.len()).step_by(if cfg!(miri) { 97 } else { 1 }) {
            let (mut deframer, mut sink) = (mode.deframer(), Recorder::default());
            let (consumed, result) = deframer.handle_bytes(&bytes[..cut], &mut sink);
            result.unwrap();
            let (rest, result) = deframer.handle_bytes(&bytes[consumed..], &mut sink);
            result.unwrap();
            assert_eq!(consumed + rest, bytes.len());
            assert_eq!(sink.segments, expected(&lengths), "{mode:?} cut at {cut}");
        }
    }
}

#[test]
fn payload_that_the_owner_places_counts_like_payload_that_is_passed_in() {
    for mode in MODES.into_iter().filter(|mode| mode.direct || !mode.crc) {
        let (bytes, _) = stream(mode, &LENGTHS);
        let (mut deframer, mut sink) = (mode.deframer(), Recorder::default());
        let (mut at, mut placed) = (0, 0);
        while at < bytes.len() {
            match deframer.need() {
                Need::Payload { offset, len, crc } => {
                    // At most 100 bytes a time, as a socket might give them.
                    let len = len.min(100);
                    let piece = &bytes[at..at + len as usize];
                    sink.place(offset, piece).unwrap();
                    deframer.handle_placed(len, crc.map(|crc| crc.update(piece)));
                    at += piece.len();
                    placed += len;
                }
                Need::Bytes(need) => {
                    let (consumed, result) =
                        deframer.handle_bytes(&bytes[at..at + need], &mut sink);
                    result.unwrap();
                    at += consumed;
                }
                Need::Hold => panic!("nothing is held"),
            }
        }
        assert_eq!(sink.segments, expected(&LENGTHS), "{mode:?}");
        assert!(placed > 1000, "{mode:?}: only {placed} bytes placed");
    }
}

#[test]
fn a_flipped_bit_is_seen_wherever_it_is_and_nothing_of_its_fpdu_counts() {
    let lengths = [40, 500];
    for mode in MODES.into_iter().filter(|mode| mode.crc) {
        let (bytes, ends) = stream(mode, &lengths);
        for at in (0..bytes.len()).step_by(if cfg!(miri) { 61 } else { 1 }) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            let (mut deframer, mut sink) = (mode.deframer(), Recorder::default());
            let (_, result) = deframer.handle_bytes(&damaged, &mut sink);
            let whole = ends.iter().filter(|&&end| end <= at).count();
            assert_eq!(sink.segments, expected(&lengths)[..whole], "{mode:?} byte {at}");
            match result {
                Err(refusal) => assert_eq!(refusal, Refusal::Error(Violation::Crc)),
                // A longer length than there are bytes: the CRC is still awaited.
                Ok(()) => assert!(
                    !deframer.is_at_boundary()
                        || matches!(deframer.need(), Need::Bytes(need) if need > 40)
                ),
            }
            if !mode.direct {
                assert!(
                    sink.payload.is_empty(),
                    "{mode:?} byte {at}: placed before it was checked"
                );
            }
        }
    }
}

#[test]
fn a_header_is_refused_only_after_its_crc_has_vouched_for_it() {
    let mode = Mode { crc: true, markers: false, direct: true };
    let (mut bytes, _) = stream(mode, &[40]);
    let (mut deframer, mut sink) = (mode.deframer(), Recorder::default());
    sink.refuses = Some(1);
    let (consumed, result) = deframer.handle_bytes(&bytes[..30], &mut sink);
    assert_eq!((consumed, result), (0, Ok(())));
    assert_eq!(deframer.need(), Need::Bytes(bytes.len()));
    let (_, result) = deframer.handle_bytes(&bytes, &mut sink);
    assert_eq!(result, Err(Refusal::Error(Violation::Msn)));
    bytes[35] ^= 1;
    let mut deframer = mode.deframer();
    let (_, result) = deframer.handle_bytes(&bytes, &mut sink);
    assert_eq!(result, Err(Refusal::Error(Violation::Crc)));
}

#[test]
fn without_crc_a_header_is_refused_at_once_and_the_crc_field_means_nothing() {
    let mode = Mode { crc: false, markers: false, direct: false };
    let (mut bytes, ends) = stream(mode, &[40, 40]);
    bytes[ends[0] - CRC_LEN..ends[0]].fill(0xEE);
    let (mut deframer, mut sink) = (mode.deframer(), Recorder::default());
    sink.refuses = Some(2);
    let (consumed, result) = deframer.handle_bytes(&bytes[..ends[0] + 30], &mut sink);
    assert_eq!(result, Err(Refusal::Error(Violation::Msn)));
    assert_eq!((consumed, sink.segments.len()), (ends[0], 1));
}

#[test]
fn a_marker_that_points_elsewhere_is_an_error_although_the_crc_is_right() {
    for direct in [false, true] {
        let mode = Mode { crc: true, markers: true, direct };
        let (mut bytes, ends) = stream(mode, &[40, 900]);
        // The second marker of the stream lies in the second FPDU.
        bytes[512 + 3] ^= 8;
        let crc = Crc32c::of(&bytes[ends[0]..ends[1] - CRC_LEN]);
        bytes[ends[1] - CRC_LEN..ends[1]].copy_from_slice(&crc);
        for chunk in [1, 100, 2000] {
            let (mut deframer, mut sink) = (mode.deframer(), Recorder::default());
            let result = receive(&mut deframer, &mut sink, &bytes, chunk);
            assert_eq!(result, Err(Refusal::Error(Violation::Marker)));
            assert_eq!(sink.segments.len(), 1);
        }
    }
}

#[test]
fn the_two_low_bits_of_a_marker_and_its_reserved_ones_do_not_matter() {
    let mode = Mode { crc: false, markers: true, direct: false };
    let (mut bytes, _) = stream(mode, &[900]);
    bytes[512..514].fill(0xFF);
    bytes[515] |= 3;
    let (mut deframer, mut sink) = (mode.deframer(), Recorder::default());
    receive(&mut deframer, &mut sink, &bytes, 7).unwrap();
    assert_eq!(sink.segments, expected(&[900]));
}

#[test]
fn pad_may_be_anything_where_no_crc_covers_it() {
    // As siw sends it.
    let mode = Mode { crc: false, markers: false, direct: false };
    let (mut bytes, ends) = stream(mode, &[1]);
    bytes[ends[0] - CRC_LEN - 1] = 0x40;
    let (mut deframer, mut sink) = (mode.deframer(), Recorder::default());
    receive(&mut deframer, &mut sink, &bytes, 100).unwrap();
    assert_eq!(sink.segments, expected(&[1]));
}

#[test]
fn an_fpdu_too_short_for_a_ddp_header_is_refused() {
    for len in [0_u16, 1, 13, 17] {
        let (mut deframer, mut sink) = (Deframer::new(false, false), Recorder::default());
        let fpdu_len = FpduHeader { ulpdu_len: len }.fpdu_len();
        let mut bytes = vec![0; fpdu_len];
        FpduHeader { ulpdu_len: len }.emit(&mut bytes);
        let (_, result) = deframer.handle_bytes(&bytes, &mut sink);
        assert_eq!(result, Err(Refusal::Error(Violation::Length)), "{len}");
    }
}

#[test]
fn a_segment_that_is_held_is_shown_again_and_nothing_is_lost() {
    for mode in MODES {
        let (bytes, ends) = stream(mode, &[40, 50]);
        let (mut deframer, mut sink) = (mode.deframer(), Recorder::default());
        sink.holds = Some(2);
        let (consumed, result) = deframer.handle_bytes(&bytes, &mut sink);
        assert_eq!((consumed, result), (ends[0], Err(Refusal::Hold)));
        assert_eq!(deframer.need(), Need::Hold);
        sink.holds = None;
        let (rest, result) = deframer.handle_bytes(&bytes[consumed..], &mut sink);
        assert_eq!((consumed + rest, result), (bytes.len(), Ok(())));
        assert_eq!(sink.segments, expected(&[40, 50]), "{mode:?}");
    }
}
