//! Closing a device while objects of it are left, and other threads use them.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use vernic_engine::*;

const EIO: i32 = 5;

fn quick() -> Setup {
    Setup { timeout: AckTimeout::new(8), retry_cnt: 1, ..Setup::default() }
}

#[test]
fn a_closed_device_says_nothing_more_and_flushes_what_was_posted() {
    let (a, b) = (End::new(), End::new());
    let (a_qp, b_qp) = (a.qp(Service::Rc), b.qp(Service::Rc));
    connect(&a, &a_qp, b.gid().1, b_qp.qpn(), quick());
    connect(&b, &b_qp, a.gid().1, a_qp.qpn(), quick());
    let idle = b.qp(Service::Ud);
    b_qp.post_recv(&[RecvWr { wr_id: 7, sges: &[b.sge(0, 8)] }]).unwrap();
    b.context.close();
    b.context.close();
    assert!(b.context.is_closed() && !a.context.is_closed());
    assert_eq!((b_qp.state(), idle.state()), (QpState::Error, QpState::Error));
    let flushed = b.wait(1)[0];
    assert_eq!((flushed.wr_id, flushed.status), (7, WcStatus::Flushed));

    // The peer finds nobody, and the memory stays as it is.
    a.fill(0, b"nobody is there");
    let sges = [a.sge(0, 15)];
    let write = wr(1, SendOp::Write(b.remote(0)), &sges);
    a_qp.post_send(&[SendWr { flags: SendFlags::SIGNALED, ..write }]).unwrap();
    assert_eq!(a.wait(1)[0].status, WcStatus::RetryExceeded);
    assert_eq!(b.bytes(0, 15), [0; 15]);

    // What is posted now is flushed, too, and leaves nothing on the wire.
    let sent = b.context.counters().link.tx_packets;
    b_qp.post_send(&[wr(8, SendOp::Send, &[])]).unwrap();
    b_qp.post_recv(&[RecvWr { wr_id: 9, sges: &[] }]).unwrap();
    let ids: Vec<u64> = b.wait(2).iter().map(|wc| wc.wr_id).collect();
    assert!(ids.contains(&8) && ids.contains(&9), "{ids:?}");
    assert_eq!(b.context.counters().link.tx_packets, sent);
    assert_eq!(b.cq.poll(&mut [EMPTY_WC; 4]).unwrap(), 0);
}

#[test]
fn nothing_can_be_made_on_a_closed_device_and_all_that_is_left_can_be_destroyed() {
    let end = End::new();
    let channel = end.context.create_channel().unwrap();
    let srq = end.pd.create_srq(SrqInit { max_wr: 4, max_sge: 1, limit: 0 }).unwrap();
    let qp = end.qp_with(Service::Rc, QpCap::default(), Some(srq.clone()));
    let group = Gid::from_ip("239.77.2.1".parse().unwrap());
    let member = end.qp(Service::Ud);
    bring_up_ud(&member, Qkey(1));
    member.attach_mcast(group).unwrap();
    let xrcd = end.context.open_xrcd(XrcdOpen { file: None, create: true, exclusive: false });
    let (xrcd, dm) = (xrcd.unwrap(), end.context.alloc_dm(64, 0).unwrap());
    end.context.close();

    let refusals = [
        end.context.create_channel().err(),
        end.context.create_cq(4, None).err(),
        end.context.alloc_dm(64, 0).err(),
        end.pd.create_srq(SrqInit { max_wr: 4, max_sge: 1, limit: 0 }).err(),
        end.pd.alloc_null_mr().err(),
        end.pd.create_ah(AddressVector::default()).err(),
        xrcd.create_tgt().err(),
    ];
    assert!(refusals.iter().all(|e| matches!(e, Some(CreateError::Closed))), "{refusals:?}");
    let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
    assert!(matches!(qp.modify(&reset, AttrMask::STATE), Err(ModifyError::Closed)));
    let other = Gid::from_ip("239.77.2.2".parse().unwrap());
    assert!(matches!(member.attach_mcast(other), Err(McastError::Link(LinkError::Closed { .. }))));

    member.detach_mcast(group).unwrap();
    member.destroy().unwrap();
    qp.destroy().unwrap();
    srq.destroy().unwrap();
    channel.destroy().unwrap();
    xrcd.destroy().unwrap();
    dm.destroy().unwrap();
    end.cq.destroy().unwrap();
    end.mr.deregister().unwrap();
    // A shared receive queue holds its domain as long as somebody has it.
    drop((qp, srq));
    end.pd.destroy().unwrap();
    assert_eq!(end.context.open_qps(), 0);
}

#[test]
fn who_waits_for_an_event_is_told_that_the_device_was_closed() {
    let context = Context::open(Some("lo"), test_config()).unwrap();
    let channel = context.create_channel().unwrap();
    std::thread::scope(|scope| {
        let events = scope.spawn(|| context.wait_async_event().unwrap_err().raw_os_error());
        let completions = scope.spawn(|| channel.wait().unwrap_err().raw_os_error());
        std::thread::sleep(Duration::from_millis(20));
        context.close();
        assert_eq!(events.join().unwrap(), Some(EIO));
        assert_eq!(completions.join().unwrap(), Some(EIO));
    });
}

#[test]
fn a_device_is_closed_while_threads_post_poll_and_create() {
    for _ in 0..20 {
        let (a, b) = (End::new(), End::new());
        let (a_qp, b_qp) = (a.qp(Service::Rc), b.qp(Service::Rc));
        connect(&a, &a_qp, b.gid().1, b_qp.qpn(), Setup::default());
        connect(&b, &b_qp, a.gid().1, a_qp.qpn(), Setup::default());
        let begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let sges = [a.sge(0, 4096)];
                let write = wr(1, SendOp::Write(b.remote(0)), &sges);
                let write = SendWr { flags: SendFlags::SIGNALED, ..write };
                let mut posted = 0;
                loop {
                    posted += usize::from(posted < 64 && a_qp.post_send(&[write]).is_ok());
                    let mut wcs = [EMPTY_WC; 16];
                    let n = a.cq.poll(&mut wcs).unwrap();
                    posted -= n;
                    begun.fetch_or(n != 0, Ordering::SeqCst);
                    if wcs[..n].iter().any(|wc| wc.status == WcStatus::Flushed) {
                        return;
                    }
                }
            });
            scope.spawn(|| {
                while let Ok(qp) = a.pd.create_qp(QpInit {
                    service: Service::Ud,
                    send_cq: a.cq.clone(),
                    recv_cq: a.cq.clone(),
                    srq: None,
                    cap: QpCap::default(),
                    signal_all: false,
                    congestion: None,
                }) {
                    qp.destroy().unwrap();
                }
            });
            while !begun.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            a.context.close();
        });
        assert_eq!(a_qp.state(), QpState::Error);
    }
}
