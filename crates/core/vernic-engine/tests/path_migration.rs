//! Automatic path migration between two devices with two ports each, over a link whose cables can
//! be cut.

mod common;

use std::sync::Arc;

use common::toy::Fabric;
use common::*;
use vernic_engine::*;

/// The LIDs of the ports of each end.
const A: [u16; 2] = [61, 62];
const B: [u16; 2] = [71, 72];
/// What a modify names to load an alternate path and to arm it.
const LOAD: AttrMask = AttrMask::ALT_PATH.union(AttrMask::PATH_MIG_STATE);

/// A connected pair. The path and its alternate are each by a port of the same number at both ends.
struct Pair {
    fabric: Arc<Fabric>,
    ends: [End; 2],
    qps: [Arc<Qp>; 2],
}

impl Pair {
    /// On the ports 1, with a patience of some 30 ms.
    fn new(service: Service) -> Self {
        let fabric = Fabric::new();
        let ends = [A, B].map(|lids| End::on(fabric.device(&lids, test_config()), None));
        let qps = [0, 1].map(|n| ends[n].qp(service));
        let setup = Setup { retry_cnt: 1, timeout: AckTimeout::new(11), ..Setup::default() };
        for n in [0, 1] {
            let peer = ends[1 - n].gid_of(PortNum(1)).1;
            connect(&ends[n], &qps[n], peer, qps[1 - n].qpn(), setup);
        }
        Self { fabric, ends, qps }
    }

    /// Loads the path by these ports, own and peer's, as the alternate of an end.
    fn load(&self, n: usize, own: u8, peer: u8) {
        let [own, peer] = [own, peer].map(PortNum);
        let alt_av = AddressVector {
            dgid: self.ends[1 - n].gid_of(peer).1,
            sgid_index: self.ends[n].gid_of(own).0,
            ..AddressVector::default()
        };
        let attr = QpAttr {
            alt_av,
            alt_port: own,
            alt_timeout: AckTimeout::new(11),
            path_mig_state: PathMigState::Rearm,
            ..QpAttr::default()
        };
        self.qps[n].modify(&attr, LOAD).unwrap();
    }

    fn states(&self) -> [PathMigState; 2] {
        [0, 1].map(|n| self.qps[n].query().path_mig_state)
    }

    fn ports(&self) -> [u8; 2] {
        [0, 1].map(|n| self.qps[n].query().port.value())
    }

    /// The first end writes to the other.
    fn write(&self, seed: u8) -> WcStatus {
        let [a, b] = &self.ends;
        let data = pattern(50_000, seed.into());
        a.fill(0, &data);
        let sge = [a.sge(0, data.len() as u32)];
        self.qps[0].post_send(&[wr(1, SendOp::Write(b.remote(4096)), &sge)]).unwrap();
        let status = a.wait_beside(1, || self.turn(1))[0].status;
        if status == WcStatus::Success {
            assert_eq!(b.bytes(4096, data.len()), data);
        }
        status
    }

    /// Makes progress at an end that has nothing to complete.
    fn turn(&self, n: usize) {
        assert_eq!(self.ends[n].cq.poll(&mut [EMPTY_WC; 1]).unwrap(), 0);
    }

    /// The next event of an end, which is of its queue pair.
    fn event(&self, n: usize) -> Option<EventKind> {
        let event = self.ends[n].context.try_async_event()?;
        assert_eq!(event.element, Element::Qp(self.qps[n].qpn()));
        Some(event.kind)
    }

    fn arm(&self, port: u8) {
        for n in [0, 1] {
            self.load(n, port, port);
        }
        assert_eq!(self.states(), [PathMigState::Rearm; 2]);
        assert_eq!(self.write(port), WcStatus::Success);
        assert_eq!(self.states(), [PathMigState::Armed; 2]);
    }
}

#[test]
fn traffic_goes_on_by_the_alternate_path_and_back_by_the_first() {
    let pair = Pair::new(Service::Rc);
    for (cut, port) in [(1, 2), (2, 1), (1, 2)] {
        let cable = A[cut - 1];
        pair.arm(port);
        let sent = |port: u8| [A, B].map(|lids| pair.fabric.sent(lids[usize::from(port) - 1]));
        let before = sent(port);
        pair.fabric.set_cut(cable, true);
        assert_eq!(pair.write(3), WcStatus::Success);
        assert_eq!(pair.ports(), [port; 2]);
        assert_eq!(pair.states(), [PathMigState::Migrated; 2]);
        for n in [0, 1] {
            assert_eq!(pair.event(n), Some(EventKind::PathMigrated));
            assert_eq!(pair.event(n), None);
            assert!(sent(port)[n] > before[n], "by the port {port} of both");
        }
        assert_eq!(pair.write(4), WcStatus::Success);
        pair.fabric.set_cut(cable, false);
    }
}

