use super::*;

/// A pcapng file of either byte order.
struct Writer {
    is_big_endian: bool,
    bytes: Vec<u8>,
}

impl Writer {
    fn new(is_big_endian: bool) -> Self {
        let mut writer = Self { is_big_endian, bytes: Vec::new() };
        let mut body = writer.number(0x1A2B_3C4D);
        body.extend(writer.short(1));
        body.extend([0, 0]);
        body.extend([0xFF; 8]);
        writer.block(0x0A0D_0D0A, &body);
        writer
    }
    fn number(&self, value: u32) -> Vec<u8> {
        let bytes = value.to_be_bytes();
        if self.is_big_endian { bytes.to_vec() } else { bytes.into_iter().rev().collect() }
    }
    fn short(&self, value: u16) -> Vec<u8> {
        let bytes = value.to_be_bytes();
        if self.is_big_endian { bytes.to_vec() } else { bytes.into_iter().rev().collect() }
    }
    fn block(&mut self, kind: u32, body: &[u8]) {
        let mut body = body.to_vec();
        body.resize(body.len().next_multiple_of(4), 0);
        let len = self.number(body.len() as u32 + 12);
        let kind = self.number(kind);
        self.bytes.extend([&kind[..], &len, &body, &len].concat());
    }
    fn interface(&mut self, link: u16, resolution: Option<u8>) {
        let mut body = [self.short(link), vec![0, 0], self.number(0)].concat();
        if let Some(resolution) = resolution {
            body.extend([self.short(9), self.short(1), vec![resolution, 0, 0, 0]].concat());
            body.extend([0; 4]);
        }
        self.block(1, &body);
    }
    fn frame(&mut self, interface: u32, time: u64, frame: &[u8], flags: Option<u32>) {
        let len = frame.len() as u32;
        self.frame_of_length(interface, time, frame, flags, len);
    }
    fn frame_of_length(
        &mut self,
        interface: u32,
        time: u64,
        frame: &[u8],
        flags: Option<u32>,
        len: u32,
    ) {
        let numbers = [interface, (time >> 32) as u32, time as u32, len, len];
        let mut body: Vec<u8> = numbers.iter().flat_map(|n| self.number(*n)).collect();
        body.extend(frame);
        body.resize(body.len().next_multiple_of(4), 0);
        if let Some(flags) = flags {
            // A comment before it.
            body.extend([self.short(1), self.short(2), b"hi\0\0".to_vec()].concat());
            body.extend([self.short(2), self.short(4), self.number(flags)].concat());
            body.extend([0; 4]);
        }
        self.block(6, &body);
    }
}

/// Time, direction, link type and bytes of a frame.
type Read = (u64, Direction, u16, Vec<u8>);

fn read(file: &[u8]) -> (Vec<Read>, FileReport) {
    let mut file = CaptureFile::open("test", file).unwrap();
    let mut frames = Vec::new();
    while file.advance().unwrap() {
        let Frame { time_ns, direction, link, bytes } = file.frame();
        frames.push((time_ns, direction, link, bytes.to_vec()));
    }
    (frames, file.report())
}

#[test]
fn frames_have_time_direction_and_link_type_in_either_byte_order() {
    for is_big_endian in [false, true] {
        let mut file = Writer::new(is_big_endian);
        file.interface(1, Some(9));
        file.interface(113, None);
        file.interface(1, Some(0x80 | 10));
        file.frame(0, 1_700_000_000_000_000_001, b"abcde", Some(2));
        file.frame(1, 7, b"xyz", None);
        file.frame(2, 1024, b"", Some(1));
        file.block(0xBAD, b"whatever");
        let (frames, report) = read(&file.bytes);
        let expected = [
            (1_700_000_000_000_000_001, Direction::Out, 1, b"abcde".to_vec()),
            (7000, Direction::Unknown, 113, b"xyz".to_vec()),
            (1_000_000_000, Direction::In, 1, Vec::new()),
        ];
        assert_eq!(frames, expected);
        assert_eq!((report.frames, report.skipped_frames, report.damage), (3, 0, None));
    }
}

#[test]
fn a_second_section_brings_its_own_interfaces_and_byte_order() {
    let mut file = Writer::new(false);
    file.interface(1, Some(9));
    file.frame(0, 1, b"one", None);
    let mut second = Writer::new(true);
    second.interface(101, Some(9));
    second.frame(0, 2, b"two", None);
    let (frames, _) = read(&[file.bytes, second.bytes].concat());
    let links: Vec<_> = frames.iter().map(|(_, _, link, _)| *link).collect();
    assert_eq!(links, [1, 101]);
}

#[test]
fn frames_that_lie_about_their_length_are_skipped_and_counted() {
    let mut file = Writer::new(false);
    file.interface(1, Some(9));
    file.frame_of_length(0, 1, b"short", None, 1000);
    file.frame_of_length(0, 1, b"short", None, u32::MAX);
    file.frame(5, 2, b"of no interface", None);
    file.frame(0, 3, b"good", None);
    let (frames, report) = read(&file.bytes);
    assert_eq!((frames.len(), report.frames, report.skipped_frames), (1, 1, 3));
}

#[test]
fn a_file_that_is_cut_is_read_up_to_there() {
    let mut file = Writer::new(false);
    file.interface(1, Some(9));
    file.frame(0, 1, b"first", None);
    file.frame(0, 2, b"second", None);
    let (frames, report) = read(&file.bytes[..file.bytes.len() - 1]);
    assert_eq!((frames.len(), report.damage.as_deref()), (1, Some("cut off behind frame 1")));
    let end = file.bytes.len() - 4;
    file.bytes[end] ^= 1;
    let (frames, report) = read(&file.bytes);
    assert_eq!(frames.len(), 1);
    assert!(report.damage.unwrap().starts_with("damaged behind frame 1 ("));
}

#[test]
fn classic_files_have_micro_or_nanoseconds() {
    for (magic, nanos) in [(0xA1B2_C3D4_u32, 3_000_005_000), (0xA1B2_3C4D, 3_000_000_005)] {
        let mut file = magic.to_le_bytes().to_vec();
        file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0]);
        // Longer on the wire than the snapshot length.
        for number in [3_u32, 5, 4, 9000] {
            file.extend(number.to_le_bytes());
        }
        file.extend(b"data");
        let (frames, report) = read(&file);
        assert_eq!(frames, [(nanos, Direction::Unknown, 1, b"data".to_vec())]);
        assert_eq!(report.damage, None);
    }
}

#[test]
fn other_files_are_refused_with_a_hint() {
    let refusal = |bytes: &[u8]| match CaptureFile::open("x", bytes) {
        Ok(_) => panic!("{bytes:?} was taken"),
        Err(error) => error.to_string(),
    };
    assert!(refusal(b"").contains("too short"));
    assert!(refusal(b"\x1f\x8b\x08\x00rest").contains("gunzip"));
    assert!(refusal(b"\x7fELF and so on").contains("tshark -r"));
    assert!(refusal(&[0x0A, 0x0D, 0x0D, 0x0A, 1]).contains("damaged"));
}
