//! How connections of the iWARP device end, and who is told what of it.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use common::iwarp::{
    LO, News, Owner, end, queue_pair, raw_peer, recv, shake, startup, to_init, until_error,
};
use common::{End, wr};
use vernic_engine::iwarp::{self, Ending, StreamConfig, StreamSink, default_stream};
use vernic_engine::*;
use vernic_proto::iwarp::StreamEnd;
use vernic_wire::iwarp::TermCode;

/// An end of a connection, and what its owner is told.
struct Told {
    end: End,
    qp: Arc<Qp>,
    owner: Arc<Owner>,
}

impl Told {
    fn modify(&self, state: QpState) {
        let attr = QpAttr { state, ..QpAttr::default() };
        self.qp.modify(&attr, AttrMask::STATE).unwrap();
    }

    /// The receive that was posted is flushed, the owner told why, and the application of an error
    /// alone.
    fn expect(&self, ending: Ending, events: &[EventKind]) {
        assert_eq!(self.owner.next(), News::Ended(ending));
        until_error(&self.end, &self.qp);
        assert_eq!(self.end.wait(1)[0].status, WcStatus::Flushed);
        assert!(self.owner.is_done());
        assert_eq!(iwarp::ending(&self.qp), Some(ending));
        let context = &self.end.context;
        let told: Vec<_> =
            std::iter::from_fn(|| context.try_async_event()).map(|event| event.kind).collect();
        assert_eq!(told, events);
    }
}

/// A connection, both ends established, a receive posted at each: the initiator's end, and the
/// responder's.
fn pair(stream: StreamConfig) -> (Told, Told) {
    let (a, b) = (end(), end());
    let (ours, theirs) = shake(&a, &b, LO, startup());
    let [a, b] = [a, b].map(|end| Told { qp: queue_pair(&end), owner: Arc::default(), end });
    recv(&a.end, &a.qp, 8, 0, 10);
    recv(&b.end, &b.qp, 9, 0, 10);
    theirs.start_with(&b.qp, stream, Some(b.owner.clone())).unwrap();
    assert!(b.owner.is_done(), "a responder may not speak first");
    ours.start_with(&a.qp, stream, Some(a.owner.clone())).unwrap();
    for told in [&a, &b] {
        assert_eq!(told.owner.next(), News::Established);
        assert_eq!(told.qp.state(), QpState::Rts);
    }
    (a, b)
}

#[test]
fn a_peer_that_closes_in_order_takes_the_queue_pair_out_of_rts_without_an_event() {
    let (a, b) = pair(default_stream());
    a.modify(QpState::Sqd);
    b.expect(Ending::PeerClosed, &[]);
    a.expect(Ending::Closed, &[]);
    assert!(a.qp.explain().is_none() && b.qp.explain().is_none());
    let (a, b) = pair(default_stream());
    b.qp.destroy().unwrap();
    assert_eq!(b.owner.next(), News::Ended(Ending::Closed));
    a.expect(Ending::PeerClosed, &[]);
}

#[test]
fn what_was_posted_before_the_peer_closed_is_still_sent_to_it() {
    let (a, b) = pair(default_stream());
    // More than any socket takes at once.
    let len = 4 << 20;
    let sge = [b.end.sge(0, len)];
    recv(&a.end, &a.qp, 7, 0, len);
    let op = || SendOp::Write(a.end.remote(0));
    let wrs: Vec<_> = (0..8).map(|n| wr(n, op(), &sge)).collect();
    b.qp.post_send(&wrs).unwrap();
    a.modify(QpState::Sqd);
    let done = b.end.wait_beside(9, || a.end.context.progress());
    let sent = done.iter().filter(|wc| wc.status == WcStatus::Success).count();
    assert_eq!(sent, 8, "{done:?}");
    assert_eq!(b.owner.next(), News::Ended(Ending::PeerClosed));
    until_error(&a.end, &a.qp);
    assert_eq!(a.owner.next(), News::Ended(Ending::Closed));
}

#[test]
fn both_owners_hear_the_code_of_a_terminate_and_both_applications_one_event() {
    let (a, b) = pair(default_stream());
    let nowhere = Remote { addr: b.end.mr.iova(), rkey: Rkey(0x1234_5600) };
    let sge = [a.end.sge(0, 100)];
    let silent = SendWr { flags: SendFlags::empty(), ..wr(1, SendOp::Write(nowhere), &sge) };
    a.qp.post_send(&[silent]).unwrap();
    b.expect(Ending::Aborted(TermCode::DDP_TAGGED_STAG), &[EventKind::QpAccessError]);
    a.expect(Ending::Terminated(TermCode::DDP_TAGGED_STAG), &[EventKind::QpFatal]);
    let (a, b) = pair(default_stream());
    a.modify(QpState::Error);
    a.expect(Ending::Aborted(TermCode::RDMAP_LOCAL), &[]);
    b.expect(Ending::Terminated(TermCode::RDMAP_LOCAL), &[EventKind::QpFatal]);
}

#[test]
fn a_reset_and_a_closed_device_are_told_at_both_ends() {
    let (a, b) = pair(default_stream());
    a.modify(QpState::Reset);
    assert_eq!(a.owner.next(), News::Ended(Ending::Closed));
    b.expect(Ending::Lost(StreamEnd::Reset), &[EventKind::QpFatal]);
    // The same queue pair again, with another owner.
    to_init(&a.qp);
    let qp = queue_pair(&b.end);
    let (ours, theirs) = shake(&a.end, &b.end, LO, startup());
    theirs.start(&qp, default_stream()).unwrap();
    let owner = Arc::new(Owner::default());
    ours.start_with(&a.qp, default_stream(), Some(owner.clone())).unwrap();
    assert_eq!(owner.next(), News::Established);
    a.end.context.close();
    assert_eq!(owner.next(), News::Ended(Ending::Closed));
    until_error(&b.end, &qp);
    assert!(a.owner.is_done() && owner.is_done());
}

#[test]
fn who_is_refused_a_queue_pair_is_told_nothing_but_that() {
    let (a, b) = (end(), end());
    let (ours, _theirs) = shake(&a, &b, LO, startup());
    let owner = Arc::new(Owner::default());
    let qp = a.qp(Service::Rc);
    let sink: Arc<dyn StreamSink> = owner.clone();
    ours.start_with(&qp, default_stream(), Some(sink)).unwrap_err();
    assert!(owner.is_done());
    assert_eq!(Arc::strong_count(&owner), 1);
}

/// A peer made by hand: its socket, and the other end.
fn raw(stream: StreamConfig) -> (TcpStream, Told) {
    let end = end();
    let told = Told { qp: queue_pair(&end), owner: Arc::default(), end };
    recv(&told.end, &told.qp, 9, 0, 10);
    let owner = told.owner.clone();
    (raw_peer(&told.end, &told.qp, stream, Some(owner)), told)
}

#[test]
fn a_peer_that_stands_still_or_leaves_within_an_fpdu_is_a_lost_connection() {
    // The length of an FPDU, and some of it.
    let half = [0, 100, 0x40, 0x43];
    let (mut socket, told) = raw(StreamConfig { stall_ns: 20_000_000, ..default_stream() });
    socket.write_all(&half).unwrap();
    told.expect(Ending::Lost(StreamEnd::Stalled), &[EventKind::QpFatal]);
    assert_eq!(socket.read(&mut [0; 9]).unwrap(), 0);
    let (mut socket, told) = raw(default_stream());
    socket.write_all(&half).unwrap();
    drop(socket);
    told.expect(Ending::Lost(StreamEnd::Closed), &[EventKind::QpFatal]);
}
