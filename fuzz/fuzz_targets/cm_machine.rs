//! A connection manager between an owner who gives any command and peers who send any message:
//! nothing panics, tables stay bounded, and when everything is let go of nothing is left.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use vernic_proto::cm::{
    AcceptParams, AlternatePath, Cm, CmConfig, CmPath, ConnId, ConnectParams, Heard, LapParams,
    SidrParams, SidrReply,
};
use vernic_proto::{QpType, Time};
use vernic_wire::cm::{
    AprStatus, CmAttribute, CmMessage, CommId, FailoverAccepted, PortSpace, RejReason, Req,
    ServiceId, SidrStatus,
};
use vernic_wire::mad::MAD_LEN;
use vernic_wire::{AckTimeout, Gid, Mtu, Pkey, Psn, Qkey, Qpn};

const SERVICE: ServiceId = PortSpace::TCP.service_id(7);
/// Ids of ours have this above 8 bits of which nobody can tell the order.
const ID_BASE: u32 = 0x100;
const LIMIT: usize = 8;

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }
}

fn gid(last: u8) -> Gid {
    Gid::from_ip([10, 0, 0, last].into())
}

fn connect<'a>(qpn: u8) -> ConnectParams<'a> {
    ConnectParams {
        path: CmPath::new(gid(1), gid(2)),
        alternate: (qpn & 16 != 0).then(other_path),
        service: SERVICE,
        qp_type: if qpn & 8 == 0 { QpType::Rc } else { QpType::XrcIni },
        local_qpn: Qpn::new(u32::from(qpn & 7)),
        starting_psn: Psn::new(1),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        path_mtu: Mtu::B1024,
        pkey: Pkey::DEFAULT,
        local_ack_timeout: AckTimeout::new(qpn),
        local_ca_guid: 1,
        private_data: b"",
        response_timeout: None,
        max_retries: Some(qpn >> 5),
    }
}

fn other_path() -> AlternatePath {
    let path = CmPath::new(gid(1), gid(3));
    AlternatePath { path, local_ack_timeout: AckTimeout::new(12) }
}

fn accept<'a>(qpn: u8) -> AcceptParams<'a> {
    AcceptParams {
        local_qpn: Qpn::new(u32::from(qpn & 7)),
        starting_psn: Psn::new(1),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: true,
        rnr_retry_count: 7,
        srq: false,
        target_ack_delay: qpn >> 3,
        failover: FailoverAccepted(qpn & 3),
        local_ca_guid: 1,
        private_data: b"",
    }
}

/// The id that a byte means: of a connection that there was, or any.
fn id(known: &Known, byte: u8) -> CommId {
    let nth = usize::from(byte) % known.len().max(1);
    let there = known.keys().nth(nth).filter(|_| byte < 0xF0);
    there.copied().unwrap_or(CommId(ID_BASE + u32::from(byte)))
}

/// A message of the input's making: ids that may be right, then a few bytes anywhere.
fn message(known: &Known, input: &mut Input<'_>) -> Option<[u8; MAD_LEN]> {
    let (which, local, remote) = (input.byte()?, input.byte()?, input.byte()?);
    let mut req = Req { service_id: SERVICE, path_mtu: 3, max_cm_retries: 15, ..Req::default() };
    (req.primary.local_gid, req.primary.remote_gid) = (gid(2), gid(1));
    let mut mad = [0; MAD_LEN];
    CmMessage::from(req).emit(1, &mut mad);
    let attribute = CmAttribute::ALL[usize::from(which) % CmAttribute::ALL.len()];
    mad[16..18].copy_from_slice(&attribute.0.to_be_bytes());
    if attribute != CmAttribute::REQ {
        mad[24..].fill(0);
    }
    // The peer's ids are of its own making.
    mad[24..28].copy_from_slice(&(ID_BASE + u32::from(local)).to_be_bytes());
    mad[28..32].copy_from_slice(&id(known, remote).0.to_be_bytes());
    for _ in 0..which >> 5 {
        let (at, value) = (input.byte()?, input.byte()?);
        mad[usize::from(at)] = value;
    }
    Some(mad)
}

/// What the owner was told of: the latest connection of each id.
type Known = BTreeMap<CommId, ConnId>;

