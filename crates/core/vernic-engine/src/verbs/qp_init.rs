//! What queue pairs are made of, and the checks before one is made.

use std::sync::Arc;

use vernic_proto::QpType;
use vernic_wire::Service;

use crate::device::limits::{MAX_INLINE, MAX_QP_WR, MAX_SGE};
use crate::error::CreateError;
use crate::error::check_limit;
use crate::qp::cap::QpCap;
use crate::verbs::cq::Cq;
use crate::verbs::pd::Pd;
use crate::verbs::srq::Srq;
use crate::verbs::xrc_domain::Domain;

/// What a queue pair is created with.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// [`Service::Rc`], [`Service::Uc`] or [`Service::Ud`]. For XRC there are
    /// [`Pd::create_xrc_ini`] and [`Xrcd::create_tgt`](crate::Xrcd::create_tgt).
    pub service: Service,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Receive from this shared queue instead of an own one. Not one of an XRC domain.
    pub srq: Option<Arc<Srq>>,
    /// Sizes.
    pub cap: QpCap,
    /// Every send is signaled, whatever its flags.
    pub signal_all: bool,
}

/// What a queue pair of any type is made of.
pub(crate) struct Parts {
    pub(super) qp_type: QpType,
    pub(super) pd: Arc<Pd>,
    pub(super) send_cq: Option<Arc<Cq>>,
    pub(super) recv_cq: Option<Arc<Cq>>,
    pub(super) srq: Option<Arc<Srq>>,
    pub(super) domain: Option<Arc<Domain>>,
    pub(super) cap: QpCap,
    pub(super) signal_all: bool,
}

/// The type of a service whose queue pairs are of one type.
pub(crate) fn qp_type_of(service: Service) -> Result<QpType, CreateError> {
    match service {
        Service::Rc => Ok(QpType::Rc),
        Service::Uc => Ok(QpType::Uc),
        Service::Ud => Ok(QpType::Ud),
        other => Err(CreateError::Service(other)),
    }
}

/// Limits, and that everything is of one device.
pub(crate) fn check(init: &Parts) -> Result<(), CreateError> {
    if init.srq.as_ref().is_some_and(|srq| srq.number().is_some()) {
        return Err(CreateError::XrcSrq);
    }
    let cap = &init.cap;
    check_limit("max_send_wr", cap.max_send_wr, 0, MAX_QP_WR)?;
    check_limit("max_recv_wr", cap.max_recv_wr, 0, MAX_QP_WR)?;
    check_limit("max_send_sge", cap.max_send_sge, 0, MAX_SGE)?;
    check_limit("max_recv_sge", cap.max_recv_sge, 0, MAX_SGE)?;
    check_limit("max_inline", cap.max_inline, 0, MAX_INLINE)?;
    let home = init.pd.context();
    let others = [
        ("send completion queue", init.send_cq.as_ref().map(|cq| cq.context())),
        ("receive completion queue", init.recv_cq.as_ref().map(|cq| cq.context())),
        ("shared receive queue", init.srq.as_ref().map(|srq| srq.context())),
    ];
    for (what, context) in others {
        if context.is_some_and(|context| !Arc::ptr_eq(context, home)) {
            return Err(CreateError::OtherDevice { what });
        }
    }
    Ok(())
}
