//! Packets between devices of one host through memory: that they go there, and keep their order and
//! meaning. What processes are needed for is in `near_processes.rs`.

mod common;

use std::sync::Arc;
use std::time::Instant;

use common::near::*;
use common::*;
use vernic_engine::*;

fn near_packets(end: &End) -> u64 {
    end.context.counters().near_tx_packets
}

#[test]
fn a_queue_pair_that_only_answers_goes_the_way_of_its_peer() {
    let (pair, start) = (near_pair(Service::Rc), Instant::now());
    while !SHARED(&pair.a_qp) {
        send(&pair, 8);
        assert!(start.elapsed() < PATIENCE, "{}", pair.a_qp.route());
    }
    send(&pair, 8);
    assert!(SHARED(&pair.b_qp), "{}", pair.b_qp.route());
}

#[test]
fn after_two_have_met_nothing_goes_by_the_wire_any_more() {
    let pair = near_pair(Service::Rc);
    warm_up(&pair);
    let link = |end: &End| end.context.counters().link.tx_packets;
    let before = (link(&pair.a), link(&pair.b), near_packets(&pair.a));
    for len in [0, 1, 8, 4095, 4096, 4097, 1 << 20] {
        let bytes = pattern(len as usize, len);
        pair.a.fill(0, &bytes);
        let (sent, received) = send(&pair, len);
        assert_eq!((sent.status, received.byte_len), (WcStatus::Success, len));
        assert_eq!(pair.b.bytes(0, len as usize), bytes, "{len} bytes");
    }
    assert_eq!((link(&pair.a), link(&pair.b)), (before.0, before.1));
    assert!(near_packets(&pair.a) >= before.2 + 6 + 256);
    assert_eq!(pair.a_qp.route(), Route::SharedMemory { pid: std::process::id(), yama: None });
}

#[test]
fn an_answer_carries_the_acknowledgement_of_what_it_answers() {
    let pair = near_pair(Service::Rc);
    warm_up(&pair);
    let records = || near_packets(&pair.a) + near_packets(&pair.b);
    let start = Instant::now();
    loop {
        pair.a_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[pair.a.sge(0, 8)] }]).unwrap();
        pair.b_qp.post_recv(&[RecvWr { wr_id: 2, sges: &[pair.b.sge(0, 8)] }]).unwrap();
        let before = records();
        pair.a_qp.post_send(&[wr(3, SendOp::Send, &[pair.a.sge(0, 8)])]).unwrap();
        let received = pair.b.wait(1)[0];
        pair.b_qp.post_send(&[wr(4, SendOp::Send, &[pair.b.sge(0, 8)])]).unwrap();
        // The send that is answered completes before its answer is received.
        let done = pair.a.wait(2);
        let records = records() - before;
        assert_eq!([received.wr_id, done[0].wr_id, done[1].wr_id], [2, 3, 1]);
        assert!(done.iter().all(|wc| wc.status == WcStatus::Success), "{done:?}");
        pair.b.wait_beside(1, || pair.a.context.progress());
        if records == 2 {
            return;
        }
        // This thread was without its core for so long that the acknowledgement went by itself.
        assert!(start.elapsed() < PATIENCE, "{records} records there and back");
    }
}

