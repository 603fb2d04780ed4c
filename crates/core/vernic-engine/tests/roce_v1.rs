//! RoCEv1 between two hosts: two network namespaces, joined by a veth pair, with a device in each.
//!
//! A thread is in one namespace at a time, and sockets are of the namespace that they were opened
//! in. So all that opens sockets of a host runs inside of [`Host::within`]. A third socket sees
//! every frame that comes to host `b`, and sends what no device would.

mod common;

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::other::runs_alone;
use common::*;
use vernic_engine::*;
use vernic_wire::net::{Ethernet, MacAddr};
use vernic_wire::{Bth, Deth, Frame, FrameV1, Grh, Headers, Opcode, Packet, icrc};

/// A network namespace with one end of the veth pair, called `ve`.
struct Host {
    namespace: File,
    /// Keeps the namespace while it has no other process.
    _keeper: Option<Keeper>,
}

struct Keeper(Child);

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[allow(unsafe_code)]
fn enter(namespace: &File) {
    // SAFETY: no pointers are passed.
    let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(entered, 0, "{}", std::io::Error::last_os_error());
}

impl Host {
    /// Does something in the namespace.
    fn within<T>(&self, what: impl FnOnce() -> T) -> T {
        let outside = File::open("/proc/thread-self/ns/net").unwrap();
        enter(&self.namespace);
        let result = what();
        enter(&outside);
        result
    }

    fn ip(&self, args: &str) {
        self.within(|| ip(args));
    }

    /// A device of the host, once its netdev is up and all of its addresses are usable.
    fn end(&self) -> End {
        // Both devices are in this process, which would find itself to be the peer's.
        let mut config = test_config();
        config.set("force_wire", "on").unwrap();
        self.end_with(config)
    }

    fn end_with(&self, config: Config) -> End {
        self.within(|| {
            let since = Instant::now();
            loop {
                let context = Context::open(Some("ve"), config.clone()).unwrap();
                let is_up = context.port_attr(PortNum(1)).unwrap().state == PortState::Active;
                if is_up && context.gid_table().len() == 6 {
                    return End::on(context, None);
                }
                assert!(since.elapsed() < PATIENCE, "{:?}", context.gid_table());
                std::thread::sleep(Duration::from_millis(20));
            }
        })
    }
}

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().unwrap();
    assert!(status.success(), "ip {args}");
}

