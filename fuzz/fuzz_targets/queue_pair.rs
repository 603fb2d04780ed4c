//! A queue pair of each type against whatever bytes a stranger sends, with sends of its own in
//! flight. Nothing may panic, and every packet that it emits must parse.
//!
//! Input: one byte chooses the type; then steps, each an action byte and its data. A packet step
//! is a length byte (in units of 4) and that many bytes, with the opcode's service bits and the
//! sequence number brought near what the queue pair expects, so that the input gets past the door.
#![no_main]

mod host;

use host::FuzzHost;
use libfuzzer_sys::fuzz_target;
use vernic_proto::{
    AttrMask, Qp, QpAttr, QpInit, QpState, QpType, Remote, RxMeta, SendFlags, SendOp, SendWqe,
    Time, UdDest,
};
use vernic_wire::{AckTimeout, Packet, PortNum, Qkey, Qpn, Rkey, Srqn};

fn connect(qp_type: QpType, host: &mut FuzzHost) -> Qp {
    use AttrMask as M;
    let qpn = Qpn::new(0x11);
    let mut qp =
        Qp::new(QpInit { qpn, qp_type, max_send_wr: 16, max_window: 64, shared_rq: false });
    let mut attr = QpAttr {
        access: 0xF,
        dest_qpn: Qpn::new(0x22),
        qkey: Qkey(7),
        timeout: AckTimeout::new(8),
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        ..QpAttr::default()
    };
    attr.av.port = PortNum(1);
    let (init, rtr, rts) = match qp_type {
        QpType::Ud => (M::PKEY_INDEX | M::PORT | M::QKEY, M::empty(), M::SQ_PSN),
        QpType::Uc => (
            M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN,
            M::SQ_PSN,
        ),
        QpType::XrcIni => (
            M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN,
            M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_RD_ATOMIC,
        ),
        QpType::Rc | QpType::XrcTgt => (
            M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            M::AV
                | M::PATH_MTU
                | M::DEST_QPN
                | M::RQ_PSN
                | M::MAX_DEST_RD_ATOMIC
                | M::MIN_RNR_TIMER,
            match qp_type {
                QpType::XrcTgt => M::SQ_PSN | M::TIMEOUT,
                _ => M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_RD_ATOMIC,
            },
        ),
    };
    for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
        attr.state = state;
        qp.modify(&attr, mask | M::STATE, Time(0), host).expect("the table's own path to RTS");
    }
    qp
}

/// A send whose kind and length the byte chooses.
fn send(byte: u8, qp_type: QpType) -> SendWqe {
    let remote = Remote { addr: 0x1000, rkey: Rkey(2) };
    let op = match byte & 7 {
        0 => SendOp::Send,
        1 => SendOp::SendImm(9),
        2 => SendOp::Write(remote),
        3 => SendOp::WriteImm(remote, 9),
        4 => SendOp::Read(remote),
        5 => SendOp::FetchAdd { remote, add: 1 },
        6 => SendOp::SendInv(Rkey(4)),
        _ => SendOp::Flush { remote, placement: 1, selectivity: 0 },
    };
    let dest = (qp_type == QpType::Ud).then_some(UdDest { ah: 0, qpn: Qpn::new(3), qkey: Qkey(7) });
    let length = if byte & 7 == 5 { 8 } else { u32::from(byte >> 3) * 150 };
    SendWqe { wr_id: 1, op, flags: SendFlags::SIGNALED, length, dest, srqn: Some(Srqn::new(1)) }
}

fn drain(qp: &mut Qp, now: Time, host: &mut FuzzHost) {
    let mut buf = [0; 4500];
    // Bounded by the window and by what one packet can make due.
    for _ in 0..4096 {
        let Some(sent) =
            qp.poll_request(now, host, &mut buf).or_else(|| qp.poll_response(now, host, &mut buf))
        else {
            return;
        };
        Packet::parse(&buf[..sent.len]).expect("what is emitted parses");
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, mut data)) = data.split_first() else { return };
    let (qp_type, bits) = [
        (QpType::Rc, 0x00),
        (QpType::Uc, 0x20),
        (QpType::Ud, 0x60),
        (QpType::XrcIni, 0xA0),
        (QpType::XrcTgt, 0xA0),
    ][usize::from(first) % 5];
    let mut host = FuzzHost { receives: 0, sends_completed: 0 };
    let mut qp = connect(qp_type, &mut host);
    let mut now = Time(0);
    let mut posted = 0;
    while let [action, argument, rest @ ..] = data {
        data = rest;
        match action & 3 {
            0 | 1 => {
                let len = (usize::from(*argument) * 4).min(data.len());
                let (bytes, rest) = data.split_at(len);
                data = rest;
                let mut bytes = bytes.to_vec();
                if bytes.len() >= 12 {
                    bytes[0] = bits | bytes[0] & 0x1F;
                    bytes[1] &= 0xF0;
                    bytes[2..4].fill(0xFF);
                    bytes[9..11].fill(0);
                    bytes[11] &= 0x1F;
                }
                if let Ok(packet) = Packet::parse(&bytes) {
                    let meta = RxMeta { grh: None, ecn: 0, sl: 0 };
                    qp.handle_packet(now, &packet, &meta, &mut host);
                }
            }
            2 => {
                posted += u32::from(qp.post_send(send(*argument, qp_type)).is_ok());
                host.receives += u32::from(*argument) & 3;
            }
            _ => {
                now = now + (u64::from(*argument) << 14);
                qp.handle_timeout(now, &mut host);
            }
        }
        drain(&mut qp, now, &mut host);
    }
    let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE, now, &mut host).expect("every state leads to Error");
    assert_eq!(host.sends_completed, posted, "one completion for every send");
});