#[test]
fn one_sided_operations_go_through_memory_as_packets_do() {
    let pair = near_pair(Service::Rc);
    warm_up(&pair);
    let len = 1 << 20;
    let bytes = pattern(len, 3);
    pair.a.fill(0, &bytes);
    let sges = [pair.a.sge(0, len as u32)];
    let back = [pair.a.sge(4 << 20, len as u32)];
    let old = [pair.a.sge(3 << 20, 8)];
    let remote = pair.b.remote(0);
    pair.b.fill(2 << 20, &41_u64.to_ne_bytes());
    pair.a_qp
        .post_send(&[
            wr(1, SendOp::Write(remote), &sges),
            wr(2, SendOp::Read(remote), &back),
            // Not what is read: that may be after this.
            wr(3, SendOp::FetchAdd { remote: pair.b.remote(2 << 20), add: 1 }, &old),
        ])
        .unwrap();
    let done = pair.a.wait_beside(3, || pair.b.context.progress());
    let ids: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ids, [1, 2, 3].map(|id| (id, WcStatus::Success)));
    assert_eq!(pair.a.bytes(4 << 20, len), bytes);
    assert_eq!(pair.a.bytes(3 << 20, 8), 41_u64.to_ne_bytes());
    assert_eq!(pair.b.bytes(2 << 20, 8), 42_u64.to_ne_bytes());
}

#[test]
fn messages_of_all_lengths_around_those_of_records_arrive_whole() {
    let ends = [4096, 2 * 4096, 5 * 4096]
        .map(|end| [-1, 0, 1, 123, 124, 125, 128, 129, 130].map(|d| end + d));
    let lens = [[0, 1, 47, 48, 49, 1023, 1024, 1025, 2048]].into_iter().chain(ends).flatten();
    let lens: Vec<u32> = lens.map(|len: i32| len as u32).collect();
    for mtu in [Mtu::B256, Mtu::B1024, Mtu::B4096] {
        let setup = Setup { mtu, ..Setup::default() };
        let pair = Pair::with(Service::Rc, setup, near_config(), near_config());
        warm_up(&pair);
        for &len in &lens {
            let bytes = pattern(len as usize, len);
            pair.a.fill(0, &bytes);
            pair.b.fill(0, &vec![0; len as usize + 1]);
            let (sent, received) = send(&pair, len);
            let outcome = (sent.status, received.status, received.byte_len);
            assert_eq!(outcome, (WcStatus::Success, WcStatus::Success, len), "{mtu:?}");
            assert!(pair.b.bytes(0, len as usize) == bytes, "{len} bytes, {mtu:?}");
        }
        assert!(SHARED(&pair.a_qp), "{}", pair.a_qp.route());
    }
}

#[test]
fn a_refused_access_is_reported_as_on_the_wire() {
    let pair = near_pair(Service::Rc);
    warm_up(&pair);
    let remote = Remote { addr: pair.b.mr.iova() + MEMORY as u64, rkey: pair.b.mr.rkey() };
    pair.a_qp.post_send(&[wr(7, SendOp::Write(remote), &[pair.a.sge(0, 8)])]).unwrap();
    let wc = pair.a.wait_beside(1, || pair.b.context.progress())[0];
    assert_eq!((wc.wr_id, wc.status), (7, WcStatus::RemoteAccess));
    let counters = pair.b.context.counters();
    assert_eq!((counters.naks_sent, counters.neighbours.gone), (1, 0));
}

