//! FPDUs on their way out: what each consists of, and how it is laid into the stream (RFC 5044, 4.1
//! to 4.4, 5.1).
//!
//! An [`Fpdu`] names its payload instead of carrying it, so an owner whose connection needs neither
//! CRCs nor markers can hand payload to the socket from where it lies. Otherwise [`Layout::write`]
//! copies it into a buffer: a CRC over memory that the application may still change would be wrong
//! by the time the bytes leave, and a wrong CRC ends the connection.

use vernic_wire::Rkey;
use vernic_wire::iwarp::{
    AtomicRequest, CRC_LEN, Control, Crc32c, DdpHeader, FpduHeader, INTERVAL, MAX_MULPDU, Marker,
    Msn, QueueNumber, RdmapOpcode, Terminate, Untagged, markers_in, mulpdu, pad_of,
};

use super::agreed::Agreed;
use crate::error::AccessFault;
use crate::host::Host;

/// Bytes of the longest FPDU, markers counted: the room that a buffer for one must have.
pub const MAX_FPDU: usize = {
    let len = FpduHeader { ulpdu_len: u16::MAX }.fpdu_len();
    len + Marker::LEN * (1 + len / (INTERVAL as usize - Marker::LEN))
};

/// Bytes before the payload of an FPDU, at most: length, DDP header, RDMAP header. A Terminate is
/// headers alone, as long as an atomic request's.
const MAX_HEAD: usize = FpduHeader::LEN + DdpHeader::MAX_LEN + AtomicRequest::LEN;
const _: () = assert!(Terminate::MAX_LEN <= AtomicRequest::LEN);

/// Zero bytes for pad, and for the CRC where none is agreed: the field "is still present, may
/// contain any value" (RFC 5044, 4.1).
static ZEROS: [u8; 3 + CRC_LEN] = [0; 3 + CRC_LEN];

/// Where the payload of an FPDU lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// It has none.
    None,
    /// In a send request, from this offset on: [`Host::gather`].
    Send {
        /// Slot of the request.
        slot: u32,
        /// First byte.
        offset: u32,
    },
    /// In memory that the peer reads: [`Host::read_remote`].
    Remote {
        /// Its key.
        rkey: Rkey,
        /// First byte.
        addr: u64,
    },
}

/// What an FPDU belongs to, for the machine that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Item {
    /// The send request at the cursor.
    Request,
    /// The oldest READ or atomic of the peer.
    Answer,
    /// The ready-to-receive indication.
    Rtr,
    /// The last word.
    Terminate,
}

/// An FPDU that is to be sent: its headers, and where its payload lies.
#[derive(Clone, Copy, Debug)]
pub struct Fpdu {
    head: [u8; MAX_HEAD],
    head_len: u8,
    source: Source,
    payload_len: u32,
    starts_segment: bool,
    pub(super) item: Item,
}

impl Fpdu {
    /// Of a DDP header, an RDMAP header in bytes, and payload elsewhere. The lengths must fit a
    /// ULPDU.
    pub(super) fn new(
        item: Item,
        header: &DdpHeader,
        rdmap: &[u8],
        source: Source,
        payload_len: u32,
    ) -> Self {
        let mut head = [0; MAX_HEAD];
        let ulpdu_len = header.len() + rdmap.len() + payload_len as usize;
        FpduHeader { ulpdu_len: ulpdu_len as u16 }.emit(&mut head);
        let at = FpduHeader::LEN + header.emit(&mut head[FpduHeader::LEN..]);
        head[at..at + rdmap.len()].copy_from_slice(rdmap);
        let head_len = (at + rdmap.len()) as u8;
        Self { head, head_len, source, payload_len, starts_segment: false, item }
    }

    /// A Terminate: "the Local Peer's RDMAP layer MUST request that the DDP layer set the Queue
    /// Number field to two" (RFC 5040, 5.4). There is one on a stream, so its number is the first.
    pub(super) fn terminate(terminate: &Terminate) -> Self {
        let header = DdpHeader::Untagged(Untagged {
            control: Control::new(RdmapOpcode::TERMINATE, true),
            invalidate: Rkey(0),
            queue: QueueNumber::TERMINATE,
            msn: Msn::FIRST,
            offset: 0,
        });
        let mut rdmap = [0; Terminate::MAX_LEN];
        let len = terminate.emit(&mut rdmap);
        Self::new(Item::Terminate, &header, &rdmap[..len], Source::None, 0)
    }

