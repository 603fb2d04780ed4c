//! librdmacm: refusals of calls that have results, which are set all the same: programs read them
//! without looking at the return value. The calls without results are refused by `refusal.rs`.

use std::ffi::{CStr, c_int, c_uint, c_void};

use libc::EOPNOTSUPP;

use crate::boundary::set_errno;
use crate::layout::qp::{ibv_ece, ibv_qp_attr};
use crate::pointer::{Out, Text};

/// An object of the connection manager, of which there are none.
type Pointer = *mut c_void;

fn refuse() -> c_int {
    set_errno(EOPNOTSUPP);
    -1
}

/// `rdma_create_id`.
pub(crate) extern "C" fn rdma_create_id(
    _channel: Pointer,
    id: Out<Pointer>,
    _context: Pointer,
    _port_space: c_int,
) -> c_int {
    id.write(std::ptr::null_mut());
    refuse()
}

/// `rdma_create_ep`.
pub(crate) extern "C" fn rdma_create_ep(
    id: Out<Pointer>,
    _address: Pointer,
    _pd: Pointer,
    _qp_init_attr: Pointer,
) -> c_int {
    id.write(std::ptr::null_mut());
    refuse()
}

/// `rdma_getaddrinfo`.
pub(crate) extern "C" fn rdma_getaddrinfo(
    _node: Text,
    _service: Text,
    _hints: Pointer,
    result: Out<Pointer>,
) -> c_int {
    result.write(std::ptr::null_mut());
    refuse()
}

/// `rdma_query_addrinfo`, since rdma-core 58.
pub(crate) extern "C" fn rdma_query_addrinfo(_id: Pointer, result: Out<Pointer>) -> c_int {
    result.write(std::ptr::null_mut());
    refuse()
}

/// `rdma_get_devices`.
pub(crate) extern "C" fn rdma_get_devices(count: Out<c_int>) -> Pointer {
    count.write(0);
    set_errno(EOPNOTSUPP);
    std::ptr::null_mut()
}

/// `rdma_get_cm_event`.
pub(crate) extern "C" fn rdma_get_cm_event(_channel: Pointer, event: Out<Pointer>) -> c_int {
    event.write(std::ptr::null_mut());
    refuse()
}

/// `rdma_get_request`.
pub(crate) extern "C" fn rdma_get_request(_listen: Pointer, id: Out<Pointer>) -> c_int {
    id.write(std::ptr::null_mut());
    refuse()
}

/// `rdma_init_qp_attr`.
pub(crate) extern "C" fn rdma_init_qp_attr(
    _id: Pointer,
    attr: Out<ibv_qp_attr>,
    mask: Out<c_int>,
) -> c_int {
    attr.write(ibv_qp_attr::default());
    mask.write(0);
    refuse()
}

/// `rdma_get_remote_ece`.
pub(crate) extern "C" fn rdma_get_remote_ece(_id: Pointer, ece: Out<ibv_ece>) -> c_int {
    ece.write(ibv_ece::default());
    refuse()
}

/// `rdma_event_str`.
pub(crate) extern "C" fn rdma_event_str(event: c_uint) -> Text {
    const NAMES: &[&CStr] = &[
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    ];
    Text::of(NAMES.get(event as usize).copied().unwrap_or(c"unknown event"))
}
