//! The lines of queue pairs in the status text.

use std::fmt::Write as _;
use std::sync::Arc;

use vernic_proto::{QpAttr, QpCounters, SendProgress};

use crate::progress::engine::Engine;
use crate::qp::state::QpInner;
use crate::support::events::lock;
use crate::verbs::route::Route;

/// Largest number of queue pairs in the text, so that the text fits into a socket's buffer.
const MAX_QPS: usize = 1000;

/// Most failures that are told: each is a sentence or two.
const MAX_FAILURES: usize = 32;

/// Queue pairs whose routes are looked up at once, while no packet moves.
const ROUTES_AT_ONCE: usize = 32;

/// The first columns of a line `flow`, behind the queue pair's number; counters follow.
pub(super) const COLUMNS: [&str; 8] =
    ["peer", "way", "route", "completed", "posted", "in_flight", "window", "round_trip_ns"];

/// Returns the number of queue pairs, and the lines of the first thousand.
pub(super) fn of(engine: &Engine) -> (usize, String) {
    let mut rows = String::new();
    let qps: Vec<_> = engine.with_lane(|lane| lane.table().iter().cloned().collect());
    let told = &qps[..qps.len().min(MAX_QPS)];
    if !told.is_empty() {
        let names = COLUMNS.iter().chain(QpCounters::NAMES);
        rows.push_str("columns");
        names.for_each(|name| rows.extend(["\t", name]));
        rows.push('\n');
    }
    for some in told.chunks(ROUTES_AT_ONCE) {
        let routes = engine.routes(some);
        some.iter().zip(routes).for_each(|(qp, route)| row(qp, route, &mut rows));
    }
    let failures = told.iter().filter_map(|qp| failure(engine, qp));
    failures.take(MAX_FAILURES).for_each(|line| rows.push_str(&line));
    (qps.len(), rows)
}

fn row(qp: &QpInner, route: Route, rows: &mut String) {
    let core = lock(&qp.core);
    let QpAttr { state, dest_qpn, rq_psn, sq_psn, .. } = *core.machine.attr();
    let peer = core.side.peer.address();
    let stream = core.side.stream();
    let SendProgress { completed, posted, .. } = core.machine.send_progress();
    let (flight, window, round_trip) = core.machine.flight();
    let counters = *core.machine.counters();
    drop(core);
    let (number, kind) = (qp.qpn().value(), qp.qp_type() as u8);
    let (dest, rq_psn, sq_psn) = (dest_qpn.value(), rq_psn.value(), sq_psn.value());
    // Writing to a String does not fail.
    let _ = writeln!(rows, "qp {number} {kind} {} {dest} {rq_psn} {sq_psn}", state as u8);
    let _ = write!(rows, "flow\t{number}\t");
    let _ = match (peer, stream) {
        (Some(peer), _) => write!(rows, "{peer}"),
        (None, Some((_, peer))) => write!(rows, "{peer}"),
        (None, None) => Ok(()),
    };
    let _ = write!(rows, "\t{}\t{route}\t{completed}\t{posted}\t{flight}", route.way());
    for known in [window.map(u64::from), round_trip] {
        rows.push('\t');
        if let Some(value) = known {
            let _ = write!(rows, "{value}");
        }
    }
    for value in counters.values() {
        // Most are 0, and formatting is most of what a row costs.
        let _ = if value == 0 { rows.write_str("\t0") } else { write!(rows, "\t{value}") };
    }
    rows.push('\n');
}

/// The line of a queue pair that has failed.
fn failure(engine: &Engine, qp: &Arc<QpInner>) -> Option<String> {
    let why = qp.explain(engine)?.to_string().replace(['\n', '\t'], " ");
    Some(format!("failure\t{}\t{why}\n", qp.qpn().value()))
}
