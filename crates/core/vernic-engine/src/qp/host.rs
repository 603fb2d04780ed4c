//! The engine's `Host`: gives a protocol machine memory, receive queue, completion queues and
//! events.
//!
//! [`QpHost`] borrows a queue pair for one call into its machine. Everything here runs under the
//! queue pair's lock. Nothing blocks, except for the short locks of the queues where completions
//! and events are added.

use vernic_local::Rendezvous;
use vernic_mem::{
    Access, AccessError, Bind, BindError, Check, InvalidateError, PdId, PeerCopyError,
};
use vernic_proto::{
    AccessCheck, AccessFault, AtomicOp, Cause, Completion, Failure, Host, MwBind, PullFault,
    QpAttr, QpEvent, RecvWqe, RemoteAccess, SendOp, SendWqe, SrqFault, Stall, Tag, Time, WcOpcode,
    WcStatus,
};
use vernic_wire::{LocalRoute, Qpn, Rkey, Srqn};

use crate::counters::Counted;
use crate::device::book::more_of;
use crate::device::opened::Device;
use crate::device::opened::window_index;
use crate::qp::completions::Wc;
use crate::qp::state::{QpInner, QpSide};
use crate::qp::xrc::SrqTable;
use crate::support::events::{AsyncEvent, Element, lock};

/// What one queue pair's machine uses of the device, for one call into the machine.
pub(crate) struct QpHost<'a> {
    pub(crate) engine: &'a Device,
    /// The XRC shared receive queues by number; `None` if the caller does not run the lane.
    pub(super) srqs: Option<&'a SrqTable>,
    /// The rendezvous that is being received, if it is one.
    pub(super) rendezvous: Option<Rendezvous<'a>>,
    /// Whether completions of receives may wait until the caller unlocks the queue pair
    /// ([`QpInner::settle`]).
    pub(super) gathers: bool,
    /// The time of the completions of this call: when the batch of packets was begun.
    pub(super) now: Time,
    pub(crate) qp: &'a QpInner,
    pub(crate) side: &'a mut QpSide,
}

/// Converts a refused memory access to the protocol's error.
#[cold]
pub(crate) fn fault(error: AccessError) -> AccessFault {
    let check = match error.check {
        Check::KeyUnknown => AccessCheck::KeyUnknown,
        Check::KeyStale | Check::NotBound => AccessCheck::KeyStale,
        Check::WrongPd => AccessCheck::WrongPd,
        Check::WrongQp => AccessCheck::WrongQp,
        Check::Rights(_) => AccessCheck::Rights,
        Check::Bounds | Check::Unmapped | Check::ListTooShort => AccessCheck::Bounds,
        Check::Alignment => AccessCheck::Alignment,
        _ => AccessCheck::Kind,
    };
    AccessFault { check, key: error.key, addr: error.addr, len: error.len }
}

/// Converts a refused invalidation of a key to the protocol's error.
#[cold]
fn invalidate_fault(rkey: Rkey, error: InvalidateError) -> AccessFault {
    let check = match error {
        InvalidateError::UnknownKey(_) => AccessCheck::KeyStale,
        InvalidateError::WrongPd(_) => AccessCheck::WrongPd,
        InvalidateError::WrongQp(_) => AccessCheck::WrongQp,
        _ => AccessCheck::Kind,
    };
    AccessFault { check, key: rkey.value(), addr: 0, len: 0 }
}

/// Converts a refused bind of a memory window to the protocol's error, which has only the class of
/// the reason. The reason itself is logged.
#[cold]
fn bind_fault(qpn: Qpn, bind: &MwBind, error: BindError) -> AccessFault {
    let (window, region) = (bind.mw, bind.mr);
    tracing::warn!(%qpn, %window, %region, "a memory window was not bound: {error}");
    let check = match error {
        BindError::UnknownHandle | BindError::UnknownRegion { .. } => AccessCheck::KeyUnknown,
        BindError::WrongPd { .. } => AccessCheck::WrongPd,
        BindError::NoBindRight | BindError::NeedsLocalWrite | BindError::BadAccess { .. } => {
            AccessCheck::Rights
        }
        BindError::Bounds { .. } => AccessCheck::Bounds,
        _ => AccessCheck::Kind,
    };
    AccessFault { check, key: bind.mw.value(), addr: bind.addr, len: bind.length }
}

