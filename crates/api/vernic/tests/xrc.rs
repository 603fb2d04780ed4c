//! XRC through the API: what one connection carries to several shared receive queues.

mod pair;

use pair::{ALL, LONG, failure};
use vernic::*;

/// A shared receive queue and what belongs to it: what a thread of the receiving side has.
struct Worker {
    srq: Srq<Xrc>,
    cq: Cq,
    mr: Mr,
}

impl Worker {
    fn new(device: &Device, domain: &Xrcd) -> Self {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(16).unwrap();
        let srq = pd.create_xrc_srq(domain, &cq, 8, 2).unwrap();
        Self { srq, cq, mr: pd.alloc_mr(64, ALL).unwrap() }
    }
}

/// An initiator with memory of its own, and a target with two workers behind it.
struct Ends {
    ini: Qp<XrcIni, Rts>,
    cq: Cq,
    mr: Mr,
    workers: [Worker; 2],
    _tgt: Qp<XrcTgt, Rtr>,
}

impl Ends {
    fn new() -> Self {
        let device = Device::open("lo").unwrap();
        let domain = device.create_xrcd().unwrap();
        let workers = [Worker::new(&device, &domain), Worker::new(&device, &domain)];
        let tgt = domain.create_tgt().unwrap();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
        let ini = pd.xrc_ini().send_cq(&cq).max_send_wr(16).create().unwrap();
        let (at_ini, at_tgt) = (ini.endpoint(), tgt.endpoint());
        let tgt = tgt.init(InitAttr::granting(ALL)).unwrap().connect(at_ini).unwrap();
        let options =
            XrcIniOptions { timeout: AckTimeout::new(15), retry_cnt: 2, ..Default::default() };
        let ini = ini.connect_with(at_tgt, &options).unwrap();
        let mr = pd.alloc_mr(64, Access::NONE.local_write()).unwrap();
        Self { ini, cq, mr, workers, _tgt: tgt }
    }

    /// The names of the next completions, which are successes.
    fn completed(&self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.cq.wait_one(LONG).unwrap().wr_id().0).collect()
    }
}

#[test]
fn one_connection_feeds_the_queues_that_its_requests_name() {
    let ends = Ends::new();
    let [first, second] = &ends.workers;
    assert_ne!(first.srq.number(), second.srq.number());
    for worker in &ends.workers {
        worker.srq.post_recv(WrId(1), &worker.mr).unwrap();
        worker.srq.post_recv(WrId(2), ()).unwrap();
    }
    ends.mr.write_at(0, b"counter!").unwrap();
    let mut batch = ends.ini.send_batch_to(first.srq.number());
    batch.send(WrId(10), Inline(b"for the first")).signaled().solicited();
    batch.to(second.srq.number()).send(WrId(11), Inline(b"for the second")).signaled();
    batch.write_imm(WrId(12), &ends.mr, second.mr.remote().at(0), 5).signaled();
    batch.to(first.srq.number()).write_imm(WrId(13), (), first.mr.remote().at(0), 6).signaled();
    batch.commit_and_clear().unwrap();
    assert_eq!(ends.completed(4), [10, 11, 12, 13]);
    let got = |worker: &Worker| {
        let wcs = [worker.cq.wait_one(LONG).unwrap(), worker.cq.wait_one(LONG).unwrap()];
        wcs.map(|wc| (wc.wr_id().0, wc.byte_len(), wc.imm()))
    };
    assert_eq!(got(first), [(1, 13, None), (2, 0, Some(6))]);
    assert_eq!(got(second), [(1, 14, None), (2, 64, Some(5))]);
    assert_eq!(first.mr.to_vec(..13).unwrap(), b"for the first");
    assert_eq!(second.mr.to_vec(..8).unwrap(), b"counter!");

    // The batch goes on with the queue that it named last: the memory of that queue's domain.
    let at = first.mr.remote();
    batch.fetch_add(WrId(14), ends.mr.slice(..8).unwrap(), at.at(16), 7).signaled();
    batch.read(WrId(15), ends.mr.slice(8..21).unwrap(), at.at(0)).fence().signaled();
    batch.commit().unwrap();
    assert_eq!(ends.completed(2), [14, 15]);
    assert_eq!(ends.mr.to_vec(8..21).unwrap(), b"for the first");
    assert_eq!(first.mr.to_vec(16..24).unwrap(), 7u64.to_ne_bytes());
}

#[test]
fn memory_of_another_queues_protection_domain_is_out_of_reach() {
    let ends = Ends::new();
    let [first, second] = &ends.workers;
    let mut batch = ends.ini.send_batch_to(first.srq.number());
    batch.write(WrId(1), Inline(b"x"), second.mr.remote().at(0)).signaled();
    batch.commit().unwrap();
    let error = failure(&ends.cq);
    assert_eq!(error.status(), WcStatus::RemoteAccess);
    assert_eq!(second.mr.to_vec(..1).unwrap(), [0]);
}

#[test]
fn a_number_that_no_queue_has_fails_the_request_and_says_so() {
    let ends = Ends::new();
    let mut batch = ends.ini.send_batch_to(Srqn::new(0x77_7777));
    batch.send(WrId(1), Inline(b"x")).signaled();
    batch.commit().unwrap();
    let error = failure(&ends.cq);
    assert_eq!(error.status(), WcStatus::RemoteInvalidRequest);
    assert_eq!(ends.ini.state(), QpState::Error);
}

#[test]
fn a_domain_lives_as_long_as_what_was_made_in_it() {
    let device = Device::open("lo").unwrap();
    let domain = device.create_xrcd().unwrap();
    let worker = Worker::new(&device, &domain);
    let target = domain.create_tgt().unwrap();
    assert!(domain.create_tgt_at(200).unwrap_err().to_string().contains("GID"));
    assert_eq!(target.state(), QpState::Reset);
    drop((domain, device));
    worker.srq.post_recv(WrId(1), &worker.mr).unwrap();
    worker.srq.arm_limit(2).unwrap();
    drop(target);
}
