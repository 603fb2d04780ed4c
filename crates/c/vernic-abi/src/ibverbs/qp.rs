//! Queue pairs: making and ending them, multicast.

use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use vernic_engine::{CreateError, Gid, Lid, Qp, QpCap, QpInit, QpState, Qpn, Service, XrcIniInit};

use super::qp_ex::{self, Builder};
use super::qp_of_id::HeldQp;
use super::refusals::Cause;
use crate::boundary::{self, Failure};
use crate::ibverbs::shared::Shared;
use crate::layout::context::ibv_context;
use crate::layout::pd::{ibv_pd, ibv_xrcd};
use crate::layout::port::ibv_gid;
use crate::layout::qp::{
    ibv_ece, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr,
    qp_init_mask, qp_open_mask, qpt,
};
use crate::layout::qp_ex::{ibv_qp_ex, send_ops};
use crate::object::Use;
use crate::pointer::{CObject, Handle, In, Out, growing, plain};

plain! { ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_ece }
growing! {
    ibv_qp_init_attr_ex {
        qp_init_mask::PD => pd: Handle<ibv_pd>,
        qp_init_mask::XRCD => xrcd: Handle<ibv_xrcd>,
        qp_init_mask::CREATE_FLAGS => create_flags: u32,
        qp_init_mask::SEND_OPS_FLAGS => send_ops_flags: u64,
    }
}

/// A queue pair.
#[repr(C)]
pub(crate) struct QpObject {
    pub(crate) base: ibv_qp_ex,
    pub(crate) shared: Arc<Shared>,
    pub(crate) engine: Arc<Qp>,
    /// Of the `ibv_wr_*` calls, if it was made for them.
    pub(crate) builder: Option<Builder>,
    /// Asynchronous events given to the program.
    reported: AtomicU32,
    /// What the id of the connection manager that has it holds.
    pub(crate) of_id: HeldQp,
    _uses: Uses,
}

/// What a queue pair uses: protection domain, completion queues, shared receive queue, XRC domain.
type Uses = [Option<Use>; 5];

// SAFETY: `base` comes first, and starts with `ibv_qp`.
unsafe impl CObject for ibv_qp {
    type Object = QpObject;
    const NAME: &'static str = "a queue pair";
}

/// What a queue pair is made with.
struct Request {
    init: ibv_qp_init_attr,
    pd: Handle<ibv_pd>,
    /// Of XRC targets.
    xrcd: Handle<ibv_xrcd>,
    /// Of the `ibv_wr_*` calls; `None` without them.
    send_ops: Option<u64>,
}

/// An engine's queue pair, and what it uses.
struct Made {
    engine: Arc<Qp>,
    builder: Option<Builder>,
    uses: Uses,
    shared: Arc<Shared>,
    context: Handle<ibv_context>,
}

impl Request {
    fn signals_all(&self) -> bool {
        self.init.sq_sig_all != 0
    }
}

/// Inline bytes that every queue pair takes: devices put them where the scatter list would be, and
/// so have room for as many as one of its entries has. Programs send a key and an address that way
/// and ask for no room (rdma_xclient). ATOMIC WRITE brings its 8 bytes inline.
const LEAST_INLINE: u32 = size_of::<vernic_engine::Sge>() as u32;

/// The sizes in the engine's terms. Where receives come from a shared queue, those of the queue
/// pair's own are not looked at.
fn sizes(request: &Request, shares: bool) -> QpCap {
    let cap = &request.init.cap;
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: if shares { 0 } else { cap.max_recv_wr },
        max_send_sge: cap.max_send_sge,
        max_recv_sge: if shares { 0 } else { cap.max_recv_sge },
        max_inline: cap.max_inline_data.max(LEAST_INLINE),
    }
}

/// Why the engine made no queue pair. Libraries that programs use (libfabric's verbs provider, UCX)
/// learn how much inline data a device takes by asking for more and more: that is told once per
/// device.
#[cold]
fn refusal(shared: &Shared, error: CreateError) -> Failure {
    let is_inline = matches!(error, CreateError::Limit { what: "max_inline", .. });
    let failure = Failure::from(error);
    match is_inline {
        // libfabric tries how much there may be.
        true if shared.refusals.is_news(Cause::InlineLimit) => failure.usual(),
        true => failure.repeated(),
        false => failure,
    }
}

