//! Connecting, accepting, refusing, and the end of connections.

use std::ffi::{c_int, c_uint};

use vernic_cm::{ConnParam, RejReason};
use vernic_engine::{Qkey, Qpn};

use super::id::{IdObject, and_complete};
use crate::boundary::{self, Failure};
use crate::layout::cm::{MAX_OF_DEVICE, port_space, rdma_cm_id, rdma_conn_param};
use crate::layout::event::event_type;
use crate::pointer::{Bytes, Handle, In, plain};

plain! { rdma_conn_param }

/// Parameters of C in the engine's terms; for NULL what manual pages say: as much as the device
/// has, and seven repetitions.
fn with_param<T>(
    id: &IdObject,
    param: In<rdma_conn_param>,
    run: impl FnOnce(&ConnParam<'_>) -> T,
) -> Result<T, Failure> {
    let Some(param) = param.read() else {
        if id.base.ps == port_space::TCP && id.engine.qp().is_none() {
            let why = "an id without a queue pair needs parameters that name one";
            return Err(Failure::invalid(why));
        }
        return Ok(run(&ConnParam::default()));
    };
    let private_data = Bytes::told(param.private_data);
    let own = id.engine.qp().is_some();
    Ok(run(&ConnParam {
        alternate: None,
        private_data: private_data.slice(param.private_data_len.into()),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control != 0,
        retry_count: param.retry_count.min(MOST_RETRIES),
        rnr_retry_count: param.rnr_retry_count.min(MOST_RETRIES),
        srq: param.srq != 0,
        qp_num: (!own).then(|| Qpn::new(param.qp_num)),
        qkey: Qkey(0),
        impatient: false,
    }))
}

/// What the fields of a message have room for, 3 bits: programs ask for more and mean many.
const MOST_RETRIES: u8 = 7;

const _: () = assert!(ConnParam::MAX == MAX_OF_DEVICE);

/// `rdma_connect`.
pub(crate) extern "C-unwind" fn rdma_connect(
    id: Handle<rdma_cm_id>,
    param: In<rdma_conn_param>,
) -> c_int {
    and_complete("rdma_connect", id, |id| {
        Ok(with_param(id, param, |param| id.engine.connect(param))??)
    })
}

/// `rdma_accept`. A datagram id has answered when it returns; others wait for the connection, if
/// they are synchronous.
pub(crate) extern "C-unwind" fn rdma_accept(
    id: Handle<rdma_cm_id>,
    param: In<rdma_conn_param>,
) -> c_int {
    let is_over = id.find().is_some_and(|id| id.has_datagrams());
    let accept = |id: &IdObject| {
        // Before, because the next event may come before this returns.
        id.set_known();
        Ok(with_param(id, param, |param| id.engine.accept(param))??)
    };
    if is_over {
        return boundary::minus_one("rdma_accept", || {
            let object = id.get()?;
            object.heed_qp()?;
            accept(object).map(|()| 0)
        });
    }
    and_complete("rdma_accept", id, accept)
}

/// `rdma_reject`.
pub(crate) extern "C" fn rdma_reject(
    id: Handle<rdma_cm_id>,
    private_data: Bytes,
    length: u8,
) -> c_int {
    boundary::minus_one("rdma_reject", || {
        id.get()?.engine.reject(private_data.slice(length.into()))?;
        Ok(0)
    })
}

/// `rdma_reject_ece`: as `rdma_reject`, for the reason that the peer's vendor option is not
/// supported.
pub(crate) extern "C" fn rdma_reject_ece(
    id: Handle<rdma_cm_id>,
    private_data: Bytes,
    length: u8,
) -> c_int {
    boundary::minus_one("rdma_reject_ece", || {
        let reason = RejReason::VENDOR_OPTION_NOT_SUPPORTED;
        id.get()?.engine.reject_for(reason, private_data.slice(length.into()))?;
        Ok(0)
    })
}

/// `rdma_establish`: the program has brought its own queue pair up.
pub(crate) extern "C" fn rdma_establish(id: Handle<rdma_cm_id>) -> c_int {
    boundary::minus_one("rdma_establish", || {
        let id = id.get()?;
        id.heed_qp()?;
        id.engine.establish()?;
        Ok(0)
    })
}

/// `rdma_notify`: of `IBV_EVENT_COMM_EST` alone.
pub(crate) extern "C" fn rdma_notify(id: Handle<rdma_cm_id>, event: c_uint) -> c_int {
    boundary::minus_one("rdma_notify", || {
        let id = id.get()?;
        if event != event_type::COMM_EST as c_uint {
            let why = format!("asynchronous event {event}: only IBV_EVENT_COMM_EST is of use here");
            return Err(Failure::invalid(why));
        }
        id.engine.notify(vernic_cm::CommEstablished)?;
        id.show_qp_state();
        Ok(0)
    })
}

/// `rdma_disconnect`.
pub(crate) extern "C-unwind" fn rdma_disconnect(id: Handle<rdma_cm_id>) -> c_int {
    and_complete("rdma_disconnect", id, |id| Ok(id.engine.disconnect()?))
}
