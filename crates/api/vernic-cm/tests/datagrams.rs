//! Datagram ids: the queue pair behind a port, and multicast groups.

mod common;

use common::*;
use vernic_cm::{
    ConnParam, EventKind, JoinState, PortSpace, QpState, QpType, SidrStatus, UDP_QKEY,
};
use vernic_engine::{Dest, Payload, Qkey, SendFlags, SendOp, SendWr, WcStatus};

/// Sends a datagram without payload to where an event says.
fn send_to(end: &End, info: &vernic_cm::UdInfo) {
    let ah = end.qp.pd().create_ah(info.av).unwrap();
    let wr = SendWr {
        wr_id: 2,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        payload: Payload::Sges(&[]),
        dest: Some(Dest { ah: &ah, qpn: info.qp_num, qkey: info.qkey }),
        srqn: None,
    };
    end.qp.post_send(&[wr]).unwrap();
    assert_eq!(end.complete().status, WcStatus::Success);
}

#[test]
fn a_client_learns_the_queue_pair_of_a_port_and_its_key() {
    for (place, key) in [("127.0.0.1:0", 0), ("[::1]:0", 0x1234)] {
        let (server, client) = (Side::new(), Side::new());
        let (_listener, place) = server.listener(PortSpace::UDP, QpType::Ud, place);
        let id = client.routed(PortSpace::UDP, QpType::Ud, place);
        let end = End::new(&id);
        id.attach_qp(end.qp.clone()).unwrap();
        assert_eq!((end.qp.state(), end.qp.query().qkey), (QpState::Rts, UDP_QKEY));
        id.connect(&ConnParam { private_data: b"who?", ..ConnParam::default() }).unwrap();
        let event = server.expect(EventKind::ConnectRequest);
        starts(&ud(&event).private_data, 180, b"who?");
        let accepted = event.id.clone();
        assert_eq!((accepted.qp_type(), accepted.peer_addr()), (QpType::Ud, id.local_addr()));
        let accepted_end = End::new(&accepted);
        accepted.attach_qp(accepted_end.qp.clone()).unwrap();
        let answer = ConnParam { private_data: b"me", qkey: Qkey(key), ..ConnParam::default() };
        accepted.accept(&answer).unwrap();
        let event = client.expect(EventKind::Established);
        let info = ud(&event);
        starts(&info.private_data, 136, b"me");
        assert_eq!(info.qp_num, accepted_end.qp.qpn());
        assert_eq!(info.qkey, if key == 0 { UDP_QKEY } else { Qkey(key) });
        assert_eq!(info.av.dgid.to_ip(), place.ip());
        if key == 0 {
            accepted_end.post_recv();
            send_to(&end, info);
            assert_eq!(accepted_end.complete().status, WcStatus::Success);
        }
        assert_eq!(id.disconnect().unwrap_err().errno(), libc::EINVAL);
    }
}

#[test]
fn a_refused_client_is_told_the_status() {
    let (server, client) = (Side::new(), Side::new());
    let (listener, place) = server.listener(PortSpace::UDP, QpType::Ud, "127.0.0.1:0");
    let id = client.routed(PortSpace::UDP, QpType::Ud, place);
    id.connect(&ConnParam::default()).unwrap();
    server.expect(EventKind::ConnectRequest).id.reject(b"closed").unwrap();
    let status = i32::from(SidrStatus::REJECTED.0);
    let event = client.expect_failure(EventKind::Unreachable, status);
    starts(&ud(&event).private_data, 136, b"closed");
    listener.destroy();
    let id = client.routed(PortSpace::UDP, QpType::Ud, place);
    id.connect(&ConnParam::default()).unwrap();
    let status = i32::from(SidrStatus::UNSUPPORTED_SERVICE.0);
    client.expect_failure(EventKind::Unreachable, status);
}

#[test]
fn members_of_a_group_receive_what_is_sent_to_it_their_own_included() {
    let (home, group) = ("127.0.0.1:0", "239.7.5.1:0");
    let (a, b) = (Side::new(), Side::new());
    let member = |side: &Side, join| {
        let id = side.udp();
        id.bind_addr(addr(home)).unwrap();
        let end = End::new(&id);
        id.attach_qp(end.qp.clone()).unwrap();
        id.join_multicast(addr(group), join, 9).unwrap();
        let event = side.expect(EventKind::MulticastJoin);
        (id, end, ud(&event).clone())
    };
    let (_first, first_end, info) = member(&a, JoinState::FullMember);
    let (second, second_end, _) = member(&b, JoinState::FullMember);
    let (_sender, sender_end, to) = member(&b, JoinState::SendOnlyFullMember);
    for end in [&first_end, &second_end, &sender_end] {
        for _ in 0..4 {
            end.post_recv();
        }
    }
    send_to(&first_end, &info);
    first_end.complete();
    second_end.complete();
    send_to(&sender_end, &to);
    first_end.complete();
    second_end.complete();
    second.leave_multicast(addr(group)).unwrap();
    send_to(&first_end, &info);
    first_end.complete();
    let mut wcs = [vernic_engine::EMPTY_WC; 4];
    assert_eq!(second_end.cq.poll(&mut wcs).unwrap(), 0);
    assert_eq!(sender_end.cq.poll(&mut wcs).unwrap(), 0);
}