/// Two hosts, of which this process's namespace becomes the first.
fn hosts() -> [Host; 2] {
    let namespace = |process: &str| File::open(format!("/proc/{process}/ns/net")).unwrap();
    let mut sleep = Command::new("unshare");
    let child = sleep.args(["--net", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let (pid, own) = (child.id(), namespace("self"));
    let is_same = || {
        std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap()
            == std::fs::read_link("/proc/self/ns/net").unwrap()
    };
    while is_same() {
        std::thread::sleep(Duration::from_millis(1));
    }
    ip(&format!("link add ve mtu 9000 type veth peer name ve mtu 9000 netns {pid}"));
    let a = Host { namespace: own, _keeper: None };
    let b = Host { namespace: namespace(&pid.to_string()), _keeper: Some(Keeper(child)) };
    for (host, n) in [(&a, 1), (&b, 2)] {
        host.ip("link set lo up");
        host.ip(&format!("address add 10.16.0.{n}/24 dev ve"));
        host.ip(&format!("address add 2001:db8:16::{n}/64 dev ve nodad"));
        host.ip("link set ve up");
    }
    [a, b]
}

/// A packet socket in host `b`'s namespace.
struct Wire(OwnedFd, libc::sockaddr_ll);

#[allow(unsafe_code)]
impl Wire {
    fn of(host: &Host) -> Self {
        let ifindex = host.within(|| {
            let all = devices().unwrap();
            all.iter().find(|info| info.port.netdev == "ve").unwrap().port.netdev_index
        });
        host.within(|| {
            let (kind, protocol) = (libc::SOCK_RAW | libc::SOCK_NONBLOCK, 0x8915_u16.to_be());
            // SAFETY: no pointers are passed; a sockaddr_ll of zeros is valid; pointer and length
            // describe it.
            unsafe {
                let fd = libc::socket(libc::AF_PACKET, kind, protocol.into());
                assert!(fd >= 0, "{}", std::io::Error::last_os_error());
                let mut addr: libc::sockaddr_ll = std::mem::zeroed();
                addr.sll_family = libc::AF_PACKET as u16;
                addr.sll_protocol = protocol;
                addr.sll_ifindex = ifindex as i32;
                let len = size_of::<libc::sockaddr_ll>() as u32;
                assert_eq!(libc::bind(fd, (&raw const addr).cast(), len), 0);
                Self(OwnedFd::from_raw_fd(fd), addr)
            }
        })
    }

    fn send(&self, frame: &[u8]) {
        let fd = self.0.as_fd().as_raw_fd();
        let len = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: pointers and lengths describe the frame and the address, which are only read.
        let sent = unsafe {
            let addr = (&raw const self.1).cast();
            libc::sendto(fd, frame.as_ptr().cast(), frame.len(), 0, addr, len)
        };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// The next frame that has come.
    fn next(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 9100];
        let fd = self.0.as_fd().as_raw_fd();
        // SAFETY: pointer and length describe the buffer.
        let len = unsafe { libc::recv(fd, frame.as_mut_ptr().cast(), frame.len(), 0) };
        frame.truncate(usize::try_from(len).ok()?);
        Some(frame)
    }
}

/// The rows of RoCEv1 with link-local, IPv6 and IPv4 addresses.
fn rows(end: &End) -> Vec<GidEntry> {
    let rows = end.context.gid_table().into_iter();
    rows.filter(|row| row.kind == GidType::RoceV1).collect()
}

fn attr(row: &GidEntry, peer: Gid, peer_qpn: Qpn, mtu: Mtu) -> QpAttr {
    let psn = Psn::new(0xFF_FFF0);
    QpAttr {
        state: QpState::Init,
        access: 0xF,
        path_mtu: mtu,
        dest_qpn: peer_qpn,
        rq_psn: psn,
        sq_psn: psn,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        min_rnr_timer: RnrTimer::new(12),
        timeout: AckTimeout::new(14),
        retry_cnt: 7,
        rnr_retry: 7,
        port: PortNum(1),
        av: AddressVector {
            dgid: peer,
            sgid_index: row.index,
            port: PortNum(1),
            ..AddressVector::default()
        },
        ..QpAttr::default()
    }
}

/// Takes a queue pair to RTS, from the row of a GID.
fn connect_by(qp: &Qp, row: &GidEntry, peer: Gid, peer_qpn: Qpn) {
    use AttrMask as M;
    let attr = attr(row, peer, peer_qpn, Mtu::B4096);
    let is_rc = qp.qp_type() == QpType::Rc;
    qp.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS).unwrap();
    let mut mask = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    if is_rc {
        mask |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    }
    qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, mask).unwrap();
    let mut mask = M::STATE | M::SQ_PSN;
    if is_rc {
        mask |= M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_RD_ATOMIC;
    }
    qp.modify(&QpAttr { state: QpState::Rts, ..attr }, mask).unwrap();
}

/// A queue pair of each end, connected by the rows of the same kind of address.
fn pair(hosts: &[Host; 2], ends: [&End; 2], service: Service, nth: usize) -> [Arc<Qp>; 2] {
    let qps = ends.map(|end| end.qp(service));
    let found = ends.map(|end| rows(end)[nth].clone());
    for (own, peer) in [(0, 1), (1, 0)] {
        hosts[own].within(|| {
            connect_by(&qps[own], &found[own], found[peer].gid, qps[peer].qpn());
        });
    }
    qps
}