    /// Everything before the payload.
    pub fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.head_len)]
    }
    /// Where the payload lies.
    pub fn source(&self) -> Source {
        self.source
    }
    /// Bytes of payload, 0 to 64,754.
    pub fn payload_len(&self) -> u32 {
        self.payload_len
    }
    /// Everything behind the payload where no CRC is agreed: pad, and a CRC field of zeros.
    pub fn tail(&self) -> &'static [u8] {
        &ZEROS[..self.pad() + CRC_LEN]
    }
    /// Whether it should begin a TCP segment, because it does not fit into what is left of the one
    /// before (RFC 5044, 5.1). A socket that can mark the end of a record does so before it.
    pub fn starts_segment(&self) -> bool {
        self.starts_segment
    }
    fn pad(&self) -> usize {
        pad_of(self.head().len() - FpduHeader::LEN + self.payload_len as usize)
    }
    /// Bytes of all of it, markers not counted.
    fn len(&self) -> usize {
        self.head().len() + self.payload_len as usize + self.pad() + CRC_LEN
    }
}

/// How FPDUs become the stream of one direction: CRCs, markers, the place in the stream and in the
/// TCP segment.
#[derive(Debug)]
pub(super) struct Layout {
    crc: bool,
    markers: bool,
    /// Bytes laid out since the first FPDU.
    position: u64,
    /// Bytes of a TCP segment.
    emss: u32,
    /// FPDUs may be longer than a segment.
    large: bool,
    /// Bytes of the segment being filled.
    used: u32,
}

impl Layout {
    pub(super) fn new(agreed: &Agreed) -> Self {
        let (crc, markers) = (agreed.crc, agreed.tx_markers);
        Self { crc, markers, position: 0, emss: 1024, large: false, used: 0 }
    }

    /// Sets the size of segments, and whether FPDUs may exceed it.
    pub(super) fn set_segment(&mut self, emss: u32, large: bool) {
        (self.emss, self.large) = (emss, large);
        self.used = 0;
    }

    /// What was laid out before has been handed to TCP, which sends it: a new segment begins.
    pub(super) fn begin_batch(&mut self) {
        self.used = 0;
    }

    /// Whether payload has to be copied: see the head of this module.
    pub(super) fn copies(&self) -> bool {
        self.crc || self.markers
    }

    /// Bytes laid out since the first FPDU, markers counted.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The longest ULPDU for what comes next: as long as an FPDU may be, or as fits into the rest
    /// of the segment if there is enough of it to be worth while. "MPA MUST NOT provide a MULPDU
    /// smaller than 128. In this case, MPA would typically provide a MULPDU for the next full sized
    /// segment, but may still pack the next FPDU into the small remaining room" (RFC 5044, 4.5).
    pub(super) fn max_ulpdu(&self) -> u32 {
        if self.large {
            return u32::from(MAX_MULPDU);
        }
        let whole = u32::from(mulpdu(self.emss, self.markers));
        let room = self.emss.saturating_sub(self.used);
        // Less than a quarter of a segment is left to those that are short anyway.
        let rest = u32::from(mulpdu(room, self.markers));
        if self.used > 0 && room > self.emss / 4 && rest < room { rest } else { whole }
    }

    /// Bytes of the FPDU at this place of the stream, markers counted.
    pub(super) fn raw_len(&self, fpdu: &Fpdu) -> usize {
        let len = fpdu.len();
        len + self.marker_count(len as u32) as usize * Marker::LEN
    }

    fn marker_count(&self, len: u32) -> u32 {
        let since = (self.position % u64::from(INTERVAL)) as u32;
        if self.markers { markers_in(since, len) } else { 0 }
    }

    /// Says where the FPDU will lie, without changing anything.
    pub(super) fn place(&self, fpdu: &mut Fpdu) {
        let len = self.raw_len(fpdu) as u32;
        fpdu.starts_segment = !self.large && self.used > 0 && self.used + len > self.emss;
    }

