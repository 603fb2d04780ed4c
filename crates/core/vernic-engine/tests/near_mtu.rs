//! Two ends of one host with different path MTUs, which is a mistake of the application: it is told
//! as on the wire, and loses nothing unnoticed.

mod common;

use std::time::Instant;

use common::near::*;
use common::*;
use vernic_engine::*;

/// Two ends with these path MTUs and 64 receives of 8 KiB, of which messages of 100 bytes take some
/// until they go as they shall.
fn mismatched(same_host: &str, [a_mtu, b_mtu]: [Mtu; 2]) -> Pair {
    let mut config = near_config();
    config.set("same_host", same_host).unwrap();
    let (a, b) = (End::with(config.clone()), End::with(config));
    let (a_qp, b_qp) = (a.qp(Service::Rc), b.qp(Service::Rc));
    connect(&a, &a_qp, b.gid().1, b_qp.qpn(), Setup { mtu: a_mtu, ..Setup::default() });
    connect(&b, &b_qp, a.gid().1, a_qp.qpn(), Setup { mtu: b_mtu, ..Setup::default() });
    let pair = Pair { a_qp, b_qp, a, b };
    let post_recv = |wr_id| {
        let sges = [pair.b.sge(wr_id * 8192, 8192)];
        pair.b_qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    };
    (0..64).for_each(post_recv);
    let since = Instant::now();
    loop {
        // One packet at either path MTU.
        let (sent, received) = send(&pair, 100);
        assert_eq!((sent.status, received.status), (WcStatus::Success, WcStatus::Success));
        if same_host == "off" || SHARED(&pair.a_qp) {
            return pair;
        }
        assert!(since.elapsed() < PATIENCE, "{}", pair.a_qp.route());
    }
}

#[test]
fn messages_between_ends_with_different_path_mtus_fail_and_are_not_lost_unnoticed() {
    for mtus in [[Mtu::B4096, Mtu::B1024], [Mtu::B1024, Mtu::B4096]] {
        for same_host in ["off", "on"] {
            let t = mismatched(same_host, mtus);
            let sges: Vec<[Sge; 1]> = (0..8).map(|n| [t.a.sge(n * 8192, 4000)]).collect();
            let wrs: Vec<SendWr<'_>> = sges.iter().map(|sges| wr(9, SendOp::Send, sges)).collect();
            t.a_qp.post_send(&wrs).unwrap();
            let progress = || {
                t.b.context.progress();
            };
            let sent: Vec<_> = t.a.wait_beside(8, progress).iter().map(|wc| wc.status).collect();
            let mut expected = [WcStatus::Flushed; 8];
            expected[0] = WcStatus::RemoteInvalidRequest;
            assert_eq!(sent, expected, "{mtus:?}, same_host {same_host}");
            let received = t.b.wait(1)[0];
            assert_eq!(received.status, WcStatus::LocalLength, "{mtus:?}, {same_host}");
        }
    }
}
