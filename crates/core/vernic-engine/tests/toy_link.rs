//! A link of another kind, which no file of the engine knows: its packets go through channels and
//! are addressed by LID, and its virtual lanes have credits.

mod common;

use std::sync::Arc;

use common::toy::{Fabric, LANES};
use common::*;
use vernic_engine::*;

/// A connected pair on two devices of a fabric, on the lane of a service level.
fn pair(a: &End, b: &End, service_level: u8) -> [Arc<Qp>; 2] {
    // Longer than a lane waits for credits here.
    let setup = Setup { service_level, timeout: AckTimeout::new(22), ..Setup::default() };
    let pair = [a.qp(Service::Rc), b.qp(Service::Rc)];
    connect(a, &pair[0], b.gid().1, pair[1].qpn(), setup);
    connect(b, &pair[1], a.gid().1, pair[0].qpn(), setup);
    pair
}

/// Makes progress at an end that has nothing to complete.
fn turn(end: &End) {
    assert_eq!(end.cq.poll(&mut [EMPTY_WC; 1]).unwrap(), 0);
}

fn ends(fabric: &Arc<Fabric>) -> [End; 2] {
    [7, 9].map(|lid| End::on(fabric.device(&[lid], test_config()), None))
}

#[test]
fn write_send_and_read_work_between_two_devices_that_are_addressed_by_lid() {
    let fabric = Fabric::new();
    let [a, b] = ends(&fabric);
    let [a_qp, b_qp] = pair(&a, &b, 0);
    let data = pattern(300_000, 5);
    let len = data.len() as u32;
    a.fill(0, &data);

    a_qp.post_send(&[wr(1, SendOp::Write(b.remote(4096)), &[a.sge(0, len)])]).unwrap();
    let written = a.wait_beside(1, || turn(&b))[0];
    assert_eq!((written.status, written.wr_id), (WcStatus::Success, 1));
    assert_eq!(b.bytes(4096, data.len()), data);

    b_qp.post_recv(&[RecvWr { wr_id: 2, sges: &[b.sge(1 << 20, len)] }]).unwrap();
    a_qp.post_send(&[wr(3, SendOp::SendImm(99), &[a.sge(0, len)])]).unwrap();
    let received = b.wait_beside(1, || ())[0];
    assert_eq!((received.status, received.byte_len), (WcStatus::Success, len));
    assert_eq!(received.tag, Tag::Imm(99));
    assert_eq!(b.bytes(1 << 20, data.len()), data);
    assert_eq!(a.wait_beside(1, || turn(&b))[0].status, WcStatus::Success);

    a_qp.post_send(&[wr(4, SendOp::Read(b.remote(4096)), &[a.sge(4 << 20, len)])]).unwrap();
    assert_eq!(a.wait_beside(1, || turn(&b))[0].status, WcStatus::Success);
    assert_eq!(a.bytes(4 << 20, data.len()), data);
    assert!(a.context.counters().link.tx_packets > 100, "by the toy link");
}

#[test]
fn a_lane_without_credits_keeps_no_other_lane_waiting() {
    let fabric = Fabric::new();
    let [a, b] = ends(&fabric);
    let pairs: Vec<_> = (0..LANES).map(|level| pair(&a, &b, level)).collect();
    let data = pattern(1 << 20, 8);
    a.fill(0, &data);
    fabric.set_credits(1, 0);
    // More than a batch holds: its queue pair is kept waiting by its lane.
    let post = |level: usize| {
        let op = SendOp::Write(b.remote((level as u64) << 20));
        pairs[level][0].post_send(&[wr(level as u64, op, &[a.sge(0, 1 << 20)])]).unwrap();
    };
    post(1);
    for level in [0, 2, 3] {
        post(level);
        let done = a.wait_beside(1, || turn(&b))[0];
        assert_eq!((done.status, done.wr_id), (WcStatus::Success, level as u64));
        assert_eq!(b.bytes(level << 20, data.len()), data);
    }
    assert!(a.context.counters().link.tx_blocked > 0);
    assert_ne!(b.bytes(1 << 20, data.len()), data);
    fabric.set_credits(1, usize::MAX / 2);
    let done = a.wait_beside(1, || turn(&b))[0];
    assert_eq!((done.status, done.wr_id), (WcStatus::Success, 1));
    assert_eq!(b.bytes(1 << 20, data.len()), data);
}

#[test]
fn an_address_that_the_fabric_does_not_know_has_no_path() {
    let fabric = Fabric::new();
    let [a, _b] = ends(&fabric);
    let (sgid_index, sgid) = a.gid();
    let dgid = Gid::from_ip("198.18.0.77".parse().unwrap());
    let av = AddressVector { dgid, sgid_index, port: PortNum(1), ..Default::default() };
    let text = a.pd.create_ah(av).unwrap_err().to_string();
    assert!(text.contains("no port with the destination GID is known"), "{text}");
    assert!(text.contains(&sgid.to_string()) && text.contains(&dgid.to_string()), "{text}");
}

#[test]
fn an_address_that_the_link_refuses_is_not_explained_by_a_netdev() {
    let error = Fabric::new().try_device(&[7], &[8], test_config()).unwrap_err();
    assert!(matches!(error, OpenError::Link { .. }), "{error}");
    assert!(!error.to_string().contains("ip address add"), "{error}");
}

#[test]
fn a_port_that_changed_while_its_device_was_opened_is_as_its_link_knows_it() {
    let fabric = Fabric::new();
    let known = LinkPort { state: PortState::Active, lid: Lid(7), lmc: 2, ..LinkPort::default() };
    fabric.set_known(vec![known]);
    let device = fabric.device(&[7], test_config());
    let link = device.port_attr(PortNum(1)).unwrap().link.expect("what the link knows");
    assert_eq!((link.state, link.lid, link.lmc), (PortState::Active, Lid(7), 2));
}
