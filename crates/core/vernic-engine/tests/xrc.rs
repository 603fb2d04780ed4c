//! XRC: one connection for several shared receive queues, each with a protection domain and a
//! completion queue of its own.
#![allow(unsafe_code)]

mod common;

use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;

use common::*;
use vernic_engine::*;

/// A shared receive queue of end B, and what belongs to it.
struct Queue {
    srq: Arc<Srq>,
    cq: Arc<Cq>,
    mr: Arc<Mr>,
}

impl Queue {
    fn new(end: &End, xrcd: &Arc<Xrcd>) -> Self {
        let pd = end.context.alloc_pd();
        let cq = end.context.create_cq(256, None).unwrap();
        let init = SrqInit { max_wr: 64, max_sge: 2, limit: 0 };
        let srq = pd.create_xrc_srq(init, xrcd, &cq).unwrap();
        let addr = end.memory.as_mut_ptr();
        // SAFETY: as `End::with`: the buffer outlives the region, which each test drops first, and
        // is accessed racily by design.
        let mr = unsafe { pd.reg_mr(addr, MEMORY as u64, addr as u64, end.mr.access()) }.unwrap();
        Self { srq, cq, mr }
    }

    fn post(&self, wr_id: u64, offset: u64, length: u32) {
        let sge = Sge { addr: self.mr.iova() + offset, length, lkey: self.mr.lkey() };
        self.srq.post_recv(&[RecvWr { wr_id, sges: &[sge] }]).unwrap();
    }

    fn remote(&self, offset: u64) -> Remote {
        Remote { addr: self.mr.iova() + offset, rkey: self.mr.rkey() }
    }

    /// Polls until a completion is there.
    fn wait(&self, other: &End) -> Wc {
        let start = std::time::Instant::now();
        let mut wc = [EMPTY_WC];
        while self.cq.poll(&mut wc) == Ok(0) {
            other.context.progress();
            assert!(start.elapsed() < PATIENCE, "no completion");
        }
        wc[0]
    }

    fn is_empty(&self) -> bool {
        self.cq.poll(&mut [EMPTY_WC]) == Ok(0)
    }
}

/// An initiator at A, a target at B with two queues in its domain.
struct Xrc {
    ini: Arc<Qp>,
    tgt: Arc<Qp>,
    queues: [Queue; 2],
    xrcd: Arc<Xrcd>,
    a: End,
    b: End,
}

const PRIVATE: XrcdOpen = XrcdOpen { file: None, create: true, exclusive: false };

impl Xrc {
    fn new() -> Self {
        Self::with(test_config(), test_config())
    }

    fn with(a: Config, b: Config) -> Self {
        let (a, b) = (End::with(a), End::with(b));
        let xrcd = b.context.open_xrcd(PRIVATE).unwrap();
        let queues = [Queue::new(&b, &xrcd), Queue::new(&b, &xrcd)];
        let tgt = xrcd.create_tgt().unwrap();
        let init = XrcIniInit {
            send_cq: a.cq.clone(),
            cap: QpCap::default(),
            signal_all: false,
            congestion: None,
        };
        let ini = a.pd.create_xrc_ini(init).unwrap();
        let setup = Setup { mtu: Mtu::B1024, timeout: AckTimeout::new(10), ..Setup::default() };
        connect(&a, &ini, b.gid().1, tgt.qpn(), setup);
        connect(&b, &tgt, a.gid().1, ini.qpn(), setup);
        Self { ini, tgt, queues, xrcd, a, b }
    }

    fn post(&self, queue: usize, wr_id: u64, op: SendOp, sges: &[Sge]) {
        self.post_to(self.queues[queue].srq.number().unwrap(), wr_id, op, sges);
    }

    fn post_to(&self, srqn: Srqn, wr_id: u64, op: SendOp, sges: &[Sge]) {
        self.ini.post_send(&[SendWr { srqn: Some(srqn), ..wr(wr_id, op, sges) }]).unwrap();
    }