    /// The FPDU has been taken: the stream goes on behind it.
    pub(super) fn commit(&mut self, fpdu: &Fpdu) {
        let len = self.raw_len(fpdu);
        self.position += len as u64;
        if self.large {
            return;
        }
        let begin = if fpdu.starts_segment { 0 } else { self.used };
        // Longer than a segment only if segments are shorter than FPDUs can be.
        self.used = (begin + len as u32) % self.emss.max(1);
    }

    /// Writes the FPDU, payload fetched from where it lies, to the start of `buf`, and returns its
    /// length. `buf` has the room of [`raw_len`](Self::raw_len).
    pub(super) fn write(
        &self,
        fpdu: &Fpdu,
        host: &mut impl Host,
        buf: &mut [u8],
    ) -> Result<usize, AccessFault> {
        let mut writer = Writer::new(self, buf);
        writer.put(fpdu.head());
        let (mut done, len) = (0, fpdu.payload_len);
        // Bounded: each round lays out a byte of payload at least.
        while done < len {
            let piece = writer.room((len - done) as usize);
            match fpdu.source {
                Source::None => piece.fill(0),
                Source::Send { slot, offset } => host.gather(slot, offset + done, piece)?,
                Source::Remote { rkey, addr } => {
                    host.read_remote(rkey, addr.wrapping_add(u64::from(done)), piece)?;
                }
            }
            done += piece.len() as u32;
        }
        Ok(writer.finish(fpdu.pad(), self.crc))
    }

    /// As [`write`](Self::write), of an FPDU without payload.
    pub(super) fn write_headers(&self, fpdu: &Fpdu, buf: &mut [u8]) -> usize {
        let mut writer = Writer::new(self, buf);
        writer.put(fpdu.head());
        writer.finish(fpdu.pad(), self.crc)
    }

    /// The bytes of an FPDU without payload.
    pub(super) fn alone(&self, fpdu: &Fpdu) -> Vec<u8> {
        let mut bytes = vec![0; self.raw_len(fpdu)];
        self.write_headers(fpdu, &mut bytes);
        bytes
    }
}

/// Lays bytes into a buffer, with markers where they are due.
struct Writer<'a> {
    buf: &'a mut [u8],
    at: usize,
    markers: bool,
    /// Place in the stream of the buffer's first byte, modulo [`INTERVAL`].
    origin: u32,
    /// Where in the buffer the length field is, once it is there.
    length_at: Option<usize>,
}

impl<'a> Writer<'a> {
    fn new(layout: &Layout, buf: &'a mut [u8]) -> Self {
        let origin = (layout.position % u64::from(INTERVAL)) as u32;
        Self { buf, at: 0, markers: layout.markers, origin, length_at: None }
    }

