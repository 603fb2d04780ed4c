//! Queue pairs (IBTA 10.2.4, 11.2.4): the application's handle and the state behind it.
//!
//! Owns, per queue pair, the protocol machine of `vernic-proto` and what the machine does not keep
//! itself. These are scatter lists and inline bytes of posted sends, the receive being filled, and
//! the path.
//!
//! Locking: everything mutable is in [`QpCore`], under one mutex that belongs to this queue pair
//! alone. The application holds this mutex to post and to modify. The thread that holds the lane
//! takes the mutex while it handles packets of this queue pair or sends for it. Lock order: lane,
//! core, receive queue or completion queue. Posting never waits for the lane.
//!
//! The application's [`Qp`] and the lane's table share a [`QpInner`]. Dropping the `Qp` takes the
//! queue pair out of the table, so the lane never sees a queue pair whose `Qp` is gone.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};

use vernic_io::TxPath;
use vernic_proto::{
    AddressVector, AttrMask, Host, PostError, QpAttr, QpCounters, QpState, QpType, SendFlags,
    SendWqe, UdDest,
};
use vernic_wire::{Gid, Lid, PortNum, Qpn, Service};

use crate::device::explanation::Explanation;
use crate::device::limits::MAX_SGE;
use crate::error::{CreateError, McastError, ModifyError};
use crate::policy::{Gathered, Post, TABLE};
use crate::progress::engine::Engine;
use crate::qp::cap::QpCap;
use crate::qp::payload::{Payload, SendRefusal};
use crate::qp::receives::Receives;
use crate::qp::recv_queue::{PostRecvError, RecvQueue, RecvRefusal, RecvWr};
use crate::qp::send_slots::SendSlots;
use crate::qp::state::{QpCore, QpInner, QpSide};
use crate::support::events::lock;
use crate::verbs::context::Context;
use crate::verbs::cq::Cq;
use crate::verbs::pd::Pd;
use crate::verbs::qp_init::{Parts, QpInit, check, qp_type_of};
use crate::verbs::srq::Srq;
use crate::verbs::wr::{PostSendError, SendWr};
use crate::verbs::xrc_domain::Domain;

mod alternate;
mod end;

/// A queue pair. Dropping the handle destroys the queue pair.
pub struct Qp {
    inner: Arc<QpInner>,
    /// The engine whose lane the queue pair is in.
    engine: Arc<Engine>,
    pd: Arc<Pd>,
    send_cq: Option<Arc<Cq>>,
    recv_cq: Option<Arc<Cq>>,
    srq: Option<Arc<Srq>>,
    /// The XRC domain of an XRC target.
    domain: Option<Arc<Domain>>,
    cap: QpCap,
    signal_all: bool,
    groups: AtomicU32,
    /// The number of open handles of an XRC target; 1 for the other types.
    handles: AtomicU32,
    gone: AtomicBool,
}

/// The outcome of a send request.
#[derive(Debug)]
enum Pushed {
    Queued {
        length: u32,
    },
    /// Not queued yet: the destination's process was asked for its port, and the answer must be
    /// waited for without the lock.
    Meets,
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qp({:?} {})", self.inner.qp_type(), self.inner.qpn())
    }
}

impl Pd {
    /// Creates a queue pair, in Reset.
    ///
    /// # Errors
    /// [`CreateError`]: a limit exceeded, objects of other devices, no queue pair number left.
    pub fn create_qp(self: &Arc<Self>, init: QpInit) -> Result<Arc<Qp>, CreateError> {
        self.alive()?;
        Qp::new(self, init)
    }
}

impl Qp {
    pub(crate) fn new(pd: &Arc<Pd>, init: QpInit) -> Result<Arc<Self>, CreateError> {
        let QpInit { service, send_cq, recv_cq, srq, cap, signal_all, congestion } = init;
        Self::build(Parts {
            qp_type: qp_type_of(service)?,
            pd: pd.clone(),
            send_cq: Some(send_cq),
            recv_cq: Some(recv_cq),
            srq,
            domain: None,
            cap,
            signal_all,
            congestion,
        })
    }