    /// The statuses of the next sends of A.
    fn sent(&self, count: usize) -> Vec<(u64, WcStatus)> {
        let got = self.a.wait_beside(count, || self.b.context.progress());
        got.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    fn events(&self) -> Vec<EventKind> {
        let tgt = Element::Qp(self.tgt.qpn());
        let next = || self.b.context.try_async_event();
        let events = std::iter::from_fn(next).filter(|event| event.element == tgt);
        events.map(|event| event.kind).collect()
    }
}

#[test]
fn one_connection_serves_two_queues_with_every_operation() {
    let t = Xrc::new();
    let [one, two] = &t.queues;
    assert_ne!(one.srq.number(), two.srq.number());
    let data = pattern(5000, 1);
    t.a.fill(0, &data);
    one.post(10, 0, 8000);
    one.post(11, 0, 0);
    two.post(20, 10_000, 8000);
    two.post(21, 0, 0);
    t.post(0, 1, SendOp::Send, &[t.a.sge(0, 5000)]);
    t.post(1, 2, SendOp::SendImm(77), &[t.a.sge(100, 200)]);
    t.post(1, 3, SendOp::Write(two.remote(20_000)), &[t.a.sge(0, 5000)]);
    t.post(0, 4, SendOp::WriteImm(one.remote(30_000), 78), &[t.a.sge(0, 3000)]);
    t.post(1, 5, SendOp::WriteImm(two.remote(40_000), 79), &[t.a.sge(0, 10)]);
    assert_eq!(t.sent(5), [1, 2, 3, 4, 5].map(|id| (id, WcStatus::Success)));
    let wcs = [one.wait(&t.a), one.wait(&t.a), two.wait(&t.a), two.wait(&t.a)];
    let got = wcs.map(|wc| (wc.wr_id, wc.opcode, wc.byte_len, wc.tag));
    assert_eq!(
        got,
        [
            (10, WcOpcode::Recv, 5000, Tag::None),
            (11, WcOpcode::RecvWriteImm, 3000, Tag::Imm(78)),
            (20, WcOpcode::Recv, 200, Tag::Imm(77)),
            (21, WcOpcode::RecvWriteImm, 10, Tag::Imm(79)),
        ]
    );
    assert!(wcs.iter().all(|wc| (wc.qpn, wc.src_qpn) == (t.tgt.qpn(), t.ini.qpn())));
    assert_eq!(t.b.bytes(0, 5000), data);
    assert_eq!(t.b.bytes(10_000, 200), data[100..300]);
    assert_eq!(t.b.bytes(20_000, 5000), data);
    assert_eq!(t.b.bytes(30_000, 3000), data[..3000]);
    // READs and atomics take nothing from a queue, and need the keys of its protection domain.
    t.b.fill(50_000, &5u64.to_ne_bytes());
    t.post(0, 6, SendOp::Read(one.remote(20_000)), &[t.a.sge(100_000, 4000)]);
    t.post(1, 7, SendOp::Read(two.remote(0)), &[t.a.sge(110_000, 4000)]);
    let remote = two.remote(50_000);
    t.post(1, 8, SendOp::FetchAdd { remote, add: 4 }, &[t.a.sge(120_000, 8)]);
    let remote = one.remote(50_000);
    t.post(0, 9, SendOp::CmpSwap { remote, compare: 9, swap: 1 }, &[t.a.sge(120_008, 8)]);
    assert_eq!(t.sent(4), [6, 7, 8, 9].map(|id| (id, WcStatus::Success)));
    assert_eq!(t.a.bytes(100_000, 4000), data[..4000]);
    assert_eq!(t.a.bytes(110_000, 4000), data[..4000]);
    let words = t.a.bytes(120_000, 16);
    assert_eq!((&words[..8], &words[8..]), (&5u64.to_ne_bytes()[..], &9u64.to_ne_bytes()[..]));
    assert_eq!(t.b.bytes(50_000, 8), 1u64.to_ne_bytes());
    assert!(one.is_empty() && two.is_empty());
}

#[test]
fn flush_and_atomic_write_go_over_xrc_too() {
    let t = Xrc::new();
    let one = &t.queues[0];
    t.a.fill(0, &7u64.to_ne_bytes());
    t.post(0, 1, SendOp::AtomicWrite(one.remote(64)), &[t.a.sge(0, 8)]);
    let op = SendOp::Flush { remote: one.remote(64), placement: 1, selectivity: 0 };
    // All that is granted by default, and FLUSH.
    let attr = QpAttr { access: 0x10F, ..QpAttr::default() };
    t.tgt.modify(&attr, AttrMask::ACCESS_FLAGS).unwrap();
    let flush = SendWr { payload: Payload::Range(8), srqn: one.srq.number(), ..wr(2, op, &[]) };
    t.ini.post_send(&[flush]).unwrap();
    assert_eq!(t.sent(2), [1, 2].map(|id| (id, WcStatus::Success)));
    assert_eq!(t.b.bytes(64, 8), 7u64.to_ne_bytes());
}

#[test]
fn keys_must_be_of_the_protection_domain_of_the_queue_that_the_request_names() {
    for op in [SendOp::Write as fn(Remote) -> SendOp, SendOp::Read] {
        let t = Xrc::new();
        let [one, two] = &t.queues;
        t.post(0, 1, op(one.remote(0)), &[t.a.sge(0, 8)]);
        t.post(0, 2, op(two.remote(0)), &[t.a.sge(0, 8)]);
        assert_eq!(t.sent(2), [(1, WcStatus::Success), (2, WcStatus::RemoteAccess)]);
        assert_eq!(
            t.events(),
            [EventKind::QpAccessError, EventKind::LastWqeReached],
            "{:?}",
            t.tgt.explain()
        );
        assert!(t.tgt.explain().unwrap().to_string().contains("another protection domain"));
    }
}

#[test]
fn a_number_that_no_queue_has_and_a_queue_of_another_domain_end_the_connection() {
    let destroyed = |t: &Xrc| {
        let number = t.queues[0].srq.number().unwrap();
        t.queues[0].srq.destroy().unwrap();
        (number, None)
    };
    let foreign = |t: &Xrc| {
        let xrcd = t.b.context.open_xrcd(PRIVATE).unwrap();
        let queue = Queue::new(&t.b, &xrcd);
        (queue.srq.number().unwrap(), Some(queue))
    };
    let invalid = (WcStatus::RemoteInvalidRequest, EventKind::QpRequestError);
    let denied = (WcStatus::RemoteAccess, EventKind::QpAccessError);
    type Wrong<'a> = &'a dyn Fn(&Xrc) -> (Srqn, Option<Queue>);
    let cases: [(Wrong<'_>, _); 4] = [
        (&|_| (Srqn::new(0), None), invalid),
        (&|_| (Srqn::new(0xFF_FFFF), None), invalid),
        (&destroyed, invalid),
        (&foreign, denied),
    ];
    for (wrong, (status, event)) in cases {
        let t = Xrc::new();
        t.queues[0].post(1, 0, 100);
        // The target has worked for the queue before.
        t.post(0, 1, SendOp::Send, &[t.a.sge(0, 8)]);
        assert_eq!(t.sent(1), [(1, WcStatus::Success)]);
        let (srqn, _queue) = wrong(&t);
        t.post_to(srqn, 2, SendOp::Send, &[t.a.sge(0, 8)]);
        t.post(1, 3, SendOp::Send, &[t.a.sge(0, 8)]);
        assert_eq!(t.sent(2), [(2, status), (3, WcStatus::Flushed)]);
        assert_eq!(t.events(), [event, EventKind::LastWqeReached]);
        assert_eq!(t.tgt.state(), QpState::Error);
    }
}

#[test]
fn a_queue_without_receives_is_waited_for_and_its_limit_is_told() {
    let t = Xrc::new();
    let one = &t.queues[0];
    t.post(0, 1, SendOp::Send, &[t.a.sge(0, 8)]);
    while t.tgt.counters().rnr_naks_sent == 0 {
        t.a.context.progress();
        t.b.context.progress();
    }
    one.post(1, 0, 100);
    one.post(2, 0, 100);
    one.srq.arm_limit(2).unwrap();
    assert_eq!(t.sent(1), [(1, WcStatus::Success)]);
    let limit =
        AsyncEvent { kind: EventKind::SrqLimitReached, element: Element::Srq(one.srq.id()) };
    assert_eq!(t.b.context.try_async_event(), Some(limit));
}

#[test]
fn neither_half_takes_what_belongs_to_the_other() {
    let t = Xrc::new();
    let send = [SendWr { srqn: Some(Srqn::new(1)), ..wr(1, SendOp::Send, &[]) }];
    let refused = t.tgt.post_send(&send).unwrap_err().source;
    assert_eq!(refused, SendRefusal::Protocol(PostError::NoSendQueue));
    let refused = t.ini.post_send(&[wr(1, SendOp::Send, &[])]).unwrap_err().source;
    assert_eq!(refused, SendRefusal::Protocol(PostError::NoSrqn));
    for qp in [&t.tgt, &t.ini] {
        let refused = qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap_err().source;
        assert_eq!(refused, RecvRefusal::NoQueue);
    }
    assert!(t.tgt.send_cq().is_none() && t.tgt.recv_cq().is_none() && t.ini.recv_cq().is_none());
    let init = QpInit {
        service: Service::Rc,
        send_cq: t.b.cq.clone(),
        recv_cq: t.b.cq.clone(),
        srq: Some(t.queues[0].srq.clone()),
        cap: QpCap::default(),
        signal_all: false,
        congestion: None,
    };
    assert!(matches!(t.b.pd.create_qp(init), Err(CreateError::XrcSrq)));
}

#[test]
fn a_domain_ends_after_its_queues_and_targets_and_a_target_after_its_handles() {
    let t = Xrc::new();
    assert_eq!(t.xrcd.destroy().unwrap_err().users, 3);
    let again = t.xrcd.open_tgt(t.tgt.qpn()).unwrap();
    assert!(Arc::ptr_eq(&again, &t.tgt));
    let other = t.b.context.open_xrcd(PRIVATE).unwrap();
    let unknown = XrcdError::NoTarget(t.tgt.qpn());
    assert_eq!(other.open_tgt(t.tgt.qpn()).unwrap_err(), unknown);
    // One of two handles is closed: it works on.
    again.destroy().unwrap();
    t.queues[0].post(1, 0, 100);
    t.post(0, 1, SendOp::Send, &[t.a.sge(0, 8)]);
    assert_eq!(t.sent(1), [(1, WcStatus::Success)]);
    t.tgt.destroy().unwrap();
    assert_eq!(t.xrcd.open_tgt(t.tgt.qpn()).unwrap_err(), unknown);
    assert_eq!(t.b.context.open_qps(), 0);
    for queue in &t.queues {
        assert!(queue.cq.destroy().is_err(), "a queue completes there");
        queue.srq.destroy().unwrap();
        queue.cq.destroy().unwrap();
    }
    t.xrcd.destroy().unwrap();
    // What was received before the end can still be polled.
    assert_eq!(t.queues[0].wait(&t.a).wr_id, 1);
}

#[test]
fn a_domain_is_shared_by_those_who_open_it_by_the_same_file() {
    let end = End::new();
    let file = Some(XrcdFile { device: 1, inode: 2 });
    let open = |create, exclusive| end.context.open_xrcd(XrcdOpen { file, create, exclusive });
    let there = XrcdFile { device: 1, inode: 2 };
    assert_eq!(open(false, false).unwrap_err(), XrcdError::NotThere(there));
    let first = open(true, true).unwrap();
    assert_eq!(open(true, true).unwrap_err(), XrcdError::Exists(there));
    let second = open(false, false).unwrap();
    let tgt = first.create_tgt().unwrap();
    assert_eq!(second.open_tgt(tgt.qpn()).unwrap().qpn(), tgt.qpn());
    first.destroy().unwrap();
    assert_eq!(second.destroy().unwrap_err().users, 1);
    drop(tgt);
    second.destroy().unwrap();
    assert_eq!(open(false, false).unwrap_err(), XrcdError::NotThere(there));
    let private = XrcdOpen { file: None, create: false, exclusive: false };
    assert_eq!(end.context.open_xrcd(private).unwrap_err(), XrcdError::NotCreated);
}

#[test]
fn a_queue_destroyed_while_a_message_fills_its_receive_leaves_nothing_behind() {
    let t = Xrc::new();
    let one = &t.queues[0];
    one.post(1, 0, 1 << 20);
    // So long that the window cannot hold it: it is under way when the first packets are there.
    t.post(0, 1, SendOp::Send, &[t.a.sge(0, 1 << 20)]);
    while t.tgt.counters().rx_packets < 2 {
        t.b.context.progress();
    }
    let number = one.srq.number().unwrap();
    one.srq.destroy().unwrap();
    one.cq.destroy().unwrap();
    let status = t.sent(1)[0].1;
    // Unless the background threads were faster than this one.
    if status != WcStatus::Success {
        assert_eq!(status, WcStatus::RemoteInvalidRequest);
        assert!(one.is_empty());
    }
    t.queues[1].post(2, 0, 8);
    assert_ne!(t.queues[1].srq.number(), Some(number));
}

#[test]
fn messages_for_two_queues_survive_a_lossy_path_in_order() {
    let config = |seed: u32| {
        let mut config = test_config();
        let spec = format!("loss=0.03,dup=0.02,reorder=0.02,corrupt=0.01,seed={seed}");
        config.set("fault", &spec).unwrap();
        config
    };
    let t = Xrc::with(config(1), config(2));
    const MESSAGES: u64 = 200;
    for n in 0..32 {
        t.queues[0].post(2 * n, n * 8192, 8192);
        t.queues[1].post(2 * n + 1, n * 8192 + (1 << 20), 8192);
    }
    let (mut posted, mut sent) = (0, 0);
    let mut received = [0, 1];
    let start = std::time::Instant::now();
    let mut wcs = [EMPTY_WC; 16];
    while sent < MESSAGES || received != [MESSAGES, MESSAGES + 1] {
        while posted < MESSAGES && posted - sent < 8 {
            let (at, len) = ((posted % 8) * 8192, (posted * 7919 % 8000) as u32);
            t.a.fill(at as usize, &pattern(len as usize, posted as u32));
            t.post((posted & 1) as usize, posted, SendOp::Send, &[t.a.sge(at, len)]);
            posted += 1;
        }
        let n = t.a.cq.poll(&mut wcs).unwrap();
        for wc in &wcs[..n] {
            assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, sent), "{:?}", t.ini.explain());
            sent += 1;
        }
        for (side, queue) in t.queues.iter().enumerate() {
            let n = queue.cq.poll(&mut wcs).unwrap();
            for wc in &wcs[..n] {
                let number = received[side];
                assert_eq!(wc.status, WcStatus::Success, "{:?}", t.tgt.explain());
                assert_eq!(
                    (wc.wr_id & 1, wc.byte_len),
                    (side as u64, (number * 7919 % 8000) as u32)
                );
                let at = (wc.wr_id / 2 * 8192) + if side == 1 { 1 << 20 } else { 0 };
                let want = pattern(wc.byte_len as usize, number as u32);
                assert_eq!(t.b.bytes(at as usize, wc.byte_len as usize), want);
                queue.post(wc.wr_id, at, 8192);
                received[side] += 2;
            }
        }
        assert!(start.elapsed() < PATIENCE, "{sent} sent, {received:?} received");
    }
}

