//! Calls into the protocol machine of a queue pair with its host, and what to do when the call has
//! changed the machine's state.

use std::sync::atomic::Ordering;

use vernic_local::Rendezvous;
use vernic_proto::{AttrMask, Cause, Host, QpAttr, QpState, Time};

use crate::device::explanation::Explanation;
use crate::device::opened::Device;
use crate::qp::arrivals::Arrivals;
use crate::qp::host::QpHost;
use crate::qp::machine::Machine;
use crate::qp::state::{QpCore, QpInner, takes_requests};
use crate::qp::xrc::SrqTable;
use crate::support::events::lock;

impl QpInner {
    /// Makes the machine's state visible to other threads, after a call that may have changed it.
    #[inline]
    pub(crate) fn publish_state(&self, engine: &Device, core: &mut QpCore) {
        let state = core.machine.state() as u8;
        if self.state.load(Ordering::Relaxed) != state {
            self.change_state(engine, core, state);
        }
    }

    #[cold]
    fn change_state(&self, engine: &Device, core: &mut QpCore, state: u8) {
        self.state.store(state, Ordering::SeqCst);
        engine.slots().set_answering(self.qpn(), takes_requests(core.machine.state()));
        if let (QpState::Rtr, Some(local)) = (core.machine.state(), engine.local()) {
            local.receipts().forget(self.qpn());
        }
        if !takes_requests(core.machine.state()) {
            engine.watch().note_change();
        }
        if !matches!(core.machine.state(), QpState::Rts | QpState::Sqd) {
            core.side.slots.revoke_sends(engine.memory(), self.qpn());
        }
        if !takes_requests(core.machine.state()) {
            // Accesses of local peers to the memory may still be in progress. Code that must know
            // that they are over waits for that later, without the queue pair's lock.
            engine.memory().revoke_qp(self.qpn());
        }
        // The machine flushed the posted receives when it entered Error. A receive that another
        // thread posted after that, but before this store of the state, was accepted and is flushed
        // here. A receive that is posted after the store is flushed by the post itself.
        if state == QpState::Error as u8 {
            self.with_host(engine, engine.now(), core, |_, host| host.flush_recv(None));
        }
    }

