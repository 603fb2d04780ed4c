//! tshark as the judge of the CM messages that we emit: one of every kind, over IPv4 and IPv6;
//! nothing may be malformed, and fields must read as they were written.
//!
//! tshark 4.0 knows the fields of REQ, REP, RTU, REJ, DREQ and DREP, and shows the others as bytes.
//! Needs `tshark`, as `tshark.rs` does.

mod common;

use std::net::SocketAddr;

use vernic_wire::Frame;
use vernic_wire::cm::{
    AckedMessage, Apr, AprStatus, CmAttribute, CmMessage, CmaHeader, CommId, Drep, Dreq, GSI_QKEY,
    Info, Lap, Mra, PortSpace, PrivateData, Rej, RejReason, RejectedMessage, Rep, Req, ReqPath,
    Rtu, SidrRep, SidrReq, SidrStatus,
};
use vernic_wire::mad::MAD_LEN;
use vernic_wire::net::ROCE_V2_PORT;
use vernic_wire::{AckTimeout, Bth, Deth, Gid, Headers, Mtu, Opcode, Pkey, Psn, Qkey, Qpn, icrc};

const LOCAL: CommId = CommId(0x1122_3344);
const REMOTE: CommId = CommId(0x5566_7788);

fn req(src: SocketAddr, dst: SocketAddr) -> Req {
    let mut cma = [0; CmaHeader::LEN];
    CmaHeader::new(0xABCD, src.ip(), dst.ip()).emit(&mut cma);
    Req {
        local_comm_id: LOCAL,
        service_id: PortSpace::TCP.service_id(7174),
        local_ca_guid: 0x0123_4567_89AB_CDEF,
        local_qkey: Qkey(0x9988_7766),
        local_qpn: Qpn::new(0x12_3456),
        responder_resources: 16,
        initiator_depth: 15,
        remote_response_timeout: 20,
        end_to_end_flow_control: true,
        starting_psn: Psn::new(0xFE_DCBA),
        local_response_timeout: 19,
        retry_count: 7,
        pkey: Pkey::DEFAULT,
        path_mtu: Mtu::B4096 as u8,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        srq: true,
        primary: ReqPath {
            local_lid: 0xFFFF,
            remote_lid: 0xFFFE,
            local_gid: Gid::from_ip(src.ip()),
            remote_gid: Gid::from_ip(dst.ip()),
            traffic_class: 0x68,
            hop_limit: 64,
            sl: 3,
            local_ack_timeout: AckTimeout::new(18),
            ..ReqPath::default()
        },
        alternate: ReqPath {
            local_lid: 0x1234,
            remote_lid: 0x5678,
            local_gid: Gid::from_ip(dst.ip()),
            remote_gid: Gid::from_ip(src.ip()),
            traffic_class: 0x20,
            hop_limit: 63,
            sl: 5,
            subnet_local: true,
            local_ack_timeout: AckTimeout::new(17),
            ..ReqPath::default()
        },
        private_data: PrivateData::try_from(&cma[..]).unwrap(),
        ..Req::default()
    }
}

fn rep() -> Rep {
    Rep {
        local_comm_id: LOCAL,
        remote_comm_id: REMOTE,
        local_qkey: Qkey(0x9988_7766),
        local_qpn: Qpn::new(0x12_3456),
        starting_psn: Psn::new(0xFE_DCBA),
        responder_resources: 14,
        initiator_depth: 13,
        target_ack_delay: 15,
        end_to_end_flow_control: true,
        rnr_retry_count: 5,
        srq: true,
        local_ca_guid: 0x0123_4567_89AB_CDEF,
        ..Rep::default()
    }
}

