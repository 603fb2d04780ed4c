//! Peers of this host that are alive and do not answer: each is reported to users once, and its
//! process is asked what is wrong.

use std::collections::HashSet;

use vernic_proto::{Time, WcStatus};
use vernic_wire::Qpn;

use crate::device::book::more_of;
use crate::device::opened::Device;
use crate::qp::state::QpCore;

/// Processes that are remembered as reported, at most.
const MAX_REPORTED: usize = 1024;

/// How long a process must be silent before that is worth a warning, in nanoseconds. This is far
/// longer than where cores are merely busy.
const SILENCE_NANOS: u64 = 1_000_000_000;

/// The processes that were reported to users as alive and silent, each once.
#[derive(Debug, Default)]
pub(crate) struct ReportedSilent(HashSet<u32>);

impl ReportedSilent {
    /// Reports the peer of a queue pair whose ACK timer has run out, if the peer is alive and was
    /// silent for [`SILENCE_NANOS`].
    pub(crate) fn note(&mut self, engine: &Device, qpn: Qpn, core: &QpCore, now: Time) {
        let (Some(since), Some(pid)) = (core.machine.silent_since(), core.side.peer.pid()) else {
            return;
        };
        if now.since(since) < SILENCE_NANOS || self.0.contains(&pid) {
            return;
        }
        if let Some(peer) = core.side.peer.live_peer(engine.config(), core.machine.attr()) {
            if self.0.len() == MAX_REPORTED {
                self.0.clear();
            }
            self.0.insert(pid);
            let more = more_of(WcStatus::RetryExceeded).map(tracing::field::display);
            tracing::warn!(%qpn, pid, more, "the peer does not answer: {peer}");
        }
    }
}

/// Asks the process of a queue pair's peer what is wrong, if ACK timers of the queue pair have run
/// out. Where packets are lost on purpose, nothing is wrong with the peer.
pub(crate) fn ask_peer(engine: &Device, qpn: Qpn, core: &mut QpCore, now: Time) {
    let counters = core.machine.counters();
    let timeouts = counters.ack_timeouts + counters.patient_timeouts;
    if timeouts != 0 && engine.config().fault.is_empty() {
        core.side.peer.ask(qpn, core.machine.attr(), timeouts, now);
    }
}