/// Writes, reads and sends 20,000 bytes, and adds to a word.
fn exercise(hosts: &[Host; 2], [a, b]: [&End; 2], [a_qp, b_qp]: &[Arc<Qp>; 2], seed: u32) {
    let data = pattern(20_000, seed);
    a.fill(0, &data);
    b.fill(100_000, &7u64.to_ne_bytes());
    let (own, back) = ([a.sge(0, 20_000)], [a.sge(50_000, 20_000)]);
    let word = [a.sge(80_000, 8)];
    b_qp.post_recv(&[RecvWr { wr_id: 9, sges: &[b.sge(60_000, 20_000)] }]).unwrap();
    let add = SendOp::FetchAdd { remote: b.remote(100_000), add: 5 };
    hosts[0].within(|| {
        let posted = a_qp.post_send(&[
            wr(1, SendOp::Write(b.remote(4096)), &own),
            wr(2, SendOp::Read(b.remote(4096)), &back),
            wr(3, add, &word),
            wr(4, SendOp::Send, &own),
        ]);
        posted.unwrap();
        let done = a.wait(4);
        assert!(done.iter().all(|wc| wc.status == WcStatus::Success), "{done:?}");
    });
    hosts[1].within(|| assert_eq!(b.wait(1)[0].status, WcStatus::Success));
    assert_eq!(b.bytes(4096, data.len()), data);
    assert_eq!(a.bytes(50_000, data.len()), data);
    assert_eq!(b.bytes(60_000, data.len()), data);
    assert_eq!(a.bytes(80_000, 8), 7u64.to_ne_bytes());
    assert_eq!(b.bytes(100_000, 8), 12u64.to_ne_bytes());
}

fn counter(end: &End, name: &str) -> u64 {
    let counters = end.context.counters();
    counters.iter().find(|(known, _)| *known == name).unwrap().1
}

