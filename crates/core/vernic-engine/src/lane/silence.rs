//! Peers of this host that are alive and do not answer: users are told of each once.

use std::collections::HashSet;

use vernic_proto::Time;
use vernic_wire::Qpn;

use crate::device::opened::Device;
use crate::qp::state::QpCore;

/// Processes that are remembered as told of.
const MOST_TOLD: usize = 1024;

/// How long a process is silent until that is worth a warning: far longer than where cores are
/// merely busy.
const SILENCE_NANOS: u64 = 1_000_000_000;

/// Processes that users were told of as alive and silent: each once.
#[derive(Debug, Default)]
pub(crate) struct ToldSilent(HashSet<u32>);

impl ToldSilent {
    /// The ACK timer of a queue pair has run out.
    pub(crate) fn note(&mut self, engine: &Device, qpn: Qpn, core: &QpCore, now: Time) {
        let (Some(since), Some(pid)) = (core.machine.silent_since(), core.side.way.process) else {
            return;
        };
        if now.since(since) < SILENCE_NANOS || self.0.contains(&pid) {
            return;
        }
        if let Some(peer) = core.side.live_peer(engine.config(), core.machine.attr()) {
            if self.0.len() == MOST_TOLD {
                self.0.clear();
            }
            self.0.insert(pid);
            tracing::warn!(%qpn, pid, "the peer does not answer: {peer}");
        }
    }
}
