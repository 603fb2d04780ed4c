//! FPDUs on their way in: a stream of bytes, cut anywhere, becomes DDP segments (RFC 5044, 4, 6).
//!
//! Owns the place in the stream and the CRC under way; knows nothing of what segments mean, which
//! is its [`Sink`]'s business. It keeps no bytes: the owner passes what it has from the first byte
//! that was not consumed on, and [`RxNext`] says what it takes to go on.
//!
//! ```text
//!   Boundary --- the whole FPDU is here -----> its CRC is checked --+
//!       |                                                           v
//!       +------ its headers are here, and  --------------------> Payload ---> Tail ---> Boundary
//!               nothing forbids to begin                         placed,     CRC, if it was
//!                                                                piecemeal   not checked before
//! ```
//! "An MPA receiver MUST first verify the FPDU before passing the ULPDU to DDP" (RFC 5044, 6):
//! where CRCs are agreed, payload is placed only from a whole FPDU whose CRC is right. An owner may
//! relax that ([`direct`](Deframer::set_direct)): payload is then placed while the FPDU arrives, by
//! the owner straight from the socket if it likes, and the CRC is checked before the segment
//! counts. Delivery waits for the CRC in both cases, and so does the report of an invalid header.
//! What is relaxed is that a header which TCP's checksum let through in error may lead to another
//! place within what the peer may write; RFC 5040 leaves the contents of such memory open until
//! delivery (5.5 (4) to (6)). Without CRCs there is nothing to wait for: an FPDU is "valid for FPDU
//! checking regardless of its contents" (RFC 5044, 7.1.1, "C").

use vernic_wire::iwarp::{
    CRC_LEN, Crc32c, DdpHeader, FpduHeader, INTERVAL, Marker, markers_in, pad_of,
};

use crate::error::Violation;

/// Bytes of an FPDU up to the end of the longest DDP header.
const HEAD: usize = FpduHeader::LEN + DdpHeader::MAX_LEN;

/// Why a segment goes no further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal<E> {
    /// Not now: the same bytes are to be shown again later.
    Hold,
    /// Never.
    Error(E),
}

/// What takes segments.
pub(super) trait Sink {
    /// Why a segment is refused.
    type Error: From<Violation>;

    /// Whether payload of this segment may be placed before the FPDU is complete. The others are
    /// short, and shown in one piece.
    fn is_placeable(&self, header: &DdpHeader) -> bool;
    /// A segment begins: checks its header and finds its place. Changes nothing that would matter
    /// if the same segment came again.
    fn begin(&mut self, header: &DdpHeader, payload_len: u32) -> Result<(), Refusal<Self::Error>>;
    /// The next bytes of its payload, from `offset` of the segment on.
    fn place(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Self::Error>;
    /// The segment is complete, and right.
    fn end(&mut self) -> Result<(), Self::Error>;
}

/// What it takes to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// So many bytes at least, from the first that was not consumed on.
    Bytes(usize),
    /// Up to so many bytes of payload, from this offset of the segment on; with the CRC so far, if
    /// it goes on over them.
    Payload { offset: u32, len: u32, crc: Option<Crc32c> },
    /// Whatever the sink waits for.
    Hold,
}

/// Where in an FPDU the stream is.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Boundary,
    Payload { done: u32, left: u32, pad: u8 },
    Tail { pad: u8 },
}

/// The receiving half of MPA, of one connection.
#[derive(Debug)]
pub(super) struct Deframer {
    crc: bool,
    markers: bool,
    direct: bool,
    /// Bytes consumed since the first FPDU, markers counted.
    position: u64,
    /// Where the length field of the FPDU under way is.
    length_at: u64,
    /// CRC of the FPDU under way; `None` if it was checked at once, or is none of our business.
    running: Option<Crc32c>,
    /// A marker of the FPDU under way points elsewhere.
    marker_is_wrong: bool,
    phase: Phase,
    need: Need,
    /// FPDUs that were complete and right.
    fpdus: u64,
}

impl Deframer {
    pub(super) fn new(crc: bool, markers: bool) -> Self {
        Self {
            crc,
            markers,
            direct: !crc,
            position: 0,
            length_at: 0,
            running: None,
            marker_is_wrong: false,
            phase: Phase::Boundary,
            need: Need::Bytes(FpduHeader::LEN),
            fpdus: 0,
        }
    }

    /// Whether payload may be placed before its CRC is known to be right. Without CRCs it always
    /// may.
    pub(super) fn set_direct(&mut self, direct: bool) {
        self.direct = direct || !self.crc;
    }

    /// Whether payload can go to its place while its FPDU arrives, in pieces worth a name.
    pub(super) fn places(&self) -> bool {
        self.direct && !self.markers
    }

