//! Fork in the midst of traffic: what the child may do with what it inherited, what it can do anew,
//! and that the parent does not notice.
//!
//! No test harness: a child of `fork` has one thread, and the harness would have more to lose.

#![allow(unsafe_code)]
#![allow(clippy::print_stdout)] // there is no harness to do it

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use common::cm::*;
use common::*;
use vernic_engine::*;

/// Forks while another thread moves messages: each meets it somewhere else.
const FORKS: usize = 40;

const PRIVATE: XrcdOpen = XrcdOpen { file: None, create: true, exclusive: false };

/// A child that hangs is ended by the kernel, and so fails the test.
const CHILD_SECONDS: u32 = 20;

fn main() -> ExitCode {
    exec_inherits_no_descriptor();
    locks_held_at_the_fork_do_not_hang_the_child();
    children_of_one_process_draw_different_numbers();
    a_child_connects_to_its_parent_and_keeps_none_of_its_services();
    child_and_parent_go_on_when_one_forks_in_the_midst_of_traffic();
    println!("fork: all passed");
    ExitCode::SUCCESS
}

/// Runs `child` in a forked process and `parent` meanwhile in this one; both get an end of a pipe
/// in each direction.
fn fork_with(child: impl FnOnce(File, File), parent: impl FnOnce(File, File)) {
    let ((child_in, parent_out), (parent_in, child_out)) = (pipe(), pipe());
    // SAFETY: the child runs in this function only, on the one thread that it has, and ends in it.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            drop((parent_in, parent_out));
            // SAFETY: no pointers.
            unsafe { libc::alarm(CHILD_SECONDS) };
            let run = std::panic::AssertUnwindSafe(|| child(child_in, child_out));
            let code = i32::from(std::panic::catch_unwind(run).is_err());
            // SAFETY: ends the process without running what the parent will run at its end.
            unsafe { libc::_exit(code) }
        }
        pid => {
            drop((child_in, child_out));
            parent(parent_in, parent_out);
            let mut status = 0;
            // SAFETY: `status` is a valid place.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert_eq!(status, 0, "the child failed, or hung (status {status:#x})");
        }
    }
}

fn pipe() -> (File, File) {
    let (reader, writer) = std::io::pipe().unwrap();
    (File::from(std::os::fd::OwnedFd::from(reader)), std::os::fd::OwnedFd::from(writer).into())
}

/// What the descriptors of this process are, beside the three that every process has.
fn descriptors() -> Vec<String> {
    let numbers = fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.file_name());
    let numbers = numbers.filter(|n| n.to_string_lossy().parse::<u32>().is_ok_and(|n| n > 2));
    let target = |n| fs::read_link(std::path::Path::new("/proc/self/fd").join(n));
    numbers.filter_map(|n| target(n).ok()).map(|to| to.display().to_string()).collect()
}

fn exec_inherits_no_descriptor() {
    let end = End::new();
    let channel = end.context.create_channel().unwrap();
    assert!(descriptors().iter().any(|fd| fd.starts_with("socket:")));
    let list = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let more = list.lines().filter(|line| line.contains("socket:") || line.contains("eventfd"));
    let inherited: Vec<&str> = more.filter(|line| !line.contains(" 0 -> ")).collect();
    assert!(inherited.len() <= 2, "{inherited:?}");
    assert!(!list.contains("eventfd"), "{list}");
    drop(channel);
}