#[test]
fn without_an_alternate_path_a_cut_ends_the_connection() {
    let pair = Pair::new(Service::Rc);
    pair.arm(2);
    pair.fabric.set_cut(A[0], true);
    pair.fabric.set_cut(B[1], true);
    assert_eq!(pair.write(1), WcStatus::RetryExceeded);
    assert_eq!(pair.event(0), Some(EventKind::PathMigrated), "it was tried");
    assert_eq!((pair.qps[0].state(), pair.event(1)), (QpState::Error, None));
}

#[test]
fn the_application_migrates_a_connection_that_nobody_answers() {
    let pair = Pair::new(Service::Uc);
    // Nothing is acknowledged, so each end must send something to arm the other.
    let send = |n: usize| {
        let [sender, receiver] = [n, 1 - n].map(|n| &pair.ends[n]);
        let recv = [receiver.sge(0, 64)];
        pair.qps[1 - n].post_recv(&[RecvWr { wr_id: 1, sges: &recv }]).unwrap();
        pair.qps[n].post_send(&[wr(2, SendOp::Send, &[sender.sge(0, 64)])]).unwrap();
        assert_eq!(sender.wait(1)[0].status, WcStatus::Success);
        assert_eq!(receiver.wait(1)[0].status, WcStatus::Success);
    };
    for n in [0, 1] {
        pair.load(n, 2, 2);
    }
    send(0);
    assert_eq!(pair.states(), [PathMigState::Rearm, PathMigState::Armed]);
    send(1);
    assert_eq!(pair.states(), [PathMigState::Armed; 2]);
    pair.qps[0].modify(&QpAttr::default(), AttrMask::PATH_MIG_STATE).unwrap();
    assert_eq!(pair.ports(), [2, 1]);
    send(0);
    assert_eq!(pair.ports(), [2; 2]);
    assert_eq!((pair.event(0), pair.event(1)), (None, Some(EventKind::PathMigrated)));
    send(1);
    assert!(pair.fabric.sent(B[1]) == 1 && pair.fabric.sent(A[1]) == 1);
}

#[test]
fn a_peer_that_migrates_to_a_path_unknown_here_is_reported_once() {
    let pair = Pair::new(Service::Rc);
    pair.load(0, 2, 2);
    pair.load(1, 1, 2);
    assert_eq!(pair.write(1), WcStatus::Success);
    assert_eq!(pair.states(), [PathMigState::Armed; 2]);
    pair.qps[0].modify(&QpAttr::default(), AttrMask::PATH_MIG_STATE).unwrap();
    assert_eq!(pair.write(2), WcStatus::RetryExceeded);
    assert_eq!(pair.event(1), Some(EventKind::PathMigrationFailed));
    assert_eq!(pair.event(1), None);
    assert_eq!((pair.ports(), pair.states()[1]), ([2, 1], PathMigState::Armed));
}

#[test]
fn what_cannot_be_loaded_is_refused_and_changes_nothing() {
    let pair = Pair::new(Service::Rc);
    let attr = |port, dgid| QpAttr {
        alt_av: AddressVector { dgid, ..AddressVector::default() },
        alt_port: PortNum(port),
        path_mig_state: PathMigState::Rearm,
        ..QpAttr::default()
    };
    let peer = pair.ends[1].gid_of(PortNum(2)).1;
    let refused = |attr: QpAttr, mask| pair.qps[0].modify(&attr, mask).unwrap_err().to_string();
    assert!(refused(attr(3, peer), LOAD).contains("port 3 does not exist"));
    assert!(refused(QpAttr { alt_pkey_index: 9, ..attr(2, peer) }, LOAD).contains("P_Key index 9"));
    let nowhere = Gid::from_ip([198, 18, 9, 9].into());
    assert!(!refused(attr(2, nowhere), LOAD).is_empty());
    assert!(refused(attr(2, peer), AttrMask::PATH_MIG_STATE).contains("no alternate path"));
    assert_eq!(
        (pair.states()[0], pair.qps[0].query().alt_port),
        (PathMigState::Migrated, PortNum(0))
    );
    let ud = pair.ends[0].qp(Service::Ud);
    bring_up_ud(&ud, Qkey(1));
    assert!(ud.modify(&attr(2, peer), LOAD).is_err(), "a datagram has its own path");
}
