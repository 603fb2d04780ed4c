//! What the tests of shared memory between processes of a host have in common.

use super::*;

/// The Q_Key of datagrams.
pub const QKEY: Qkey = Qkey(0x1111);
/// Whether requests go through memory.
pub const SHARED: fn(&Qp) -> bool = |qp| matches!(qp.route(), Route::SharedMemory { .. });

/// The settings of tests, whichever way the others go.
pub fn near_config() -> Config {
    let mut config = test_config();
    config.set("same_host", "on").unwrap();
    // What needs no packets is in `direct.rs`.
    config.set("direct", "off").unwrap();
    config
}

/// Sends a datagram of `len` bytes.
pub fn post_datagram(from: &End, qp: &Qp, ah: &Arc<Ah>, to: Qpn, len: u32) {
    let sges = [from.sge(1 << 20, len)];
    let dest = Some(Dest { ah, qpn: to, qkey: QKEY });
    qp.post_send(&[SendWr { dest, ..wr(9, SendOp::Send, &sges) }]).unwrap();
}

/// A pair in this process.
pub fn near_pair(service: Service) -> Pair {
    Pair::with(service, Setup::default(), near_config(), near_config())
}

/// Sends a message from `a` to `b`, and waits for both completions.
pub fn send(pair: &Pair, len: u32) -> (Wc, Wc) {
    pair.b_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[pair.b.sge(0, len)] }]).unwrap();
    pair.a_qp.post_send(&[wr(2, SendOp::Send, &[pair.a.sge(0, len)])]).unwrap();
    let received = pair.b.wait(1)[0];
    (pair.a.wait_beside(1, || pair.b.context.progress())[0], received)
}

/// Sends until the requests go through memory.
pub fn warm_up(pair: &Pair) {
    let (start, mut rounds) = (Instant::now(), 0);
    while !SHARED(&pair.a_qp) || !SHARED(&pair.b_qp) {
        send(pair, 8);
        send_back(pair);
        rounds += 1;
        let (a, b) = (pair.a_qp.route(), pair.b_qp.route());
        assert!(start.elapsed() < PATIENCE, "{a} and {b} after {rounds} rounds");
    }
}

/// A message from each end to the other.
pub fn talk(pair: &Pair) {
    let (sent, received) = send(pair, 8);
    let (answer_received, answer_sent) = send_back(pair);
    for wc in [sent, received, answer_received, answer_sent] {
        assert_eq!(
            wc.status,
            WcStatus::Success,
            "{:?}",
            (pair.a_qp.explain(), pair.b_qp.explain())
        );
    }
}

fn send_back(pair: &Pair) -> (Wc, Wc) {
    pair.a_qp.post_recv(&[RecvWr { wr_id: 1, sges: &[pair.a.sge(0, 8)] }]).unwrap();
    pair.b_qp.post_send(&[wr(2, SendOp::Send, &[pair.b.sge(0, 8)])]).unwrap();
    let received = pair.a.wait_beside(1, || pair.b.context.progress())[0];
    (received, pair.b.wait_beside(1, || pair.a.context.progress())[0])
}