/// RC, UC, UD.
fn make_plain(service: Service, request: &Request) -> Result<Made, Failure> {
    let domain = request.pd.get()?;
    let (send_cq, recv_cq) = (request.init.send_cq.get()?, request.init.recv_cq.get()?);
    let srq = request.init.srq.find();
    let cap = sizes(request, srq.is_some());
    let builder = request.send_ops.map(|ops| Builder::new(service, ops, &cap)).transpose()?;
    let init = QpInit {
        service,
        send_cq: send_cq.engine.clone(),
        recv_cq: recv_cq.engine.clone(),
        srq: srq.map(|srq| srq.engine.clone()),
        cap,
        signal_all: request.signals_all(),
        congestion: None,
    };
    let refused = |error| refusal(&domain.shared, error);
    let engine = domain.engine()?.create_qp(init).map_err(refused)?;
    let uses = [
        Some(domain.users.hold()),
        Some(send_cq.users.hold()),
        Some(recv_cq.users.hold()),
        srq.map(|srq| srq.users.hold()),
        None,
    ];
    Ok(Made { engine, builder, uses, shared: domain.shared.clone(), context: domain.context() })
}

/// XRC initiators: a send queue alone.
fn make_initiator(request: &Request) -> Result<Made, Failure> {
    let (domain, send_cq) = (request.pd.get()?, request.init.send_cq.get()?);
    let cap = sizes(request, true);
    let builder = request.send_ops.map(|ops| Builder::new(Service::Xrc, ops, &cap)).transpose()?;
    let signal_all = request.signals_all();
    let init = XrcIniInit { send_cq: send_cq.engine.clone(), cap, signal_all, congestion: None };
    let refused = |error| refusal(&domain.shared, error);
    let engine = domain.engine()?.create_xrc_ini(init).map_err(refused)?;
    let uses = [Some(domain.users.hold()), Some(send_cq.users.hold()), None, None, None];
    Ok(Made { engine, builder, uses, shared: domain.shared.clone(), context: domain.context() })
}

/// XRC targets: no queue at all. `qpn` names one that is there already, to be opened once more.
fn make_target(xrcd: Handle<ibv_xrcd>, qpn: Option<Qpn>) -> Result<Made, Failure> {
    let domain = xrcd.get()?;
    domain.shared.check()?;
    let engine = match qpn {
        None => domain.engine.create_tgt()?,
        Some(qpn) => domain.engine.open_tgt(qpn)?,
    };
    let uses = [None, None, None, None, Some(domain.users.hold())];
    let (shared, context) = (domain.shared.clone(), domain.context());
    Ok(Made { engine, builder: None, uses, shared, context })
}

impl QpObject {
    fn create(request: &Request) -> Result<Handle<ibv_qp>, Failure> {
        let made = match request.init.qp_type {
            qpt::RC => make_plain(Service::Rc, request)?,
            qpt::UC => make_plain(Service::Uc, request)?,
            qpt::UD => make_plain(Service::Ud, request)?,
            qpt::XRC_SEND => make_initiator(request)?,
            qpt::XRC_RECV => make_target(request.xrcd, None)?,
            other => return Err(Failure::unsupported(format_args!("queue pairs of type {other}"))),
        };
        Ok(Self::hand_out(request, made))
    }

    fn hand_out(request: &Request, made: Made) -> Handle<ibv_qp> {
        let Made { engine, builder, uses, shared, context } = made;
        let (qpn, init) = (engine.qpn(), &request.init);
        let base = ibv_qp {
            context,
            qp_context: AtomicPtr::new(init.qp_context),
            pd: request.pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            handle: shared.next_handle(),
            qp_num: qpn.value(),
            state: AtomicI32::new(engine.state() as i32),
            qp_type: init.qp_type,
            mutex: [0; 5],
            cond: [0; 6],
            events_completed: AtomicU32::new(0),
        };
        let of_id = HeldQp::new(engine.clone());
        let shown = of_id.clone();
        let handle = Handle::hand_out(Box::new(Self {
            base: qp_ex::methods(base),
            shared: shared.clone(),
            engine,
            builder,
            reported: AtomicU32::new(0),
            of_id,
            _uses: uses,
        }));
        shown.show_at(handle);
        shared.registry().qps.entry(qpn).or_default().push(handle);
        handle
    }

