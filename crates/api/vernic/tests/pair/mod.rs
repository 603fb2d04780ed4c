//! Two connected queue pairs on `lo`, for tests.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::time::Duration;

use vernic::*;

/// Nothing takes longer, on however slow a machine.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// All remote rights.
pub(crate) const ALL: Access =
    Access::NONE.remote_read().remote_write().remote_atomic().bind_windows();

/// Two connected RC queue pairs of one device, with a completion queue each.
pub(crate) struct Pair {
    pub(crate) a: Qp<Rc, Rts>,
    pub(crate) b: Qp<Rc, Rts>,
    pub(crate) cq_a: Cq,
    pub(crate) cq_b: Cq,
    pub(crate) pd: Pd,
    pub(crate) device: Device,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let device = Device::open("lo").unwrap();
        let pd = device.alloc_pd().unwrap();
        let (cq_a, cq_b) = (device.create_cq(64).unwrap(), device.create_cq(64).unwrap());
        let (a, b) = connect_two(&pd, &cq_a, &cq_b, ALL);
        Self { a, b, cq_a, cq_b, pd, device }
    }

    /// A region with all rights.
    pub(crate) fn mr(&self, len: usize) -> Mr {
        self.pd.alloc_mr(len, ALL).unwrap()
    }
}

/// Two connected queue pairs that give up soon.
pub(crate) fn connect_two(
    pd: &Pd,
    cq_a: &Cq,
    cq_b: &Cq,
    granted: Access,
) -> (Qp<Rc, Rts>, Qp<Rc, Rts>) {
    let options = RcOptions { timeout: AckTimeout::new(15), retry_cnt: 2, ..RcOptions::default() };
    let make = |cq| pd.qp::<Rc>().send_cq(cq).recv_cq(cq).max_send_wr(16).create().unwrap();
    let (a, b) = (make(cq_a), make(cq_b));
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let up = |qp: Qp<Rc, Reset>, remote| {
        qp.init(InitAttr::granting(granted)).unwrap().connect_with(remote, &options).unwrap()
    };
    (up(a, at_b), up(b, at_a))
}

/// The failure that the next completion is.
pub(crate) fn failure(cq: &Cq) -> WcError {
    match cq.wait_one(LONG) {
        Err(Error::Completion(error)) => error,
        other => panic!("a failed completion was due: {other:?}"),
    }
}

/// The next receive, past successful sends.
pub(crate) fn next_recv(cq: &Cq) -> Wc {
    loop {
        let wc = cq.wait_one(LONG).unwrap();
        if wc.is_recv() {
            return wc;
        }
    }
}
