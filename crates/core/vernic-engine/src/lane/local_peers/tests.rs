//! Tests which queue pairs a process ends when it is gone, among those that are connected to its
//! slot.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vernic_local::RequestRoute;
use vernic_proto::{AttrMask, QpAttr, QpState};
use vernic_wire::PortNum;

use super::*;
use crate::local::watch::HostProcess;
use crate::{AddressVector, Config, Context, Qp, QpCap, QpInit};

/// A device that is its own local peer, and a queue pair that is connected to it. The background
/// thread is stopped: the test decides what happens.
struct Own {
    context: Arc<Context>,
    qp: Arc<Qp>,
    id: LocalPeerId,
}

impl Own {
    fn new() -> Self {
        Self::with(Service::Rc)
    }

    fn with(service: Service) -> Self {
        let context = Context::open(Some("lo"), Config::default()).unwrap();
        context.stop_background();
        let cq = context.create_cq(16, None).unwrap();
        let init = QpInit {
            service,
            send_cq: cq.clone(),
            recv_cq: cq,
            srq: None,
            cap: QpCap::default(),
            signal_all: true,
            congestion: None,
        };
        let qp = context.alloc_pd().create_qp(init).unwrap();
        let gid = context.gid_table()[0].clone();
        let av = AddressVector {
            dgid: gid.gid,
            sgid_index: gid.index,
            port: PortNum(1),
            ..AddressVector::default()
        };
        use AttrMask as M;
        let attr = QpAttr { state: QpState::Init, av, dest_qpn: qp.qpn(), ..QpAttr::default() };
        qp.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS).unwrap();
        let mask = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let of_rc = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        let mask = if service == Service::Rc { mask | of_rc } else { mask };
        qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, mask).unwrap();
        let slot = Slot::of(qp.qpn());
        let engine = context.engine();
        let since = Instant::now();
        let id = loop {
            engine.serve_local_peers();
            if let Some(id) = engine.with_lane(|lane| lane.local_peers.owner_of(slot).0) {
                break id;
            }
            assert!(since.elapsed() < Duration::from_secs(20), "it does not meet itself");
        };
        Self { context, qp, id }
    }

    fn slot(&self) -> Slot {
        Slot::of(self.qp.qpn())
    }

    /// Loses the local peer, in order.
    fn lose(&self) {
        let engine = self.context.engine();
        engine.with_lane(|lane| lane.lose_local_peer(engine, self.id, true, engine.now()));
    }

    fn requests(&self) -> RequestRoute {
        lock(&self.qp.inner().core).side.peer.route().requests()
    }

    fn pid(&self) -> Option<u32> {
        lock(&self.qp.inner().core).side.peer.pid()
    }
}

#[test]
fn a_queue_pair_is_barred_when_the_process_is_gone_that_it_was_connected_to() {
    let own = Own::new();
    assert_eq!(own.pid(), Some(std::process::id()));
    own.lose();
    assert_eq!(own.requests(), RequestRoute::PeerGone);
}

#[test]
fn only_queue_pairs_whose_service_acknowledges_fail_when_their_peer_is_gone() {
    for (service, fails) in [(Service::Rc, true), (Service::Uc, false)] {
        let own = Own::with(service);
        let (engine, qp) = (own.context.engine(), own.qp.inner());
        let failed = engine.with_lane(|lane| {
            fail_peerless_qp(engine, qp, &mut lock(&qp.core), &lane.srqs, engine.now())
        });
        assert_eq!((failed, own.qp.state() == QpState::Error), (fails, fails), "{service:?}");
    }
}

#[test]
fn a_queue_pair_to_the_new_owner_of_a_slot_survives_the_end_of_the_former() {
    let own = Own::new();
    let engine = own.context.engine();
    // Another process has taken the slot, and the end of the former process is noticed late.
    let newer = std::process::id() ^ 1;
    lock(&own.qp.inner().core).side.peer.name_process(&HostProcess::new(newer, None));
    engine.with_lane(|lane| lane.local_peers.set_owner(own.slot(), newer));
    own.lose();
    assert_eq!(own.requests(), RequestRoute::Wire);
    assert_eq!(own.pid(), Some(newer));
    let owner = engine.with_lane(|lane| lane.local_peers.owner_of(own.slot()).1);
    assert_eq!(owner, Some(newer), "who has the slot is not forgotten");
}

#[test]
fn who_may_have_interrupted_a_call_on_the_local_peers_waits_for_neither_counters_nor_good_bye() {
    let own = Own::new();
    let local = own.context.engine().local().unwrap();
    let peers = lock(&local.connections);
    assert!(own.context.try_counters().is_none());
    assert!(!own.context.last_progress());
    drop(peers);
    assert!(own.context.try_counters().is_some_and(|counters| counters.neighbours.gone == 0));
    assert!(own.context.last_progress());
    assert!(own.context.try_counters().is_some_and(|counters| counters.neighbours.gone == 1));
}
