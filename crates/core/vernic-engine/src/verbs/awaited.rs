//! What the queue pairs of a completion queue wait for, in words: for a program that has waited for
//! a completion in vain.
//!
//! Called by the API when a long wait is over, off the data path. Limits: [`MOST`] queue pairs.

use std::sync::Arc;

use vernic_proto::{Cause, QpState, SendProgress};

use crate::progress::engine::Engine;
use crate::qp::state::QpInner;
use crate::support::events::lock;
use crate::verbs::cq::Cq;

/// Queue pairs that are told of at most: as many as a reader takes in.
const MOST: usize = 4;

impl Cq {
    /// Says what the queue pairs that report here wait for, as far as this end knows: a sentence
    /// for each of the first four. Waits for the lane, so it is not for the data path.
    pub fn awaited(&self) -> Vec<String> {
        if self.context().is_orphan() {
            return Vec::new();
        }
        let engine = self.context().engine();
        let reports_here = |qp: &&Arc<QpInner>| qp.cqs().any(|cq| Arc::ptr_eq(cq, self.ring()));
        let qps: Vec<_> = engine.with_lane(|lane| {
            lane.table().iter().filter(reports_here).take(MOST).cloned().collect()
        });
        qps.iter().map(|qp| sentence(engine, qp)).collect()
    }
}

/// What a queue pair waits for.
fn sentence(engine: &Engine, qp: &QpInner) -> String {
    let mut core = lock(&qp.core);
    let SendProgress { completed, posted, .. } = core.machine.send_progress();
    let (sends, state, counters) =
        (posted - completed, core.machine.state(), *core.machine.counters());
    let (path, qpn) = (core.side.peer.path().copied(), qp.qpn());
    let is_repeating = core.machine.packets().is_some_and(|machine| machine.is_repeating());
    let is_awaited = core.machine.packets().is_some_and(|machine| machine.has_unacknowledged());
    drop(core);
    let timeouts = counters.ack_timeouts + counters.patient_timeouts;
    let naks = counters.rnr_naks_received;
    let what = match state {
        QpState::Reset | QpState::Init => {
            format!("is in {state:?}: it was never moved to RTR, from which on it receives")
        }
        QpState::Sqe | QpState::Error => {
            let why = qp.explain(engine).map(|why| format!(": {why}")).unwrap_or_default();
            return format!("queue pair {qpn} is in {state:?}{why}");
        }
        _ if sends == 0 => match qp.receives().credits() {
            Some(0) => "has no request and no receive posted".to_owned(),
            Some(receives) => format!("got no message for the {receives} receives posted"),
            None => "got no message for its shared receive queue".to_owned(),
        },
        _ if is_repeating && naks != 0 => format!(
            "waits with {sends} requests until the peer posts a receive ({naks} times it had none)"
        ),
        _ if timeouts != 0 => format!(
            "waits for an answer to the first of {sends} requests; the peer is silent ({timeouts} ACK timeouts)"
        ),
        _ if is_awaited => format!("waits for an answer to the first of {sends} requests"),
        _ => format!("has {sends} requests that were not sent yet"),
    };
    // A link that is down, a kernel that refuses packets, faults that are injected.
    let silence = Cause::AckTimeout { tries: 0, waited: 0, heard: true };
    format!("queue pair {qpn} {what}{}", engine.circumstances(path, &silence))
}
