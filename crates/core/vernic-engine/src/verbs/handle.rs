//! Queue pairs (IBTA 10.2.4, 11.2.4): the application's handle and the state behind it.
//!
//! Owns, per queue pair, the protocol machine of `vernic-proto` and what the machine leaves to its
//! owner: scatter lists and inline bytes of posted sends, the receive being filled, the path.
//!
//! Who locks what: everything mutable is in [`QpCore`] under one mutex that belongs to this queue
//! pair alone. The application holds it to post and to modify; whoever runs the lane holds it while
//! it handles packets of this queue pair or sends for it. Lock order: lane, core, receive queue or
//! completion queue. Posting never waits for the lane.
//!
//! The application's [`Qp`] and the lane's table share a [`QpInner`]; dropping the `Qp` takes the
//! queue pair out of the table, so the lane never sees one whose owner is gone.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use vernic_io::TxPath;
use vernic_proto::{
    AttrMask, Host, PostError, QpAttr, QpCounters, QpState, QpType, SendFlags, SendWqe, UdDest,
};
use vernic_wire::{Gid, Qpn, Service};

use crate::device::explanation::Explanation;
use crate::device::limits::MAX_SGE;
use crate::device::listing::Transport;
use crate::error::{CreateError, McastError, ModifyError};
use crate::local::tickets::QpTickets;
use crate::local::way::QpWay;
use crate::progress::engine::Engine;
use crate::qp::ack_hold::AckHold;
use crate::qp::cap::QpCap;
use crate::qp::flight::Flight;
use crate::qp::machine::Machine;
use crate::qp::payload::{Payload, SendRefusal};
use crate::qp::recv_queue::{CurrentRecv, PostRecvError, RecvQueue, RecvRefusal, RecvWr};
use crate::qp::send_slots::SendSlots;
use crate::qp::source::Source;
use crate::qp::state::{Mark, QpCore, QpInner, QpSide, TimerEntries};
use crate::qp::xrc::Chosen;
use crate::support::events::lock;
use crate::verbs::context::Context;
use crate::verbs::cq::Cq;
use crate::verbs::pd::Pd;
use crate::verbs::qp_init::{Parts, QpInit, check, qp_type_of};
use crate::verbs::srq::Srq;
use crate::verbs::wr::{PostSendError, SendWr};
use crate::verbs::xrc_domain::Domain;

mod end;

/// A queue pair. Dropping it destroys it.
pub struct Qp {
    inner: Arc<QpInner>,
    /// The one whose lane it is in.
    engine: Arc<Engine>,
    pd: Arc<Pd>,
    send_cq: Option<Arc<Cq>>,
    recv_cq: Option<Arc<Cq>>,
    srq: Option<Arc<Srq>>,
    /// Of an XRC target.
    domain: Option<Arc<Domain>>,
    cap: QpCap,
    signal_all: bool,
    groups: AtomicU32,
    /// Handles that an XRC target is open by; 1 for the others.
    handles: AtomicU32,
    gone: AtomicBool,
}

/// What became of a send request.
#[derive(Debug)]
enum Pushed {
    Queued,
    /// Nothing yet: it goes to a process that is to be waited for, without the lock.
    Meets,
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qp({:?} {})", self.inner.qp_type, self.inner.qpn)
    }
}

impl Pd {
    /// A queue pair, in Reset.
    ///
    /// # Errors
    /// [`CreateError`]: limits, objects of other devices, no number left.
    pub fn create_qp(self: &Arc<Self>, init: QpInit) -> Result<Arc<Qp>, CreateError> {
        self.alive()?;
        Qp::new(self, init)
    }
}

impl Qp {
    pub(crate) fn new(pd: &Arc<Pd>, init: QpInit) -> Result<Arc<Self>, CreateError> {
        let QpInit { service, send_cq, recv_cq, srq, cap, signal_all } = init;
        Self::build(Parts {
            qp_type: qp_type_of(service)?,
            pd: pd.clone(),
            send_cq: Some(send_cq),
            recv_cq: Some(recv_cq),
            srq,
            domain: None,
            cap,
            signal_all,
        })
    }