/// Waits until a counter has a value; it may not have more.
fn until(end: &End, name: &str, value: u64) {
    let since = Instant::now();
    while counter(end, name) != value {
        assert!(since.elapsed() < PATIENCE, "{name} is {}, not {value}", counter(end, name));
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn each_address_has_a_row_of_each_version_that_leads_to_the_peer() {
    if runs_alone("each_address_has_a_row_of_each_version_that_leads_to_the_peer") {
        return;
    }
    let hosts = hosts();
    let (a, b) = (hosts[0].end(), hosts[1].end());
    let kinds = a.context.gid_table().into_iter().map(|row| (row.index, row.kind));
    let (v1, v2) = (GidType::RoceV1, GidType::RoceV2);
    let expected = [(0, v2), (1, v2), (2, v2), (32, v1), (33, v1), (34, v1)];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
    let wire = Wire::of(&hosts[1]);
    let mut qps = Vec::new();
    for nth in 0..3 {
        let connected = pair(&hosts, [&a, &b], Service::Rc, nth);
        exercise(&hosts, [&a, &b], &connected, nth as u32);
        let (mut frames, mut payload) = (0, 0);
        while let Some(frame) = wire.next() {
            let parsed = FrameV1::parse(&frame).unwrap();
            assert!(parsed.is_icrc_right(), "{parsed}");
            assert_eq!((parsed.grh.sgid, parsed.grh.dgid), (rows(&a)[nth].gid, rows(&b)[nth].gid));
            let packet = Packet::parse(&parsed.packet[..parsed.packet.len() - 4]).unwrap();
            frames += 1;
            payload += packet.payload().len();
        }
        // 20,000 bytes written and sent, in packets of 4096 bytes at most.
        assert!(frames >= 12 && payload >= 40_000, "{frames} frames, {payload} bytes");
        qps.push(connected);
    }
    // By RoCEv2, between the same addresses: no frame of RoCEv1.
    let (a_qp, b_qp) = (a.qp(Service::Rc), b.qp(Service::Rc));
    hosts[0].within(|| connect(&a, &a_qp, b.gid().1, b_qp.qpn(), Setup::default()));
    hosts[1].within(|| connect(&b, &b_qp, a.gid().1, a_qp.qpn(), Setup::default()));
    exercise(&hosts, [&a, &b], &[a_qp, b_qp], 9);
    assert!(wire.next().is_none());
    // And those of RoCEv1 still go on beside it.
    exercise(&hosts, [&a, &b], &qps[1], 10);
    assert!(wire.next().is_some());
}

#[test]
fn a_queue_pair_takes_packets_of_its_own_version_only() {
    if runs_alone("a_queue_pair_takes_packets_of_its_own_version_only") {
        return;
    }
    let hosts = hosts();
    let (a, b) = (hosts[0].end(), hosts[1].end());
    let [a_qp, b_qp] = [&a, &b].map(|end| end.qp(Service::Uc));
    let row = |end: &End, kind| {
        let mut rows = end.context.gid_table().into_iter();
        rows.find(|row| row.kind == kind && row.local.ip.is_ipv4()).unwrap()
    };
    let (v1, v2) = (row(&a, GidType::RoceV1), row(&b, GidType::RoceV2));
    hosts[0].within(|| connect_by(&a_qp, &v1, v2.gid, b_qp.qpn()));
    hosts[1].within(|| connect_by(&b_qp, &v2, v1.gid, a_qp.qpn()));
    // Another queue pair of b's receives RoCEv1, so that frames reach the device.
    let _other = pair(&hosts, [&a, &b], Service::Rc, 2);
    hosts[0].within(|| {
        let sges = [a.sge(0, 100)];
        a_qp.post_send(&[wr(1, SendOp::Write(b.remote(0)), &sges)]).unwrap();
        a.wait(1);
    });
    until(&b, "drop_wrong_source", 1);
}

fn bring_up(qp: &Qp) {
    bring_up_ud(qp, Qkey(7));
}

#[test]
fn datagrams_bring_their_grh_and_come_from_whom_they_say() {
    if runs_alone("datagrams_bring_their_grh_and_come_from_whom_they_say") {
        return;
    }
    let hosts = hosts();
    let ends = [hosts[0].end(), hosts[1].end()];
    let [a, b] = &ends;
    let [a_qp, b_qp] = [a, b].map(|end| end.qp(Service::Ud));
    // The receiver has no path by RoCEv1, and never sends.
    hosts[1].within(|| bring_up(&b_qp));
    hosts[0].within(|| bring_up(&a_qp));
    for nth in 0..3 {
        let (own, peer) = (rows(a)[nth].clone(), rows(b)[nth].clone());
        let av = AddressVector {
            dgid: peer.gid,
            sgid_index: own.index,
            traffic_class: 0x48,
            hop_limit: 9,
            flow_label: 0x1234,
            port: PortNum(1),
            ..AddressVector::default()
        };
        b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[b.sge(0, 4096)] }]).unwrap();
        let data = pattern(300, nth as u32);
        a.fill(0, &data);
        hosts[0].within(|| {
            let ah = a.pd.create_ah(av).unwrap();
            let dest = Some(Dest { ah: &ah, qpn: b_qp.qpn(), qkey: Qkey(7) });
            let sges = [a.sge(0, 300)];
            a_qp.post_send(&[SendWr { dest, ..wr(2, SendOp::Send, &sges) }]).unwrap();
            a.wait(1);
        });
        let wc = hosts[1].within(|| b.wait(1))[0];
        assert_eq!((wc.status, wc.byte_len, wc.src_qpn), (WcStatus::Success, 340, a_qp.qpn()));
        let grh = Grh::parse(&b.bytes(0, 40)).unwrap();
        assert_eq!((grh.version, grh.next_header), (6, 0x1B));
        assert_eq!((grh.sgid, grh.dgid, grh.traffic_class), (own.gid, peer.gid, 0x48));
        assert_eq!((grh.hop_limit, grh.payload_length), (9, 12 + 8 + 300 + 4));
        assert_eq!(grh.flow_label, 0x1234);
        assert_eq!(b.bytes(40, 300), data);
    }
}

