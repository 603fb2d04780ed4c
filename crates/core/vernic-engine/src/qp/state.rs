//! A queue pair as the lane sees it: the protocol machine and what the machine leaves to its owner.
//!
//! Everything mutable is in [`QpCore`] under one mutex that belongs to this queue pair alone;
//! `qp.rs` says who holds it when.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use vernic_io::host::Intake;
use vernic_io::{Address, Peer, TxPath};
use vernic_mem::{PdId, RevocationToken};
use vernic_proto::{Failure, QpAttr, QpState, QpType, Time};
use vernic_wire::{Qpn, Service};

use crate::config::Config;
use crate::device::explanation::LivePeer;
use crate::device::opened::Device;
use crate::device::path::Resolved;
use crate::local::tickets::QpTickets;
use crate::local::watch::{Found, HostProcess};
use crate::local::way::QpWay;
use crate::qp::ack_hold::AckHold;
use crate::qp::completions::CqRing;
use crate::qp::flight::Flight;
use crate::qp::machine::Machine;
use crate::qp::recv_queue::{CurrentRecv, RecvQueue, SharedRecv};
use crate::qp::send_slots::SendSlots;
use crate::qp::source::Source;
use crate::qp::xrc::Chosen;

/// Everything of a queue pair that changes while it runs.
#[derive(Debug)]
pub(crate) struct QpCore {
    pub(crate) machine: Machine,
    pub(crate) side: QpSide,
}

/// What the protocol machine leaves to its owner.
#[derive(Debug)]
pub(crate) struct QpSide {
    pub(crate) slots: SendSlots,
    pub(crate) current: CurrentRecv,
    /// The shared receive queues of an XRC target.
    pub(crate) chosen: Chosen,
    /// The path to the peer of a connected service, from RTR on.
    pub(crate) path: Option<TxPath>,
    /// Whether packets go through memory.
    pub(crate) way: QpWay,
    /// What the process says of itself that it is connected to, of this host.
    pub(crate) page: Option<Arc<Intake>>,
    /// Addresses that packets must have, of a connected service: the peer's and our own.
    pub(crate) peer: Option<(Address, Address)>,
    /// The ports that the peer sends from.
    pub(crate) source: Source,
    /// The addresses of an iWARP connection, now or before: its own and the peer's.
    pub(crate) stream: Option<(SocketAddr, SocketAddr)>,
    pub(crate) failure: Option<Failure>,
    pub(crate) ack: AckHold,
    pub(crate) timer: TimerEntries,
    pub(crate) flight: Flight,
    /// When a packet of the peer was last taken.
    pub(crate) heard: Option<Time>,
    /// What a peer on this host has consented to.
    pub(crate) tickets: QpTickets,
    /// What messages say whose bytes the peer copies by itself; `None` while there are none.
    pub(crate) send_gate: Option<RevocationToken>,
    /// A completion was lost to a full completion queue: the queue pair must go to error.
    pub(crate) cq_failed: bool,
}

impl QpSide {
    /// What the peer still copies of its messages is dropped: the application may change them from
    /// now on.
    #[inline]
    pub(crate) fn close_send_gate(&mut self, engine: &Device, qpn: Qpn) {
        if self.send_gate.take().is_some() {
            engine.memory().revoke_send(qpn);
        }
    }

    /// It is connected, to a peer that was not heard yet: what the neighbour on the last path
    /// consented to is of no use any more. The caller ends what that one was granted here.
    pub(crate) fn set_path(&mut self, resolved: &Resolved) {
        self.tickets.connect(None);
        self.path = Some(resolved.path);
        (self.way, self.page) = (QpWay::default(), None);
        if let Found::Here(process) = &resolved.found {
            self.set_process(process);
        }
        self.peer = Some((resolved.peer, resolved.local));
        self.source = Source::default();
        self.flight.path_changed();
    }

    /// It goes another path to the same peer, as in SQD. What goes through memory still does,
    /// whatever path is underneath: the peer takes nothing by the link from whom it has heard
    /// through memory.
    pub(crate) fn change_path(&mut self, resolved: &Resolved) {
        let ends = (resolved.peer, resolved.local);
        let (Some(old), true) = (self.path, self.peer == Some(ends)) else {
            return self.set_path(resolved);
        };
        match (&resolved.found, self.way.process) {
            (Found::Here(process), before) if before.is_none_or(|pid| pid == process.pid) => {
                self.path = Some(resolved.path);
                self.set_process(process);
            }
            (Found::Here(_), _) => return self.set_path(resolved),
            // It did not say in time that it is of this host, which is known.
            (_, Some(_)) => {
                self.path = Some(match old.peer() {
                    Peer::Remote => resolved.path,
                    Peer::LocalProcess(process) => resolved.path.to_process(process),
                });
            }
            (_, None) => self.path = Some(resolved.path),
        }
        self.tickets.renew();
        self.flight.path_changed();
        self.heard = None;
    }
}

impl QpSide {
    /// How long a silent peer is waited for, in nanoseconds: as long as its process and its queue
    /// pair are known to be there. That the process is gone `Engine::look_after_peers` finds out.
    pub(crate) fn live_peer_patience(&self, config: &Config, attr: &QpAttr) -> u64 {
        let is_there = match (&self.page, self.way.process) {
            (_, None) => false,
            (None, Some(_)) => true,
            // Of queue pairs beyond its first slot it says nothing.
            (Some(page), _) => !page.has_left() && page.answers(attr.dest_qpn).unwrap_or(true),
        };
        // Without retries the application wants to hear of a loss. By a ring there is none.
        let is_repaired = attr.retry_cnt != 0 || self.way.is_ring();
        // Who loses packets on purpose wants to see what comes of it.
        match is_there && is_repaired && config.fault.is_empty() {
            true => u64::from(config.live_peer_timeout_s) * 1_000_000_000,
            false => 0,
        }
    }

