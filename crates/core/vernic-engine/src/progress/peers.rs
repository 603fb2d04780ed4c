//! The processes of this host that queue pairs are connected to, and how the queue pairs fail when
//! their peer's process is gone.
//!
//! A process that is killed sends no notice. If it is a local peer (it shares memory with this
//! process), the local connection hangs up (`local/control.rs`). For any other process of this
//! host, its process slot becomes free, which all processes of the host can see. So this process
//! checks every quarter of a second whether the slots of such peers are still in use. If a slot is
//! free, the queue pairs that are connected to it fail, whether or not anything was ever sent
//! ([`Engine::check_peers`]).
//!
//! A process that closes its device in order, or ends after it has left `main`, says so in a page
//! that its peers have mapped
//! ([`ReceiverPage::has_left`](vernic_io::host::ReceiverPage::has_left)). As with hardware, the
//! queue pairs of its peers do not fail at once: what they send later runs into the ACK timeout.
//!
//! Called by the control path, and by the background thread, which alone does the checks. Lock
//! order: the lane, then the list of watched processes.
//!
//! Limits: if another process takes the slot before the next check, the check does not find that
//! the former process is gone. UC queue pairs do not fail, as with hardware: UC expects no answers
//! from its peer. The module costs a system call per watched process and check, and nothing while
//! no process is watched.

use std::collections::HashSet;
use std::sync::Arc;

use vernic_io::host::Lookup;
use vernic_proto::Time;

use crate::lane::watch::slot_of_peer;
use crate::local::watch::WatchedPeer;
use crate::progress::engine::Engine;
use crate::qp::state::QpInner;
use crate::support::events::lock;

impl Engine {
    /// Checks, if a check is due, which watched processes are gone, and fails the queue pairs that
    /// are connected to them. Returns the latest time for the next call. Only the background thread
    /// calls it.
    pub(crate) fn check_peers(&self) -> Option<Time> {
        let now = self.now();
        if !self.watch().begin(now) {
            return self.watch().due();
        }
        if self.watch().take_stale() {
            self.forget_unused();
        }
        let (all, added) = self.watch().take_due();
        let all = self.identify(all, now);
        // A local peer is not checked: its connection hangs up when it ends.
        let watched: Vec<_> = all
            .into_iter()
            .filter(|known| known.pid().is_some_and(|pid| !self.is_local_peer(known.slot(), pid)))
            .collect();
        // If there is no descriptor left to ask with, the next poll asks again.
        let vacant = self.slots().vacant(watched.iter().map(WatchedPeer::slot)).unwrap_or_default();
        let missing = watched.into_iter().filter(|known| vacant.contains(&known.slot()));
        let (gone, missing): (Vec<_>, Vec<_>) = missing.partition(WatchedPeer::is_missing);
        if !gone.is_empty() {
            self.with_lane(|lane| {
                gone.iter()
                    .for_each(|known| lane.fail_qps_of(self, known.slot(), known.pid(), now));
            });
        }
        self.watch().end(added, &gone, &missing, now)
    }

    /// Asks those processes that have not yet said whether they serve the address of the queue
    /// pairs. If a process has said so, the queue pairs that are connected to it are given the
    /// process and its receiver page. Returns the processes whose process ids are known already.
    fn identify(&self, all: Vec<WatchedPeer>, now: Time) -> Vec<WatchedPeer> {
        let (sure, unsure): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|known| known.pid().is_some());
        for known in unsure {
            let (ip, slot) = known.place();
            match self.slots().lookup(ip, slot.qpn(0)) {
                Lookup::Asked | Lookup::Pending => {}
                Lookup::NotHere => self.watch().remove(&known),
                Lookup::Here(process) => {
                    let process = self.host_process(&process);
                    self.with_lane(|lane| lane.name_process(known, &process));
                    self.watch().name(known, process.pid(), now);
                }
            }
        }
        sure
    }

    /// Removes from the list the processes that no queue pair is connected to any more.
    fn forget_unused(&self) {
        let added = self.watch().additions();
        let used: HashSet<_> = self.with_lane(|lane| {
            let connected = |qp: &Arc<QpInner>| {
                let core = lock(&qp.core);
                core.side.peer.path().map(|path| (path.remote().to_ip(), slot_of_peer(&core)))
            };
            lane.table().iter().filter_map(connected).collect()
        });
        self.watch().retain(added, |known| used.contains(&known.place()));
    }
}
