//! Unreliable services: UC, UD, multicast.

mod common;

use std::time::Instant;

use common::*;
use vernic_engine::*;

const QKEY: Qkey = Qkey(0x1111);

struct UdPair {
    a_qp: std::sync::Arc<Qp>,
    b_qp: std::sync::Arc<Qp>,
    a: End,
    b: End,
}

fn ud_pair() -> UdPair {
    let (a, b) = (End::new(), End::new());
    let (a_qp, b_qp) = (a.qp(Service::Ud), b.qp(Service::Ud));
    bring_up_ud(&a_qp, QKEY);
    bring_up_ud(&b_qp, QKEY);
    UdPair { a_qp, b_qp, a, b }
}

fn ah_to(from: &End, dgid: Gid) -> std::sync::Arc<Ah> {
    let av = AddressVector {
        dgid,
        sgid_index: from.gid().0,
        port: PortNum(1),
        traffic_class: 0x20,
        ..AddressVector::default()
    };
    from.pd.create_ah(av).unwrap()
}

fn datagram<'a>(ah: &'a Ah, qpn: Qpn, qkey: Qkey, sges: &'a [Sge]) -> SendWr<'a> {
    SendWr { dest: Some(Dest { ah, qpn, qkey }), ..wr(1, SendOp::SendImm(5), sges) }
}

#[test]
fn a_datagram_arrives_behind_an_ip_header_with_sender_and_packet_type() {
    let t = ud_pair();
    let ah = ah_to(&t.a, t.b.gid().1);
    for round in 0..3u64 {
        let data = pattern(1000, round as u32);
        t.a.fill(0, &data);
        t.b_qp.post_recv(&[RecvWr { wr_id: round, sges: &[t.b.sge(0, 2000)] }]).unwrap();
        t.a_qp.post_send(&[datagram(&ah, t.b_qp.qpn(), QKEY, &[t.a.sge(0, 1000)])]).unwrap();
        let wc = t.b.wait(1)[0];
        assert_eq!((wc.status, wc.byte_len, wc.src_qpn), (WcStatus::Success, 1040, t.a_qp.qpn()));
        assert_eq!((wc.tag, wc.grh, wc.route.service_level), (Tag::Imm(5), true, 0xA));
        assert_eq!(t.b.bytes(40, 1000), data);
        let header = t.b.bytes(20, 20);
        assert_eq!((header[0], header[1], header[9]), (0x45, 0x20, 17));
        assert_eq!(header[12..20], [127, 0, 0, 1, 127, 0, 0, 1]);
        assert_eq!(t.a.wait(1)[0].status, WcStatus::Success);
    }
}

#[test]
fn a_wrong_qkey_is_dropped_and_counted_and_the_sender_never_knows() {
    let t = ud_pair();
    let ah = ah_to(&t.a, t.b.gid().1);
    t.b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[t.b.sge(0, 2000)] }]).unwrap();
    t.a_qp.post_send(&[datagram(&ah, t.b_qp.qpn(), Qkey(2), &[t.a.sge(0, 10)])]).unwrap();
    assert_eq!(t.a.wait(1)[0].status, WcStatus::Success);
    // The right one behind it arrives, so the wrong one was dropped.
    t.a_qp.post_send(&[datagram(&ah, t.b_qp.qpn(), QKEY, &[t.a.sge(0, 11)])]).unwrap();
    assert_eq!(t.b.wait(1)[0].byte_len, 51);
    let drops = t.b.context.counters().drops;
    assert!(drops.contains(&(DropReason::Qkey, 1)), "{drops:?}");
    assert_eq!(t.b.context.port_attr(PortNum(1)).unwrap().bad_qkey_count, 1);
}

#[test]
fn packets_to_nobody_and_without_receive_are_counted() {
    let t = ud_pair();
    let ah = ah_to(&t.a, t.b.gid().1);
    let nobody = Qpn::new(t.b_qp.qpn().value() + 1);
    t.a_qp
        .post_send(&[
            datagram(&ah, nobody, QKEY, &[t.a.sge(0, 10)]),
            datagram(&ah, t.b_qp.qpn(), QKEY, &[t.a.sge(0, 10)]),
        ])
        .unwrap();
    t.a.wait(2);
    let start = Instant::now();
    let count =
        |reason| t.b.context.counters().drops.iter().find(|d| d.0 == reason).map_or(0, |d| d.1);
    while count(DropReason::UnknownQpn) != 1 || count(DropReason::NoReceive) != 1 {
        t.b.context.progress();
        assert!(start.elapsed() < PATIENCE, "{:?}", t.b.context.counters());
    }
}

