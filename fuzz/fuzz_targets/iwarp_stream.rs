//! An iWARP queue pair against whatever a peer sends, with sends of its own in flight. Nothing may
//! panic or hang, and what it sends must be a stream of FPDUs, nothing behind a Terminate.
//!
//! Input: one byte chooses CRC, markers, placement and role; then steps, each an action byte and
//! its data. A segment step is a length byte and that many bytes, put into an FPDU with a right CRC
//! (and, if there are markers, without them); a stream step is the same without a frame.
#![no_main]

mod host;

use host::FuzzHost;
use libfuzzer_sys::fuzz_target;
use vernic_proto::iwarp::{
    Agreed, Extensions, MAX_FPDU, Qp, Role, RtrSet, RxNext, StreamConfig, StreamEnd,
};
use vernic_proto::{
    AttrMask, QpAttr, QpInit, QpState, QpType, Remote, SendFlags, SendOp, SendWqe, Time,
};
use vernic_wire::iwarp::{Crc32c, FpduHeader, RdmapOpcode, Segment, pad_of};
use vernic_wire::{Qpn, Rkey};

fn connect(mode: u8, host: &mut FuzzHost) -> Qp {
    let has = |bit: u8| mode & bit != 0;
    let qpn = Qpn::new(0x11);
    let (qp_type, max_send_wr) = (QpType::Rc, 16);
    let mut qp = Qp::new(QpInit { qpn, qp_type, max_send_wr, max_window: 1, shared_rq: has(64) });
    let attr = QpAttr { state: QpState::Init, access: 0xF, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE | AttrMask::ACCESS_FLAGS, Time(0), host)
        .expect("the table's own way");
    let agreed = Agreed {
        role: if has(1) { Role::Initiator } else { Role::Responder },
        revision: 2,
        crc: has(2),
        tx_markers: has(4),
        rx_markers: has(8),
        ird: 4,
        ord: 4,
        peer_depths: None,
        rtr: if has(16) { RtrSet::SEND } else { RtrSet::empty() },
    };
    let config = StreamConfig {
        emss: 600,
        large_fpdus: has(32),
        place_before_crc: has(32),
        peer_has: Extensions::all(),
        recv_wait_ns: if has(128) { 1 << 20 } else { 0 },
        ..StreamConfig::default()
    };
    qp.start(&agreed, config).expect("a queue pair in Init");
    qp
}

/// A send whose kind and length the byte chooses.
fn send(byte: u8) -> SendWqe {
    let remote = Remote { addr: 0x1000, rkey: Rkey(2) };
    let op = match byte & 7 {
        0 => SendOp::Send,
        1 => SendOp::SendInv(Rkey(4)),
        2 => SendOp::Write(remote),
        3 => SendOp::WriteImm(remote, 9),
        4 => SendOp::Read(remote),
        5 => SendOp::FetchAdd { remote, add: 1 },
        6 => SendOp::ReadInv(remote, Rkey(4)),
        _ => SendOp::LocalInv(Rkey(4)),
    };
    let length = if byte & 7 == 5 { 8 } else { u32::from(byte >> 3) * 150 };
    SendWqe { wr_id: 1, op, flags: SendFlags::SIGNALED, length, dest: None, srqn: None }
}

/// The FPDU around a segment.
fn framed(segment: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; FpduHeader::LEN];
    FpduHeader { ulpdu_len: segment.len() as u16 }.emit(&mut bytes);
    bytes.extend_from_slice(segment);
    bytes.resize(bytes.len() + pad_of(segment.len()), 0);
    let crc = Crc32c::of(&bytes);
    bytes.extend(crc);
    bytes
}

/// Takes what the queue pair has to send.
fn drain(qp: &mut Qp, now: Time, host: &mut FuzzHost, sent: &mut Vec<u8>) {
    let mut buf = vec![0; MAX_FPDU];
    // Bounded by the queues and the agreed depths.
    for _ in 0..4096 {
        match qp.poll_transmit(now, host, &mut buf) {
            Some(len) => sent.extend_from_slice(&buf[..len]),
            None => {
                let total = qp.committed();
                qp.handle_sent(now, total, host);
                return;
            }
        }
    }
    panic!("a queue pair never stops sending");
}

/// What was sent, if it has no markers in it: FPDUs, and nothing behind the last word.
fn check(mut sent: &[u8]) {
    while !sent.is_empty() {
        let fpdu = FpduHeader::parse(sent).expect("a length");
        let segment = &sent[FpduHeader::LEN..][..usize::from(fpdu.ulpdu_len)];
        let segment = Segment::parse(segment).expect("what is sent parses");
        sent = &sent[fpdu.fpdu_len()..];
        let is_last_word = segment.header.control().opcode == RdmapOpcode::TERMINATE;
        assert!(!is_last_word || sent.is_empty(), "something follows the last word");
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&mode, mut data)) = data.split_first() else { return };
    let mut host = FuzzHost::new();
    let mut qp = connect(mode, &mut host);
    let (mut now, mut posted, mut inbox, mut sent) = (Time(0), 0, Vec::new(), Vec::new());
    while let [action, argument, rest @ ..] = data {
        data = rest;
        match action & 7 {
            0..=3 => {
                let (bytes, rest) = data.split_at(usize::from(*argument).min(data.len()));
                data = rest;
                if action & 3 == 3 {
                    inbox.extend_from_slice(bytes);
                } else {
                    inbox.extend(framed(bytes));
                }
                if let RxNext::Place(place) = qp.rx_next()
                    && !inbox.is_empty()
                {
                    let piece: Vec<u8> =
                        inbox.drain(..inbox.len().min(place.len as usize)).collect();
                    let crc = place.crc.map(|crc| crc.update(&piece));
                    qp.handle_placed(now, piece.len() as u32, crc);
                }
                let consumed = qp.handle_bytes(now, &inbox, &mut host);
                inbox.drain(..consumed);
            }
            4 | 5 => {
                posted += u32::from(qp.post_send(send(*argument)).is_ok());
                host.receives += u32::from(*argument) & 3;
            }
            6 => {
                now = now + (u64::from(*argument) << 14);
                qp.handle_timeout(now, &mut host);
            }
            _ if *argument < 4 => qp.close(now, &mut host),
            _ if *argument < 8 => {
                qp.handle_end(now, StreamEnd::Closed, inbox.len(), &mut host);
            }
            _ => {}
        }
        drain(&mut qp, now, &mut host, &mut sent);
    }
    let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE, now, &mut host).expect("every state leads to Error");
    drain(&mut qp, now, &mut host, &mut sent);
    assert_eq!(host.sends_completed, posted, "one completion for every send");
    if mode & 4 == 0 {
        check(&sent);
    }
    qp.handle_end(now, StreamEnd::Closed, 0, &mut host);
    while let Some(deadline) = qp.next_deadline() {
        qp.handle_timeout(deadline, &mut host);
    }
    assert_eq!(qp.rx_next(), RxNext::Nothing);
});