const fn mem_access(need: RemoteAccess) -> vernic_mem::RemoteAccess {
    match need {
        RemoteAccess::Read => vernic_mem::RemoteAccess::Read,
        RemoteAccess::Write => vernic_mem::RemoteAccess::Write,
        RemoteAccess::Atomic => vernic_mem::RemoteAccess::Atomic,
        RemoteAccess::FlushGlobal => vernic_mem::RemoteAccess::FlushGlobal,
        RemoteAccess::FlushPersistent => vernic_mem::RemoteAccess::FlushPersistent,
    }
}

impl QpHost<'_> {
    fn bind_window(&self, bind: &MwBind) -> Result<(), AccessFault> {
        let refused = |error| bind_fault(self.qp.qpn(), bind, error);
        let index = window_index(bind.mw);
        if window_index(bind.new_rkey) != index {
            let (key, window) = (bind.new_rkey, bind.mw);
            return Err(refused(BindError::OtherIndex { key, window }));
        }
        let window = lock(self.engine.windows()).get(&index).copied();
        let handle = window.ok_or_else(|| refused(BindError::UnknownHandle))?;
        let access = Access::from_bits_retain(bind.access);
        let request = Bind {
            qp_pd: self.qp.pd(),
            qpn: self.qp.qpn(),
            lkey: bind.mr,
            addr: bind.addr,
            len: bind.length,
            access: Access::from_verbs(bind.access)
                .map_err(|_| refused(BindError::BadAccess { access }))?,
            key: Some(bind.new_rkey.value() as u8),
        };
        self.engine.memory().bind_mw(handle, &request).map(drop).map_err(refused)
    }

    #[inline]
    fn stamped(&self, completion: Completion) -> Wc {
        Wc { completion, timestamp_ns: self.engine.timestamp_ns(self.now) }
    }

    /// Returns the protection domain that the R_Key in a request must belong to. For XRC it is the
    /// domain of the shared receive queue that the request names.
    #[inline]
    fn remote_pd(&self) -> PdId {
        self.side.filling.remote_pd(self.qp.pd())
    }

    fn flushed_recv(&self, wr_id: u64) -> Completion {
        Completion {
            wr_id,
            status: WcStatus::Flushed,
            opcode: WcOpcode::Recv,
            byte_len: 0,
            tag: Tag::None,
            qpn: self.qp.qpn(),
            src_qpn: Qpn::SMI,
            solicited: false,
            grh: false,
            route: LocalRoute::NONE,
            vendor_err: vernic_proto::Cause::Flushed.vendor_err(),
        }
    }
}