fn messages(src: SocketAddr, dst: SocketAddr) -> Vec<CmMessage> {
    let (local_comm_id, remote_comm_id) = (LOCAL, REMOTE);
    let (service_id, qpn) = (PortSpace::UDP.service_id(9), Qpn::new(0x12_3456));
    let rej = Rej {
        local_comm_id,
        remote_comm_id,
        message: RejectedMessage::REP,
        reason: RejReason::STALE_CONNECTION,
        info: Info::try_from(&[1, 2, 3, 4][..]).unwrap(),
        ..Rej::default()
    };
    let (message, service_timeout) = (AckedMessage::REP, 20);
    let mra = Mra { local_comm_id, remote_comm_id, message, service_timeout, ..Mra::default() };
    let dreq = Dreq { local_comm_id, remote_comm_id, remote_qpn: qpn, ..Dreq::default() };
    let sidr_req = SidrReq { request_id: LOCAL, service_id, ..SidrReq::default() };
    let (status, qkey) = (SidrStatus::SUCCESS, Qkey(7));
    let sidr_rep =
        SidrRep { request_id: LOCAL, status, qpn, service_id, qkey, ..SidrRep::default() };
    let status = AprStatus::UNSUPPORTED;
    vec![
        req(src, dst).into(),
        mra.into(),
        rej.into(),
        rep().into(),
        Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }.into(),
        dreq.into(),
        Drep { local_comm_id, remote_comm_id, ..Drep::default() }.into(),
        sidr_req.into(),
        sidr_rep.into(),
        Lap { local_comm_id, remote_comm_id, ..Lap::default() }.into(),
        Apr { local_comm_id, remote_comm_id, status, ..Apr::default() }.into(),
    ]
}

fn frame(src: SocketAddr, dst: SocketAddr, message: &CmMessage) -> Vec<u8> {
    let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(0)));
    headers.deth = Some(Deth::new(GSI_QKEY, Qpn::GSI));
    let mut payload = vec![0; headers.len()];
    headers.emit(&mut payload);
    let mut mad = [0; MAD_LEN];
    message.emit(0x0102_0304_0506_0708, &mut mad);
    payload.extend_from_slice(&mad);
    payload.extend_from_slice(&[0; icrc::LEN]);
    Frame::new(src, dst, 0, 0, &[]).flow().stamp(0, &mut payload);
    let frame = Frame::new(src, dst, 0, 0, &payload);
    let mut bytes = vec![0; frame.header_len() + payload.len()];
    frame.emit(&mut bytes);
    bytes
}