    pub(crate) fn build(parts: Parts) -> Result<Arc<Self>, CreateError> {
        check(&parts)?;
        let Parts { qp_type, pd, send_cq, recv_cq, srq, domain, cap, signal_all, congestion } =
            parts;
        let engine = pd.context().engine().clone();
        let service = qp_type.service();
        if !engine.rules().has_qps(qp_type) {
            let what = "queue pairs of another type";
            return Err(CreateError::NotOnIwarp { device: engine.info().name.clone(), what });
        }
        let shared_rq = srq.is_some() || qp_type == QpType::XrcTgt;
        let own_wrs = if shared_rq { 0 } else { cap.max_recv_wr };
        let recv_sges = match &srq {
            Some(srq) => srq.query().max_sge,
            // Any shared receive queue of the domain may provide the receive.
            None if shared_rq => MAX_SGE,
            None => cap.max_recv_sge,
        };
        let recv_ring = recv_cq.as_ref().map(|cq| cq.ring().clone());
        let receives = match &srq {
            Some(srq) => Receives::shared(srq.shared(), srq.pd().id(), recv_ring),
            None => {
                let queue = RecvQueue::new(own_wrs, cap.max_recv_sge);
                Receives::own(queue, pd.id(), recv_ring)
            }
        };
        let inner = engine.open_qp(|qpn, protocol| {
            let init = vernic_proto::QpInit {
                qpn,
                qp_type,
                max_send_wr: cap.max_send_wr,
                max_window: engine.config().max_window,
                shared_rq,
            };
            let algorithm = congestion.unwrap_or(engine.config().congestion);
            let mut machine = protocol.machine(init, algorithm);
            machine.set_port_mtu(engine.ports()[0].active_mtu());
            machine.set_ack_floor(engine.config().ack_timeout_floor_us * 1000);
            machine.set_keeping(engine.keeping());
            let slots = SendSlots::new(machine.send_slots(), &cap, service);
            let side = QpSide::new(slots, recv_sges);
            let domains = (pd.id(), domain.as_ref().map(|domain| domain.id()));
            let send_ring = send_cq.as_ref().map(|cq| cq.ring().clone());
            Arc::new(QpInner::new(qpn, qp_type, domains, send_ring, receives, machine, side))
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

    /// Returns the queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.inner.qpn()
    }
    /// Returns the type of the queue pair.
    pub fn qp_type(&self) -> QpType {
        self.inner.qp_type()
    }
    /// Returns the service of the queue pair.
    pub fn service(&self) -> Service {
        self.inner.service()
    }
    /// Returns the protection domain. An XRC target has the one of its XRC domain, which contains
    /// no memory.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
    /// Returns the device.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// Returns the engine of the device, which moves the queue pair's packets.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }
    /// Returns the completion queue of sends; `None` for an XRC target, which sends nothing.
    pub fn send_cq(&self) -> Option<&Arc<Cq>> {
        self.send_cq.as_ref()
    }
    /// Returns the completion queue of receives; `None` for XRC queue pairs. An XRC initiator
    /// receives nothing. The receives of an XRC target complete on the completion queue of the
    /// shared receive queue.
    pub fn recv_cq(&self) -> Option<&Arc<Cq>> {
        self.recv_cq.as_ref()
    }
    /// Returns the shared receive queue, if the queue pair has one.
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.srq.as_ref()
    }
    /// Returns the sizes that were granted, which are exactly those asked for.
    pub fn cap(&self) -> QpCap {
        self.cap
    }
    /// Whether every send is signaled.
    pub fn signals_all(&self) -> bool {
        self.signal_all
    }
    /// Returns the state.
    pub fn state(&self) -> QpState {
        self.look(|core| core.machine.state()).unwrap_or(QpState::Error)
    }
    /// Returns the attributes as last modified, including the present state.
    pub fn query(&self) -> QpAttr {
        let orphaned = || QpAttr { state: QpState::Error, ..QpAttr::default() };
        self.look(|core| *core.machine.attr()).unwrap_or_else(orphaned)
    }
    /// Whether the send queue of a queue pair in SQD still has work in progress.
    pub fn is_draining(&self) -> bool {
        self.look(|core| core.machine.is_draining()).unwrap_or(false)
    }
    /// Returns the counters since the last reset.
    pub fn counters(&self) -> QpCounters {
        self.look(|core| *core.machine.counters()).unwrap_or_default()
    }
    /// Returns the path to the peer of a connected service, from RTR on.
    pub fn path(&self) -> Option<TxPath> {
        self.look(|core| core.side.peer.path().copied()).flatten()
    }

    /// Runs `look` on the queue pair's core, under its lock; returns `None` on an orphan.
    fn look<T>(&self, look: impl FnOnce(&QpCore) -> T) -> Option<T> {
        (!self.context().is_orphan()).then(|| look(&lock(&self.inner.core)))
    }

    /// Returns why the queue pair failed, if it failed since the last reset.
    pub fn explain(&self) -> Option<Explanation> {
        let engine = self.engine();
        if engine.is_orphan() { None } else { self.inner.explain(engine) }
    }

    /// Changes attributes and state (IBTA 11.2.5.2). Nothing changes on an error.
    ///
    /// The transition to RTR looks for the peer among the processes of this host. If such a process
    /// is busy, this takes up to the configured `peer_query_us`.
    ///
    /// # Errors
    /// [`ModifyError`].
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
        let qpn = self.inner.qpn();
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
        let own_port = match mask.contains(AttrMask::PORT) {
            true => attr.port,
            false => self.query().port,
        };
        let port = engine.port(own_port).map_err(path_error)?;
        let pkey = match mask.contains(AttrMask::PKEY_INDEX) {
            true => {
                let (index, rows) = (attr.pkey_index, engine.rules().pkey_table_len());
                let pkey = port.pkey(index).filter(|pkey| pkey.value() != 0);
                Some(pkey.ok_or(ModifyError::Pkey { qpn, index, rows })?)
            }
            false => None,
        };
        if mask.contains(AttrMask::PATH_MTU) {
            engine.check_mtu(port, attr.path_mtu).map_err(path_error)?;
        }
        if self.inner.service() == Service::Ud
            && (mask.contains(AttrMask::STATE) && attr.state == QpState::Rtr)
            && port.receive_datagrams()
        {
            engine.waker().wake();
        }
        // The path of an iWARP queue pair is that of its TCP connection.
        let connected = self.inner.service() != Service::Ud && engine.rules().uses_gids();
        let resolved = if connected && mask.contains(AttrMask::AV) {
            let peer = match mask.contains(AttrMask::DEST_QPN) {
                true => attr.dest_qpn,
                false => self.query().dest_qpn,
            };
            // An address vector without a port leaves from the queue pair's own.
            let port = if attr.av.port == PortNum(0) { own_port } else { attr.av.port };
            let mbps = engine.port(port).map_err(path_error)?.mbps();
            let av = AddressVector { port, ..attr.av };
            Some((engine.resolve_peer(&av, qpn, peer).map_err(path_error)?, mbps))
        } else {
            None
        };
        let port_mbps = resolved.as_ref().map(|(_, mbps)| *mbps);
        let resolved = resolved.map(|(resolved, _)| resolved);
        let alternate = self.alternate(attr, mask)?;
        if mask.contains(AttrMask::STATE) && matches!(attr.state, QpState::Reset | QpState::Error) {
            // ACKs that are due are sent first: a message whose completion the application has seen
            // must also be acknowledged to the peer.
            engine.with_lane(|lane| {
                // Posts that wait for a poll are sent, too.
                engine.answer_doorbells(lane);
                lane.transmit_all(engine, engine.now());
            });
        }
        let mut core = lock(&self.inner.core);
        // Checked again under the core's lock: destroying and closing set these flags first, and
        // take this lock afterwards.
        if self.gone.load(Ordering::Acquire) {
            return Err(ModifyError::Destroyed(qpn));
        }
        if self.context().is_closed() {
            return Err(ModifyError::Closed);
        }
        let now = engine.now();
        let past = self.inner.explanation(engine, &core);
        if let Some(mbps) = port_mbps {
            core.machine.set_port_rate(mbps);
        }
        self.inner
            .with_host(engine, now, &mut core, |machine, host| {
                machine.modify(attr, mask, now, host)
            })
            .map_err(|source| ModifyError::State { qpn, source })?;
        if let Some(pkey) = pkey {
            core.machine.set_pkey(pkey);
        }
        let dest = core.machine.attr().dest_qpn;
        if core.machine.state() == QpState::Reset {
            self.forget(&mut core, past);
        } else if let Some(resolved) = &resolved {
            match core.machine.state() {
                QpState::Rtr => core.side.connect(resolved, dest),
                _ => core.side.change_path(resolved),
            }
        }
        if let Some(alternate) = alternate {
            self.load_alternate(&mut core, alternate);
        }
        let is_lonely = mask.contains(AttrMask::STATE) && self.lacks_connection(&core);
        self.inner.publish_state(engine, &mut core);
        if resolved.is_some() || mask.contains(AttrMask::ACCESS_FLAGS) {
            engine.memory().revoke_qp(qpn);
        }
        drop(core);
        if let Some(resolved) = resolved.filter(|_| attr.state != QpState::Reset) {
            engine.watch_peer(resolved.peer.ip(), dest, &resolved.location);
        }
        if is_lonely {
            tracing::warn!(
                %qpn,
                device = engine.info().name,
                "in RTS without a connection: what is posted waits for one, which only rdma_cm makes for an iWARP device (perftest: -R)"
            );
        }
        if mask.contains(AttrMask::RATE_LIMIT) {
            engine.with_lane(|lane| lane.limit_stream(qpn, attr.rate_limit));
        }
        engine.memory().wait_for_revocations();
        engine.kick(&self.inner);
        Ok(())
    }