#[test]
fn every_member_of_a_group_gets_its_own_copy() {
    let t = ud_pair();
    let second = t.b.qp(Service::Ud);
    bring_up_ud(&second, QKEY);
    let group = Gid::from_ip("239.77.1.2".parse().unwrap());
    for qp in [&t.b_qp, &second] {
        qp.attach_mcast(group).unwrap();
        qp.attach_mcast(group).unwrap();
    }
    assert!(t.b_qp.destroy().unwrap_err().to_string().contains("multicast groups"));
    t.b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[t.b.sge(0, 2000)] }]).unwrap();
    second.post_recv(&[RecvWr { wr_id: 2, sges: &[t.b.sge(4096, 2000)] }]).unwrap();
    let ah = ah_to(&t.a, group);
    t.a.fill(0, b"to all of you");
    t.a_qp.post_send(&[datagram(&ah, Qpn::MULTICAST, QKEY, &[t.a.sge(0, 13)])]).unwrap();
    let mut ids: Vec<u64> = t.b.wait(2).iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    assert_eq!(t.b.bytes(40, 13), b"to all of you");
    assert_eq!(t.b.bytes(4096 + 40, 13), b"to all of you");
    t.b_qp.detach_mcast(group).unwrap();
    assert!(t.b_qp.detach_mcast(group).is_err());
    t.b_qp.destroy().unwrap();
    let rc = t.b.qp(Service::Rc);
    assert!(matches!(rc.attach_mcast(group), Err(McastError::Service { .. })));
    assert!(matches!(second.attach_mcast(t.b.gid().1), Err(McastError::NotGroup(_))));
}

#[test]
fn address_vectors_that_cannot_work_are_refused_in_words() {
    let end = End::new();
    let (index, gid) = end.gid();
    let words = |av: AddressVector| end.pd.create_ah(av).unwrap_err().to_string();
    let good =
        AddressVector { dgid: gid, sgid_index: index, port: PortNum(1), ..Default::default() };
    assert!(words(AddressVector { sgid_index: 200, ..good }).contains("sgid_index 200"));
    assert!(words(AddressVector { dgid: Gid::ZERO, ..good }).contains("zero"));
    let v6 = Gid::from_ip("2001:db8::1".parse().unwrap());
    assert!(words(AddressVector { dgid: v6, ..good }).contains("IP versions"));
    assert!(words(AddressVector { port: PortNum(2), ..good }).contains("port 2"));
}

#[test]
fn unreliable_connections_carry_sends_and_writes() {
    let t = Pair::new(Service::Uc);
    let data = pattern(50_000, 9);
    t.a.fill(0, &data);
    t.b_qp
        .post_recv(&[
            RecvWr { wr_id: 1, sges: &[t.b.sge(0, 60_000)] },
            RecvWr { wr_id: 2, sges: &[] },
        ])
        .unwrap();
    t.a_qp
        .post_send(&[
            wr(1, SendOp::Send, &[t.a.sge(0, 50_000)]),
            wr(2, SendOp::WriteImm(t.b.remote(100_000), 77), &[t.a.sge(0, 50_000)]),
        ])
        .unwrap();
    let got = t.b.wait(2);
    assert_eq!((got[0].wr_id, got[0].opcode, got[0].byte_len), (1, WcOpcode::Recv, 50_000));
    assert_eq!(
        (got[1].wr_id, got[1].opcode, got[1].tag),
        (2, WcOpcode::RecvWriteImm, Tag::Imm(77))
    );
    assert_eq!(t.b.bytes(0, 50_000), data);
    assert_eq!(t.b.bytes(100_000, 50_000), data);
    assert!(t.a.wait(2).iter().all(|wc| wc.status == WcStatus::Success));
    let read = t.a_qp.post_send(&[wr(3, SendOp::Read(t.b.remote(0)), &[t.a.sge(0, 8)])]);
    assert!(read.unwrap_err().to_string().contains("no such operation"));
}
