//! Queue pairs: making and ending them, multicast.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use vernic_engine::{Gid, Qp, QpCap, QpInit, QpState, Service};

use super::qp_ex::{self, Builder};
use crate::boundary::{self, Failure};
use crate::layout::context::ibv_context;
use crate::layout::cq::ibv_cq;
use crate::layout::pd::ibv_pd;
use crate::layout::port::ibv_gid;
use crate::layout::qp::{
    ibv_ece, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex, qp_init_mask, qpt,
};
use crate::layout::qp_ex::{ibv_qp_ex, send_ops};
use crate::layout::srq::ibv_srq;
use crate::object::{Shared, Use};
use crate::pointer::{CObject, Handle, In, Out, plain};

plain! { ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_ece }

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
    _uses: Uses,
}

/// What a queue pair uses.
struct Uses {
    _pd: Use,
    _send_cq: Use,
    _recv_cq: Use,
    _srq: Option<Use>,
}

// SAFETY: `base` comes first, and starts with `ibv_qp`.
unsafe impl CObject for ibv_qp {
    type Object = QpObject;
    const NAME: &'static str = "a queue pair";
}

/// What a queue pair is made with.
struct Request {
    qp_context: *mut c_void,
    send_cq: Handle<ibv_cq>,
    recv_cq: Handle<ibv_cq>,
    srq: Handle<ibv_srq>,
    cap: ibv_qp_cap,
    qp_type: c_uint,
    signal_all: bool,
    /// Of the `ibv_wr_*` calls; `None` without them.
    send_ops: Option<u64>,
}

fn service(qp_type: c_uint) -> Result<Service, Failure> {
    match qp_type {
        qpt::RC => Ok(Service::Rc),
        qpt::UC => Ok(Service::Uc),
        qpt::UD => Ok(Service::Ud),
        other => Err(Failure::unsupported(format_args!("queue pairs of type {other}"))),
    }
}

impl QpObject {
    fn create(pd: Handle<ibv_pd>, request: &Request) -> Result<Handle<ibv_qp>, Failure> {
        let Request { send_cq, recv_cq, srq, cap, qp_type, .. } = *request;
        let domain = pd.get()?;
        let service = service(qp_type)?;
        let (of_send, of_recv) = (send_cq.get()?, recv_cq.get()?);
        let of_srq = srq.find();
        let size = QpCap {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: if of_srq.is_some() { 0 } else { cap.max_recv_wr },
            max_send_sge: cap.max_send_sge,
            max_recv_sge: if of_srq.is_some() { 0 } else { cap.max_recv_sge },
            max_inline: cap.max_inline_data,
        };
        let builder = request.send_ops.map(|ops| Builder::new(service, ops, &size)).transpose()?;
        let engine = domain.engine()?.create_qp(QpInit {
            service,
            send_cq: of_send.engine.clone(),
            recv_cq: of_recv.engine.clone(),
            srq: of_srq.map(|srq| srq.engine.clone()),
            cap: size,
            signal_all: request.signal_all,
        })?;
        let shared = domain.shared.clone();
        let qpn = engine.qpn();
        let base = ibv_qp {
            context: domain.context(),
            qp_context: AtomicPtr::new(request.qp_context),
            pd,
            send_cq,
            recv_cq,
            srq,
            handle: shared.next_handle(),
            qp_num: qpn.value(),
            state: AtomicI32::new(QpState::Reset as i32),
            qp_type,
            mutex: [0; 5],
            cond: [0; 6],
            events_completed: AtomicU32::new(0),
        };
        let handle = Handle::hand_out(Box::new(Self {
            base: qp_ex::methods(base),
            shared: shared.clone(),
            engine,
            builder,
            reported: AtomicU32::new(0),
            _uses: Uses {
                _pd: domain.users.hold(),
                _send_cq: of_send.users.hold(),
                _recv_cq: of_recv.users.hold(),
                _srq: of_srq.map(|srq| srq.users.hold()),
            },
        }));
        shared.registry().qps.insert(qpn, handle);
        Ok(handle)
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
        self.base.qp_base.events_completed.fetch_add(1, Ordering::AcqRel);
        if !self.shared.is_orphan() {
            self.shared.acked();
        }
    }
}

/// `ibv_create_qp`.
pub(crate) extern "C" fn ibv_create_qp(
    pd: Handle<ibv_pd>,
    attr: Out<ibv_qp_init_attr>,
) -> Handle<ibv_qp> {
    boundary::pointer("ibv_create_qp", || {
        let mut init = attr.require("the attributes")?;
        let request = Request {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            signal_all: init.sq_sig_all != 0,
            send_ops: None,
        };
        let qp = QpObject::create(pd, &request)?;
        init.cap = qp.get()?.cap();
        // `ibv_create_qp_ex` may have called, whose struct uses the padding at the end of this one.
        attr.write_without_padding(&init);
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
        let mut init = attr.require("the attributes")?;
        let has = |bit| init.comp_mask & bit != 0;
        let known = qp_init_mask::PD | qp_init_mask::CREATE_FLAGS | qp_init_mask::SEND_OPS_FLAGS;
        let unknown = init.comp_mask & !known;
        if unknown != 0 {
            return Err(Failure::unsupported(format_args!("comp_mask {unknown:#x}")));
        }
        if has(qp_init_mask::CREATE_FLAGS) && init.create_flags != 0 {
            let flags = init.create_flags;
            return Err(Failure::unsupported(format_args!("create_flags {flags:#x}")));
        }
        if !has(qp_init_mask::PD) {
            return Err(Failure::invalid("IBV_QP_INIT_ATTR_PD is not set"));
        }
        let request = Request {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            signal_all: init.sq_sig_all != 0,
            send_ops: has(qp_init_mask::SEND_OPS_FLAGS).then_some(init.send_ops_flags),
        };
        let qp = QpObject::create(init.pd, &request)?;
        init.cap = qp.get()?.cap();
        attr.write(init);
        Ok(qp)
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
        Service::Uc => unreliable | ops::SEND_WITH_INV,
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
        let qpn = object.engine.qpn();
        // Before its number is free for others.
        let known = object.shared.registry().qps.remove(&qpn);
        if let Err(busy) = object.engine.destroy() {
            if let Some(known) = known {
                object.shared.registry().qps.insert(qpn, known);
            }
            return Err(busy.into());
        }
        let (reported, acked) = (&object.reported, &object.base.qp_base.events_completed);
        let is_acked = || reported.load(Ordering::Acquire) == acked.load(Ordering::Acquire);
        object.shared.wait_acked(is_acked);
        // SAFETY: this is the call that ends it.
        drop(unsafe { qp.take_back() });
        Ok(())
    })
}

/// `ibv_attach_mcast`. The LID is InfiniBand's, and not looked at.
pub(crate) extern "C" fn ibv_attach_mcast(
    qp: Handle<ibv_qp>,
    gid: In<ibv_gid>,
    _lid: u16,
) -> c_int {
    boundary::errno("ibv_attach_mcast", || {
        let object = qp.get()?;
        object.shared.check()?;
        object.engine.attach_mcast(Gid(gid.require("the group")?.raw))?;
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
    match (qp.find(), ece.read()) {
        (Some(_), Some(_)) => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    }
}

/// `ibv_query_ece`.
pub(crate) extern "C" fn ibv_query_ece(_qp: Handle<ibv_qp>, ece: Out<ibv_ece>) -> c_int {
    ece.write(ibv_ece::default());
    libc::EOPNOTSUPP
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