    /// A queue pair as the extended attributes say.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for attributes that this device does not have; those of the engine.
    pub(crate) fn create_ex(init: &ibv_qp_init_attr_ex) -> Result<Handle<ibv_qp>, Failure> {
        let has = |bit| init.comp_mask & bit != 0;
        let known = qp_init_mask::PD
            | qp_init_mask::XRCD
            | qp_init_mask::CREATE_FLAGS
            | qp_init_mask::SEND_OPS_FLAGS;
        let unknown = init.comp_mask & !known;
        if unknown != 0 {
            return Err(Failure::unsupported(format_args!("comp_mask {unknown:#x}")));
        }
        if has(qp_init_mask::CREATE_FLAGS) && init.create_flags != 0 {
            let flags = init.create_flags;
            return Err(Failure::unsupported(format_args!("create_flags {flags:#x}")));
        }
        Self::create(&Request {
            init: init.basic(),
            pd: if has(qp_init_mask::PD) { init.pd } else { Handle::NULL },
            xrcd: if has(qp_init_mask::XRCD) { init.xrcd } else { Handle::NULL },
            send_ops: has(qp_init_mask::SEND_OPS_FLAGS).then_some(init.send_ops_flags),
        })
    }

    /// Its sizes, as granted.
    pub(crate) fn cap(&self) -> ibv_qp_cap {
        let cap = self.engine.cap();
        ibv_qp_cap {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline,
        }
    }

    /// What it was made with.
    pub(crate) fn init_attr(&self) -> ibv_qp_init_attr {
        let base = &self.base.qp_base;
        ibv_qp_init_attr {
            qp_context: base.qp_context.load(Ordering::Relaxed),
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: self.cap(),
            qp_type: base.qp_type,
            sq_sig_all: c_int::from(self.engine.signals_all()),
        }
    }

    /// Notes a state for programs that look.
    pub(crate) fn set_state(&self, state: QpState) {
        self.base.qp_base.state.store(state as i32, Ordering::Relaxed);
    }

