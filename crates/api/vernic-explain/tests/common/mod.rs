//! Captures made by hand: two ends, A and B, and what they send each other.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::net::SocketAddr;

use vernic_explain::{Direction, Explainer, Finding, Flow, Frame, Report};
use vernic_wire::cm::{CmMessage, GSI_QKEY};
use vernic_wire::icrc;
use vernic_wire::mad::MAD_LEN;
use vernic_wire::{Aeth, AtomicEth, Bth, Deth, Headers, Opcode, Psn, Qpn, Reth, Rkey, Syndrome};

/// An end of the flow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum At {
    A,
    B,
}
pub use At::{A, B};

impl At {
    fn address(self) -> [u8; 4] {
        if self == A { [10, 0, 0, 1] } else { [10, 0, 0, 2] }
    }
    pub fn qpn(self) -> Qpn {
        Qpn::new(if self == A { 0xA1 } else { 0xB2 })
    }
    fn other(self) -> Self {
        if self == A { B } else { A }
    }
}

/// A capture that is being made; a microsecond goes by with each packet.
#[derive(Default)]
pub struct Scene {
    pub frames: Vec<(u64, Direction, Vec<u8>)>,
    now_ns: u64,
    /// What the file says of the next packets.
    pub direction: Direction,
    /// Whether a switch marks the next packets.
    pub is_marked: bool,
    pub has_wrong_icrc: bool,
    pub pkey: Option<u16>,
}

impl Scene {
    pub fn wait_us(&mut self, us: u64) {
        self.now_ns += us * 1000;
    }

    /// A packet, with whatever extension headers its opcode has.
    pub fn packet(&mut self, from: At, opcode: Opcode, psn: u32, len: usize) {
        self.headers(from, Headers::new(Bth::new(opcode, from.other().qpn(), Psn::new(psn))), len);
    }

    /// A WRITE, READ or atomic.
    pub fn with_memory(&mut self, from: At, opcode: Opcode, psn: u32, length: u32, len: usize) {
        let mut headers = Headers::new(Bth::new(opcode, from.other().qpn(), Psn::new(psn)));
        headers.reth = Some(Reth { addr: 0x1000, rkey: Rkey(0x77), length });
        headers.atomic =
            Some(AtomicEth { addr: 0x1000, rkey: Rkey(0x77), swap_or_add: 1, compare: 0 });
        self.headers(from, headers, len);
    }

    pub fn answer(&mut self, from: At, syndrome: Syndrome, psn: u32) {
        let bth = Bth::new(Opcode::RC_ACK, from.other().qpn(), Psn::new(psn));
        let mut headers = Headers::new(bth);
        headers.aeth = Some(Aeth { syndrome, msn: 0 });
        self.headers(from, headers, 0);
    }
    pub fn ack(&mut self, from: At, psn: u32) {
        self.answer(from, Syndrome::ACK, psn);
    }

    pub fn cm(&mut self, from: At, message: impl Into<CmMessage>) {
        let mut payload = [0; MAD_LEN];
        message.into().emit(1, &mut payload);
        let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(0)));
        headers.deth = Some(Deth::new(GSI_QKEY, Qpn::GSI));
        self.emit(from, headers, &payload);
    }

    pub fn headers(&mut self, from: At, headers: Headers, len: usize) {
        self.emit(from, headers, &vec![0xDA; len]);
    }

    fn emit(&mut self, from: At, mut headers: Headers, payload: &[u8]) {
        headers.bth.pad = vernic_wire::packet::pad_of(payload.len());
        if let Some(pkey) = self.pkey {
            headers.bth.pkey = vernic_wire::Pkey(pkey);
        }
        // Others than those of the opcode are not emitted, and must not be there.
        let set = headers.bth.opcode.info().headers;
        use vernic_wire::HeaderSet;
        headers.reth =
            headers.reth.or(Some(Reth::default())).filter(|_| set.contains(HeaderSet::RETH));
        headers.aeth =
            headers.aeth.or(Some(Aeth::default())).filter(|_| set.contains(HeaderSet::AETH));
        headers.atomic = headers.atomic.filter(|_| set.contains(HeaderSet::ATOMIC));
        let mut packet = vec![0; Headers::MAX_LEN];
        let header_len = headers.emit(&mut packet);
        packet.truncate(header_len);
        packet.extend(payload);
        packet.resize(header_len + payload.len().next_multiple_of(4) + icrc::LEN, 0);
        let src = SocketAddr::from((from.address(), 50_000));
        let dst = SocketAddr::from((from.other().address(), 4791));
        let tos = if self.is_marked { 3 } else { 2 };
        vernic_wire::Frame::new(src, dst, tos, 0, &[]).flow().stamp(0, &mut packet);
        if self.has_wrong_icrc {
            packet[12] ^= 1;
        }
        let mut bytes = vec![0; 100 + packet.len()];
        let len = vernic_wire::Frame::new(src, dst, tos, 0, &packet).emit(&mut bytes);
        bytes.truncate(len);
        self.now_ns += 1000;
        self.frames.push((self.now_ns, self.direction, bytes));
    }

    /// A pcap file of the frames that `is_seen` chooses, as if captured so much later.
    pub fn pcap(&self, later_ns: u64, is_seen: impl Fn(usize) -> bool) -> Vec<u8> {
        let mut file = 0xA1B2_3C4D_u32.to_le_bytes().to_vec();
        file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0]);
        let seen = self.frames.iter().enumerate().filter(|(at, _)| is_seen(*at));
        for (_, (time_ns, _, bytes)) in seen {
            let (time_ns, len) = (time_ns + later_ns, bytes.len() as u32);
            for number in [0, time_ns as u32, len, len] {
                file.extend(number.to_le_bytes());
            }
            file.extend(bytes);
        }
        file
    }

    /// What is told of it.
    pub fn report(&self) -> Report {
        let mut explainer = Explainer::new();
        for (time_ns, direction, bytes) in &self.frames {
            let (time_ns, direction) = (*time_ns, *direction);
            explainer.take(0, &Frame { time_ns, direction, link: 1, bytes });
        }
        explainer.finish(Vec::new())
    }

    /// The only flow.
    pub fn flow(&self) -> Flow {
        let report = self.report();
        assert_eq!(report.flows.len(), 1, "{}", vernic_explain::text(&report));
        report.flows.into_iter().next().unwrap()
    }
}

/// The finding of a kind.
#[track_caller]
pub fn finding<'a>(flow: &'a Flow, kind: &str) -> &'a Finding {
    let found = flow.findings.iter().find(|finding| finding.kind == kind);
    found.unwrap_or_else(|| panic!("no {kind} among {:#?}", flow.findings))
}

/// The kinds of all findings.
pub fn kinds(flow: &Flow) -> Vec<&'static str> {
    flow.findings.iter().map(|finding| finding.kind).collect()
}