/// Every other queue pair has just heard its peer.
fn heard(qpn: Qpn, now: Time) -> Option<Heard> {
    (qpn.value() & 1 == 0).then_some(Heard { at: now, patience: 1 << 30 })
}

fn step(cm: &mut Cm, known: &mut Known, now: &mut Time, input: &mut Input<'_>) -> Option<()> {
    let (what, arg) = (input.byte()?, input.byte()?);
    let id = id(known, arg);
    // Where there is none, one that never was.
    let conn = known.get(&id).copied().unwrap_or(ConnId(id, u32::from(arg)));
    match what % 16 {
        0 => known.extend(cm.connect(*now, &connect(arg)).map(|conn| (conn.0, conn))),
        1 => drop(cm.accept(*now, conn, &accept(arg))),
        2 => drop(cm.ready_to_use(conn, b"")),
        3 => drop(cm.reject(*now, conn, RejReason::CONSUMER, b"", b"")),
        4 => drop(cm.disconnect(*now, conn, b"")),
        5 => drop(cm.notify_established(conn)),
        6 => cm.destroy(*now, conn),
        7 => {
            let (path, service) = (CmPath::new(gid(1), gid(2)), SERVICE);
            let (response_timeout, max_retries) = (Some(arg >> 3), None);
            let pkey = Pkey::DEFAULT;
            let private_data = b"";
            let params =
                SidrParams { path, service, pkey, private_data, response_timeout, max_retries };
            known.extend(cm.sidr_request(*now, &params).map(|conn| (conn.0, conn)));
        }
        8 => {
            let (status, qpn, qkey) = (SidrStatus::SUCCESS, Qpn::new(1), Qkey(1));
            drop(cm.sidr_reply(*now, conn, &SidrReply { status, qpn, qkey, private_data: b"" }));
        }
        9 => {
            *now = *now + (1_000_000 << (arg & 15));
            cm.handle_timeout_with(*now, &|qpn| heard(qpn, *now));
        }
        10 => cm.request_taken(conn),
        11 => {
            let (response_timeout, max_retries) = (Some(arg >> 3), None);
            let params = LapParams { alternate: other_path(), response_timeout, max_retries };
            drop(cm.load_alternate_path(*now, conn, &params));
        }
        12 => drop(cm.answer_lap(*now, conn, AprStatus(arg & 3))),
        _ => {
            let mad = message(known, input)?;
            let path = CmPath::new(gid(1), gid(if arg == 0 { 3 } else { 2 }));
            let _ = cm.handle_mad_with(*now, path, &mad, &|qpn| heard(qpn, *now));
        }
    }
    Some(())
}

fn fetch(cm: &mut Cm, known: &mut Known) {
    while let Some(datagram) = cm.poll_transmit() {
        CmMessage::parse(&datagram.mad).expect("what it sends parses");
    }
    while let Some(event) = cm.poll_event() {
        known.insert(event.conn.0, event.conn);
    }
    let occupancy = cm.occupancy();
    assert!(occupancy.half_open <= LIMIT && occupancy.live <= LIMIT);
    assert!(occupancy.timewait <= LIMIT);
}

fuzz_target!(|bytes: &[u8]| {
    let mut cm = Cm::new(CmConfig {
        max_half_open: LIMIT,
        max_connections: LIMIT,
        max_timewait: LIMIT,
        ..CmConfig::new(ID_BASE, 8, 0)
    });
    cm.listen(SERVICE, None, LIMIT).expect("nobody listens yet");
    let (mut now, mut input, mut known) = (Time(0), Input(bytes), Known::new());
    while step(&mut cm, &mut known, &mut now, &mut input).is_some() {
        fetch(&mut cm, &mut known);
    }
    for conn in std::mem::take(&mut known).into_values() {
        cm.destroy(now, conn);
    }
    fetch(&mut cm, &mut known);
    for _ in 0..10_000 {
        let Some(deadline) = cm.next_deadline() else { break };
        now = now.max(deadline);
        cm.handle_timeout(now);
        fetch(&mut cm, &mut known);
    }
    let left = cm.occupancy();
    assert_eq!((left.live, left.half_open, left.timewait), (0, 0, 0));
});