#[test]
fn a_group_reaches_members_on_both_hosts() {
    if runs_alone("a_group_reaches_members_on_both_hosts") {
        return;
    }
    let hosts = hosts();
    let ends = [hosts[0].end(), hosts[1].end()];
    let [a, b] = &ends;
    for (group, nth) in [("ff0e::16:4711", 1), ("239.16.0.5", 2)] {
        let group = Gid::from_ip(group.parse().unwrap());
        let qps = [a, b].map(|end| end.qp(Service::Ud));
        for ((host, qp), end) in hosts.iter().zip(&qps).zip(&ends) {
            host.within(|| {
                bring_up(qp);
                qp.attach_mcast(group).unwrap();
                qp.post_recv(&[RecvWr { wr_id: 1, sges: &[end.sge(0, 4096)] }]).unwrap();
            });
        }
        let data = pattern(64, nth as u32);
        a.fill(5000, &data);
        hosts[0].within(|| {
            let sgid_index = rows(a)[nth].index;
            let av = AddressVector {
                dgid: group,
                sgid_index,
                port: PortNum(1),
                ..AddressVector::default()
            };
            let ah = a.pd.create_ah(av).unwrap();
            let dest = Some(Dest { ah: &ah, qpn: Qpn::MULTICAST, qkey: Qkey(7) });
            let sges = [a.sge(5000, 64)];
            qps[0].post_send(&[SendWr { dest, ..wr(2, SendOp::Send, &sges) }]).unwrap();
            // The send, and the own copy.
            a.wait(2);
        });
        hosts[1].within(|| b.wait(1));
        for end in &ends {
            assert_eq!(end.bytes(40, 64), data);
            assert_eq!(end.bytes(24, 16), group.0);
        }
        for (host, qp) in hosts.iter().zip(&qps) {
            host.within(|| qp.detach_mcast(group).unwrap());
        }
    }
}

#[test]
fn each_device_of_a_host_receives_what_is_for_its_queue_pairs() {
    if runs_alone("each_device_of_a_host_receives_what_is_for_its_queue_pairs") {
        return;
    }
    let hosts = hosts();
    let a = hosts[0].end();
    let several = [hosts[1].end(), hosts[1].end(), hosts[1].end()];
    let pairs: Vec<_> = several.iter().map(|b| pair(&hosts, [&a, b], Service::Rc, 1)).collect();
    for (n, (b, qps)) in several.iter().zip(&pairs).enumerate() {
        exercise(&hosts, [&a, b], qps, n as u32);
    }
    for b in &several {
        assert_eq!(counter(b, "drop_unknown_qpn"), 0);
        assert_eq!(counter(b, "handed_over"), 0);
    }
}

#[test]
fn a_peer_of_the_same_host_is_reached_as_by_version_2() {
    if runs_alone("a_peer_of_the_same_host_is_reached_as_by_version_2") {
        return;
    }
    let hosts = hosts();
    let ends = [(); 2].map(|()| hosts[1].end_with(test_config()));
    let both = hosts_of_one(&hosts[1]);
    let qps = pair(&both, [&ends[0], &ends[1]], Service::Rc, 2);
    exercise(&both, [&ends[0], &ends[1]], &qps, 4);
}

fn hosts_of_one(host: &Host) -> [Host; 2] {
    [(); 2].map(|()| Host { namespace: host.namespace.try_clone().unwrap(), _keeper: None })
}

/// The frames in a pcapng file.
fn frames_in(capture: &std::path::Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(capture).unwrap();
    let (mut frames, mut rest) = (Vec::new(), &bytes[..]);
    while !rest.is_empty() {
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap()) as usize;
        // An enhanced packet block: its head has 28 bytes.
        if word(0) == 6 {
            frames.push(rest[28..28 + word(20)].to_vec());
        }
        rest = &rest[word(4)..];
    }
    frames
}