#[test]
fn answers_go_to_no_other_process_than_the_one_that_a_queue_pair_is_connected_to() {
    let pair = near_pair(Service::Rc);
    warm_up(&pair);
    let mut config = near_config();
    // The victim is there, and says nothing of whom it is connected to.
    config.set("live_peer_timeout_s", "0").unwrap();
    let stranger = End::with(config);
    let meet = |mine: &Qp| {
        let theirs = pair.a.qp(Service::Rc);
        connect(&pair.a, &theirs, stranger.gid().1, mine.qpn(), Setup::default());
        connect(&stranger, mine, pair.a.gid().1, theirs.qpn(), Setup::default());
        theirs
    };
    let known = stranger.qp(Service::Rc);
    let _theirs = meet(&known);
    let start = Instant::now();
    while !SHARED(&known) {
        known.post_send(&[wr(1, SendOp::Write(pair.a.remote(0)), &[stranger.sge(0, 8)])]).unwrap();
        let wc = stranger.wait_beside(1, || pair.a.context.progress())[0];
        assert_eq!(wc.status, WcStatus::Success);
        assert!(start.elapsed() < PATIENCE, "{}", known.route());
    }
    // Connected to `b`, and the stranger sends what `b` would.
    let (victim, friend) = (pair.a.qp(Service::Rc), pair.b.qp(Service::Rc));
    let guess = stranger.qp(Service::Rc);
    let setup = Setup { timeout: AckTimeout::new(13), retry_cnt: 1, ..Setup::default() };
    connect(&pair.a, &victim, pair.b.gid().1, friend.qpn(), setup);
    connect(&pair.b, &friend, pair.a.gid().1, victim.qpn(), setup);
    connect(&stranger, &guess, pair.a.gid().1, victim.qpn(), setup);
    let heard = || stranger.context.counters().near_rx_packets;
    let before = heard();
    let op = SendOp::Read(pair.a.remote(0));
    guess.post_send(&[wr(7, op, &[stranger.sge(0, 8)])]).unwrap();
    let wc = stranger.wait_beside(1, || pair.a.context.progress())[0];
    assert_eq!((wc.wr_id, wc.status), (7, WcStatus::RetryExceeded));
    assert_eq!(heard(), before, "the stranger was told what it read");
}

#[test]
fn order_holds_while_queue_pairs_change_from_the_wire_to_memory() {
    // The first message makes them meet; the change happens in the middle of what follows.
    for service in [Service::Rc, Service::Uc] {
        let pair = near_pair(service);
        let least = 5000_u32;
        let (mut posted, mut sent, mut heard) = (0_u32, 0, 0_u32);
        let start = Instant::now();
        for wr_id in 0..128 {
            pair.b_qp.post_recv(&[RecvWr { wr_id, sges: &[pair.b.sge(wr_id * 8, 8)] }]).unwrap();
        }
        let mut batch = [EMPTY_WC; 16];
        while heard < least || !SHARED(&pair.a_qp) {
            // UC: a receive is there for each.
            while posted - heard < 100 {
                let op = SendOp::SendImm(posted);
                pair.a_qp.post_send(&[wr(posted.into(), op, &[pair.a.sge(0, 8)])]).unwrap();
                posted += 1;
            }
            sent += pair.a.cq.poll(&mut batch).unwrap();
            let n = pair.b.cq.poll(&mut batch).unwrap();
            for wc in &batch[..n] {
                assert_eq!(wc.tag, Tag::Imm(heard), "{service:?}");
                heard += 1;
                let sges = [pair.b.sge(wc.wr_id * 8, 8)];
                pair.b_qp.post_recv(&[RecvWr { wr_id: wc.wr_id, sges: &sges }]).unwrap();
            }
            assert!(start.elapsed() < PATIENCE, "{service:?}: {sent} sent, {heard} heard");
        }
        assert_eq!(pair.b.context.counters().naks_sent, 0);
    }
}

