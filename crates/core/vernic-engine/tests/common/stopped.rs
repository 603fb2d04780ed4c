//! A peer's process that is stopped and goes on.

use std::time::{Duration, Instant};

use super::other::Other;
use super::*;

/// Stops the other process for 2 s while it is written to, to `remote` and behind it, and expects
/// every byte there when it goes on.
pub fn stop_and_go_on(other: &mut Other, end: &End, qp: &Qp, remote: Remote) {
    const BYTES: usize = 1 << 20;
    let bytes = pattern(BYTES, 9);
    end.fill(0, &bytes);
    let counters = || end.context.counters();
    let before = counters();
    other.stop();
    let all = [end.sge(0, BYTES as u32)];
    let back = [end.sge(2 << 20, BYTES as u32)];
    qp.post_send(&[
        wr(11, SendOp::Write(remote), &all),
        wr(12, SendOp::Write(remote), &all),
        wr(13, SendOp::Read(remote), &back),
    ])
    .unwrap();
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(2) {
        assert_eq!(end.cq.poll(&mut [EMPTY_WC; 4]).unwrap(), 0, "{:?}", qp.explain());
        std::thread::sleep(Duration::from_millis(10));
    }
    other.signal(libc::SIGCONT);
    let done = end.wait(3);
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success), "{:?}", qp.explain());
    assert!(end.bytes(2 << 20, BYTES) == bytes, "wrong bytes");
    let after = counters();
    assert!(after.patient_timeouts > before.patient_timeouts);
    assert_eq!(after.ack_timeouts, before.ack_timeouts);
}