    /// The peer's process, if it is waited for.
    pub(crate) fn live_peer(&self, config: &Config, attr: &QpAttr) -> Option<LivePeer> {
        let pid = self.way.process.filter(|_| self.live_peer_patience(config, attr) != 0)?;
        Some(LivePeer::look(pid, config.live_peer_timeout_s))
    }

    /// The path to its `peer` was found to lead to this process of this host.
    pub(crate) fn go_straight(
        &mut self,
        engine: &Device,
        path: TxPath,
        peer: Qpn,
        to: HostProcess,
    ) {
        self.path = Some(path);
        self.set_process(&to);
        engine.watch_peer(path.remote().to_ip(), peer, &Found::Here(to));
    }

    /// Notes that it is connected to this process of this host.
    pub(crate) fn set_process(&mut self, process: &HostProcess) {
        self.way.process = Some(process.pid);
        self.page.clone_from(&process.page);
    }
}

/// Whether the responder of a queue pair in this state takes requests.
pub(crate) fn takes_requests(state: QpState) -> bool {
    matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
}

/// The entries that a queue pair has in the wheel: the next, and one that an earlier deadline was
/// put in front of (an RNR delay before an ACK timeout). Others are leftovers and fire for nothing.
#[derive(Debug, Default)]
pub(crate) struct TimerEntries {
    next: Option<Time>,
    later: Option<Time>,
}

impl TimerEntries {
    /// Whether `deadline` needs a new entry, which it then has.
    pub(crate) fn needs(&mut self, deadline: Time) -> bool {
        if self.next.is_some_and(|at| at <= deadline) {
            return false;
        }
        if self.later.is_none() {
            self.later = self.next;
        }
        self.next = Some(deadline);
        true
    }

    /// An entry fired; false if it is a leftover.
    pub(crate) fn fired(&mut self, now: Time) -> bool {
        let real = self.next.is_some_and(|at| at <= now);
        if real {
            self.next = self.later.take();
        }
        real
    }
}

/// What threads and the scheduler tell each other of a queue pair.
#[derive(Debug)]
pub(crate) struct Mark {
    /// A turn is sure to come that looks at the send queue: it is in the doorbells, ready or
    /// backpressured. Set by the thread that puts it there, cleared by the lane before it looks.
    attended: AtomicBool,
    /// The entry in the scheduler. Written under the lane.
    index: AtomicU32,
}

impl Mark {
    /// The mark of a queue pair that is not open yet.
    pub(crate) const fn new() -> Self {
        Self { attended: AtomicBool::new(false), index: AtomicU32::new(u32::MAX) }
    }

    /// Says that a turn is sure to come; false if that was said before.
    #[inline]
    pub(crate) fn attend(&self) -> bool {
        !self.attended.load(Ordering::Relaxed) && !self.attended.swap(true, Ordering::AcqRel)
    }

    /// The turn has come.
    #[inline]
    pub(crate) fn leave(&self) {
        self.attended.store(false, Ordering::Release);
    }

    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    pub(crate) fn set_index(&self, index: u32) {
        self.index.store(index, Ordering::Relaxed);
    }
}

/// A queue pair as the lane sees it.
#[derive(Debug)]
pub(crate) struct QpInner {
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    pub(crate) service: Service,
    /// Whether it is of an iWARP device.
    pub(crate) is_stream: bool,
    pub(crate) pd: PdId,
    pub(crate) recv_pd: PdId,
    /// The XRC domain of a target.
    pub(crate) domain: Option<PdId>,
    /// XRC targets have neither queue, initiators no receive queue.
    pub(crate) send_cq: Option<Arc<CqRing>>,
    pub(crate) recv_cq: Option<Arc<CqRing>>,
    pub(crate) srq: Option<SharedRecv>,
    pub(crate) rq: RecvQueue,
    pub(crate) core: Mutex<QpCore>,
    /// What it has with the scheduler.
    pub(crate) mark: Mark,
    /// Copy of the machine's state for posting receives without the core.
    pub(crate) state: AtomicU8,
}

impl QpInner {
    /// The completion queues, that of sends first.
    pub(crate) fn cqs(&self) -> impl Iterator<Item = &Arc<CqRing>> {
        self.send_cq.iter().chain(&self.recv_cq)
    }

    pub(crate) fn has_state(&self, state: QpState) -> bool {
        self.state.load(Ordering::SeqCst) == state as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_that_go_back_and_forth_do_not_pile_up_entries() {
        // An ACK timeout of 67 ms, and an RNR delay of 0.64 ms in front of it, 1000 times.
        let mut entries = TimerEntries::default();
        let mut wheel: Vec<Time> = Vec::new();
        let mut now = Time(0);
        let arm = |entries: &mut TimerEntries, wheel: &mut Vec<Time>, deadline| {
            if entries.needs(deadline) {
                wheel.push(deadline);
            }
        };
        for _ in 0..1000 {
            arm(&mut entries, &mut wheel, now + 67_000_000);
            arm(&mut entries, &mut wheel, now + 640_000);
            now = now + 640_000;
            wheel.sort();
            while wheel.first().is_some_and(|&at| at <= now) {
                wheel.remove(0);
                entries.fired(now);
            }
            assert!(wheel.len() <= 2, "{} entries", wheel.len());
        }
    }
}