    /// What it takes to go on. Valid until the next call that changes something.
    pub(super) fn need(&self) -> Need {
        self.need
    }
    /// FPDUs taken so far.
    pub(super) fn fpdus(&self) -> u64 {
        self.fpdus
    }
    /// Whether the stream is between two FPDUs, so that it may end here.
    pub(super) fn is_at_boundary(&self) -> bool {
        matches!(self.phase, Phase::Boundary)
    }

    /// Takes bytes and returns how many were consumed, and why it stopped if not for want of more.
    pub(super) fn handle_bytes<S: Sink>(
        &mut self,
        bytes: &[u8],
        sink: &mut S,
    ) -> (usize, Result<(), Refusal<S::Error>>) {
        let mut at = 0;
        // Bounded: each round consumes bytes, but the last one and those that only change the
        // phase.
        loop {
            let rest = &bytes[at..];
            let step = match self.phase {
                Phase::Boundary => self.begin(rest, sink),
                Phase::Payload { done, left, pad } => self.payload(rest, done, left, pad, sink),
                Phase::Tail { pad } => self.tail(rest, pad, sink),
            };
            match step {
                Ok(0) => return (at, Ok(())),
                Ok(consumed) => {
                    at += consumed;
                    self.position += consumed as u64;
                }
                Err(refusal) => {
                    self.need = Need::Hold;
                    return (at, Err(refusal));
                }
            }
        }
    }

    /// `len` bytes of payload have been placed by the owner, as [`Need::Payload`] allowed; `crc` is
    /// the one that came with it, taken on over them.
    pub(super) fn handle_placed(&mut self, len: u32, crc: Option<Crc32c>) {
        let Phase::Payload { done, left, pad } = self.phase else { return };
        let Need::Payload { len: allowed, .. } = self.need else { return };
        let len = len.min(allowed);
        self.position += u64::from(len);
        self.running = crc.filter(|_| self.running.is_some());
        self.phase = Phase::Payload { done: done + len, left: left - len, pad };
        self.foresee();
    }

    /// Place in the stream as markers count it.
    fn since(&self) -> u32 {
        (self.position % u64::from(INTERVAL)) as u32
    }

    /// Bytes of the stream for the next `content` bytes of the FPDU.
    fn span(&self, content: usize) -> usize {
        let markers = if self.markers { markers_in(self.since(), content as u32) } else { 0 };
        content + markers as usize * Marker::LEN
    }

    /// Waits for so many bytes.
    fn want<E>(&mut self, bytes: usize) -> Result<usize, E> {
        self.need = Need::Bytes(bytes);
        Ok(0)
    }

    /// An FPDU begins.
    fn begin<S: Sink>(&mut self, rest: &[u8], sink: &mut S) -> Result<usize, Refusal<S::Error>> {
        let mut head = [0; HEAD];
        if rest.len() < self.span(FpduHeader::LEN) {
            return self.want(self.span(FpduHeader::LEN));
        }
        self.copy(rest, &mut head[..FpduHeader::LEN]);
        let fpdu = FpduHeader::from_bytes(&[head[0], head[1]]);
        let ulpdu_len = usize::from(fpdu.ulpdu_len);
        let whole = self.span(fpdu.fpdu_len());
        let is_whole = rest.len() >= whole;
        if !is_whole && !self.direct {
            return self.want(whole);
        }
        if is_whole && self.crc {
            let (covered, crc) = rest[..whole].split_at(whole - CRC_LEN);
            if Crc32c::of(covered) != crc {
                return Err(Refusal::Error(Violation::Crc.into()));
            }
        }
        let head_len = FpduHeader::LEN + ulpdu_len.min(DdpHeader::MAX_LEN);
        if rest.len() < self.span(head_len) {
            return self.want(self.span(head_len));
        }
        self.copy(rest, &mut head[..head_len]);
        let header = match DdpHeader::parse(&head[FpduHeader::LEN..head_len]) {
            Ok(header) => header,
            // Too short for its header; but that may be what the CRC has to say.
            Err(_) if !is_whole => return self.want(whole),
            Err(_) => return Err(Refusal::Error(Violation::Length.into())),
        };
        if !is_whole && !sink.is_placeable(&header) {
            return self.want(whole);
        }
        let payload_len = (ulpdu_len - header.len()) as u32;
        match sink.begin(&header, payload_len) {
            Ok(()) => {}
            // A wrong header counts only once the CRC has vouched for it.
            Err(Refusal::Error(_)) if !is_whole && self.crc => return self.want(whole),
            Err(refusal) => return Err(refusal),
        }
        let consumed = self.span(FpduHeader::LEN + header.len());
        self.length_at = self.position + (self.span(1) - 1) as u64;
        self.marker_is_wrong = false;
        self.check_markers(rest, FpduHeader::LEN + header.len());
        let checks_later = self.crc && !is_whole;
        self.running = checks_later.then(|| Crc32c::START.update(&rest[..consumed]));
        self.phase = Phase::Payload { done: 0, left: payload_len, pad: pad_of(ulpdu_len) as u8 };
        Ok(consumed)
    }

