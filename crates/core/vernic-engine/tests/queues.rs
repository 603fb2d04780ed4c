//! Completion queues, channels, shared receive queues, and the order of destruction.

mod common;

use std::os::fd::AsFd;
use std::sync::Arc;

use common::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use vernic_engine::*;

fn is_readable(fd: impl AsFd, wait: bool) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    let timeout = if wait { PollTimeout::from(20_000u16) } else { PollTimeout::ZERO };
    poll(&mut fds, timeout).unwrap() == 1
}

#[test]
fn an_overflowing_queue_fails_and_takes_its_queue_pairs_along() {
    let t = Pair::new(Service::Rc);
    let channel = t.a.context.create_channel().unwrap();
    let small = t.a.context.create_cq(2, Some(&channel)).unwrap();
    let init = QpInit {
        service: Service::Rc,
        send_cq: small.clone(),
        recv_cq: small.clone(),
        srq: None,
        cap: QpCap::default(),
        signal_all: true,
        congestion: None,
    };
    let qp = t.a.pd.create_qp(init).unwrap();
    let peer = t.b.qp(Service::Rc);
    connect(&t.a, &qp, t.b.gid().1, peer.qpn(), Setup::default());
    connect(&t.b, &peer, t.a.gid().1, qp.qpn(), Setup::default());
    let one = wr(1, SendOp::Write(t.b.remote(0)), &[]);
    // Somebody sleeps for what is special: the overflow is, and must wake them.
    small.req_notify(true);
    qp.post_send(&[one, one, one, one]).unwrap();
    let start = std::time::Instant::now();
    while !small.is_failed() {
        t.a.context.progress();
        t.b.context.progress();
        assert!(start.elapsed() < PATIENCE);
    }
    let events = [t.a.context.wait_async_event().unwrap(), t.a.context.wait_async_event().unwrap()];
    assert!(
        events.contains(&AsyncEvent { kind: EventKind::CqError, element: Element::Cq(small.id()) })
    );
    assert!(
        events.contains(&AsyncEvent { kind: EventKind::QpFatal, element: Element::Qp(qp.qpn()) })
    );
    assert_eq!(qp.state(), QpState::Error);
    assert!(Arc::ptr_eq(&channel.try_next().unwrap(), &small));
    assert_eq!(small.poll(&mut [EMPTY_WC; 8]).unwrap(), 2);
    assert_eq!(small.poll(&mut [EMPTY_WC; 8]), Err(CqOverrun { depth: 2 }));
    assert_eq!(t.a.context.counters().cq_overflows, 1);
}

#[test]
fn a_queue_can_be_resized_down_to_what_it_holds() {
    let t = Pair::new(Service::Rc);
    t.a_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }; 5]).unwrap();
    let error = QpAttr { state: QpState::Error, ..QpAttr::default() };
    t.a_qp.modify(&error, AttrMask::STATE).unwrap();
    assert_eq!(t.a.cq.resize(4), Err(ResizeError::Held { value: 4, held: 5 }));
    t.a.cq.resize(5).unwrap();
    assert_eq!(t.a.cq.depth(), 5);
    assert_eq!(t.a.cq.poll(&mut [EMPTY_WC; 8]).unwrap(), 5);
    assert!(matches!(t.a.cq.resize(0), Err(ResizeError::Limit { .. })));
}