#[test]
fn sends_of_uc_travel_as_messages_between_their_writes() {
    for mtu in [Mtu::B256, Mtu::B4096] {
        let setup = Setup { mtu, ..Setup::default() };
        let pair = Pair::with(Service::Uc, setup, near_config(), near_config());
        warm_up(&pair);
        for len in [0, 1, 48, 49, 4095, 4216, 4217, 8192, 70_001] {
            let (bytes, before) = (pattern(len as usize, len), near_packets(&pair.a));
            pair.a.fill(0, &bytes);
            pair.b.fill(0, &vec![0; len as usize + 1]);
            let (sent, received) = send(&pair, len);
            let outcome = (sent.status, received.status, received.byte_len);
            assert_eq!(outcome, (WcStatus::Success, WcStatus::Success, len), "{mtu:?}");
            assert!(pair.b.bytes(0, len as usize) == bytes, "{len} bytes, {mtu:?}");
            // A record has up to 16 packets of the small path MTU.
            let records = u64::from(len.div_ceil(4096).max(1));
            assert!(near_packets(&pair.a) - before <= records + 1, "{len} bytes, {mtu:?}");
        }
        // A list is seen in its order, with what each message brings beside its bytes.
        let sges = [pair.a.sge(0, 8)];
        for wr_id in 1..=3 {
            let place = pair.b.sge(64 * wr_id, 64);
            pair.b_qp.post_recv(&[RecvWr { wr_id, sges: &[place] }]).unwrap();
        }
        let write = SendOp::WriteImm(pair.b.remote(4096), 6);
        let list = [
            wr(1, SendOp::SendImm(5), &sges),
            wr(2, write, &sges),
            SendWr {
                flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
                ..wr(3, SendOp::Send, &sges)
            },
        ];
        pair.a_qp.post_send(&list).unwrap();
        let got: Vec<_> = pair.b.wait_beside(3, || pair.a.context.progress());
        let got: Vec<_> = got.iter().map(|wc| (wc.wr_id, wc.opcode, wc.tag)).collect();
        let (recv, written) = (WcOpcode::Recv, WcOpcode::RecvWriteImm);
        assert_eq!(got, [(1, recv, Tag::Imm(5)), (2, written, Tag::Imm(6)), (3, recv, Tag::None)]);
        pair.a.wait(3);
        // What finds no receive is dropped, and nobody is told.
        let drops = |reason: &str| {
            let counters = pair.b.context.counters();
            let found = counters.iter().find(|(name, _)| *name == *reason);
            found.map(|(_, count)| count)
        };
        let before = drops("drop_no_receive").unwrap();
        pair.a_qp.post_send(&[wr(4, SendOp::Send, &sges)]).unwrap();
        assert_eq!(pair.a.wait(1)[0].status, WcStatus::Success);
        pair.b.context.progress();
        assert_eq!(drops("drop_no_receive"), Some(before + 1));
    }
}

/// Sends datagrams from `from` to `to`, one by one, until they go through memory.
fn datagrams(from: &End, to: &End) -> (Arc<Qp>, Arc<Qp>, Arc<Ah>) {
    let (from_qp, to_qp) = (from.qp(Service::Ud), to.qp(Service::Ud));
    bring_up_ud(&from_qp, QKEY);
    bring_up_ud(&to_qp, QKEY);
    let (sgid_index, dgid) = (from.gid().0, to.gid().1);
    let av = AddressVector { dgid, sgid_index, port: PortNum(1), ..AddressVector::default() };
    let ah = from.pd.create_ah(av).unwrap();
    let start = Instant::now();
    while from.context.counters().near_tx_packets == 0 {
        to_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[to.sge(0, 4136)] }]).unwrap();
        post_datagram(from, &from_qp, &ah, to_qp.qpn(), 4096);
        let received = to.wait_beside(1, || from.context.progress())[0];
        assert_eq!((received.byte_len, received.src_qpn), (4136, from_qp.qpn()));
        from.wait(1);
        assert!(start.elapsed() < PATIENCE, "{}", from.context.counters());
    }
    (from_qp, to_qp, ah)
}

#[test]
fn datagrams_arrive_with_their_header_and_from_whom_they_come() {
    let (a, b) = (End::with(near_config()), End::with(near_config()));
    a.fill(1 << 20, &pattern(4096, 5));
    let (a_qp, b_qp, ah) = datagrams(&a, &b);
    let from_wire = b.bytes(0, 40);
    b.fill(0, &[0; 4136]);
    b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[b.sge(0, 4136)] }]).unwrap();
    post_datagram(&a, &a_qp, &ah, b_qp.qpn(), 4096);
    let wc = b.wait(1)[0];
    assert_eq!((wc.byte_len, wc.src_qpn, wc.grh), (4136, a_qp.qpn(), true));
    assert_eq!(b.bytes(40, 4096), pattern(4096, 5));
    // The addresses of the GRH area; the Identification may differ.
    assert_eq!(b.bytes(32, 8), from_wire[32..40]);
    assert_eq!(b.context.counters().near_rx_packets, a.context.counters().near_tx_packets);
}