#[test]
fn a_capture_has_the_frames_of_either_version() {
    if runs_alone("a_capture_has_the_frames_of_either_version") {
        return;
    }
    let hosts = hosts();
    let file = std::env::temp_dir().join(format!("vernic-roce-v1-{}", std::process::id()));
    let mut config = test_config();
    config.set("force_wire", "on").unwrap();
    config.set("capture", file.to_str().unwrap()).unwrap();
    let (a, b) = (hosts[0].end_with(config), hosts[1].end());
    let qps = pair(&hosts, [&a, &b], Service::Rc, 1);
    exercise(&hosts, [&a, &b], &qps, 1);
    let (a_qp, b_qp) = (a.qp(Service::Rc), b.qp(Service::Rc));
    hosts[0].within(|| connect(&a, &a_qp, b.gid().1, b_qp.qpn(), Setup::default()));
    hosts[1].within(|| connect(&b, &b_qp, a.gid().1, a_qp.qpn(), Setup::default()));
    exercise(&hosts, [&a, &b], &[a_qp, b_qp], 2);
    drop((qps, a));
    let frames = frames_in(&file);
    std::fs::remove_file(&file).unwrap();
    let own = rows(&b)[1].gid;
    let (mut sent, mut received, mut by_udp) = (0, 0, 0);
    for frame in &frames {
        match FrameV1::parse(frame) {
            Ok(parsed) => {
                assert!(parsed.is_icrc_right(), "{parsed}");
                if parsed.grh.dgid == own { sent += 1 } else { received += 1 }
            }
            Err(_) => {
                let parsed = Frame::parse(frame).unwrap();
                assert_eq!(parsed.check_icrc(), icrc::Verdict::Good);
                by_udp += 1;
            }
        }
    }
    assert!(sent >= 12 && received >= 5 && by_udp >= 17, "{sent} {received} {by_udp}");
}

/// A frame to `to` with a datagram that its device drops only for having no such queue pair.
fn frame(from: &GidEntry, to: &GidEntry, (src, dst): (MacAddr, MacAddr), qpn: Qpn) -> Vec<u8> {
    let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, qpn, Psn::new(1)));
    headers.deth = Some(Deth::new(Qkey(7), Qpn::new(5)));
    let mut packet = vec![0; headers.len() + 16 + 4];
    headers.emit(&mut packet);
    let grh = Grh {
        version: 6,
        traffic_class: 0,
        flow_label: 0,
        payload_length: packet.len() as u16,
        next_header: Grh::NEXT_HEADER_IBA,
        hop_limit: 64,
        sgid: from.gid,
        dgid: to.gid,
    };
    let mut frame = FrameV1::headers((src, dst), &grh).to_vec();
    frame.extend(packet);
    stamp(&mut frame);
    frame
}

fn stamp(frame: &mut [u8]) {
    let end = frame.len() - 4;
    let grh = Grh::parse(&frame[Ethernet::LEN..]).unwrap();
    let sum = icrc::of_roce_v1(&grh, &frame[FrameV1::HEADER_LEN..end]);
    frame[end..].copy_from_slice(&sum.to_le_bytes());
}

fn mac_of(host: &Host) -> MacAddr {
    let text = host.within(|| {
        let shown = Command::new("ip").args(["-o", "link", "show", "ve"]).output().unwrap();
        String::from_utf8(shown.stdout).unwrap()
    });
    let mac = text.split("link/ether ").nth(1).unwrap();
    let mut bytes = mac.split([':', ' ']).map(|byte| u8::from_str_radix(byte, 16).unwrap());
    MacAddr(std::array::from_fn(|_| bytes.next().unwrap()))
}