#[test]
fn an_armed_queue_raises_one_event_for_the_next_completion_only() {
    let context = Context::open(Some("lo"), test_config()).unwrap();
    let channel = context.create_channel().unwrap();
    let a = End::with_channel(test_config(), Some(channel.clone()));
    let b = End::new();
    let (a_qp, b_qp) = (a.qp(Service::Rc), b.qp(Service::Rc));
    connect(&a, &a_qp, b.gid().1, b_qp.qpn(), Setup::default());
    connect(&b, &b_qp, a.gid().1, a_qp.qpn(), Setup::default());
    let write = wr(1, SendOp::Write(b.remote(0)), &[]);

    a_qp.post_send(&[write]).unwrap();
    a.wait(1);
    assert!(!is_readable(&channel, false), "not armed, no event");

    a.cq.req_notify(false);
    a_qp.post_send(&[write]).unwrap();
    assert!(is_readable(&channel, true));
    assert!(Arc::ptr_eq(&channel.wait().unwrap(), &a.cq));
    assert_eq!(a.wait(1).len(), 1);
    a_qp.post_send(&[write]).unwrap();
    a.wait(1);
    assert!(channel.try_next().is_none(), "an event disarms");

    // Solicited only: a plain receive does not wake, a solicited one does.
    a.cq.req_notify(true);
    for wr_id in 0..2 {
        a_qp.post_recv(&[RecvWr { wr_id, sges: &[] }]).unwrap();
    }
    b_qp.post_send(&[wr(1, SendOp::Send, &[])]).unwrap();
    a.wait(1);
    assert!(channel.try_next().is_none());
    let solicited = SendWr { flags: SendFlags::SOLICITED, ..wr(2, SendOp::Send, &[]) };
    b_qp.post_send(&[solicited]).unwrap();
    assert!(is_readable(&channel, true));
    assert!(channel.try_next().is_some());

    assert!(channel.destroy().is_err());
    a.cq.req_notify(false);
    drop((a_qp, a));
    channel.destroy().unwrap();
    assert!(!is_readable(&channel, false));
}

#[test]
fn a_sleeper_that_arms_then_polls_then_waits_never_misses_a_completion() {
    let context = Context::open(Some("lo"), test_config()).unwrap();
    let channel = context.create_channel().unwrap();
    let a = End::with_channel(test_config(), Some(channel.clone()));
    let b = End::new();
    let (a_qp, b_qp) = (a.qp(Service::Rc), b.qp(Service::Rc));
    connect(&a, &a_qp, b.gid().1, b_qp.qpn(), Setup::default());
    connect(&b, &b_qp, a.gid().1, a_qp.qpn(), Setup::default());
    const MESSAGES: u64 = 3000;
    for wr_id in 0..200 {
        a_qp.post_recv(&[RecvWr { wr_id, sges: &[] }]).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sent = 0;
            while sent < MESSAGES {
                if b_qp.post_send(&[wr(sent, SendOp::Send, &[])]).is_ok() {
                    sent += 1;
                }
                b.cq.poll(&mut [EMPTY_WC; 64]).unwrap();
                if sent % 7 == 0 {
                    std::thread::yield_now();
                }
            }
            while b_qp.counters().messages_sent < MESSAGES {
                b.cq.poll(&mut [EMPTY_WC; 64]).unwrap();
            }
        });
        let mut got = 0;
        let mut wcs = [EMPTY_WC; 16];
        while got < MESSAGES {
            a.cq.req_notify(false);
            loop {
                let n = a.cq.poll(&mut wcs).unwrap();
                got += n as u64;
                for _ in 0..n {
                    a_qp.post_recv(&[RecvWr { wr_id: 0, sges: &[] }]).unwrap();
                }
                if n == 0 {
                    break;
                }
            }
            if got < MESSAGES {
                assert!(is_readable(&channel, true), "stuck at {got} of {MESSAGES}");
                channel.wait().unwrap();
            }
        }
    });
}

#[test]
fn a_shared_queue_feeds_many_queue_pairs_and_tells_when_it_runs_low() {
    let (a, b) = (End::new(), End::new());
    let srq = b.pd.create_srq(SrqInit { max_wr: 64, max_sge: 2, limit: 0 }).unwrap();
    let sges = [b.sge(0, 100)];
    for wr_id in 0..10 {
        srq.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    }
    srq.arm_limit(5).unwrap();
    assert!(srq.arm_limit(65).is_err());
    let pairs: Vec<_> = (0..3)
        .map(|_| {
            let a_qp = a.qp(Service::Rc);
            let b_qp = b.qp_with(Service::Rc, QpCap::default(), Some(srq.clone()));
            connect(&a, &a_qp, b.gid().1, b_qp.qpn(), Setup::default());
            connect(&b, &b_qp, a.gid().1, a_qp.qpn(), Setup::default());
            (a_qp, b_qp)
        })
        .collect();
    assert_eq!(
        pairs[0].1.post_recv(&[RecvWr { wr_id: 0, sges: &[] }]).unwrap_err().source,
        RecvRefusal::Shared
    );
    for (a_qp, _) in &pairs {
        a_qp.post_send(&[
            wr(1, SendOp::Send, &[a.sge(0, 100)]),
            wr(2, SendOp::Send, &[a.sge(0, 100)]),
        ])
        .unwrap();
    }
    let got = b.wait_beside(6, || a.context.progress());
    let mut ids: Vec<u64> = got.iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
    let event = b.context.try_async_event().unwrap();
    assert_eq!(
        event,
        AsyncEvent { kind: EventKind::SrqLimitReached, element: Element::Srq(srq.id()) }
    );
    assert_eq!(b.context.try_async_event(), None);
    assert_eq!(srq.query().limit, 0);
    assert_eq!(srq.destroy().unwrap_err().users, 3);
    // A queue pair that fails leaves the shared receives alone and says when it is done with them.
    let error = QpAttr { state: QpState::Error, ..QpAttr::default() };
    pairs[0].1.modify(&error, AttrMask::STATE).unwrap();
    let event = b.context.try_async_event().unwrap();
    assert_eq!(event.kind, EventKind::LastWqeReached);
    drop(pairs);
    srq.destroy().unwrap();
}

