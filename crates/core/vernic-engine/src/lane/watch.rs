//! Processes of this host that queue pairs are connected to, and what becomes of those when one is
//! gone.
//!
//! A process that is killed says nothing. One that shares memory with this one hangs up
//! (`near/control.rs`); of others the slots go with it, which every process of this host can see.
//! So whoever has queue pairs that are connected to such a process looks every [`LOOK_NANOS`]
//! whether its slot is there still. If it is not, those queue pairs fail, whether or not anything
//! was ever sent ([`Engine::look_after_peers`]).
//!
//! A process that closes its device in order, or ends after it has left `main`, says so in a page
//! that its peers have mapped ([`Intake::has_left`]): as with hardware, nobody is told, and what is
//! sent to it runs into the ACK timeout.
//!
//! Called by the control path, and by the background thread, which alone looks. Lock order: the
//! lane, then the list.
//!
//! Limits: a process that takes the same slot before the next look hides that the former one is
//! gone. UC is told nothing, as by hardware: it knows of no peer that could fail. Costs a system
//! call per such process and look, and nothing while there are none.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vernic_io::host::{Lookup, PeerProcess, Slot};
use vernic_proto::Time;
use vernic_wire::{Qpn, Service};

use crate::lane::budget::Budgets;
use crate::lane::core::{Lane, Timers, make_ready};
use crate::local::watch::{Found, GRACE_NANOS, HostProcess, LOOK_NANOS, Watched};
use crate::progress::engine::Engine;
use crate::qp::state::{QpCore, QpInner};
use crate::qp::xrc::SrqTable;
use crate::support::events::lock;

impl Engine {
    /// A queue pair is connected to `peer` at `ip`, which `found` was found of.
    pub(crate) fn watch_peer(&self, ip: IpAddr, peer: Qpn, found: &Found) {
        let pid = match found {
            Found::NotHere => return,
            Found::Perhaps => None,
            // It ends with this process, or in order.
            Found::Here(process) if process.pid == std::process::id() => return,
            Found::Here(process) => Some(process.pid),
        };
        let mut list = lock(&self.watch.list);
        let was_planned = list.due.is_some();
        list.add(Watched { ip, slot: Slot::of(peer), pid, is_missing: false }, self.now());
        drop(list);
        if !was_planned {
            self.watch.is_rung.store(true, Ordering::Release);
            self.waker.wake();
        }
    }

    /// What was found out of a process by asking it.
    pub(crate) fn host_process(&self, process: &PeerProcess) -> HostProcess {
        let page = process.intake.and_then(|id| self.slots.intake_of(id));
        HostProcess { pid: process.pid, page }
    }

    /// Looks for processes that are gone, if it is time to, and fails the queue pairs that are
    /// connected to them. Returns when it must be called at the latest. For the background thread.
    pub(crate) fn look_after_peers(&self) -> Option<Time> {
        self.watch.is_rung.store(false, Ordering::Release);
        let now = self.now();
        let is_due = lock(&self.watch.list).due.is_some_and(|due| due <= now);
        if is_due && self.watch.is_stale.swap(false, Ordering::AcqRel) {
            self.forget_strangers();
        }
        let (all, added) = {
            let mut list = lock(&self.watch.list);
            if !is_due {
                return list.due;
            }
            list.due = None;
            (list.all.clone(), list.added)
        };
        let all = self.identify(all, now);
        // Who hangs up when it ends is not asked.
        let watched: Vec<_> = all
            .into_iter()
            .filter(|known| known.pid.is_some_and(|pid| !self.is_neighbour(known.slot, pid)))
            .collect();
        // Who has no descriptor left to ask with looks again.
        let vacant = self.slots.vacant(watched.iter().map(|known| known.slot)).unwrap_or_default();
        let missing = watched.into_iter().filter(|known| vacant.contains(&known.slot));
        let (gone, missing): (Vec<_>, Vec<_>) = missing.partition(|known| known.is_missing);
        if !gone.is_empty() {
            self.with_lane(|lane| {
                gone.iter().for_each(|known| lane.lose_process(self, known.slot, known.pid, now));
            });
        }
        let mut list = lock(&self.watch.list);
        if list.added == added {
            list.all.retain(|known| !gone.contains(known));
        }
        for known in &mut list.all {
            known.is_missing = missing.contains(known) || gone.contains(known);
        }
        let pause = if missing.is_empty() { LOOK_NANOS } else { GRACE_NANOS };
        let next = (!list.all.is_empty()).then(|| now + pause);
        list.due = [list.due, next].into_iter().flatten().min();
        list.due
    }