#[test]
fn what_is_posted_in_sqd_waits_until_the_queue_pair_may_send_again() {
    let (a, b) = (End::with(near_config()), End::with(near_config()));
    let (a_qp, b_qp, ah) = datagrams(&a, &b);
    let to = |state| {
        let attr = QpAttr { state, ..QpAttr::default() };
        a_qp.modify(&attr, AttrMask::STATE).unwrap();
    };
    to(QpState::Sqd);
    let full = a.context.counters().near_full_turns;
    for id in 0..2 {
        b_qp.post_recv(&[RecvWr { wr_id: id, sges: &[b.sge(0, 4136)] }]).unwrap();
        post_datagram(&a, &a_qp, &ah, b_qp.qpn(), 8);
    }
    let mut wc = [EMPTY_WC; 2];
    for _ in 0..100 {
        a.context.progress();
        assert_eq!(b.cq.poll(&mut wc), Ok(0));
    }
    assert_eq!(a.context.counters().near_full_turns, full);
    to(QpState::Rts);
    let ids: Vec<_> = b.wait_beside(2, || a.context.progress()).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1]);
    a.wait(2);
}

#[test]
fn a_list_of_datagrams_to_several_receivers_arrives_in_order_at_each() {
    let (a, b, c) = (End::with(near_config()), End::with(near_config()), End::with(near_config()));
    let (a_qp, b_qp, ah) = datagrams(&a, &b);
    let (_other_qp, c_qp, _) = datagrams(&b, &c);
    let b2_qp = b.qp(Service::Ud);
    bring_up_ud(&b2_qp, QKEY);
    // Until what goes to the third device takes memory, too.
    let (start, mut before) = (Instant::now(), 0);
    while c.context.counters().near_rx_packets == before {
        before = c.context.counters().near_rx_packets;
        c_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[c.sge(0, 4136)] }]).unwrap();
        post_datagram(&a, &a_qp, &ah, c_qp.qpn(), 8);
        c.wait_beside(1, || a.context.progress());
        a.wait(1);
        assert!(start.elapsed() < PATIENCE, "{}", c.context.counters());
    }
    let order = [&b_qp, &b_qp, &b2_qp, &c_qp, &c_qp, &b_qp, &c_qp, &b2_qp];
    for (at, qp) in (0..).zip(order) {
        let end = if qp.qpn() == c_qp.qpn() { &c } else { &b };
        let place = end.sge(at * 64, 64);
        qp.post_recv(&[RecvWr { wr_id: at, sges: &[place] }]).unwrap();
        a.fill(at as usize * 8, &at.to_ne_bytes());
    }
    let sges: Vec<_> = (0..8).map(|at| [a.sge(at * 8, 8)]).collect();
    let requests: Vec<_> = (0..)
        .zip(order)
        .map(|(at, qp)| {
            let dest = Some(Dest { ah: &ah, qpn: qp.qpn(), qkey: QKEY });
            SendWr { dest, ..wr(u64::from(at), SendOp::SendImm(at), &sges[at as usize]) }
        })
        .collect();
    a_qp.post_send(&requests).unwrap();
    for (end, count) in [(&b, 5), (&c, 3)] {
        let mut newest = [None; 8];
        for wc in end.wait_beside(count, || a.context.progress()) {
            let at = wc.wr_id;
            assert_eq!((wc.tag, wc.byte_len, wc.src_qpn), (Tag::Imm(at as u32), 48, a_qp.qpn()));
            assert_eq!(end.bytes(at as usize * 64 + 40, 8), at.to_ne_bytes());
            // Each queue pair takes its receives in the order of the posts.
            let queue = order.iter().position(|qp| qp.qpn() == wc.qpn).unwrap();
            assert!(newest[queue] < Some(at), "{at} after {:?}", newest[queue]);
            newest[queue] = Some(at);
        }
    }
    a.wait(8);
}

