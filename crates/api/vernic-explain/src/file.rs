//! Frames out of a pcap or pcapng file.
//!
//! Owns what a file says of a frame: its time, link type, length, and the direction where the file
//! has one. `pcap-file` finds the blocks; their fields are read here, since that crate takes all
//! times for nanoseconds, and refuses frames that are longer than the snapshot length.
//!
//! A block whose fields do not fit in it is skipped and counted. Where the lengths of blocks lie,
//! nothing behind can be found: the file ends there for us, with a word about why.

use std::io::{self, Cursor, Read};

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::PcapNgReader;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{Endianness, PcapError, TsResolution};
use serde::Serialize;

/// Most interfaces that one section may describe; captures have a handful.
const MAX_INTERFACES: usize = 1 << 16;

/// Longest part of a frame that is looked at, in bytes; no RoCE frame is longer.
const MAX_FRAME_BYTES: usize = 1 << 17;

/// Types of blocks (draft-ietf-opsawg-pcapng, section 4).
mod block_type {
    pub(super) const SECTION_HEADER: u32 = 0x0A0D_0D0A;
    pub(super) const INTERFACE: u32 = 1;
    pub(super) const PACKET: u32 = 2;
    pub(super) const SIMPLE_PACKET: u32 = 3;
    pub(super) const ENHANCED_PACKET: u32 = 6;
}

/// The reason why a file cannot be explained.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file is of another kind.
    #[error("{name} is not a capture: it begins with {found:02x?}; {hint}")]
    NotACapture {
        /// Name of the file.
        name: String,
        /// First bytes, up to 4.
        found: Vec<u8>,
        /// What it may be, and what to do.
        hint: &'static str,
    },
    /// Reading failed.
    #[error("cannot read the capture: {0}")]
    Io(#[from] io::Error),
}

/// The way of a frame, seen from the interface that captured it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Direction {
    /// The file does not say.
    #[default]
    Unknown,
    /// Received.
    In,
    /// Sent.
    Out,
}

/// What is told of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileReport {
    /// Name of the file.
    pub name: String,
    /// Frames that were read.
    pub frames: u64,
    /// Frames that do not fit into their blocks: left out.
    pub skipped_frames: u64,
    /// Where and how the file is damaged; what is before was read.
    pub damage: Option<String>,
}

/// A captured frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Received or sent.
    pub direction: Direction,
    /// Type of the link layer, as tcpdump numbers them.
    pub link: u16,
    /// What was captured: all of the frame, or its beginning.
    pub bytes: &'a [u8],
}

/// A capture file that is being read.
pub struct CaptureFile<R: Read> {
    name: String,
    format: Format<R>,
    head: Head,
    bytes: Vec<u8>,
    frames: u64,
    skipped: u64,
    damage: Option<String>,
}

/// What a file says of the present frame.
#[derive(Clone, Copy, Default)]
struct Head {
    time_ns: u64,
    direction: Direction,
    link: u16,
}

type Source<R> = io::Chain<Cursor<[u8; 4]>, R>;

enum Format<R: Read> {
    Pcap(PcapReader<Source<R>>),
    PcapNg(PcapNg<R>),
}

/// What one record of a file is.
enum Step {
    Frame(Head),
    /// Something that is no frame.
    Other,
    /// A frame that does not fit into its block.
    Misfit,
    End,
    Failed(PcapError),
}

impl<R: Read> CaptureFile<R> {
    /// Begins to read a capture; `name` is for errors and reports.
    ///
    /// # Errors
    /// [`FileError::NotACapture`] where it is neither pcap nor pcapng.
    pub fn open(name: &str, mut reader: R) -> Result<Self, FileError> {
        let mut magic = [0; 4];
        let mut len = 0;
        while len < magic.len() {
            match reader.read(&mut magic[len..])? {
                0 => break,
                count => len += count,
            }
        }
        let refused = |hint| FileError::NotACapture {
            name: name.to_owned(),
            found: magic[..len].to_vec(),
            hint,
        };
        if len < magic.len() {
            return Err(refused("it is too short; has the program that captures ended yet?"));
        }
        let source = Cursor::new(magic).chain(reader);
        let is_damaged = |error| match error {
            PcapError::IoError(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                FileError::Io(error)
            }
            _ => refused("the beginning of the file is damaged"),
        };
        let format = match magic {
            [0x0A, 0x0D, 0x0D, 0x0A] => {
                let reader = PcapNgReader::new(source).map_err(is_damaged)?;
                Format::PcapNg(PcapNg::new(reader))
            }
            [0xD4, 0xC3, 0xB2, 0xA1]
            | [0xA1, 0xB2, 0xC3, 0xD4]
            | [0x4D, 0x3C, 0xB2, 0xA1]
            | [0xA1, 0xB2, 0x3C, 0x4D] => {
                Format::Pcap(PcapReader::new(source).map_err(is_damaged)?)
            }
            [0x1F, 0x8B, ..] => return Err(refused("gzip: unpack it with `gunzip -k`")),
            [0x28, 0xB5, 0x2F, 0xFD] => return Err(refused("zstd: unpack it with `unzstd`")),
            _ => {
                return Err(refused(
                    "pcapng and pcap are read; other kinds, as the .erf files of `vernic fabric \
                     capture`, with `tshark -r`",
                ));
            }
        };
        Ok(Self {
            name: name.to_owned(),
            format,
            head: Head::default(),
            bytes: Vec::new(),
            frames: 0,
            skipped: 0,
            damage: None,
        })
    }