#[test]
fn what_is_wrong_with_a_frame_is_counted() {
    if runs_alone("what_is_wrong_with_a_frame_is_counted") {
        return;
    }
    let hosts = hosts();
    let (a, b) = (hosts[0].end(), hosts[1].end());
    let qp = b.qp(Service::Ud);
    hosts[1].within(|| bring_up(&qp));
    let wire = Wire::of(&hosts[0]);
    let (from, to) = (rows(&a)[1].clone(), rows(&b)[1].clone());
    let macs = (mac_of(&hosts[0]), mac_of(&hosts[1]));
    let right = frame(&from, &to, macs, qp.qpn());
    // No receive is posted.
    wire.send(&right);
    until(&b, "drop_no_receive", 1);
    let changed = |at: usize, value: u8| {
        let mut frame = right.clone();
        frame[at] = value;
        frame
    };
    wire.send(&changed(70, 0xEE));
    until(&b, "drop_icrc", 1);
    let bad = [
        changed(14, 0x45),
        changed(20, 17),
        changed(19, 15),
        changed(19, 255),
        right[..60].to_vec(),
        right[..right.len() - 1].to_vec(),
    ];
    for (n, frame) in bad.iter().enumerate() {
        wire.send(frame);
        until(&b, "rx_bad_frames", 1 + n as u64);
    }
    let mut foreign_gid = right.clone();
    foreign_gid[53] ^= 0x40;
    stamp(&mut foreign_gid);
    wire.send(&foreign_gid);
    until(&b, "rx_foreign_frames", 1);
    // With a tag of a VLAN that no netdev has; the kernel takes it out.
    let mut tagged = right[..12].to_vec();
    tagged.extend([0x81, 0x00, 0x00, 0x05]);
    tagged.extend(&right[12..]);
    wire.send(&tagged);
    until(&b, "rx_foreign_frames", 2);
    // A tag with a priority only is of no VLAN.
    tagged[14..16].copy_from_slice(&[0x60, 0x00]);
    wire.send(&tagged);
    until(&b, "drop_no_receive", 2);
    let unknown = frame(&from, &to, macs, Qpn::new(qp.qpn().value() + 1));
    wire.send(&unknown);
    until(&b, "drop_unknown_qpn", 1);
    assert_eq!(counter(&b, "drop_icrc"), 1);
}

#[test]
fn a_vlan_is_a_netdev_whose_frames_have_its_tag() {
    if runs_alone("a_vlan_is_a_netdev_whose_frames_have_its_tag") {
        return;
    }
    let hosts = hosts();
    for (host, n) in hosts.iter().zip(1..) {
        let added = host.within(|| {
            let args = "link add link ve name ve.5 type vlan id 5";
            Command::new("ip").args(args.split(' ')).status().unwrap().success()
        });
        if !added {
            eprintln!("skipped: no VLANs here");
            return;
        }
        host.ip(&format!("address add 10.17.0.{n}/24 dev ve.5"));
        host.ip("link set ve.5 up");
    }
    let ends = [&hosts[0], &hosts[1]].map(|host| {
        let mut config = test_config();
        config.set("force_wire", "on").unwrap();
        host.within(|| End::on(Context::open(Some("ve.5"), config).unwrap(), None))
    });
    let ipv4 = |end: &End| rows(end).iter().position(|row| row.local.ip.is_ipv4()).unwrap();
    assert_eq!(ipv4(&ends[0]), ipv4(&ends[1]));
    let qps = pair(&hosts, [&ends[0], &ends[1]], Service::Rc, ipv4(&ends[0]));
    exercise(&hosts, [&ends[0], &ends[1]], &qps, 3);
}

#[test]
fn a_destination_without_a_station_is_refused_with_the_reason() {
    if runs_alone("a_destination_without_a_station_is_refused_with_the_reason") {
        return;
    }
    let hosts = hosts();
    let a = hosts[0].end();
    hosts[0].ip("route add default via 10.16.0.2");
    let row = rows(&a).into_iter().find(|row| row.local.ip.is_ipv4()).unwrap();
    let refusal = |to: &str| {
        let dgid = Gid::from_ip(to.parse().unwrap());
        let (sgid_index, port) = (row.index, PortNum(1));
        let av = AddressVector { dgid, sgid_index, port, ..AddressVector::default() };
        hosts[0].within(|| a.pd.create_ah(av)).unwrap_err().to_string()
    };
    let nobody = refusal("10.16.0.77");
    assert!(nobody.contains("no station of this Ethernet"), "{nobody}");
    let behind = refusal("198.51.100.1");
    assert!(behind.contains("behind a router"), "{behind}");
    // The wait for a neighbour takes a second.
    let start = Instant::now();
    for nobody in 80..90 {
        let dgid = Gid::from_ip(format!("10.16.0.{nobody}").parse().unwrap());
        let (sgid_index, port) = (row.index, PortNum(1));
        let av = AddressVector { dgid, sgid_index, port, ..AddressVector::default() };
        let error = hosts[0].within(|| a.context.check_path_now(&av)).unwrap_err().to_string();
        assert!(error.contains("no station of this Ethernet"), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