/// Everything that a program may do to what it inherited.
fn try_everything(end: &End, qp: &Arc<Qp>, ah: &Ah) {
    assert!(end.context.is_orphan());
    assert_eq!(end.cq.poll(&mut [EMPTY_WC; 4]), Ok(0));
    end.cq.req_notify(false);
    assert!(matches!(end.cq.resize(10), Err(ResizeError::Orphan)));
    assert_eq!(end.cq.depth(), 0);
    let error = qp.post_send(&[wr(1, SendOp::Send, &[])]).unwrap_err();
    assert_eq!((error.index, error.source), (0, SendRefusal::Orphan));
    assert!(error.to_string().contains("open the device again"), "{error}");
    let error = qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap_err();
    assert_eq!(error.source, RecvRefusal::Orphan);
    let modified = qp.modify(&QpAttr::default(), AttrMask::STATE);
    assert!(matches!(modified, Err(ModifyError::Orphan)));
    let group = Gid::from_ip("239.1.2.3".parse().unwrap());
    assert!(matches!(qp.attach_mcast(group), Err(McastError::Orphan)));
    assert!(matches!(qp.detach_mcast(group), Err(McastError::Orphan)));
    assert_eq!((qp.state(), qp.query().state), (QpState::Error, QpState::Error));
    assert!(qp.path().is_none() && qp.explain().is_none() && !qp.is_draining());
    let _ = (qp.counters(), end.context.counters(), end.context.open_qps(), ah.av());
    assert!(end.context.gid_table().is_empty() && end.context.gid_entry(PortNum(1), 0).is_none());
    let port = end.context.port_attr(PortNum(1)).unwrap();
    assert_eq!((port.state, port.default_gid), (PortState::Down, None));
    assert!(end.context.explain(qp.qpn()).is_none() && end.context.try_async_event().is_none());
    let error = end.context.wait_async_event().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    end.context.progress();
    assert!(matches!(end.context.create_cq(1, None), Err(CreateError::Orphan)));
    assert!(matches!(end.context.create_channel(), Err(CreateError::Orphan)));
    for pd in [end.pd.clone(), end.context.alloc_pd()] {
        assert!(matches!(pd.alloc_null_mr(), Err(CreateError::Orphan)));
        assert!(matches!(pd.alloc_mw(MwType::Type1), Err(CreateError::Orphan)));
        assert!(matches!(pd.create_ah(*ah.av()), Err(CreateError::Orphan)));
        let init = SrqInit { max_wr: 1, max_sge: 1, limit: 0 };
        assert!(matches!(pd.create_srq(init), Err(CreateError::Orphan)));
        let ini = XrcIniInit {
            send_cq: end.cq.clone(),
            cap: QpCap::default(),
            signal_all: false,
            congestion: None,
        };
        assert!(matches!(pd.create_xrc_ini(ini), Err(CreateError::Orphan)));
        pd.destroy().unwrap();
    }
    // SAFETY: nothing is registered.
    let changed = unsafe { end.mr.rereg(MrChange::default()) };
    assert!(matches!(changed, Err(CreateError::Orphan)));
    end.mr.deregister().unwrap();
    end.cq.destroy().unwrap();
    qp.destroy().unwrap();
}

/// The posts of this thread stop in the middle, under the lock of a queue.
fn locks_held_at_the_fork_do_not_hang_the_child() {
    let t: &'static Pair = Box::leak(Box::new(Pair::new(Service::Rc)));
    let srq = t.a.pd.create_srq(SrqInit { max_wr: 4, max_sge: 1, limit: 0 }).unwrap();
    let mw = t.a.pd.alloc_mw(MwType::Type2).unwrap();
    let row = t.a.gid();
    let av =
        AddressVector { dgid: row.1, sgid_index: row.0, port: PortNum(1), ..Default::default() };
    let ah = t.a.pd.create_ah(av).unwrap();
    let xrcd = t.a.context.open_xrcd(PRIVATE).unwrap();
    let tgt = xrcd.create_tgt().unwrap();
    let init = SrqInit { max_wr: 4, max_sge: 1, limit: 0 };
    let xrc_srq = t.a.pd.create_xrc_srq(init, &xrcd, &t.a.cq).unwrap();
    let (inside, is_inside) = mpsc::channel();
    let mut gates = Vec::new();
    let mut threads = Vec::new();
    for place in 0..3 {
        let (gate, wait) = mpsc::channel::<()>();
        gates.push(gate);
        let (inside, srq) = (inside.clone(), srq.clone());
        threads.push(std::thread::spawn(move || {
            let stop = move || {
                inside.send(()).unwrap();
                let _ = wait.recv();
            };
            let recvs = std::iter::once_with(|| RecvWr { wr_id: 1, sges: &[] });
            match place {
                0 => {
                    let sends = std::iter::once_with(|| wr(1, SendOp::Send, &[]));
                    t.b_qp.post_recv(&[RecvWr { wr_id: 2, sges: &[] }]).unwrap();
                    t.a_qp.post_send_from(sends.inspect(|_| stop())).unwrap();
                }
                1 => t.a_qp.post_recv_from(recvs.inspect(|_| stop())).unwrap(),
                _ => srq.post_recv_from(recvs.inspect(|_| stop())).unwrap(),
            }
        }));
    }
    (0..3).for_each(|_| is_inside.recv().unwrap());
    fork_with(
        |_, _| {
            try_everything(&t.a, &t.a_qp, &ah);
            let made = t.a.pd.create_xrc_srq(init, &xrcd, &t.a.cq);
            assert!(matches!(made, Err(CreateError::Orphan)));
            assert!(matches!(t.a.context.open_xrcd(PRIVATE), Err(XrcdError::Orphan)));
            assert!(matches!(xrcd.open_tgt(tgt.qpn()), Err(XrcdError::Orphan)));
            assert!(matches!(xrcd.create_tgt(), Err(CreateError::Orphan)));
            for destroyed in [tgt.destroy(), xrc_srq.destroy(), xrcd.destroy()] {
                destroyed.unwrap();
            }
            assert!(matches!(srq.arm_limit(1), Err(ResizeError::Orphan)));
            assert_eq!(srq.query().limit, 0);
            assert_eq!(srq.post_recv(&[]).unwrap_err().source, RecvRefusal::Orphan);
            assert!(mw.bind(Qpn::SMI, t.a.mr.lkey(), 0, 0, Access::empty()).is_err());
            let _ = (mw.rkey(), mw.next_rkey());
            drop((srq.clone(), mw.clone(), ah.clone()));
        },
        |_, _| {},
    );
    drop(gates);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(t.a.wait(1)[0].status, WcStatus::Success, "the parent's send went on");
    srq.destroy().unwrap();
}

