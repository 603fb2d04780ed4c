//! The parameters and parts of a queue pair, and the checks before a queue pair is created.

use std::sync::Arc;

use vernic_proto::QpType;
use vernic_proto::congestion::Algorithm;
use vernic_wire::Service;

use crate::device::limits::{MAX_INLINE, MAX_QP_WR, MAX_SGE};
use crate::error::CreateError;
use crate::error::check_limit;
use crate::qp::cap::QpCap;
use crate::verbs::cq::Cq;
use crate::verbs::pd::Pd;
use crate::verbs::srq::Srq;
use crate::verbs::xrc_domain::Domain;

/// The parameters for creating a queue pair.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// The service: [`Service::Rc`], [`Service::Uc`] or [`Service::Ud`]. XRC queue pairs are
    /// created with [`Pd::create_xrc_ini`] and [`Xrcd::create_tgt`](crate::Xrcd::create_tgt).
    pub service: Service,
    /// The completion queue of send requests.
    pub send_cq: Arc<Cq>,
    /// The completion queue of receives.
    pub recv_cq: Arc<Cq>,
    /// A shared receive queue to use instead of a receive queue of the queue pair's own. It must
    /// not belong to an XRC domain.
    pub srq: Option<Arc<Srq>>,
    /// The sizes of the queue pair.
    pub cap: QpCap,
    /// Makes every send request signaled, whatever its flags.
    pub signal_all: bool,
    /// The congestion control of an RC queue pair, of which UC heeds the notifications; `None`
    /// takes that of the device's settings.
    pub congestion: Option<Algorithm>,
}

/// The objects and sizes from which a queue pair of any type is made.
pub(crate) struct Parts {
    pub(super) qp_type: QpType,
    pub(super) pd: Arc<Pd>,
    pub(super) send_cq: Option<Arc<Cq>>,
    pub(super) recv_cq: Option<Arc<Cq>>,
    pub(super) srq: Option<Arc<Srq>>,
    pub(super) domain: Option<Arc<Domain>>,
    pub(super) cap: QpCap,
    pub(super) signal_all: bool,
    pub(super) congestion: Option<Algorithm>,
}

/// Returns the queue pair type of a service; an error for XRC, which has two, and for other
/// services that cannot be chosen.
pub(crate) fn qp_type_of(service: Service) -> Result<QpType, CreateError> {
    match service {
        Service::Rc => Ok(QpType::Rc),
        Service::Uc => Ok(QpType::Uc),
        Service::Ud => Ok(QpType::Ud),
        other => Err(CreateError::Service(other)),
    }
}

/// Checks the sizes against the limits, the congestion control, and that all objects are of one
/// device.
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
    if let Some(congestion) = &init.congestion {
        congestion.check()?;
    }
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