/// Fields that tshark knows, by message.
fn fields(attribute: CmAttribute) -> &'static [(&'static str, u64)] {
    const IDS: [u64; 2] = [LOCAL.0 as u64, REMOTE.0 as u64];
    match attribute {
        CmAttribute::REQ => &[
            ("infiniband.cm.req", IDS[0]),
            ("infiniband.cm.req.serviceid.protocol", 6),
            ("infiniband.cm.req.serviceid.dport", 7174),
            ("infiniband.cm.req.localcaguid", 0x0123_4567_89AB_CDEF),
            ("infiniband.cm.req.localqkey", 0x9988_7766),
            ("infiniband.cm.req.localqpn", 0x12_3456),
            ("infiniband.cm.req.responderres", 16),
            ("infiniband.cm.req.initdepth", 15),
            ("infiniband.cm.req.remoteresptout", 20),
            ("infiniband.cm.req.transpsvctype", 0),
            ("infiniband.cm.req.e2eflowctrl", 1),
            ("infiniband.cm.req.startpsn", 0xFE_DCBA),
            ("infiniband.cm.req.localresptout", 19),
            ("infiniband.cm.req.retrcount", 7),
            ("infiniband.cm.req.pkey", 0xFFFF),
            ("infiniband.cm.req.pppmtu", 5),
            ("infiniband.cm.req.rnrretrcount", 6),
            ("infiniband.cm.req.maxcmretr", 15),
            ("infiniband.cm.req.srq", 1),
            ("infiniband.cm.req.prim_locallid", 0xFFFF),
            ("infiniband.cm.req.prim_remotelid", 0xFFFE),
            ("infiniband.cm.req.prim_tfcclass", 0x68),
            ("infiniband.cm.req.prim_hoplim", 64),
            ("infiniband.cm.req.prim_sl", 3),
            ("infiniband.cm.req.prim_localacktout", 18),
            ("infiniband.cm.req.alt_locallid", 0x1234),
            ("infiniband.cm.req.alt_remotelid", 0x5678),
            ("infiniband.cm.req.alt_tfcclass", 0x20),
            ("infiniband.cm.req.alt_hoplim", 63),
            ("infiniband.cm.req.alt_sl", 5),
            ("infiniband.cm.req.alt_subnetlocal", 1),
            ("infiniband.cm.req.alt_localacktout", 17),
            ("infiniband.cm.req.ip_cm.majv", 0),
            ("infiniband.cm.req.ip_cm.sport", 0xABCD),
        ],
        CmAttribute::REP => &[
            ("infiniband.cm.rep", IDS[0]),
            ("infiniband.cm.rep.remotecommid", IDS[1]),
            ("infiniband.cm.rep.localqkey", 0x9988_7766),
            ("infiniband.cm.rep.localqpn", 0x12_3456),
            ("infiniband.cm.rep.startpsn", 0xFE_DCBA),
            ("infiniband.cm.rep.respres", 14),
            ("infiniband.cm.rep.initdepth", 13),
            ("infiniband.cm.rep.tgtackdelay", 15),
            ("infiniband.cm.rep.failoveracc", 0),
            ("infiniband.cm.rep.e2eflowctrl", 1),
            ("infiniband.cm.rep.rnrretrcount", 5),
            ("infiniband.cm.rep.srq", 1),
            ("infiniband.cm.rep.localcaguid", 0x0123_4567_89AB_CDEF),
        ],
        CmAttribute::RTU => {
            &[("infiniband.cm.rtu.localcommid", IDS[0]), ("infiniband.cm.rtu.remotecommid", IDS[1])]
        }
        CmAttribute::REJ => &[
            ("infiniband.cm.rej.localcommid", IDS[0]),
            ("infiniband.cm.rej.remotecommid", IDS[1]),
            ("infiniband.cm.rej.msgrej", 1),
            ("infiniband.cm.rej.rejinfolen", 4),
            ("infiniband.cm.rej.reason", 10),
        ],
        CmAttribute::DREQ => &[
            ("infiniband.cm.dreq.localcommid", IDS[0]),
            ("infiniband.cm.dreq.remotecommid", IDS[1]),
            ("infiniband.cm.req.remoteqpneecn", 0x12_3456),
        ],
        CmAttribute::DREP => &[
            ("infiniband.cm.drsp.localcommid", IDS[0]),
            ("infiniband.cm.drsp.remotecommid", IDS[1]),
        ],
        _ => &[],
    }
}

fn judge(file: &str, src: &str, dst: &str) {
    let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
    let messages = messages(src, dst);
    assert_eq!(messages.len(), CmAttribute::ALL.len());
    let frames: Vec<_> = messages.iter().map(|message| frame(src, dst, message)).collect();
    let known: Vec<_> = CmAttribute::ALL.iter().flat_map(|attribute| fields(*attribute)).collect();
    let mut names = vec![
        "_ws.malformed",
        "_ws.expert.message",
        "infiniband.mad.attributeid",
        "infiniband.mad.transactionid",
    ];
    names.extend(known.iter().map(|(name, _)| *name));
    let Some(rows) = common::dissect(file, &frames, &[], &names) else { return };
    for (message, row) in messages.iter().zip(&rows) {
        let attribute = message.attribute();
        assert_eq!((&row[0][..], &row[1][..]), ("", ""), "{attribute}: malformed or suspicious");
        assert_eq!(common::number(&row[2]), Some(attribute.0.into()), "{attribute}");
        assert_eq!(common::number(&row[3]), Some(0x0102_0304_0506_0708), "{attribute}");
        for ((name, _), text) in known.iter().zip(&row[4..]) {
            let expected = fields(attribute).iter().find(|(field, _)| field == name);
            let expected = expected.map(|(_, value)| *value);
            assert_eq!(common::number(text), expected, "{attribute}: {name} reads {text}");
        }
    }
}

#[test]
fn every_message_over_ipv4_reads_as_written() {
    judge("cm-ipv4.pcap", "10.0.0.1:49153", &format!("10.0.0.2:{ROCE_V2_PORT}"));
}

#[test]
fn every_message_over_ipv6_reads_as_written() {
    judge("cm-ipv6.pcap", "[fe80::1]:49153", &format!("[fe80::2]:{ROCE_V2_PORT}"));
}