/// What tshark reads in the packets: opcode, first bytes behind the BTH.
fn read_back(path: &str) -> Option<Vec<(u8, String)>> {
    if Command::new("tshark").arg("--version").output().is_err() {
        let notice = "tshark is not installed: NOTHING WAS CHECKED BY IT (apt-get install tshark)";
        let required = std::env::var_os("VERNIC_REQUIRE_TOOLS").is_some_and(|value| value != "0");
        assert!(!required, "{notice}");
        writeln!(std::io::stderr().lock(), "\nWARNING: {notice}").unwrap();
        return None;
    }
    let fields = ["_ws.malformed", "_ws.expert.message", "infiniband.bth.opcode", "udp.payload"];
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-T", "fields", "-E", "separator=|", "-r", path]);
    tshark.args(fields.iter().flat_map(|field| ["-e", field]));
    let output = tshark.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().map(|line| {
        let row: Vec<_> = line.split('|').collect();
        assert_eq!((row[0], row[1]), ("", ""), "malformed or suspicious: {line}");
        (row[2].parse().unwrap(), row[3][24..32].to_owned())
    });
    Some(rows.collect())
}

#[test]
fn tshark_finds_xrc_opcodes_with_the_queues_number_behind_the_bth() {
    let path = format!("{}/xrc-{}.pcapng", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let mut config = test_config();
    config.set("capture", &path).unwrap();
    let t = Xrc::with(config, test_config());
    let [one, two] = [0, 1].map(|queue| t.queues[queue].srq.number().unwrap());
    t.queues[1].post(1, 0, 4000);
    t.post(1, 1, SendOp::Send, &[t.a.sge(0, 2000)]);
    t.post(0, 2, SendOp::Write(t.queues[0].remote(0)), &[t.a.sge(0, 20)]);
    t.post(0, 3, SendOp::Read(t.queues[0].remote(0)), &[t.a.sge(0, 20)]);
    assert_eq!(t.sent(3), [1, 2, 3].map(|id| (id, WcStatus::Success)));
    drop(t);
    let Some(packets) = read_back(&path) else { return };
    std::fs::remove_file(&path).unwrap();
    let mut requests = Vec::new();
    for packet in packets.iter().filter(|(opcode, _)| opcode & 0x1F < 0x0D) {
        // Where the machine is late a request is repeated.
        if !requests.contains(&packet) {
            requests.push(packet);
        }
    }
    let number = |srqn: Srqn| format!("{:08x}", srqn.value());
    let want = [(0xA0, number(two)), (0xA2, number(two)), (0xAA, number(one)), (0xAC, number(one))];
    assert_eq!(requests, want.iter().collect::<Vec<_>>(), "{packets:x?}");
    assert!(packets.iter().all(|(opcode, _)| opcode >> 5 == 5), "all are XRC: {packets:x?}");
}

#[test]
fn within_one_host_sends_travel_as_messages_and_large_ones_are_copied_once() {
    let mut config = test_config();
    config.set("same_host", "on").unwrap();
    let t = Xrc::with(config.clone(), config);
    let counters = || t.b.context.counters();
    let (start, mut round) = (std::time::Instant::now(), 0);
    // Each queue in turn gets what names it, whichever way it comes.
    while counters().near_pulled_parts < 4 {
        let (queue, len) = (round % 2, [5, 4216, 4217, 70_000][round / 2 % 4]);
        t.a.fill(0, &pattern(len, round as u32));
        t.queues[queue].post(round as u64, 0, len as u32);
        let op = SendOp::SendImm(round as u32);
        t.post(queue, 7, op, &[t.a.sge(0, len as u32)]);
        let wc = t.queues[queue].wait(&t.a);
        let expected = (round as u64, WcStatus::Success, len as u32, t.tgt.qpn());
        assert_eq!((wc.wr_id, wc.status, wc.byte_len, wc.qpn), expected);
        assert_eq!(wc.tag, Tag::Imm(round as u32));
        assert!(t.b.bytes(0, len) == pattern(len, round as u32), "{len} bytes");
        assert!(t.queues[1 - queue].is_empty());
        assert_eq!(t.sent(1), [(7, WcStatus::Success)]);
        round += 1;
        assert!(start.elapsed() < PATIENCE, "{} {}", t.ini.route(), counters());
    }
    // Without a receive in the queue, the initiator waits for one.
    let near = counters().near_rx_packets;
    t.post(1, 8, SendOp::Send, &[t.a.sge(0, 8)]);
    t.a.context.progress();
    t.b.context.progress();
    assert_eq!((counters().rnr_naks_sent, counters().near_rx_packets), (1, near + 1));
    t.queues[1].post(9, 0, 8);
    assert_eq!(t.queues[1].wait(&t.a).wr_id, 9);
    assert_eq!(t.sent(1), [(8, WcStatus::Success)]);
    // A queue that is not there is an error of both ends.
    t.post_to(Srqn::new(0xFF_FFFF), 10, SendOp::Send, &[t.a.sge(0, 8)]);
    assert_eq!(t.sent(1), [(10, WcStatus::RemoteInvalidRequest)]);
}