/// What a new device draws: its slot, a key, the number of a connection, and one that is for
/// anybody.
fn draw() -> [u64; 4] {
    let (end, node) = (End::new(), Node::new());
    let conn = node.connect(std::net::Ipv4Addr::LOCALHOST.into(), port(9), b"");
    let slot = end.qp(Service::Rc).qpn().value() >> 14;
    let number = conn.0.value() & 0x3F_FFFF;
    [slot.into(), end.mr.rkey().value().into(), number.into(), random()]
}

fn children_of_one_process_draw_different_numbers() {
    // What the parent has drawn from the system its children have as well.
    draw();
    let mut drawn: [Vec<u64>; 4] = Default::default();
    for _ in 0..4 {
        let child = |_, mut output: File| {
            let numbers = draw();
            send_numbers(&mut output, [numbers[0], numbers[1], 0]);
            send_numbers(&mut output, [numbers[2], numbers[3], 0]);
        };
        let parent = |mut input: File, _| {
            let ([slot, key, _], [conn, any, _]) =
                (recv_numbers(&mut input), recv_numbers(&mut input));
            [slot, key, conn, any].into_iter().zip(&mut drawn).for_each(|(n, all)| all.push(n));
        };
        fork_with(child, parent);
    }
    for mut all in drawn {
        all.sort_unstable();
        all.dedup();
        // One in a thousand slots may come twice, hardly two of them.
        assert!(all.len() >= 3, "{all:x?}");
    }
}

fn a_child_connects_to_its_parent_and_keeps_none_of_its_services() {
    const HOME: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    let parent = Node::new();
    let (service, place) = (port(20_001), parent.everywhere());
    let listener = parent.listen(service, place);
    fork_with(
        |mut input, mut output| {
            let inherited = parent.cm();
            let path = vernic_proto::cm::CmPath::new(Gid::from_ip(HOME), Gid::from_ip(HOME));
            let refused = inherited.connect(&params(path, service, b""));
            assert_eq!(refused.unwrap_err(), CmCallError::Orphan);
            let refused = inherited.listen(port(1), place, 1);
            assert!(matches!(refused, Err(ListenError::Orphan)));
            inherited.stop_listening(listener);
            inherited.about_to_wait();
            assert_eq!(inherited.occupancy(), Default::default());
            let child = Node::new();
            assert_eq!(child.use_service(HOME, service, b"child"), b"parent");
            assert!(child.cm().is_claimed(service, place).unwrap(), "still the parent's");
            send_numbers(&mut output, [1, 0, 0]);
            recv_numbers(&mut input);
            child.listen(service, place);
            send_numbers(&mut output, [2, 0, 0]);
            assert_eq!(child.serve(b"child"), b"parent");
        },
        |mut input, mut output| {
            assert_eq!(parent.serve(b"parent"), b"child");
            recv_numbers(&mut input);
            parent.cm().stop_listening(listener);
            send_numbers(&mut output, [1, 0, 0]);
            recv_numbers(&mut input);
            assert_eq!(parent.use_service(HOME, service, b"parent"), b"child");
        },
    );
}

/// Moves messages from `a` to `b` until told to stop.
fn move_messages(t: &Pair, stop: &AtomicBool, moved: &AtomicU64) {
    let mut wr_id = 0;
    while !stop.load(Ordering::Relaxed) {
        wr_id += 1;
        t.b_qp.post_recv(&[RecvWr { wr_id, sges: &[t.b.sge(0, 9000)] }]).unwrap();
        t.a_qp.post_send(&[wr(wr_id, SendOp::Send, &[t.a.sge(0, 9000)])]).unwrap();
        for wc in [t.b.wait(1)[0], t.a.wait(1)[0]] {
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success), "{:?}", t.a_qp.explain());
        }
        moved.fetch_add(1, Ordering::Relaxed);
    }
}