    /// Counts an asynchronous event that the program gets; under the lock of the registry.
    pub(crate) fn report(&self) {
        self.reported.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts an acknowledged event.
    pub(crate) fn acknowledge(&self) {
        let shared = self.shared.clone();
        shared.acknowledge(|| {
            self.base.qp_base.events_completed.fetch_add(1, Ordering::AcqRel);
        });
    }
}

/// `ibv_create_qp`.
pub(crate) extern "C" fn ibv_create_qp(
    pd: Handle<ibv_pd>,
    attr: Out<ibv_qp_init_attr>,
) -> Handle<ibv_qp> {
    boundary::pointer("ibv_create_qp", || {
        let init = attr.require("the attributes")?;
        let request = Request { init, pd, xrcd: Handle::NULL, send_ops: None };
        let qp = QpObject::create(&request)?;
        attr.write_cap(qp.get()?.cap());
        Ok(qp)
    })
}

/// `ibv_create_qp_ex`.
pub(crate) extern "C" fn create_qp_ex(
    context: Handle<ibv_context>,
    attr: Out<ibv_qp_init_attr_ex>,
) -> Handle<ibv_qp> {
    boundary::pointer("ibv_create_qp_ex", || {
        context.get()?.shared()?;
        let qp = QpObject::create_ex(&attr.require_grown("the attributes")?)?;
        attr.write_cap(qp.get()?.cap());
        Ok(qp)
    })
}

/// `ibv_open_qp`: an XRC target once more, by its number.
pub(crate) extern "C" fn open_qp(
    context: Handle<ibv_context>,
    attr: In<ibv_qp_open_attr>,
) -> Handle<ibv_qp> {
    use qp_open_mask as mask;
    boundary::pointer("ibv_open_qp", || {
        context.get()?.shared()?;
        let attr = attr.require("the attributes")?;
        let needed = mask::NUM | mask::XRCD | mask::TYPE;
        let has_all = attr.comp_mask & needed == needed && attr.qp_type == qpt::XRC_RECV;
        let unknown = attr.comp_mask & !(needed | mask::CONTEXT);
        if !has_all || unknown != 0 {
            let why = format!("comp_mask {:#x}, type {}", attr.comp_mask, attr.qp_type);
            return Err(Failure::invalid(format!("{why}: an XRC target is opened by its number")));
        }
        let has_context = attr.comp_mask & mask::CONTEXT != 0;
        let init = ibv_qp_init_attr {
            qp_context: if has_context { attr.qp_context } else { std::ptr::null_mut() },
            send_cq: Handle::NULL,
            recv_cq: Handle::NULL,
            srq: Handle::NULL,
            cap: ibv_qp_cap::default(),
            qp_type: attr.qp_type,
            sq_sig_all: 0,
        };
        let request = Request { init, pd: Handle::NULL, xrcd: attr.xrcd, send_ops: None };
        let made = make_target(attr.xrcd, Some(Qpn::new(attr.qp_num)))?;
        Ok(QpObject::hand_out(&request, made))
    })
}

/// The `ibv_wr_*` calls that a service has.
pub(crate) fn send_ops_of(service: Service) -> u64 {
    use send_ops as ops;
    let datagram = ops::SEND | ops::SEND_WITH_IMM;
    let unreliable =
        datagram | ops::RDMA_WRITE | ops::RDMA_WRITE_WITH_IMM | ops::LOCAL_INV | ops::BIND_MW;
    match service {
        Service::Ud => datagram,
        // No opcode of UC invalidates (IBTA 9.2).
        Service::Uc => unreliable,
        _ => {
            unreliable
                | ops::SEND_WITH_INV
                | ops::RDMA_READ
                | ops::ATOMIC_CMP_AND_SWP
                | ops::ATOMIC_FETCH_AND_ADD
                | ops::ATOMIC_WRITE
                | ops::FLUSH
        }
    }
}

/// `ibv_destroy_qp`: `EBUSY` while it is in multicast groups; waits until its events are
/// acknowledged.
pub(crate) extern "C" fn ibv_destroy_qp(qp: Handle<ibv_qp>) -> c_int {
    boundary::errno("ibv_destroy_qp", || {
        let object = qp.get()?;
        if object.shared.is_orphan() {
            return Ok(());
        }
        // Nobody is told of it any more from here on; and before its number is free for others.
        // Under the lock, so that one that stays for being busy misses no event.
        let mut registry = object.shared.registry();
        object.engine.destroy()?;
        if let Entry::Occupied(mut handles) = registry.qps.entry(object.engine.qpn()) {
            handles.get_mut().retain(|&known| known != qp);
            if handles.get().is_empty() {
                handles.remove();
            }
        }
        registry.forget_repeats(object.engine.qpn(), qp);
        drop(registry);
        object.of_id.end(qp);
        let (reported, acked) = (&object.reported, &object.base.qp_base.events_completed);
        let is_acked = || reported.load(Ordering::Acquire) == acked.load(Ordering::Acquire);
        object.shared.wait_acked(is_acked);
        // SAFETY: this is the call that ends it.
        drop(unsafe { qp.take_back() });
        Ok(())
    })
}

/// `ibv_attach_mcast`. Only an InfiniBand link looks at the LID.
pub(crate) extern "C" fn ibv_attach_mcast(qp: Handle<ibv_qp>, gid: In<ibv_gid>, lid: u16) -> c_int {
    boundary::errno("ibv_attach_mcast", || {
        let object = qp.get()?;
        object.shared.check()?;
        object.engine.attach_mcast_at(Gid(gid.require("the group")?.raw), Lid(lid))?;
        Ok(())
    })
}

/// `ibv_detach_mcast`.
pub(crate) extern "C" fn ibv_detach_mcast(
    qp: Handle<ibv_qp>,
    gid: In<ibv_gid>,
    _lid: u16,
) -> c_int {
    boundary::errno("ibv_detach_mcast", || {
        let object = qp.get()?;
        object.shared.check()?;
        object.engine.detach_mcast(Gid(gid.require("the group")?.raw))?;
        Ok(())
    })
}

/// `ibv_set_ece`: there are no vendor's enhancements to agree on.
pub(crate) extern "C" fn ibv_set_ece(qp: Handle<ibv_qp>, ece: In<ibv_ece>) -> c_int {
    boundary::refused(match (qp.find(), ece.read()) {
        (Some(_), Some(_)) => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    })
}

/// `ibv_query_ece`.
pub(crate) extern "C" fn ibv_query_ece(_qp: Handle<ibv_qp>, ece: Out<ibv_ece>) -> c_int {
    ece.write(ibv_ece::default());
    boundary::refused(libc::EOPNOTSUPP)
}

/// `ibv_query_qp_data_in_order`: 0, bytes of a message may be seen in any order. (They are written
/// in ascending order but for retransmissions, which the answer has to take into account.)
pub(crate) extern "C" fn ibv_query_qp_data_in_order(
    _qp: Handle<ibv_qp>,
    _op: c_uint,
    _flags: u32,
) -> c_int {
    0
}
