//! Verbs over iWARP that share their code with RoCE: shared receive queues, windows, invalidation.

mod common;

use std::sync::Arc;

use common::iwarp::{
    LO, News, Owner, Pair, end, pair, queue_pair, shake, startup, to_init, until_error,
};
use common::{End, wr};
use vernic_engine::iwarp::{Ending, default_stream};
use vernic_engine::*;
use vernic_wire::iwarp::TermCode;

/// A type 2 window over the second page of an end's memory, bound by its queue pair.
fn window(end: &End, qp: &Qp, access: Access, other: &End) -> (Arc<Mw>, Remote) {
    let mw = end.pd.alloc_mw(MwType::Type2).unwrap();
    let rkey = mw.next_rkey();
    let addr = end.mr.iova() + 4096;
    let bind = MwBind {
        mw: mw.rkey(),
        new_rkey: rkey,
        mr: end.mr.lkey(),
        addr,
        length: 4096,
        access: access.bits(),
    };
    qp.post_send(&[wr(100, SendOp::BindMw(bind), &[])]).unwrap();
    let wc = end.wait_beside(1, || other.context.progress())[0];
    assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::BindMw));
    mw.set_rkey(rkey);
    (mw, Remote { addr, rkey })
}

#[test]
fn a_window_is_written_through_until_a_send_invalidates_it() {
    let Pair { a, b, a_qp, b_qp } = pair();
    let (_mw, remote) = window(&b, &b_qp, Access::REMOTE_WRITE, &a);
    a.fill(0, b"windowed");
    let sge = [a.sge(0, 8)];
    b_qp.post_recv(&[RecvWr { wr_id: 3, sges: &[] }]).unwrap();
    a_qp.post_send(&[wr(1, SendOp::Write(remote), &sge), wr(2, SendOp::SendInv(remote.rkey), &[])])
        .unwrap();
    let got = b.wait_beside(1, || a.context.progress())[0];
    assert_eq!((got.wr_id, got.status), (3, WcStatus::Success));
    assert_eq!(got.tag, Tag::Invalidated(remote.rkey));
    assert_eq!(b.bytes(4096, 8), b"windowed");
    assert_eq!(a.wait_beside(2, || b.context.progress()).len(), 2);
    // The next one through it ends the stream, and says why.
    a_qp.post_send(&[wr(4, SendOp::Write(remote), &sge)]).unwrap();
    until_error(&b, &b_qp);
    let ended = iwarp::ending(&b_qp);
    assert_eq!(ended, Some(Ending::Aborted(TermCode::DDP_TAGGED_STAG)));
    assert_eq!(b.bytes(4096, 8), b"windowed");
}

#[test]
fn a_window_of_another_queue_pair_is_refused_with_the_code_for_it() {
    let Pair { a, b, a_qp, b_qp } = pair();
    let (_mw, remote) = window(&b, &b_qp, Access::REMOTE_WRITE, &a);
    let (other_a, other_b) = (queue_pair(&a), queue_pair(&b));
    let (ours, theirs) = shake(&a, &b, LO, startup());
    theirs.start(&other_b, default_stream()).unwrap();
    ours.start(&other_a, default_stream()).unwrap();
    other_a.post_send(&[wr(1, SendOp::Write(remote), &[a.sge(0, 8)])]).unwrap();
    until_error(&b, &other_b);
    let ended = iwarp::ending(&other_b);
    assert_eq!(ended, Some(Ending::Aborted(TermCode::DDP_TAGGED_STREAM)));
    until_error(&a, &other_a);
    let ended = iwarp::ending(&other_a);
    assert_eq!(ended, Some(Ending::Terminated(TermCode::DDP_TAGGED_STREAM)));
    // The window's own queue pair goes on.
    a_qp.post_send(&[wr(2, SendOp::Write(remote), &[a.sge(0, 8)])]).unwrap();
    let done = a.wait_beside(2, || b.context.progress());
    assert!(done.iter().any(|wc| (wc.wr_id, wc.status) == (2, WcStatus::Success)), "{done:?}");
    assert_eq!((a_qp.state(), b_qp.state()), (QpState::Rts, QpState::Rts));
}

#[test]
fn a_read_with_invalidate_ends_its_own_window_when_the_data_is_here() {
    let Pair { a, b, a_qp, b_qp } = pair();
    let (_mw, remote) = window(&a, &a_qp, Access::REMOTE_WRITE, &b);
    b.fill(0, &[7; 1000]);
    let back = [a.sge(4096, 1000)];
    a_qp.post_send(&[wr(1, SendOp::ReadInv(b.remote(0), remote.rkey), &back)]).unwrap();
    let wc = a.wait_beside(1, || b.context.progress())[0];
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, WcStatus::Success, WcOpcode::Read));
    assert_eq!(a.bytes(4096, 1000), [7; 1000]);
    b_qp.post_send(&[wr(2, SendOp::Write(remote), &[b.sge(0, 8)])]).unwrap();
    until_error(&a, &a_qp);
    let ended = iwarp::ending(&a_qp);
    assert_eq!(ended, Some(Ending::Aborted(TermCode::DDP_TAGGED_STAG)));
}

#[test]
fn a_shared_queue_feeds_connections_and_outlives_one_that_fails() {
    let (a, b) = (end(), end());
    let srq = b.pd.create_srq(SrqInit { max_wr: 64, max_sge: 2, limit: 0 }).unwrap();
    let sges = [b.sge(0, 100)];
    let receives: Vec<_> = (0..10).map(|wr_id| RecvWr { wr_id, sges: &sges }).collect();
    srq.post_recv(&receives).unwrap();
    srq.arm_limit(5).unwrap();
    let owner = Arc::new(Owner::default());
    let pairs: Vec<_> = (0..3)
        .map(|_| {
            let a_qp = queue_pair(&a);
            let b_qp = b.qp_with(Service::Rc, QpCap::default(), Some(srq.clone()));
            to_init(&b_qp);
            let (ours, theirs) = shake(&a, &b, LO, startup());
            theirs.start_with(&b_qp, default_stream(), Some(owner.clone())).unwrap();
            ours.start(&a_qp, default_stream()).unwrap();
            assert_eq!(owner.next(), News::Established);
            (a_qp, b_qp)
        })
        .collect();
    for (a_qp, _) in &pairs {
        let sge = [a.sge(0, 100)];
        a_qp.post_send(&[wr(1, SendOp::Send, &sge), wr(2, SendOp::Send, &sge)]).unwrap();
    }
    let got = b.wait_beside(6, || a.context.progress());
    let mut ids: Vec<u64> = got.iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
    let kind = || b.context.try_async_event().map(|event| event.kind);
    assert_eq!((kind(), kind()), (Some(EventKind::SrqLimitReached), None));
    // One that ends in order leaves the shared receives alone, and says when it is done with them.
    pairs[0].0.destroy().unwrap();
    assert_eq!(owner.next(), News::Ended(Ending::PeerClosed));
    until_error(&b, &pairs[0].1);
    assert_eq!((kind(), kind()), (Some(EventKind::LastWqeReached), None));
    pairs[1].0.post_send(&[wr(3, SendOp::Send, &[a.sge(0, 50)])]).unwrap();
    assert_eq!(b.wait_beside(1, || a.context.progress())[0].wr_id, 6);
}