impl Host for QpHost<'_> {
    #[inline]
    fn gather(&mut self, slot: u32, offset: u32, buf: &mut [u8]) -> Result<(), AccessFault> {
        self.side.slots.gather(self.engine.memory(), self.qp.pd(), slot, offset, buf).map_err(fault)
    }

    #[inline]
    fn scatter_response(&mut self, slot: u32, offset: u32, data: &[u8]) -> Result<(), AccessFault> {
        self.side
            .slots
            .scatter(self.engine.memory(), self.qp.pd(), slot, offset, data)
            .map_err(fault)
    }

    fn local_op(&mut self, wqe: &SendWqe) -> Result<(), AccessFault> {
        match &wqe.op {
            SendOp::LocalInv(rkey) => {
                let invalidated = self.engine.memory().invalidate_local(self.qp.pd(), *rkey);
                invalidated.map_err(|e| invalidate_fault(*rkey, e))
            }
            SendOp::BindMw(bind) => self.bind_window(bind),
            _ => Ok(()),
        }
    }

    #[inline]
    fn check_remote(
        &mut self,
        rkey: Rkey,
        addr: u64,
        len: u64,
        need: RemoteAccess,
    ) -> Result<(), AccessFault> {
        self.engine
            .memory()
            .check_remote(self.remote_pd(), self.qp.qpn(), rkey, addr, len, mem_access(need))
            .map_err(fault)
    }

    #[inline]
    fn write_remote(&mut self, rkey: Rkey, addr: u64, data: &[u8]) -> Result<(), AccessFault> {
        self.engine
            .memory()
            .write_remote(self.remote_pd(), self.qp.qpn(), rkey, addr, data)
            .map_err(fault)
    }

    #[inline]
    fn read_remote(&mut self, rkey: Rkey, addr: u64, buf: &mut [u8]) -> Result<(), AccessFault> {
        self.engine
            .memory()
            .read_remote(self.remote_pd(), self.qp.qpn(), rkey, addr, buf)
            .map_err(fault)
    }

    fn atomic(&mut self, rkey: Rkey, addr: u64, op: AtomicOp) -> Result<u64, AccessFault> {
        let (memory, pd, qpn) = (&self.engine.memory(), self.remote_pd(), self.qp.qpn());
        match op {
            AtomicOp::CmpSwap { compare, swap } => {
                memory.atomic_cmp_swap(pd, qpn, rkey, addr, compare, swap)
            }
            AtomicOp::FetchAdd(add) => memory.atomic_fetch_add(pd, qpn, rkey, addr, add),
        }
        .map_err(fault)
    }

    fn atomic_write(&mut self, rkey: Rkey, addr: u64, data: [u8; 8]) -> Result<(), AccessFault> {
        self.engine
            .memory()
            .atomic_write_8(self.remote_pd(), self.qp.qpn(), rkey, addr, data)
            .map_err(fault)
    }

    fn flush(
        &mut self,
        rkey: Rkey,
        addr: u64,
        len: u64,
        need: RemoteAccess,
    ) -> Result<(), AccessFault> {
        let placement = mem_access(need).needs();
        // A length of 0 stands for the whole region: see `Host::flush`.
        let range = (len != 0).then_some((addr, len));
        self.engine
            .memory()
            .flush(self.remote_pd(), self.qp.qpn(), rkey, range, placement)
            .map_err(fault)
    }

    fn invalidate_remote(&mut self, rkey: Rkey) -> Result<(), AccessFault> {
        self.engine
            .memory()
            .invalidate_remote(self.remote_pd(), self.qp.qpn(), rkey)
            .map_err(|e| invalidate_fault(rkey, e))
    }

    #[inline]
    fn select_srq(&mut self, srqn: Srqn) -> Result<(), SrqFault> {
        self.side.filling.select(srqn, self.qp.domain, self.srqs)
    }

    #[inline]
    fn take_recv(&mut self) -> Option<RecvWqe> {
        self.side.filling.take(self.qp.receives(), self.engine.events())
    }

    #[inline]
    fn recv_credits(&mut self) -> Option<u32> {
        self.qp.receives().credits()
    }

    #[inline]
    fn scatter_recv(&mut self, offset: u64, data: &[u8]) -> Result<(), AccessFault> {
        let (pd, sges, cursor) = self.side.filling.list(self.qp.receives());
        self.engine.memory().write_local(pd, sges, cursor, offset, data).map_err(fault)
    }

    fn name_payload(
        &mut self,
        slot: u32,
        offset: u32,
        length: u32,
        buf: &mut [u8],
    ) -> Result<Option<usize>, AccessFault> {
        let (memory, pd, qpn) = (&self.engine.memory(), self.qp.pd(), self.qp.qpn());
        let record =
            self.side.slots.name((memory, pd), qpn, slot, (offset, length)).map_err(fault)?;
        Ok(record.and_then(|record| record.emit(buf)))
    }

    fn pull_recv(&mut self, offset: u64, length: u32) -> Result<(), PullFault> {
        let Some(Rendezvous { record, sender_memory }) = self.rendezvous else {
            return Err(PullFault::Unreachable);
        };
        let (memory, counters) = (&self.engine.memory(), &self.engine.counts());
        let (pd, sges, cursor) = self.side.filling.list(self.qp.receives());
        match sender_memory.pull(record, memory.part(pd, sges, cursor, offset, length.into())) {
            Ok(()) => {
                counters.note(Counted::NearPulledPart);
                counters.add(Counted::NearPulledByte, u64::from(length));
                Ok(())
            }
            Err(PeerCopyError::Revoked) => Err(PullFault::Withdrawn),
            Err(PeerCopyError::Local(error)) => Err(PullFault::Local(fault(error))),
            Err(PeerCopyError::Peer(error)) => {
                counters.note(Counted::NearPullRefused);
                sender_memory.refuse(&error);
                Err(PullFault::Unreachable)
            }
        }
    }

    #[cold]
    fn live_peer_patience(&mut self, attr: &QpAttr) -> u64 {
        self.side.peer.patience(self.engine.config(), attr)
    }

    #[cold]
    fn is_alternate_alike(&mut self) -> bool {
        self.side.peer.is_alternate_alike()
    }

    #[cold]
    fn change_path(&mut self) {
        self.side.migrate();
        // The path may lead to another process, which is granted nothing yet.
        self.engine.memory().revoke_qp(self.qp.qpn());
        let path = self.side.peer.path().map(tracing::field::display);
        tracing::info!(qpn = %self.qp.qpn(), path, "queue pair has migrated to its alternate path");
    }

    fn flush_recv(&mut self, current: Option<RecvWqe>) {
        if let Some(wqe) = current {
            self.complete_recv(self.flushed_recv(wqe.wr_id));
        }
        while let Some(wr_id) = self.qp.receives().take_id() {
            self.complete_recv(self.flushed_recv(wr_id));
        }
    }

    #[inline]
    fn complete_send(&mut self, completion: Completion) {
        if completion.status != WcStatus::Success {
            // The access ends before the application hears of the completion.
            self.side.slots.revoke_sends(self.engine.memory(), self.qp.qpn());
        }
        if let Some(cq) = &self.qp.send_cq {
            let fits = cq.push(self.stamped(completion));
            self.side.note_completion(fits);
        }
    }

    #[inline]
    fn complete_recv(&mut self, completion: Completion) {
        let (receives, wc) = (self.qp.receives(), self.stamped(completion));
        if self.gathers && completion.status == WcStatus::Success {
            self.side.gather_arrived(receives, wc);
            return;
        }
        self.side.push_arrived(receives);
        let fits = self.side.filling.complete(receives, wc);
        self.side.note_completion(fits);
    }

    #[cold]
    fn stalled(&mut self, stall: Stall) {
        self.engine.counts().note(Counted::Stall);
        // What it will fail with, unless the wait ends.
        let (awaited, told) = match stall {
            Stall::NotReady { .. } => (WcStatus::RnrRetryExceeded, None),
            Stall::Silent { .. } => (WcStatus::RetryExceeded, self.side.peer.told()),
        };
        let told = told.map(|peer| format!("; {peer}")).unwrap_or_default();
        tracing::warn!(
            qpn = %self.qp.qpn(),
            path = self.side.peer.path().map(tracing::field::display),
            more = more_of(awaited).map(tracing::field::display),
            "queue pair waits: {stall}{told}"
        );
    }

    #[cold]
    fn notification_sent(&mut self) {
        self.engine.counts().note(Counted::CnpSent);
    }

    fn event(&mut self, event: QpEvent) {
        self.engine
            .events()
            .push(AsyncEvent { kind: event.into(), element: Element::Qp(self.qp.qpn()) });
    }

    fn failure(&mut self, failure: Failure) {
        let has_ceased = matches!(failure.cause, Cause::AckTimeout { heard: true, .. });
        let peer_end = self.side.peer.end(self.now).filter(|_| has_ceased);
        self.side.note_failure(failure, peer_end);
        self.engine.counts().note(Counted::QpFailure);
        let mut circumstances =
            self.engine.circumstances(self.side.peer.path().copied(), &failure.cause);
        if let Cause::AckTimeout { .. } = failure.cause {
            circumstances.peer_qp = self.side.peer.told().cloned();
        }
        circumstances.peer_end = peer_end;
        tracing::warn!(
            qpn = %self.qp.qpn(),
            path = self.side.peer.path().map(tracing::field::display),
            status = %failure.status,
            wr_id = failure.wr_id,
            psn = %failure.psn,
            more = more_of(failure.status).map(tracing::field::display),
            "queue pair failed: {}", circumstances.with_cause(&failure.cause)
        );
    }
}