#[test]
fn a_device_reaches_itself_through_memory() {
    let end = End::with(near_config());
    let (a_qp, b_qp) = (end.qp(Service::Rc), end.qp(Service::Rc));
    connect(&end, &a_qp, end.gid().1, b_qp.qpn(), Setup::default());
    connect(&end, &b_qp, end.gid().1, a_qp.qpn(), Setup::default());
    let start = Instant::now();
    while !SHARED(&a_qp) {
        let op = SendOp::Write(end.remote(4096));
        a_qp.post_send(&[wr(1, op, &[end.sge(0, 8)])]).unwrap();
        assert_eq!(end.wait(1)[0].status, WcStatus::Success);
        assert!(start.elapsed() < PATIENCE, "{}", a_qp.route());
    }
    end.fill(0, &pattern(1 << 20, 9));
    a_qp.post_send(&[wr(1, SendOp::Write(end.remote(2 << 20)), &[end.sge(0, 1 << 20)])]).unwrap();
    assert_eq!(end.wait(1)[0].status, WcStatus::Success);
    assert_eq!(end.bytes(2 << 20, 1 << 20), pattern(1 << 20, 9));
}

#[test]
fn each_setting_that_is_about_the_wire_keeps_packets_on_it_and_says_so() {
    let capture = std::env::temp_dir().join(format!("near-{}.pcapng", std::process::id()));
    let settings = [
        ("same_host", "off".to_owned(), WhyWire::Settings),
        ("force_wire", "on".to_owned(), WhyWire::Settings),
        ("capture", capture.display().to_string(), WhyWire::Watched),
        ("trace", "on".to_owned(), WhyWire::Watched),
        ("fault", "seed=1".to_owned(), WhyWire::Watched),
    ];
    for (key, value, why) in settings {
        let mut config = near_config();
        config.set(key, &value).unwrap();
        let pair = Pair::with(Service::Rc, Setup::default(), config, near_config());
        for _ in 0..100 {
            send(&pair, 8);
        }
        assert_eq!(pair.a_qp.route(), Route::Wire(why), "{key}");
        assert!(!SHARED(&pair.b_qp), "{key}");
        assert_eq!(near_packets(&pair.a) + near_packets(&pair.b), 0, "{key}");
    }
    let _ = std::fs::remove_file(capture);
}

#[test]
fn who_sleeps_for_a_completion_is_woken_by_a_ring() {
    let channel = |config| Context::open(Some("lo"), config).unwrap().create_channel().unwrap();
    let (a, b) = (channel(near_config()), channel(near_config()));
    let (a, b) = (
        End::with_channel(near_config(), Some(a.clone())),
        End::with_channel(near_config(), Some(b.clone())),
    );
    let (a_qp, b_qp) = (a.qp(Service::Rc), b.qp(Service::Rc));
    connect(&a, &a_qp, b.gid().1, b_qp.qpn(), Setup::default());
    connect(&b, &b_qp, a.gid().1, a_qp.qpn(), Setup::default());
    let pair = Pair { a_qp, b_qp, a, b };
    warm_up(&pair);
    let sleep = |end: &End| {
        let channel = end.cq.channel().unwrap();
        loop {
            end.cq.req_notify(false);
            let mut wc = [EMPTY_WC; 1];
            if end.cq.poll(&mut wc).unwrap() == 1 {
                return wc[0];
            }
            channel.wait().unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                pair.b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[pair.b.sge(0, 8)] }]).unwrap();
                pair.a_qp.post_send(&[wr(2, SendOp::Send, &[pair.a.sge(0, 8)])]).unwrap();
                assert_eq!(sleep(&pair.a).status, WcStatus::Success);
            }
        });
        for _ in 0..200 {
            assert_eq!(sleep(&pair.b).status, WcStatus::Success);
        }
    });
}