    pub(crate) fn build(parts: Parts) -> Result<Arc<Self>, CreateError> {
        check(&parts)?;
        let Parts { qp_type, pd, send_cq, recv_cq, srq, domain, cap, signal_all } = parts;
        let engine = pd.context().engine().clone();
        let service = qp_type.service();
        let is_stream = engine.info().transport == Transport::Iwarp;
        if is_stream && qp_type != QpType::Rc {
            let what = "queue pairs of another type";
            return Err(CreateError::NotOnIwarp { device: engine.info().name.clone(), what });
        }
        let shared_rq = srq.is_some() || qp_type == QpType::XrcTgt;
        let own_wrs = if shared_rq { 0 } else { cap.max_recv_wr };
        let recv_sges = match &srq {
            Some(srq) => srq.query().max_sge,
            // Any queue of the domain may give the receive.
            None if shared_rq => MAX_SGE,
            None => cap.max_recv_sge,
        };
        let recv_pd = srq.as_ref().map_or(pd.id(), |srq| srq.pd().id());
        let inner = engine.open_qp(|qpn| {
            let init = vernic_proto::QpInit {
                qpn,
                qp_type,
                max_send_wr: cap.max_send_wr,
                max_window: engine.config().max_window,
                shared_rq,
            };
            let mut machine = match is_stream {
                true => Machine::Stream(Box::new(vernic_proto::iwarp::Qp::new(init))),
                false => Machine::Packets(vernic_proto::Qp::new(init)),
            };
            machine.set_port_mtu(engine.port().active_mtu());
            machine.set_ack_floor(engine.config().ack_timeout_floor_us * 1000);
            let slots = SendSlots::new(machine.send_slots(), &cap, service);
            let side = QpSide {
                slots,
                current: CurrentRecv::with_sges(recv_sges),
                chosen: Chosen::default(),
                path: None,
                way: QpWay::default(),
                page: None,
                peer: None,
                source: Source::default(),
                stream: None,
                failure: None,
                ack: AckHold::default(),
                timer: TimerEntries::default(),
                flight: Flight::default(),
                heard: None,
                tickets: QpTickets::default(),
                send_gate: None,
                cq_failed: false,
            };
            Arc::new(QpInner {
                qpn,
                qp_type,
                service,
                is_stream,
                pd: pd.id(),
                recv_pd,
                domain: domain.as_ref().map(|domain| domain.id()),
                send_cq: send_cq.as_ref().map(|cq| cq.ring().clone()),
                recv_cq: recv_cq.as_ref().map(|cq| cq.ring().clone()),
                srq: srq.as_ref().map(|srq| srq.shared()),
                rq: RecvQueue::new(own_wrs, cap.max_recv_sge),
                core: Mutex::new(QpCore { machine, side }),
                mark: Mark::new(),
                state: AtomicU8::new(QpState::Reset as u8),
            })
        })?;
        pd.hold();
        inner.cqs().for_each(|cq| cq.hold());
        if let Some(srq) = &srq {
            srq.hold();
        }
        if let Some(domain) = &domain {
            domain.hold();
        }
        let (groups, gone, handles) =
            (AtomicU32::new(0), AtomicBool::new(false), AtomicU32::new(1));
        Ok(Arc::new(Self {
            inner,
            engine,
            pd,
            send_cq,
            recv_cq,
            srq,
            domain,
            cap,
            signal_all,
            groups,
            handles,
            gone,
        }))
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.inner.qpn
    }
    /// Its type.
    pub fn qp_type(&self) -> QpType {
        self.inner.qp_type
    }
    /// Its service.
    pub fn service(&self) -> Service {
        self.inner.service
    }
    /// Its protection domain. That of an XRC target is its XRC domain's own, with no memory in it.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// The engine of the device that moves its packets.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }
    /// Where its sends complete; XRC targets send nothing.
    pub fn send_cq(&self) -> Option<&Arc<Cq>> {
        self.send_cq.as_ref()
    }
    /// Where its receives complete; XRC initiators receive nothing, and receives of XRC targets
    /// complete where the shared receive queue says.
    pub fn recv_cq(&self) -> Option<&Arc<Cq>> {
        self.recv_cq.as_ref()
    }
    /// The shared queue that it receives from.
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.srq.as_ref()
    }
    /// Its sizes, as granted: exactly those asked for.
    pub fn cap(&self) -> QpCap {
        self.cap
    }
    /// Whether every send is signaled.
    pub fn signals_all(&self) -> bool {
        self.signal_all
    }
    /// Its state.
    pub fn state(&self) -> QpState {
        self.look(|core| core.machine.state()).unwrap_or(QpState::Error)
    }
    /// Its attributes as last modified, the present state included.
    pub fn query(&self) -> QpAttr {
        let orphaned = || QpAttr { state: QpState::Error, ..QpAttr::default() };
        self.look(|core| *core.machine.attr()).unwrap_or_else(orphaned)
    }
    /// Whether a send queue in SQD is still at work.
    pub fn is_draining(&self) -> bool {
        self.look(|core| core.machine.is_draining()).unwrap_or(false)
    }
    /// Its counters since the last reset.
    pub fn counters(&self) -> QpCounters {
        self.look(|core| *core.machine.counters()).unwrap_or_default()
    }
    /// The path to its peer, of a connected service from RTR on.
    pub fn path(&self) -> Option<TxPath> {
        self.look(|core| core.side.path).flatten()
    }

    /// Looks at what changes, unless it is an orphan's.
    fn look<T>(&self, look: impl FnOnce(&QpCore) -> T) -> Option<T> {
        (!self.context().is_orphan()).then(|| look(&lock(&self.inner.core)))
    }

    /// Why it failed, if it did since the last reset.
    pub fn explain(&self) -> Option<Explanation> {
        let engine = self.engine();
        if engine.is_orphan() { None } else { self.inner.explain(engine) }
    }

    /// Changes attributes and state (IBTA 11.2.5.2). Nothing changes on an error.
    ///
    /// Entering RTR looks for the peer among the processes of this host, which may take up to the
    /// configured `peer_query_us` when such a process is busy.
    ///
    /// # Errors
    /// [`ModifyError`].
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
        let qpn = self.inner.qpn;
        if self.context().is_orphan() {
            return Err(ModifyError::Orphan);
        }
        if self.context().is_closed() {
            return Err(ModifyError::Closed);
        }
        if self.gone.load(Ordering::Acquire) {
            return Err(ModifyError::Destroyed(qpn));
        }
        let engine = self.engine();
        let path_error = |source| ModifyError::Path { qpn, source };
        if mask.contains(AttrMask::PKEY_INDEX) && attr.pkey_index != 0 {
            return Err(ModifyError::Pkey { qpn, index: attr.pkey_index });
        }
        if mask.contains(AttrMask::PORT) {
            engine.check_port(attr.port).map_err(path_error)?;
        }
        if mask.contains(AttrMask::PATH_MTU) {
            engine.check_mtu(attr.path_mtu).map_err(path_error)?;
        }
        // A stream's path is its connection's.
        let connected = self.inner.service != Service::Ud && !self.inner.is_stream;
        let resolved = if connected && mask.contains(AttrMask::AV) {
            let peer = match mask.contains(AttrMask::DEST_QPN) {
                true => attr.dest_qpn,
                false => self.query().dest_qpn,
            };
            Some(engine.resolve_peer(&attr.av, qpn, peer).map_err(path_error)?)
        } else {
            None
        };
        if mask.contains(AttrMask::STATE) && matches!(attr.state, QpState::Reset | QpState::Error) {
            // What was acknowledged by a completion here is acknowledged to the peer, too.
            engine.with_lane(|lane| lane.transmit_all(engine, engine.now()));
        }
        let mut core = lock(&self.inner.core);
        // Again, under the lock that destroying and closing take after they have said so.
        if self.gone.load(Ordering::Acquire) {
            return Err(ModifyError::Destroyed(qpn));
        }
        if self.context().is_closed() {
            return Err(ModifyError::Closed);
        }
        let now = engine.now();
        let past = self.inner.explanation(engine, &core);
        self.inner
            .with_host(engine, now, &mut core, |machine, host| {
                machine.modify(attr, mask, now, host)
            })
            .map_err(|source| ModifyError::State { qpn, source })?;
        if core.machine.state() == QpState::Reset {
            self.forget(&mut core, past);
        } else if let Some(resolved) = &resolved {
            match core.machine.state() {
                QpState::Rtr => core.side.set_path(resolved),
                _ => core.side.change_path(resolved),
            }
        }
        let dest = core.machine.attr().dest_qpn;
        let is_lonely = mask.contains(AttrMask::STATE) && self.lacks_connection(&core);
        self.inner.publish_state(engine, &mut core);
        if resolved.is_some() || mask.contains(AttrMask::ACCESS_FLAGS) {
            engine.memory().revoke_qp(qpn);
        }
        drop(core);
        if let Some(resolved) = resolved.filter(|_| attr.state != QpState::Reset) {
            engine.watch_peer(resolved.peer.ip(), dest, &resolved.found);
        }
        if is_lonely {
            tracing::warn!(
                %qpn,
                device = engine.info().name,
                "in RTS without a connection: what is posted waits for one, which only rdma_cm makes for an iWARP device (perftest: -R)"
            );
        }
        engine.memory().wait_for_revocations();
        engine.kick(&self.inner);
        Ok(())
    }

    /// Whether it is of iWARP, and in RTS by a change of its state alone.
    fn lacks_connection(&self, core: &QpCore) -> bool {
        self.inner.is_stream && core.machine.state() == QpState::Rts && core.side.stream.is_none()
    }

    /// Queues sends in order and starts them. Copies inline data; reads everything else when
    /// packets are built.
    ///
    /// # Errors
    /// [`PostSendError`] with the place of the first that was refused; those before it are queued.
    pub fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostSendError> {
        self.post_send_from(wrs.iter().copied())
    }

    /// As [`post_send`](Self::post_send), from an iterator: one doorbell for all of it. The
    /// iterator runs under the queue pair's lock and must not call into it.
    ///
    /// # Errors
    /// [`PostSendError`] with the place of the first that was refused; those before it are queued.
    pub fn post_send_from<'a>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'a>>,
    ) -> Result<(), PostSendError> {
        self.check_owner()?;
        self.push_sends(lock(&self.inner.core), wrs.into_iter())
    }

    /// As [`post_send_from`](Self::post_send_from), but with room for all of them or for none: a
    /// list that does not fit leaves the queue as it was. (Room that another thread takes while the
    /// first datagram to a process waits for the process's answer is not seen before.)
    ///
    /// # Errors
    /// [`PostSendError`]. One of [`PostError::Full`] was found before anything was queued.
    pub fn post_send_all<'a>(
        &self,
        wrs: impl ExactSizeIterator<Item = SendWr<'a>>,
    ) -> Result<(), PostSendError> {
        self.check_owner()?;
        let core = lock(&self.inner.core);
        let index = core.machine.send_room() as usize;
        if wrs.len() > index {
            let source = PostError::Full(self.cap.max_send_wr).into();
            return Err(PostSendError { index, source });
        }
        self.push_sends(core, wrs)
    }

    /// Refuses a process that was forked after the device had been opened.
    fn check_owner(&self) -> Result<(), PostSendError> {
        match self.engine().is_orphan() {
            true => Err(PostSendError { index: 0, source: SendRefusal::Orphan }),
            false => Ok(()),
        }
    }

    fn push_sends<'q, 'a>(
        &'q self,
        mut core: MutexGuard<'q, QpCore>,
        wrs: impl Iterator<Item = SendWr<'a>>,
    ) -> Result<(), PostSendError> {
        let mut index = 0;
        let mut result = Ok(());
        for wr in wrs {
            let mut pushed = self.push_send(&mut core, &wr);
            while let (Ok(Pushed::Meets), Some(dest)) = (&pushed, &wr.dest) {
                // Once, unless more is asked at a time than the table of answers holds. Others may
                // post, and the lane send what they post, in between.
                drop(core);
                dest.ah.wait_for(&self.engine, dest.qpn);
                core = lock(&self.inner.core);
                pushed = self.push_send(&mut core, &wr);
            }
            result = pushed.map(drop);
            if result.is_err() {
                break;
            }
            index += 1;
        }
        drop(core);
        if index != 0 {
            self.engine().kick(&self.inner);
        }
        result.map_err(|source| PostSendError { index, source })
    }

    /// Queues receives in order.
    ///
    /// # Errors
    /// [`PostRecvError`] with the place of the first that was refused; those before it are queued.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostRecvError> {
        self.post_recv_from(wrs.iter().copied())
    }

    /// As [`post_recv`](Self::post_recv), from an iterator, which runs under the queue's lock.
    ///
    /// # Errors
    /// [`PostRecvError`] with the place of the first that was refused; those before it are queued.
    pub fn post_recv_from<'a>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'a>>,
    ) -> Result<(), PostRecvError> {
        let refuse = |source| Err(PostRecvError { index: 0, source });
        if self.context().is_orphan() {
            return refuse(RecvRefusal::Orphan);
        }
        if self.inner.srq.is_some() {
            return refuse(RecvRefusal::Shared);
        }
        if self.inner.service == Service::Xrc {
            return refuse(RecvRefusal::NoQueue);
        }
        if self.gone.load(Ordering::Acquire) {
            return refuse(RecvRefusal::Destroyed);
        }
        if self.inner.has_state(QpState::Reset) {
            return refuse(RecvRefusal::State(QpState::Reset));
        }
        let result = self.inner.rq.post(wrs);
        self.flush_recvs_if_error();
        result.map(drop)
    }

    /// Receives datagrams to a multicast group (IBTA 10.5, 11.3.1).
    ///
    /// # Errors
    /// [`McastError`].
    pub fn attach_mcast(&self, group: Gid) -> Result<(), McastError> {
        let (qpn, service) = (self.inner.qpn, self.inner.service);
        if self.context().is_orphan() {
            return Err(McastError::Orphan);
        }
        if service != Service::Ud {
            return Err(McastError::Service { qpn, service });
        }
        if self.engine().attach_mcast(qpn, group)? {
            self.groups.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Undoes [`attach_mcast`](Self::attach_mcast).
    ///
    /// # Errors
    /// [`McastError::NotAttached`].
    pub fn detach_mcast(&self, group: Gid) -> Result<(), McastError> {
        if self.context().is_orphan() {
            return Err(McastError::Orphan);
        }
        self.engine().detach_mcast(self.inner.qpn, group)?;
        self.groups.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }

    pub(crate) fn inner(&self) -> &Arc<QpInner> {
        &self.inner
    }
    /// Whether [`destroy`](Self::destroy) was called.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// One more handle is open. Under the lock of the domain's targets.
    pub(crate) fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::AcqRel);
    }

    fn push_send(&self, core: &mut QpCore, wr: &SendWr<'_>) -> Result<Pushed, SendRefusal> {
        if self.gone.load(Ordering::Relaxed) {
            return Err(SendRefusal::Destroyed);
        }
        let QpCore { machine, side } = core;
        if !self.inner.qp_type.sends() {
            return Err(PostError::NoSendQueue.into());
        }
        if machine.send_room() == 0 {
            return Err(PostError::Full(self.cap.max_send_wr).into());
        }
        let slot = machine.next_slot();
        let length = side.slots.store(slot, &wr.payload, &wr.op)?;
        let mut flags = wr.flags;
        let inline = matches!(
            wr.payload,
            Payload::Inline(_) | Payload::InlineBytes(_) | Payload::InlineList(_)
        );
        flags.set(SendFlags::INLINE, inline);
        if self.signal_all {
            flags |= SendFlags::SIGNALED;
        }
        let dest = match (&wr.dest, self.inner.service) {
            (Some(dest), Service::Ud) => {
                // By name: numbers of domains of two devices may be equal.
                if !Arc::ptr_eq(dest.ah.pd(), &self.pd) {
                    return Err(SendRefusal::WrongPd);
                }
                let Some(path) = dest.ah.path_to(&self.engine, dest.qpn) else {
                    return Ok(Pushed::Meets);
                };
                side.slots.set_path(slot, path);
                // The netdev's MTU may have changed since the last one.
                machine.set_port_mtu(self.engine().port().active_mtu());
                Some(UdDest { ah: slot, qpn: dest.qpn, qkey: dest.qkey })
            }
            _ => None,
        };
        machine.post_send(SendWqe {
            wr_id: wr.wr_id,
            op: wr.op,
            flags,
            length,
            dest,
            srqn: wr.srqn,
        })?;
        Ok(Pushed::Queued)
    }

    /// Completes what was posted to a receive queue whose queue pair is in error.
    fn flush_recvs_if_error(&self) {
        if self.inner.srq.is_none() && self.inner.has_state(QpState::Error) {
            let engine = self.engine();
            let mut core = lock(&self.inner.core);
            if core.machine.state() == QpState::Error {
                self.inner.with_host(engine, engine.now(), &mut core, |_, host| {
                    host.flush_recv(None);
                });
            }
        }
    }
}