    /// The next piece of the buffer, at most `len` bytes: up to where the next marker is due.
    fn room(&mut self, len: usize) -> &mut [u8] {
        let since = (self.origin + self.at as u32) % INTERVAL;
        let mut until = len;
        if self.markers {
            if since == 0 {
                // FPDUs are shorter than 64 KiB with markers, too: MAX_MULPDU sees to it.
                let distance = self.length_at.map_or(0, |at| self.at - at);
                Marker::new(distance as u16).emit(&mut self.buf[self.at..]);
                self.at += Marker::LEN;
            }
            let to_marker = match since {
                0 => INTERVAL as usize - Marker::LEN,
                since => (INTERVAL - since) as usize,
            };
            until = len.min(to_marker);
        }
        let begin = self.at;
        self.length_at.get_or_insert(begin);
        self.at += until;
        &mut self.buf[begin..self.at]
    }

    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let piece = self.room(bytes.len());
            let (now, later) = bytes.split_at(piece.len());
            piece.copy_from_slice(now);
            bytes = later;
        }
    }

    /// Appends pad and CRC field; returns the length of all. The CRC covers what is before it, a
    /// marker just before it too (RFC 5044, 4.4 (1), (2)).
    fn finish(mut self, pad: usize, crc: bool) -> usize {
        self.put(&ZEROS[..pad]);
        // A marker that is due before the CRC is laid out with it, and covered by it.
        let begin = {
            let piece = self.room(CRC_LEN);
            piece.fill(0);
            self.at - CRC_LEN
        };
        if crc {
            let value = Crc32c::of(&self.buf[..begin]);
            self.buf[begin..self.at].copy_from_slice(&value);
        }
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::agreed::{Role, RtrSet};
    use crate::test_host::TestHost;

    fn layout(crc: bool, tx_markers: bool) -> Layout {
        Layout::new(&Agreed {
            role: Role::Initiator,
            revision: 1,
            crc,
            tx_markers,
            rx_markers: false,
            ird: 0,
            ord: 0,
            peer_depths: None,
            rtr: RtrSet::empty(),
        })
    }

    fn send(len: u32) -> Fpdu {
        let header = DdpHeader::Untagged(Untagged {
            control: Control::new(RdmapOpcode::SEND, true),
            invalidate: Rkey(0),
            queue: QueueNumber::SEND,
            msn: Msn(1),
            offset: 0,
        });
        Fpdu::new(Item::Request, &header, &[], Source::Send { slot: 0, offset: 0 }, len)
    }

    #[test]
    fn the_first_fpdu_with_markers_and_crc_is_the_one_that_rfc_5044_prints() {
        let mut host = TestHost::new();
        host.send_buf.fill(0);
        let mut buf = [0xEE; 64];
        assert_eq!(layout(true, true).write(&send(24), &mut host, &mut buf), Ok(52));
        let mut printed = vec![0, 0, 0, 0, 0, 0x2A, 0x41, 0x43];
        printed.extend([0; 11]);
        printed.extend([1, 0, 0, 0, 0]);
        printed.extend([0; 24]);
        printed.extend([0x52, 0x23, 0x99, 0x83]);
        assert_eq!(buf[..52], printed);
    }

    #[test]
    fn without_crc_and_markers_head_payload_and_tail_are_the_whole() {
        let mut host = TestHost::new();
        for len in [0, 1, 2, 3, 4, 1000] {
            let (layout, fpdu) = (layout(false, false), send(len));
            let mut buf = vec![0xEE; 2000];
            let written = layout.write(&fpdu, &mut host, &mut buf).unwrap();
            let mut pieces = fpdu.head().to_vec();
            pieces.extend_from_slice(&host.send_buf[..len as usize]);
            pieces.extend_from_slice(fpdu.tail());
            assert_eq!(buf[..written], pieces);
            assert_eq!((written, written % 4), (layout.raw_len(&fpdu), 0));
        }
    }

    #[test]
    fn the_length_foretold_is_the_length_written_wherever_markers_fall() {
        let mut host = TestHost::new();
        let mut layout = layout(true, true);
        let mut buf = vec![0; 9000];
        for len in (0..1500).step_by(if cfg!(miri) { 149 } else { 7 }) {
            let fpdu = send(len);
            let written = layout.write(&fpdu, &mut host, &mut buf).unwrap();
            assert_eq!(written, layout.raw_len(&fpdu), "{len} bytes at {}", layout.position());
            layout.commit(&fpdu);
        }
    }

    #[test]
    fn the_longest_fpdu_fits_the_room_that_is_asked_for() {
        let layout = layout(true, true);
        let len = u32::from(u16::MAX) - DdpHeader::MAX_LEN as u32;
        assert!(layout.raw_len(&send(len)) <= MAX_FPDU);
    }

    #[test]
    fn fpdus_fill_segments_and_never_straddle_them() {
        let mut layout = layout(true, false);
        layout.set_segment(1448, false);
        let header = 18;
        assert_eq!(layout.max_ulpdu(), 1442);
        let mut segment = 0;
        for len in [1442 - header, 200, 1442 - header, 100, 300, 900, 1300, 80, 40] {
            let mut fpdu = send(len.min(layout.max_ulpdu() - header));
            layout.place(&mut fpdu);
            if fpdu.starts_segment() {
                segment = 0;
            }
            segment += layout.raw_len(&fpdu);
            assert!(segment <= 1448, "{segment}");
            segment %= 1448;
            layout.commit(&fpdu);
        }
        layout.set_segment(1448, true);
        assert_eq!(layout.max_ulpdu(), u32::from(MAX_MULPDU));
    }

    #[test]
    fn payload_that_cannot_be_read_is_an_error() {
        let mut host = TestHost::new();
        host.send_valid = false;
        let mut buf = [0; 100];
        assert!(layout(false, false).write(&send(8), &mut host, &mut buf).is_err());
        assert!(layout(false, false).write(&send(0), &mut host, &mut buf).is_ok());
    }
}