#[test]
fn what_is_in_use_cannot_be_destroyed_and_dropping_in_any_order_is_fine() {
    let end = End::new();
    let qp = end.qp(Service::Rc);
    assert!(end.cq.destroy().is_err());
    let words = end.pd.destroy().unwrap_err().to_string();
    assert!(words.contains("1 regions") && words.contains("1 queue pairs"), "{words}");
    assert_eq!(end.context.open_qps(), 1);
    let (qpn, context) = (qp.qpn(), end.context.clone());
    qp.destroy().unwrap();
    assert!(
        matches!(qp.modify(&QpAttr::default(), AttrMask::STATE), Err(ModifyError::Destroyed(n)) if n == qpn)
    );
    assert_eq!(
        qp.post_send(&[wr(1, SendOp::Send, &[])]).unwrap_err().source,
        SendRefusal::Destroyed
    );
    assert_eq!(context.open_qps(), 0);
    end.cq.destroy().unwrap();
    end.mr.deregister().unwrap();
    end.pd.destroy().unwrap();
    let other = End::new();
    let qp = other.qp(Service::Ud);
    // The device is held by its objects: the handle may go first.
    let End { memory, mr, cq, pd, context } = other;
    drop((context, pd, cq));
    assert_eq!(qp.state(), QpState::Reset);
    drop((qp, mr, memory));
}

#[test]
fn posts_of_many_threads_on_many_queue_pairs_all_complete() {
    let (a, b) = (End::new(), End::new());
    const THREADS: usize = 4;
    const WRITES: u64 = 2000;
    let pairs: Vec<_> = (0..THREADS)
        .map(|_| {
            let cq = a.context.create_cq(1024, None).unwrap();
            let init = QpInit {
                service: Service::Rc,
                send_cq: cq.clone(),
                recv_cq: cq.clone(),
                srq: None,
                cap: QpCap::default(),
                signal_all: true,
                congestion: None,
            };
            let a_qp = a.pd.create_qp(init).unwrap();
            let b_qp = b.qp(Service::Rc);
            connect(&a, &a_qp, b.gid().1, b_qp.qpn(), Setup::default());
            connect(&b, &b_qp, a.gid().1, a_qp.qpn(), Setup::default());
            (a_qp, b_qp, cq)
        })
        .collect();
    // Nobody polls while posting, and the far end is the background thread's alone: a doorbell
    // that is lost shows as a queue pair that never finishes.
    std::thread::scope(|scope| {
        let posters: Vec<_> = pairs
            .iter()
            .map(|(qp, _, cq)| {
                let (a, b) = (&a, &b);
                scope.spawn(move || {
                    let start = std::time::Instant::now();
                    let (mut posted, mut completed) = (0, 0);
                    let mut wcs = [EMPTY_WC; 32];
                    while completed < WRITES {
                        let sges = [a.sge(0, 8)];
                        while posted < WRITES && posted - completed < 60 {
                            qp.post_send(&[wr(posted, SendOp::Write(b.remote(0)), &sges)]).unwrap();
                            posted += 1;
                        }
                        let n = cq.poll(&mut wcs).unwrap();
                        for wc in &wcs[..n] {
                            assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, completed));
                            completed += 1;
                        }
                        assert!(start.elapsed() < 3 * PATIENCE, "{completed} of {WRITES}");
                    }
                })
            })
            .collect();
        for poster in posters {
            poster.join().unwrap();
        }
    });
}