    /// Goes to the next frame; false at the end of the file, or where it is damaged.
    ///
    /// # Errors
    /// When reading fails.
    pub fn advance(&mut self) -> io::Result<bool> {
        while self.damage.is_none() {
            let step = match &mut self.format {
                Format::Pcap(reader) => pcap_step(reader, &mut self.bytes),
                Format::PcapNg(file) => file.step(&mut self.bytes, self.head.time_ns),
            };
            match step {
                Step::Frame(head) => {
                    self.head = head;
                    self.frames += 1;
                    return Ok(true);
                }
                Step::Other => {}
                Step::Misfit => self.skipped += 1,
                Step::End => return Ok(false),
                Step::Failed(PcapError::IoError(error))
                    if error.kind() != io::ErrorKind::UnexpectedEof =>
                {
                    return Err(error);
                }
                Step::Failed(error) => self.damage = Some(self.damaged(&error)),
            }
        }
        Ok(false)
    }

    /// The present frame; empty before the first [`advance`](Self::advance).
    pub fn frame(&self) -> Frame<'_> {
        let Head { time_ns, direction, link } = self.head;
        Frame { time_ns, direction, link, bytes: &self.bytes }
    }

    /// What is told of the file itself.
    pub fn report(&self) -> FileReport {
        FileReport {
            name: self.name.clone(),
            frames: self.frames,
            skipped_frames: self.skipped,
            damage: self.damage.clone(),
        }
    }

    fn damaged(&self, error: &PcapError) -> String {
        let frames = self.frames;
        match error {
            PcapError::IoError(_) => format!("cut off behind frame {frames}"),
            error => format!("damaged behind frame {frames} ({error})"),
        }
    }
}

/// Takes over the bytes of a frame.
fn keep(bytes: &mut Vec<u8>, frame: &[u8]) {
    bytes.clear();
    bytes.extend_from_slice(&frame[..frame.len().min(MAX_FRAME_BYTES)]);
}

fn pcap_step<R: Read>(reader: &mut PcapReader<Source<R>>, bytes: &mut Vec<u8>) -> Step {
    let header = reader.header();
    let fraction_ns = if header.ts_resolution == TsResolution::NanoSecond { 1 } else { 1000 };
    match reader.next_raw_packet() {
        None => Step::End,
        Some(Err(error)) => Step::Failed(error),
        Some(Ok(packet)) => {
            keep(bytes, &packet.data);
            let time_ns =
                u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * fraction_ns;
            // The upper half of the field has the length of the frame check sequence.
            let link = u32::from(header.datalink) as u16;
            Step::Frame(Head { time_ns, direction: Direction::Unknown, link })
        }
    }
}

/// A pcapng file.
struct PcapNg<R: Read> {
    reader: PcapNgReader<Source<R>>,
    /// Interfaces of the present section.
    interfaces: Vec<Interface>,
    is_big_endian: bool,
}

impl<R: Read> PcapNg<R> {
    fn new(reader: PcapNgReader<Source<R>>) -> Self {
        let is_big_endian = reader.section().endianness == Endianness::Big;
        Self { reader, interfaces: Vec::new(), is_big_endian }
    }

    fn step(&mut self, bytes: &mut Vec<u8>, last_ns: u64) -> Step {
        let block = match self.reader.next_raw_block() {
            None => return Step::End,
            Some(Err(error)) => return Step::Failed(error),
            Some(Ok(block)) => block,
        };
        let fields = Fields { bytes: &block.body, is_big_endian: self.is_big_endian };
        let frame = match block.type_ {
            block_type::ENHANCED_PACKET => enhanced(fields, &self.interfaces),
            block_type::SIMPLE_PACKET => simple(fields, &self.interfaces, last_ns),
            block_type::PACKET => obsolete(fields, &self.interfaces),
            block_type::SECTION_HEADER => {
                self.interfaces.clear();
                self.is_big_endian = self.reader.section().endianness == Endianness::Big;
                return Step::Other;
            }
            block_type::INTERFACE => return self.add_interface(),
            _ => return Step::Other,
        };
        match frame {
            Some((head, frame)) => {
                keep(bytes, frame);
                Step::Frame(head)
            }
            None => Step::Misfit,
        }
    }

    fn add_interface(&mut self) -> Step {
        if self.interfaces.len() >= MAX_INTERFACES {
            return Step::Failed(PcapError::InvalidField("more than 65536 interfaces"));
        }
        self.interfaces.extend(self.reader.interfaces().last().map(Interface::of));
        Step::Other
    }
}