    /// Payload, up to the next marker; or the marker that is due before more of it.
    fn payload<S: Sink>(
        &mut self,
        rest: &[u8],
        done: u32,
        left: u32,
        pad: u8,
        sink: &mut S,
    ) -> Result<usize, Refusal<S::Error>> {
        if left == 0 {
            self.phase = Phase::Tail { pad };
            return self.tail(rest, pad, sink);
        }
        let since = self.since();
        if self.markers && since == 0 {
            if rest.len() < Marker::LEN {
                return self.want(Marker::LEN);
            }
            self.check_markers(rest, 1);
            self.running = self.running.map(|crc| crc.update(&rest[..Marker::LEN]));
            return Ok(Marker::LEN);
        }
        let len = self.run(left).min(rest.len() as u32);
        if len == 0 {
            self.foresee();
            return Ok(0);
        }
        let bytes = &rest[..len as usize];
        sink.place(done, bytes).map_err(Refusal::Error)?;
        self.running = self.running.map(|crc| crc.update(bytes));
        self.phase = Phase::Payload { done: done + len, left: left - len, pad };
        Ok(bytes.len())
    }

    /// Payload bytes before the next marker.
    fn run(&self, left: u32) -> u32 {
        if self.markers { left.min(INTERVAL - self.since()) } else { left }
    }

    /// What comes next, within an FPDU.
    fn foresee(&mut self) {
        self.need = match self.phase {
            Phase::Payload { left: 0, pad, .. } | Phase::Tail { pad } => {
                Need::Bytes(self.span(usize::from(pad) + CRC_LEN))
            }
            Phase::Payload { .. } if self.markers && self.since() == 0 => Need::Bytes(Marker::LEN),
            Phase::Payload { done, left, .. } => {
                Need::Payload { offset: done, len: self.run(left), crc: self.running }
            }
            Phase::Boundary => Need::Bytes(self.span(FpduHeader::LEN)),
        };
    }

    /// Pad and CRC: the FPDU is complete.
    fn tail<S: Sink>(
        &mut self,
        rest: &[u8],
        pad: u8,
        sink: &mut S,
    ) -> Result<usize, Refusal<S::Error>> {
        let content = usize::from(pad) + CRC_LEN;
        let len = self.span(content);
        if rest.len() < len {
            return self.want(len);
        }
        let (covered, crc) = rest[..len].split_at(len - CRC_LEN);
        if self.running.is_some_and(|running| running.update(covered).finish() != crc) {
            return Err(Refusal::Error(Violation::Crc.into()));
        }
        self.check_markers(rest, content);
        // "In the event that the CRC is valid, received MPA Marker (if enabled) and ULPDU Length
        // fields do not agree on the start of an FPDU" (RFC 5044, 8).
        if self.marker_is_wrong {
            return Err(Refusal::Error(Violation::Marker.into()));
        }
        sink.end().map_err(Refusal::Error)?;
        self.fpdus += 1;
        self.phase = Phase::Boundary;
        Ok(len)
    }

    /// Copies content from the front of `rest`, markers left out.
    fn copy(&self, rest: &[u8], content: &mut [u8]) {
        let (mut at, mut since) = (0, self.since());
        for byte in content {
            if self.markers && since == 0 {
                at += Marker::LEN;
                since += Marker::LEN as u32;
            }
            *byte = rest[at];
            at += 1;
            since = (since + 1) % INTERVAL;
        }
    }

    /// Looks at the markers before each of the next `content` bytes: "they MUST all point to the
    /// same point in the TCP stream: the first octet of the ULPDU Length field for the FPDU" (RFC
    /// 5044, 4.3).
    fn check_markers(&mut self, rest: &[u8], content: usize) {
        if !self.markers {
            return;
        }
        let first = (INTERVAL - self.since()) % INTERVAL;
        let places = (first as usize..).step_by(INTERVAL as usize);
        let count = markers_in(self.since(), content as u32) as usize;
        for at in places.take(count) {
            let Ok(marker) = Marker::parse(&rest[at..]) else { return };
            // One before the length field stands between two FPDUs, and says 0.
            let distance = (self.position + at as u64).saturating_sub(self.length_at);
            self.marker_is_wrong |= u64::from(marker.distance()) != distance;
        }
    }
}

#[cfg(test)]
mod tests;