fn child_and_parent_go_on_when_one_forks_in_the_midst_of_traffic() {
    let t = Box::into_raw(Box::new(Pair::new(Service::Rc)));
    // SAFETY: freed by the child at most, in its own copy of the memory.
    let pair: &'static Pair = unsafe { &*t };
    let row = pair.a.gid();
    let av =
        AddressVector { dgid: row.1, sgid_index: row.0, port: PortNum(1), ..Default::default() };
    let ah = pair.a.pd.create_ah(av).unwrap();
    static STOP: AtomicBool = AtomicBool::new(false);
    static MOVED: AtomicU64 = AtomicU64::new(0);
    let traffic = std::thread::spawn(move || move_messages(pair, &STOP, &MOVED));
    let home = End::new();
    for _ in 0..FORKS {
        let moved = MOVED.load(Ordering::Relaxed);
        let qp = home.qp(Service::Rc);
        fork_with(
            |input, output| {
                let left: Vec<String> = descriptors();
                assert!(!left.iter().any(|fd| fd.starts_with("socket:")), "{left:?}");
                // The application's descriptors stay, so that their numbers are not another's.
                assert!(left.iter().filter(|fd| fd.contains("eventfd")).count() >= 3, "{left:?}");
                // SAFETY: asks about a number.
                let open = unsafe { libc::fcntl(pair.a.context.async_raw_fd(), libc::F_GETFD) };
                assert_ne!(open, -1);
                try_everything(&pair.a, &pair.a_qp, &ah);
                drop(ah.clone());
                // SAFETY: the thread that uses it too is not in this process.
                drop(unsafe { Box::from_raw(t) });
                talk_as_child(input, output);
            },
            |input, output| talk_as_parent(&home, &qp, input, output),
        );
        let start = Instant::now();
        while MOVED.load(Ordering::Relaxed) < moved + 10 {
            assert!(start.elapsed() < PATIENCE, "the parent's traffic has stopped");
            std::thread::yield_now();
        }
    }
    STOP.store(true, Ordering::Relaxed);
    traffic.join().unwrap();
    println!("{FORKS} forks during {} messages", MOVED.load(Ordering::Relaxed));
}

fn send_numbers(to: &mut File, numbers: [u64; 3]) {
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
    to.write_all(&bytes).unwrap();
}

fn recv_numbers(from: &mut File) -> [u64; 3] {
    let mut bytes = [[0; 8]; 3];
    from.read_exact(bytes.as_flattened_mut()).unwrap();
    bytes.map(u64::from_ne_bytes)
}

/// A new device in the child, and a grandchild that inherits it.
fn talk_as_child(mut input: File, mut output: File) {
    let end = End::new();
    assert!(!end.context.is_orphan());
    let qp = end.qp(Service::Rc);
    send_numbers(&mut output, [u64::from(qp.qpn().value()), 0, 0]);
    let [qpn, addr, rkey] = recv_numbers(&mut input);
    assert_ne!(qpn, u64::from(qp.qpn().value()), "slots are one's own");
    connect(&end, &qp, end.gid().1, Qpn::new(qpn as u32), Setup::default());
    qp.post_recv(&[RecvWr { wr_id: 1, sges: &[end.sge(4096, 64)] }]).unwrap();
    send_numbers(&mut output, [1, 0, 0]);
    recv_numbers(&mut input);
    end.fill(0, b"from the child");
    let remote = Remote { addr, rkey: Rkey(rkey as u32) };
    qp.post_send(&[wr(2, SendOp::Write(remote), &[end.sge(0, 14)])]).unwrap();
    qp.post_send(&[wr(3, SendOp::Send, &[])]).unwrap();
    let wcs = end.wait(3);
    assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success), "{wcs:?} {:?}", qp.explain());
    assert_eq!(&end.bytes(4096, 11), b"from parent");
    fork_with(
        |_, _| {
            assert!(end.context.is_orphan());
            assert_eq!(end.cq.poll(&mut [EMPTY_WC; 4]), Ok(0));
        },
        |_, _| assert!(!end.context.is_orphan()),
    );
    drop(output);
}

fn talk_as_parent(home: &End, qp: &Qp, mut input: File, mut output: File) {
    let [qpn, ..] = recv_numbers(&mut input);
    connect(home, qp, home.gid().1, Qpn::new(qpn as u32), Setup::default());
    qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
    let mr = &home.mr;
    send_numbers(
        &mut output,
        [u64::from(qp.qpn().value()), mr.iova(), u64::from(mr.rkey().value())],
    );
    recv_numbers(&mut input);
    send_numbers(&mut output, [1, 0, 0]);
    assert_eq!(home.wait(1)[0].status, WcStatus::Success);
    assert_eq!(&home.bytes(0, 14), b"from the child");
    home.fill(0, b"from parent");
    qp.post_send(&[wr(2, SendOp::Send, &[home.sge(0, 11)])]).unwrap();
    assert_eq!(home.wait(1)[0].status, WcStatus::Success);
    // The child ends when it has seen it.
    let _ = input.read(&mut [0]);
    assert!(home.context.as_ref().async_fd().as_raw_fd() >= 0);
}