    /// Whether this is an iWARP queue pair that came to RTS by a state change alone, without a
    /// connection.
    fn lacks_connection(&self, core: &QpCore) -> bool {
        let has_stream = self.engine().rules().uses_gids() || core.side.stream().is_some();
        core.machine.state() == QpState::Rts && !has_stream
    }

    /// Queues sends in order and starts them. Inline data is copied now; other data is read when
    /// packets are built.
    ///
    /// # Errors
    /// [`PostSendError`] with the index of the first request that was refused; those before it are
    /// queued.
    pub fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostSendError> {
        self.post_send_from(wrs.iter().copied())
    }

    /// Queues sends as [`post_send`](Self::post_send) does, but from an iterator, with one doorbell
    /// for all of them. The iterator runs under the queue pair's lock and must not call methods of
    /// the queue pair.
    ///
    /// # Errors
    /// [`PostSendError`] with the index of the first request that was refused; those before it are
    /// queued.
    pub fn post_send_from<'a>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'a>>,
    ) -> Result<(), PostSendError> {
        self.check_owner()?;
        self.push_sends(lock(&self.inner.core), wrs.into_iter())
    }

    /// Queues sends as [`post_send_from`](Self::post_send_from) does, but all of them or none: a
    /// list that does not fit leaves the queue as it was. (The check cannot foresee room that
    /// another thread takes while the first datagram to a process waits for that process's answer.)
    ///
    /// # Errors
    /// [`PostSendError`]. The check for room returns [`PostError::Full`] before anything is queued.
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

    /// Returns an error in a process that was forked after the device had been opened.
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
        let (mut index, mut last_bytes) = (0, 0);
        let mut result = Ok(());
        for wr in wrs {
            let mut pushed = self.push_send(&mut core, &wr);
            while let (Ok(Pushed::Meets), Some(dest)) = (&pushed, &wr.dest) {
                // This runs once, unless more processes are asked at a time than the table of
                // answers holds. In between, other threads may post, and the lane may send what
                // they post.
                drop(core);
                dest.ah.wait_for(&self.engine, dest.qpn);
                core = lock(&self.inner.core);
                pushed = self.push_send(&mut core, &wr);
            }
            match pushed {
                Ok(Pushed::Queued { length }) => last_bytes = length,
                Ok(Pushed::Meets) => {}
                Err(refusal) => {
                    result = Err(refusal);
                    break;
                }
            }
            index += 1;
        }
        if index != 0 {
            if core.side.needs_attention() {
                self.inner.attend(self.engine(), self.engine().now(), &mut core);
            }
            if self.may_wait(&mut core, last_bytes) {
                drop(core);
                self.engine().leave_post(&self.inner);
            } else {
                self.engine().kick_locked(&self.inner, core);
            }
        }
        result.map_err(|source| PostSendError { index, source })
    }

    /// Queues receives in order.
    ///
    /// # Errors
    /// [`PostRecvError`] with the index of the first request that was refused; those before it are
    /// queued.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostRecvError> {
        self.post_recv_from(wrs.iter().copied())
    }

    /// Queues receives as [`post_recv`](Self::post_recv) does, but from an iterator, which runs
    /// under the receive queue's lock.
    ///
    /// # Errors
    /// [`PostRecvError`] with the index of the first request that was refused; those before it are
    /// queued.
    pub fn post_recv_from<'a>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'a>>,
    ) -> Result<(), PostRecvError> {
        let refuse = |source| Err(PostRecvError { index: 0, source });
        if self.context().is_orphan() {
            return refuse(RecvRefusal::Orphan);
        }
        if self.inner.receives().is_shared() {
            return refuse(RecvRefusal::Shared);
        }
        if self.inner.service() == Service::Xrc {
            return refuse(RecvRefusal::NoQueue);
        }
        if self.gone.load(Ordering::Acquire) {
            return refuse(RecvRefusal::Destroyed);
        }
        if self.inner.has_state(QpState::Reset) {
            return refuse(RecvRefusal::State(QpState::Reset));
        }
        let result = self.inner.receives().post(wrs);
        self.flush_recvs_if_error();
        result.map(drop)
    }

    /// Attaches the queue pair to a multicast group, whose datagrams it then receives (IBTA 10.5,
    /// 11.3.1).
    ///
    /// # Errors
    /// [`McastError`].
    pub fn attach_mcast(&self, group: Gid) -> Result<(), McastError> {
        self.attach_mcast_at(group, Lid::RESERVED)
    }

    /// Does the same for a group of an InfiniBand subnet, whose LID subnet administration tells
    /// those that join.
    ///
    /// # Errors
    /// [`McastError`].
    pub fn attach_mcast_at(&self, group: Gid, lid: Lid) -> Result<(), McastError> {
        let (qpn, service) = (self.inner.qpn(), self.inner.service());
        if self.context().is_orphan() {
            return Err(McastError::Orphan);
        }
        if service != Service::Ud {
            return Err(McastError::Service { qpn, service });
        }
        if self.engine().attach_mcast(qpn, group, lid)? {
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
        self.engine().detach_mcast(self.inner.qpn(), group)?;
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

    /// Counts one more open handle of an XRC target queue pair. The caller holds the lock of the
    /// XRC domain's table of target queue pairs.
    pub(crate) fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether what was posted, the last request of it of `bytes` bytes, may wait for more posts
    /// ([`Post::Gather`]). That is so where requests go through memory, and each turn of the queue
    /// pair costs more than a request: by the link it is the batch that waits.
    #[inline]
    fn may_wait(&self, core: &mut QpCore, bytes: u32) -> bool {
        let QpCore { machine, side } = core;
        if !side.peer.route().is_ring() {
            return false;
        }
        let Some(machine) = machine.packets() else { return false };
        let in_flight = machine.requests_in_flight();
        if in_flight < TABLE.gather_in_flight {
            return false;
        }
        let waiting = u64::from(self.cap.max_send_wr - machine.send_room()) - in_flight;
        let gathered = || Gathered::new(waiting as usize, waiting as usize * bytes as usize);
        let engine = self.engine();
        engine.policy().posted(&TABLE, in_flight, gathered, engine.now(), engine.patience())
            == Post::Gather
    }

    fn push_send(&self, core: &mut QpCore, wr: &SendWr<'_>) -> Result<Pushed, SendRefusal> {
        if self.gone.load(Ordering::Relaxed) {
            return Err(SendRefusal::Destroyed);
        }
        let QpCore { machine, side } = core;
        if !self.inner.qp_type().sends() {
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
        let dest = match (&wr.dest, self.inner.service()) {
            (Some(dest), Service::Ud) => {
                // The domains are compared by address: domains of two devices may have equal
                // numbers.
                if !Arc::ptr_eq(dest.ah.pd(), &self.pd) {
                    return Err(SendRefusal::WrongPd);
                }
                let Some(path) = dest.ah.path_to(&self.engine, dest.qpn) else {
                    return Ok(Pushed::Meets);
                };
                side.slots.set_path(slot, path);
                // The netdev's MTU may have changed since the last send.
                if let Ok(port) = self.engine().port(dest.ah.av().port) {
                    machine.set_port_mtu(port.active_mtu());
                }
                let rate_mbps = dest.ah.rate_mbps();
                Some(UdDest { ah: slot, qpn: dest.qpn, qkey: dest.qkey, rate_mbps })
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
        Ok(Pushed::Queued { length })
    }

    /// Flushes the receive queue, just posted to, if the queue pair is in the Error state.
    fn flush_recvs_if_error(&self) {
        if !self.inner.receives().is_shared() && self.inner.has_state(QpState::Error) {
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
