//! The responder alone: crafted requests in, a trace of responses out. Path MTU 256, first PSN 100,
//! at most 2 READs and atomics.

mod answers;
mod duplicates;
mod kept;
mod messages;
mod parts;
mod sequence;
mod states;
mod xrc;

use vernic_wire::{
    Aeth, AethCode, AtomicEth, Bth, Feth, Headers, Ieth, ImmDt, Mtu, NakCode, Opcode, Pkey,
    Placement, Qpn, Reth, Rkey, RnrTimer, Selectivity, Service, Syndrome,
};

use std::sync::Arc;

use super::*;
use crate::completion::WcOpcode;
use crate::error::{AccessCheck, WcStatus};
use crate::host::{QpCounters, RemoteAccess};
use crate::kept::KeepBudget;
use crate::test_host::{BASE, RKEY, TestHost, packet_bytes};
use crate::time::Time;

const MTU: usize = 256;
const ALL_RIGHTS: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 8 | 1 << 9;

struct Rig {
    responder: Responder,
    attr: QpAttr,
    service: Service,
    counters: QpCounters,
    host: TestHost,
}

/// A request packet to be filled in.
#[derive(Clone)]
struct Request {
    headers: Headers,
    payload: Vec<u8>,
}

fn request(opcode: Opcode, psn: u32) -> Request {
    let mut headers = Headers::new(Bth::new(opcode, Qpn::new(0x11), Psn::new(psn)));
    headers.bth.ack_req = opcode.info().position.ends();
    Request { headers, payload: Vec::new() }
}

impl Request {
    fn payload(mut self, len: usize) -> Self {
        self.payload = (0..len).map(|i| i as u8 ^ 0x5A).collect();
        self
    }
    fn reth(mut self, offset: u64, length: u32) -> Self {
        self.headers.reth = Some(Reth { addr: BASE + offset, rkey: RKEY, length });
        self
    }
    fn rkey(mut self, rkey: u32) -> Self {
        if let Some(reth) = &mut self.headers.reth {
            reth.rkey = Rkey(rkey);
        }
        self
    }
    fn imm(mut self, imm: u32) -> Self {
        self.headers.imm = Some(ImmDt(imm));
        self
    }
    fn without_ack_req(mut self) -> Self {
        self.headers.bth.ack_req = false;
        self
    }
    fn solicited(mut self) -> Self {
        self.headers.bth.solicited = true;
        self
    }
}

fn send_only(psn: u32, len: usize) -> Request {
    request(Opcode::RC_SEND_ONLY, psn).payload(len)
}
fn write_only(psn: u32, len: usize) -> Request {
    request(Opcode::RC_WRITE_ONLY, psn).reth(0, len as u32).payload(len)
}
fn read(psn: u32, offset: u64, len: u32) -> Request {
    request(Opcode::RC_READ_REQUEST, psn).reth(offset, len)
}
fn fetch_add(psn: u32, offset: u64, add: u64) -> Request {
    let mut r = request(Opcode::RC_FETCH_ADD, psn);
    r.headers.atomic =
        Some(AtomicEth { addr: BASE + offset, rkey: RKEY, swap_or_add: add, compare: 0 });
    r
}
fn flush(psn: u32, placement: u8, selectivity: Selectivity) -> Request {
    let mut r = request(Opcode::RC_FLUSH, psn).reth(64, 128);
    r.headers.feth = Some(Feth::new(selectivity, Placement::from_bits_retain(placement)));
    r
}

/// The context of a call.
fn context<'a>(service: Service, attr: &'a QpAttr, counters: &'a mut QpCounters) -> Cx<'a> {
    let (qpn, pkey) = (Qpn::new(0x11), Pkey::DEFAULT);
    Cx { qpn, service, attr, pkey, ack_floor: 0, now: Time(0), counters }
}

impl Rig {
    fn new() -> Self {
        Self::from_psn(100)
    }
    fn from_psn(psn: u32) -> Self {
        let attr = QpAttr {
            state: QpState::Rts,
            path_mtu: Mtu::B256,
            access: ALL_RIGHTS,
            dest_qpn: Qpn::new(0x22),
            rq_psn: Psn::new(psn),
            max_dest_rd_atomic: 2,
            min_rnr_timer: RnrTimer::new(12),
            ..QpAttr::default()
        };
        let mut responder = Responder::new();
        responder.reset(&attr, false);
        Self {
            responder,
            attr,
            service: Service::Rc,
            counters: QpCounters::default(),
            host: TestHost::new(),
        }
    }

    fn take(&mut self, request: Request) -> Disposition {
        let bytes = packet_bytes(request.headers, &request.payload);
        let packet = Packet::parse(&bytes).unwrap();
        let cx = &mut context(self.service, &self.attr, &mut self.counters);
        self.responder.handle_request(cx, &packet, true, &mut self.host)
    }

    /// Keeps so many packets ahead of a gap, of so many bytes together.
    fn keep(&mut self, packets: u32, bytes: usize) -> Arc<KeepBudget> {
        let budget = Arc::new(KeepBudget::new(bytes));
        self.responder.set_keeping(Some(Keeping { packets, budget: Arc::clone(&budget) }));
        budget
    }

    /// Handles what was kept and is next.
    fn take_kept(&mut self) -> Vec<Disposition> {
        let mut dispositions = Vec::new();
        while let Some(kept) = self.responder.take_kept() {
            let packet = Packet::parse(kept.bytes()).unwrap();
            let cx = &mut context(self.service, &self.attr, &mut self.counters);
            dispositions.push(self.responder.handle_kept(cx, &packet, &mut self.host));
        }
        dispositions
    }

    fn poll(&mut self) -> Option<Vec<u8>> {
        let mut buf = vec![0xEE; Headers::MAX_LEN + MTU];
        let cx = &mut context(self.service, &self.attr, &mut self.counters);
        let wanted = self.responder.wants_transmit();
        let len = self.responder.poll_response(cx, &mut self.host, &mut buf);
        assert_eq!(wanted, len.is_some());
        buf.truncate(len?);
        Some(buf)
    }

    /// Everything that is due, one line each.
    fn responses(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(bytes) = self.poll() {
            lines.push(line(&bytes));
        }
        lines
    }

    fn refused(&mut self, request: Request, class: ErrorClass) {
        assert_eq!(self.take(request), Disposition::Nak(class));
    }

    /// The last failure's class and memory check.
    fn failure(&self) -> (ErrorClass, Option<AccessCheck>) {
        assert_eq!(self.host.failures.len(), 1);
        match self.host.failures[0].cause {
            Cause::Responder { class, fault } => (class, fault.map(|f| f.check)),
            other => panic!("{other:?}"),
        }
    }
}

fn line(bytes: &[u8]) -> String {
    let packet = Packet::parse(bytes).unwrap();
    assert_eq!(packet.dest_qpn(), Qpn::new(0x22));
    let mut line = format!("{} {}", packet.opcode(), packet.psn());
    if let Some(aeth) = packet.aeth() {
        line += &format!(" {aeth}");
    }
    if let Some(ack) = packet.atomic_ack() {
        line += &format!(" {ack}");
    }
    if !packet.payload().is_empty() {
        line += &format!(" {}B", packet.payload().len());
    }
    line
}
