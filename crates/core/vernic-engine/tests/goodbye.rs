//! What a peer sees of a queue pair that ends right after its last message.

#![allow(unsafe_code)]

mod common;

use std::time::{Duration, Instant};

use common::cm::{Node, params, port};
use common::*;
use vernic_engine::*;
use vernic_proto::cm::{CmPath, ConnectParams, EventKind};

/// Receives a message at `b`, ends `b` at once by `end`, and expects that `a` learns of its
/// success.
fn last_message_is_acknowledged(end: impl Fn(&Qp)) {
    let mut config = test_config();
    // The background thread shall not come to the rescue.
    config.set("takeover_us", "10000000").unwrap();
    let setup = Setup { retry_cnt: 1, ..Setup::default() };
    for _ in 0..10 {
        let t = Pair::with(Service::Rc, setup, test_config(), config.clone());
        t.b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[t.b.sge(0, 64)] }]).unwrap();
        t.a_qp.post_send(&[wr(2, SendOp::Send, &[t.a.sge(0, 64)])]).unwrap();
        t.b.wait(1);
        end(&t.b_qp);
        assert_eq!(t.a.wait(1)[0].status, WcStatus::Success);
    }
}

#[test]
fn a_queue_pair_that_is_moved_to_error_or_reset_has_acknowledged_what_completed() {
    for state in [QpState::Error, QpState::Reset] {
        let attr = QpAttr { state, ..QpAttr::default() };
        last_message_is_acknowledged(|qp| qp.modify(&attr, AttrMask::STATE).unwrap());
    }
}

#[test]
fn a_list_is_posted_whole_or_not_at_all() {
    let t = Pair::new(Service::Rc);
    let write = |wr_id| wr(wr_id, SendOp::Write(t.b.remote(0)), &[]);
    let many: Vec<_> = (0..257).map(write).collect();
    let error = t.a_qp.post_send_all(many.iter().copied()).unwrap_err();
    assert_eq!((error.index, error.source), (256, PostError::Full(256).into()));
    t.a_qp.post_send_all(many[..256].iter().copied()).unwrap();
    assert_eq!(t.a.wait(256)[0].wr_id, 0);
}

#[test]
fn inline_data_are_taken_from_plain_memory_whatever_their_keys() {
    let t = Pair::new(Service::Rc);
    t.b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[t.b.sge(0, 64)] }]).unwrap();
    let piece = |bytes: &[u8]| Sge {
        addr: bytes.as_ptr().expose_provenance() as u64,
        length: bytes.len() as u32,
        lkey: Lkey(0),
    };
    let pieces = [piece(b"no"), Sge::default(), piece(b" keys")];
    // SAFETY: the pieces are constants.
    let list = unsafe { InlineData::new(&pieces) };
    let inline = SendWr { payload: Payload::InlineList(list), ..wr(1, SendOp::Send, &[]) };
    t.a_qp.post_send(&[inline]).unwrap();
    assert_eq!(t.b.wait(1)[0].byte_len, 7);
    assert_eq!(t.b.bytes(0, 7), b"no keys");
    let long = [piece(&[0; 257])];
    // SAFETY: as above.
    let list = unsafe { InlineData::new(&long) };
    let inline = SendWr { payload: Payload::InlineList(list), ..wr(1, SendOp::Send, &[]) };
    let refusal = t.a_qp.post_send(&[inline]).unwrap_err().source;
    assert_eq!(refusal, SendRefusal::Inline { given: 257, max: 256 });
}

#[test]
fn a_device_that_closes_hands_over_what_other_processes_shall_have() {
    let config = |name: &str, value: &str| {
        let mut config = test_config();
        config.set(name, value).unwrap();
        config
    };
    let owner = Node::new();
    let client = Node::with(config("force_wire", "on"));
    let (service, home) = (port(21_000), Gid::from_ip([127, 0, 0, 1].into()));
    owner.listen(service, owner.everywhere());
    // Its background thread leaves the sockets to who polls, and then nobody does.
    let leaver = Node::with(config("takeover_us", "10000000"));
    let until = Instant::now() + Duration::from_millis(50);
    while Instant::now() < until {
        leaver.context.progress();
    }
    // The kernel divides their flows among all sockets of the port, and what is lost does not come
    // again.
    let path = CmPath::new(home, home);
    for _ in 0..32 {
        let once = ConnectParams { max_retries: Some(0), ..params(path, service, b"") };
        client.cm().connect(&once).unwrap();
    }
    drop(leaver);
    let mut requests = 0;
    while requests < 32 {
        let kind = owner.next().kind;
        requests += usize::from(matches!(kind, EventKind::Request { .. }));
        // On a slow machine some are given up before all are here.
        assert!(matches!(kind, EventKind::Request { .. } | EventKind::Rejected { .. }), "{kind:?}");
    }
}

#[test]
fn a_dreq_that_was_lost_is_repeated_before_its_device_is_closed() {
    // Chance loses the third packet with these: after REQ and RTU.
    for seed in [6, 15, 30] {
        let (owner, service) = (Node::new(), port(21_001 + seed));
        owner.listen(service, owner.everywhere());
        let mut config = test_config();
        config.set("fault", &format!("loss=0.4,seed={seed}")).unwrap();
        let client = Node::with(config);
        let conn = client.connect([127, 0, 0, 1].into(), service, b"");
        let (asked, ..) = owner.request();
        owner.accept(asked, b"");
        assert!(matches!(client.next().kind, EventKind::Reply { .. }));
        client.cm().ready_to_use(conn, b"").unwrap();
        assert!(matches!(owner.next().kind, EventKind::Established { .. }));
        assert_eq!(client.context.counters().link.fault_drops, 0, "another seed is needed");
        client.cm().disconnect(conn, b"").unwrap();
        assert_eq!(client.context.counters().link.fault_drops, 1, "another seed is needed");
        drop(client);
        assert!(matches!(owner.next().kind, EventKind::DisconnectRequest { .. }));
    }
}