    /// Runs `f` with the machine and its host. Completions have the time `now`.
    pub(crate) fn with_host<T>(
        &self,
        engine: &Device,
        now: Time,
        core: &mut QpCore,
        f: impl FnOnce(&mut Machine, &mut QpHost<'_>) -> T,
    ) -> T {
        self.with_lane_host(engine, None, now, core, f)
    }

    /// Runs `f` as [`with_host`](Self::with_host) does, for callers that run the lane. XRC targets
    /// find the shared receive queues that requests name in `srqs`.
    #[inline]
    pub(crate) fn with_lane_host<T>(
        &self,
        engine: &Device,
        srqs: Option<&SrqTable>,
        now: Time,
        core: &mut QpCore,
        f: impl FnOnce(&mut Machine, &mut QpHost<'_>) -> T,
    ) -> T {
        self.with_parts(engine, (srqs, None, false), now, core, f)
    }

    /// Runs `f` as [`with_lane_host`](Self::with_lane_host) does, for a part of a message that may
    /// be a rendezvous. The caller calls [`settle`](Self::settle) before it unlocks the queue pair.
    #[inline]
    pub(crate) fn with_part<T>(
        &self,
        engine: &Device,
        (srqs, rendezvous): (Option<&SrqTable>, Option<Rendezvous<'_>>),
        now: Time,
        core: &mut QpCore,
        f: impl FnOnce(&mut Machine, &mut QpHost<'_>) -> T,
    ) -> T {
        // What an XRC target receives completes where its shared receive queue has it complete.
        let gathers = self.receives().cq().is_some();
        self.with_parts(engine, (srqs, rendezvous, gathers), now, core, f)
    }

    /// Ends what [`with_part`](Self::with_part) has left: the completions that were kept go to the
    /// completion queue, or to the thread that polls it.
    #[inline]
    pub(crate) fn settle(
        &self,
        engine: &Device,
        now: Time,
        core: &mut QpCore,
        arrivals: &mut Arrivals,
    ) {
        core.side.hand_arrived(|wcs| arrivals.push(self.receives().cq(), wcs));
        if core.side.has_lost_completion() {
            self.fail_for_cq(engine, now, core);
        }
    }

    /// Runs `f` as [`with_part`](Self::with_part) does. With `gathers`, the completions of receives
    /// are kept until the caller calls [`settle`](Self::settle).
    #[inline]
    pub(crate) fn with_parts<T>(
        &self,
        engine: &Device,
        (srqs, rendezvous, gathers): (Option<&SrqTable>, Option<Rendezvous<'_>>, bool),
        now: Time,
        core: &mut QpCore,
        f: impl FnOnce(&mut Machine, &mut QpHost<'_>) -> T,
    ) -> T {
        let side = &mut core.side;
        let mut host = QpHost { engine, srqs, rendezvous, gathers, now, qp: self, side };
        let result = f(&mut core.machine, &mut host);
        if core.side.needs_attention() {
            self.attend(engine, now, core);
        }
        result
    }

    /// Does what is seldom to be done after a call into the machine, which was made with the time
    /// `called`.
    #[cold]
    pub(crate) fn attend(&self, engine: &Device, called: Time, core: &mut QpCore) {
        if core.side.has_lost_completion() {
            self.fail_for_cq(engine, called, core);
        }
        let QpCore { machine, side } = core;
        let now = engine.now();
        let Some(trace) = side.trace() else { return };
        trace.note(machine, called, now);
        if trace.is_over(now) {
            side.set_trace(None);
        }
    }

    /// Fails the queue pair because a completion did not fit into its completion queue (IBTA
    /// 11.6.3.1).
    #[cold]
    fn fail_for_cq(&self, engine: &Device, now: Time, core: &mut QpCore) {
        core.side.forget_lost_completion();
        let state = core.machine.state();
        if matches!(state, QpState::Reset | QpState::Init | QpState::Error) {
            return;
        }
        let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
        let mut host = QpHost {
            engine,
            srqs: None,
            rendezvous: None,
            gathers: false,
            now,
            qp: self,
            side: &mut core.side,
        };
        host.event(vernic_proto::QpEvent::Fatal);
        // Error can be entered from every state.
        let _ = core.machine.modify(&attr, AttrMask::STATE, now, &mut host);
        core.side.forget_lost_completion();
        self.publish_state(engine, core);
    }
}

impl QpInner {
    pub(crate) fn explain(&self, engine: &Device) -> Option<Explanation> {
        let core = lock(&self.core);
        self.explanation(engine, &core)
    }

    /// Returns why the queue pair failed; `None` if it has not failed since its last reset.
    pub(crate) fn explanation(&self, engine: &Device, core: &QpCore) -> Option<Explanation> {
        let side = &core.side;
        let (failure, peer_end) = side.failure()?;
        let peer_qpn = side.peer.path().map(|_| core.machine.attr().dest_qpn);
        let (qpn, service, path) = (self.qpn(), self.service(), side.peer.path().copied());
        let mut circumstances = engine.circumstances(path, &failure.cause);
        circumstances.peer_end = peer_end;
        if let Cause::AckTimeout { .. } = failure.cause {
            let (config, attr) = (&engine.config(), core.machine.attr());
            let floor_us = config.ack_timeout_floor_us;
            let is_lifted = attr.timeout.nanos().is_some_and(|nanos| nanos < floor_us * 1000);
            circumstances.floor_us = is_lifted.then_some(floor_us);
            circumstances.peer_qp = side.peer.told().cloned();
            circumstances.live_peer = side.peer.live_peer(config, attr);
        }
        let stream = side.stream();
        Some(Explanation { qpn, service, path, peer_qpn, stream, failure, circumstances })
    }
}
