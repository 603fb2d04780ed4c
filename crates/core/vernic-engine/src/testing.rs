//! Connected queue pairs of RC in one process, for the tests of several modules.

use std::sync::Arc;

use vernic_proto::{AttrMask, QpAttr, QpState, Remote, SendFlags, SendOp};
use vernic_wire::{AckTimeout, Gid, PortNum, Qkey, Rkey, Service};

use crate::{AddressVector, Config, Context, Cq, Payload, Pd, Qp, QpCap, QpInit, SendWr};

/// A device on `lo` that makes progress only in calls of the test.
pub(crate) fn without_background() -> Arc<Context> {
    let mut config = Config::default();
    config.set("device", "lo").unwrap();
    let context = Context::open(None, config).unwrap();
    context.stop_background();
    context
}

/// Two RC queue pairs that are connected to each other and complete in `cq`.
pub(crate) fn rc_pair(context: &Arc<Context>, cq: &Arc<Cq>, depth: u32) -> [Arc<Qp>; 2] {
    let pd = context.alloc_pd();
    let entry = context.gid_table()[0].clone();
    let create = || {
        let cap = QpCap { max_send_wr: depth, ..QpCap::default() };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init = QpInit {
            service: Service::Rc,
            send_cq,
            recv_cq,
            srq: None,
            cap,
            signal_all: true,
            congestion: None,
        };
        pd.create_qp(init).unwrap()
    };
    let pair = [create(), create()];
    connect(&pair[0], &pair[1], entry.gid, entry.index);
    connect(&pair[1], &pair[0], entry.gid, entry.index);
    pair
}

fn connect(qp: &Qp, peer: &Qp, gid: Gid, sgid_index: u8) {
    let av = AddressVector { dgid: gid, sgid_index, port: PortNum(1), ..Default::default() };
    let (state, access) = (QpState::Init, vernic_mem::Access::REMOTE_WRITE.bits());
    let attr = QpAttr { state, access, dest_qpn: peer.qpn(), av, ..QpAttr::default() };
    let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    qp.modify(&attr, init).unwrap();
    let rtr = AttrMask::STATE
        | AttrMask::AV
        | AttrMask::PATH_MTU
        | AttrMask::DEST_QPN
        | AttrMask::RQ_PSN
        | AttrMask::MAX_DEST_RD_ATOMIC
        | AttrMask::MIN_RNR_TIMER;
    qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, rtr).unwrap();
    let rts = AttrMask::STATE
        | AttrMask::TIMEOUT
        | AttrMask::RETRY_CNT
        | AttrMask::RNR_RETRY
        | AttrMask::SQ_PSN
        | AttrMask::MAX_RD_ATOMIC;
    let attr = QpAttr { state: QpState::Rts, timeout: AckTimeout::new(14), retry_cnt: 7, ..attr };
    qp.modify(&attr, rts).unwrap();
}

/// A UD queue pair in RTS with Q_Key 1, which completes in `cq`.
pub(crate) fn ud_qp(pd: &Arc<Pd>, cq: &Arc<Cq>, cap: QpCap) -> Arc<Qp> {
    let (send_cq, recv_cq) = (cq.clone(), cq.clone());
    let init = QpInit {
        service: Service::Ud,
        send_cq,
        recv_cq,
        srq: None,
        cap,
        signal_all: true,
        congestion: None,
    };
    let qp = pd.create_qp(init).unwrap();
    let attr = QpAttr { state: QpState::Init, qkey: Qkey(1), ..QpAttr::default() };
    let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
    qp.modify(&attr, init).unwrap();
    qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, AttrMask::STATE).unwrap();
    let rts = AttrMask::STATE | AttrMask::SQ_PSN;
    qp.modify(&QpAttr { state: QpState::Rts, ..attr }, rts).unwrap();
    qp
}

/// Posts `count` WRITEs of length 0, which need no memory, in one call.
pub(crate) fn post_writes(qp: &Qp, count: usize) {
    post(qp, SendOp::Write(Remote { addr: 0, rkey: Rkey(0) }), count);
}

/// Posts `count` SENDs of length 0 in one call.
pub(crate) fn post_sends(qp: &Qp, count: usize) {
    post(qp, SendOp::Send, count);
}

fn post(qp: &Qp, op: SendOp, count: usize) {
    let flags = SendFlags::empty();
    let wr = SendWr { wr_id: 0, op, flags, payload: Payload::Inline(&[]), dest: None, srqn: None };
    qp.post_send(&vec![wr; count]).unwrap();
}