    /// Asks those who have not said yet whether they serve the address; queue pairs that are
    /// connected to one that does know so from now on.
    fn identify(&self, all: Vec<Watched>, now: Time) -> Vec<Watched> {
        let (sure, unsure): (Vec<_>, Vec<_>) = all.into_iter().partition(|w| w.pid.is_some());
        for known in unsure {
            match self.slots.lookup(known.ip, known.slot.qpn(0)) {
                Lookup::Asked | Lookup::Pending => {}
                Lookup::NotHere => lock(&self.watch.list).all.retain(|other| *other != known),
                Lookup::Here(process) => {
                    let process = self.host_process(&process);
                    self.with_lane(|lane| lane.name_process(known, &process));
                    lock(&self.watch.list).add(Watched { pid: Some(process.pid), ..known }, now);
                }
            }
        }
        sure
    }

    /// Forgets processes that no queue pair is connected to any more.
    fn forget_strangers(&self) {
        let added = lock(&self.watch.list).added;
        let used: HashSet<_> = self.with_lane(|lane| {
            let connected = |qp: &Arc<QpInner>| {
                let core = lock(&qp.core);
                core.side.path.map(|path| (path.remote().to_ip(), slot_of_peer(&core)))
            };
            lane.table.iter().filter_map(connected).collect()
        });
        let mut list = lock(&self.watch.list);
        if list.added == added {
            list.all.retain(|known| used.contains(&(known.ip, known.slot)));
        } else {
            self.watch.note_change();
        }
    }
}

fn slot_of_peer(core: &QpCore) -> Slot {
    Slot::of(core.machine.attr().dest_qpn)
}

impl Lane {
    /// A process has said that it serves an address.
    fn name_process(&mut self, known: Watched, process: &HostProcess) {
        for qp in self.table.iter().filter(|qp| qp.service != Service::Ud) {
            let mut core = lock(&qp.core);
            let at = core.side.path.map(|path| (path.remote().to_ip(), slot_of_peer(&core)));
            if at == Some((known.ip, known.slot)) && core.side.way.process.is_none() {
                core.side.set_process(process);
            }
        }
    }

    /// The process that had a slot is gone. What it had sent is received first.
    fn lose_process(&mut self, engine: &Engine, slot: Slot, pid: Option<u32>, now: Time) {
        // Bounded: a socket's buffer holds less.
        for _ in 0..MOST_BATCHES {
            if self.receive(engine, now) == 0 {
                break;
            }
        }
        let (mut failed, mut left) = (0, 0);
        let Self { table, srqs, ready, timers, budgets, .. } = self;
        for qp in table.iter().filter(|qp| qp.service != Service::Ud) {
            let mut core = lock(&qp.core);
            if core.side.way.process != pid || slot_of_peer(&core) != slot {
                continue;
            }
            if core.side.page.as_ref().is_some_and(|page| page.has_left()) {
                left += 1;
                continue;
            }
            failed += 1;
            fail_orphan(engine, qp, &mut core, (srqs, timers, budgets), now);
            if core.machine.wants_transmit() {
                make_ready(ready, qp);
            }
        }
        let slot = slot.value();
        match (failed, left) {
            (0, _) => tracing::debug!(pid, slot, left, "a process of this host has left"),
            _ => tracing::warn!(pid, slot, failed, "{GONE}"),
        }
    }
}

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
    pub(crate) fn note(&mut self, engine: &Engine, qpn: Qpn, core: &QpCore, now: Time) {
        let (Some(since), Some(pid)) = (core.machine.silent_since(), core.side.way.process) else {
            return;
        };
        if now.since(since) < SILENCE_NANOS || self.0.contains(&pid) {
            return;
        }
        if let Some(peer) = core.side.live_peer(&engine.config, core.machine.attr()) {
            if self.0.len() == MOST_TOLD {
                self.0.clear();
            }
            self.0.insert(pid);
            tracing::warn!(%qpn, pid, "the peer does not answer: {peer}");
        }
    }
}

/// Batches that are received at most from sockets before their senders' peers fail.
const MOST_BATCHES: usize = 64;

/// For users.
pub(crate) const GONE: &str = "a process of this host is gone: its peers' queue pairs fail";

/// The process that a queue pair is connected to is gone.
pub(crate) fn fail_orphan(
    engine: &Engine,
    qp: &Arc<QpInner>,
    core: &mut QpCore,
    (srqs, timers, budgets): (&SrqTable, &mut Timers, &mut Budgets),
    now: Time,
) {
    qp.with_lane_host(engine, Some(srqs), now, core, |machine, host| {
        if let Some(machine) = machine.packets() {
            machine.handle_peer_gone(now, host);
        }
    });
    qp.publish_state(engine, core);
    budgets.note(core, now);
    timers.arm(qp.qpn, core);
}