/// The body of a block.
#[derive(Clone, Copy)]
struct Fields<'a> {
    bytes: &'a [u8],
    is_big_endian: bool,
}

impl<'a> Fields<'a> {
    fn u16_at(self, at: usize) -> Option<u16> {
        let bytes = *self.bytes.get(at..)?.first_chunk()?;
        Some(if self.is_big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }
    fn u32_at(self, at: usize) -> Option<u32> {
        let bytes = *self.bytes.get(at..)?.first_chunk()?;
        Some(if self.is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }
    /// A time, whose upper half comes first whatever the byte order.
    fn time_at(self, at: usize) -> Option<u64> {
        Some(u64::from(self.u32_at(at)?) << 32 | u64::from(self.u32_at(at + 4)?))
    }
    fn bytes_at(self, at: usize, len: u32) -> Option<&'a [u8]> {
        self.bytes.get(at..)?.get(..usize::try_from(len).ok()?)
    }
}

/// Interface id, time, lengths, frame, options.
fn enhanced<'a>(fields: Fields<'a>, interfaces: &[Interface]) -> Option<(Head, &'a [u8])> {
    let interface = interfaces.get(usize::try_from(fields.u32_at(0)?).ok()?)?;
    let time_ns = interface.nanos(fields.time_at(4)?);
    let frame = fields.bytes_at(20, fields.u32_at(12)?)?;
    let direction = direction(fields, 20 + frame.len().next_multiple_of(4));
    Some((Head { time_ns, direction, link: interface.link }, frame))
}

/// Length, frame; of the first interface.
fn simple<'a>(
    fields: Fields<'a>,
    interfaces: &[Interface],
    time_ns: u64,
) -> Option<(Head, &'a [u8])> {
    let interface = interfaces.first()?;
    let rest = fields.bytes.get(4..)?;
    let len = usize::try_from(fields.u32_at(0)?).ok()?.min(rest.len()).min(interface.snaplen());
    Some((Head { time_ns, direction: Direction::Unknown, link: interface.link }, &rest[..len]))
}

/// Interface id and drops of 16 bits, time, lengths, frame, options.
fn obsolete<'a>(fields: Fields<'a>, interfaces: &[Interface]) -> Option<(Head, &'a [u8])> {
    let interface = interfaces.get(usize::from(fields.u16_at(0)?))?;
    let time_ns = interface.nanos(fields.time_at(4)?);
    let frame = fields.bytes_at(20, fields.u32_at(12)?)?;
    let direction = direction(fields, 20 + frame.len().next_multiple_of(4));
    Some((Head { time_ns, direction, link: interface.link }, frame))
}

/// The direction in the flags among the options of a block, which begin at `at`.
fn direction(fields: Fields<'_>, mut at: usize) -> Direction {
    const FLAGS: u16 = 2;
    while let (Some(code), Some(len)) = (fields.u16_at(at), fields.u16_at(at + 2)) {
        if code == FLAGS {
            return match fields.u32_at(at + 4).map(|flags| flags & 3) {
                Some(1) => Direction::In,
                Some(2) => Direction::Out,
                _ => Direction::Unknown,
            };
        }
        if code == 0 {
            break;
        }
        at += 4 + usize::from(len).next_multiple_of(4);
    }
    Direction::Unknown
}

/// What is known of an interface.
struct Interface {
    link: u16,
    snaplen: u32,
    /// Resolution of times: an exponent of 10, or with the top bit set of 2.
    resolution: u8,
    /// Seconds that are added to each time.
    offset_s: u64,
}

impl Interface {
    fn of(block: &InterfaceDescriptionBlock<'_>) -> Self {
        // Microseconds, unless it is said.
        let (mut resolution, mut offset_s) = (6, 0);
        for option in &block.options {
            match option {
                InterfaceDescriptionOption::IfTsResol(value) => resolution = *value,
                InterfaceDescriptionOption::IfTsOffset(value) => offset_s = *value,
                _ => {}
            }
        }
        let link = u32::from(block.linktype) as u16;
        Self { link, snaplen: block.snaplen, resolution, offset_s }
    }

    /// Most bytes of a frame that are captured.
    fn snaplen(&self) -> usize {
        if self.snaplen == 0 { usize::MAX } else { self.snaplen as usize }
    }

    fn nanos(&self, time: u64) -> u64 {
        let exponent = u32::from(self.resolution & 0x7F);
        let time = u128::from(time);
        let nanos = if self.resolution & 0x80 != 0 {
            (time * 1_000_000_000) >> exponent
        } else if exponent <= 9 {
            time * 10_u128.pow(9 - exponent)
        } else {
            10_u128.checked_pow(exponent - 9).map_or(0, |units| time / units)
        };
        // The offset is signed: adding it wraps.
        let offset_ns = self.offset_s.wrapping_mul(1_000_000_000);
        u64::try_from(nanos).unwrap_or(u64::MAX).wrapping_add(offset_ns)
    }
}

#[cfg(test)]
mod tests;
