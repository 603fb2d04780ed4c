//! A connected queue pair for the fuzz targets, what it posts, and what strangers' packets for it
//! look like.

use vernic_proto::{
    AttrMask, Qp, QpAttr, QpInit, QpState, QpType, Remote, SendFlags, SendOp, SendWqe, Time, UdDest,
};
use vernic_wire::{AckTimeout, PortNum, Psn, Qkey, Qpn, Rkey, Srqn};

use crate::host::FuzzHost;

/// Returns a queue pair that may send and receive.
pub(crate) fn connect(qp_type: QpType, host: &mut FuzzHost) -> Qp {
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
pub(crate) fn send(byte: u8, qp_type: QpType) -> SendWqe {
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
    let dest = (qp_type == QpType::Ud).then_some(UdDest {
        ah: 0,
        qpn: Qpn::new(3),
        qkey: Qkey(7),
        rate_mbps: 0,
    });
    let length = if byte & 7 == 5 { 8 } else { u32::from(byte >> 3) * 150 };
    SendWqe { wr_id: 1, op, flags: SendFlags::SIGNALED, length, dest, srqn: Some(Srqn::new(1)) }
}

/// Brings a packet's destination near the queue pair's, and its sequence number to one of the 32
/// from `first` on, so that it gets past the door. `service` are the service bits of its opcode.
pub(crate) fn aim(bytes: &mut [u8], service: u8, first: Psn) {
    if bytes.len() >= 12 {
        bytes[0] = service | bytes[0] & 0x1F;
        bytes[1] &= 0xF0;
        bytes[2..4].fill(0xFF);
        let psn = first.add(u32::from(bytes[11] & 0x1F)).value();
        bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
    }
}
