//! Hand-made FPDUs, and what one queue pair says to them.

use vernic_wire::Rkey;
use vernic_wire::iwarp::{
    CRC_LEN, Control, Crc32c, DdpHeader, FpduHeader, Msn, QueueNumber, RdmapOpcode, Segment,
    Tagged, Terminate, Untagged, pad_of,
};

use super::pair::{agreed, config, queue_pair};
use crate::iwarp::{Agreed, MAX_FPDU, Qp, Role, StreamConfig};
use crate::test_host::TestHost;
use crate::time::Time;

/// An FPDU of these headers and this payload, with a right CRC.
pub(super) fn fpdu(header: &DdpHeader, body: &[u8]) -> Vec<u8> {
    let ulpdu_len = header.len() + body.len();
    let mut bytes = vec![0; FpduHeader::LEN + header.len()];
    FpduHeader { ulpdu_len: ulpdu_len as u16 }.emit(&mut bytes);
    header.emit(&mut bytes[FpduHeader::LEN..]);
    bytes.extend_from_slice(body);
    bytes.resize(bytes.len() + pad_of(ulpdu_len), 0);
    let crc = Crc32c::of(&bytes);
    bytes.extend(crc);
    bytes
}

pub(super) fn untagged(opcode: RdmapOpcode, msn: u32, offset: u32, last: bool) -> Untagged {
    let queue = opcode.info().and_then(|info| info.queue).unwrap_or(QueueNumber(0));
    let control = Control { tagged: false, ..Control::new(opcode, last) };
    Untagged { control, invalidate: Rkey(0), queue, msn: Msn(msn), offset }
}

pub(super) fn tagged(opcode: RdmapOpcode, stag: Rkey, offset: u64, last: bool) -> Tagged {
    let control = Control { tagged: true, ..Control::new(opcode, last) };
    Tagged { control, stag, offset }
}

/// The segments that a stream of FPDUs consists of; every CRC must be right.
pub(super) fn segments(mut bytes: &[u8]) -> Vec<(DdpHeader, Vec<u8>)> {
    let mut segments = Vec::new();
    while !bytes.is_empty() {
        let header = FpduHeader::parse(bytes).unwrap();
        let (whole, rest) = bytes.split_at(header.fpdu_len());
        let (covered, crc) = whole.split_last_chunk::<CRC_LEN>().unwrap();
        assert_eq!(Crc32c::of(covered), *crc);
        let ulpdu = &whole[FpduHeader::LEN..][..usize::from(header.ulpdu_len)];
        let segment = Segment::parse(ulpdu).unwrap();
        segments.push((segment.header, segment.body.to_vec()));
        bytes = rest;
    }
    segments
}

/// One queue pair and a peer made by hand.
pub(super) struct Raw {
    pub(super) qp: Qp,
    pub(super) host: TestHost,
    pub(super) now: Time,
}

impl Raw {
    pub(super) fn new() -> Self {
        Self::with(|_| {}, config())
    }

    /// An initiator, unless a test says otherwise: it may speak at once.
    pub(super) fn with(change: impl Fn(&mut Agreed), config: StreamConfig) -> Self {
        let mut agreed = agreed(Role::Initiator);
        change(&mut agreed);
        let mut host = TestHost::new();
        let mut qp = queue_pair(&mut host);
        qp.start(&agreed, config).unwrap();
        Self { qp, host, now: Time(5_000) }
    }

    pub(super) fn receive(&mut self, bytes: &[u8]) -> usize {
        self.qp.handle_bytes(self.now, bytes, &mut self.host)
    }
    pub(super) fn untagged(&mut self, header: Untagged, body: &[u8]) {
        self.receive(&fpdu(&DdpHeader::Untagged(header), body));
    }
    pub(super) fn tagged(&mut self, header: Tagged, body: &[u8]) {
        self.receive(&fpdu(&DdpHeader::Tagged(header), body));
    }

    /// Everything that it has to send, taken by the connection.
    pub(super) fn sent(&mut self) -> Vec<(DdpHeader, Vec<u8>)> {
        let mut bytes = Vec::new();
        let mut buf = vec![0; MAX_FPDU];
        while let Some(len) = self.qp.poll_transmit(self.now, &mut self.host, &mut buf) {
            bytes.extend_from_slice(&buf[..len]);
        }
        let total = self.qp.committed();
        self.qp.handle_sent(self.now, total, &mut self.host);
        segments(&bytes)
    }

    /// The one thing that it has to say.
    pub(super) fn last_word(&mut self) -> Option<Terminate> {
        let segments = self.sent();
        let (header, body) = segments.last()?;
        assert_eq!(segments.len(), 1, "{segments:?}");
        let DdpHeader::Untagged(header) = header else { panic!("{header}") };
        let control = Control::new(RdmapOpcode::TERMINATE, true);
        assert_eq!((header.control, header.queue), (control, QueueNumber::TERMINATE));
        assert_eq!((header.msn, header.offset), (Msn::FIRST, 0));
        let terminate = Terminate::parse(body).unwrap();
        assert_eq!(terminate.len(), body.len());
        Some(terminate)
    }
}
