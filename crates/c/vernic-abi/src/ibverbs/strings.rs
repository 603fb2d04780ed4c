//! Names of numbers.

use std::ffi::{CStr, c_int};

use crate::pointer::Text;

/// The name of a number of a table that counts from 0.
fn name(table: &'static [&'static CStr], number: c_int) -> Text {
    let found = usize::try_from(number).ok().and_then(|n| table.get(n));
    Text::of(found.copied().unwrap_or(c"unknown"))
}

/// `ibv_wc_status_str`.
pub(crate) extern "C" fn ibv_wc_status_str(status: c_int) -> Text {
    const NAMES: &[&CStr] = &[
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory window bind error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"remote aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"tag matching error",
        c"tag matching rendezvous incomplete",
    ];
    name(NAMES, status)
}

/// `ibv_node_type_str`.
pub(crate) extern "C" fn ibv_node_type_str(kind: c_int) -> Text {
    const NAMES: &[&CStr] = &[
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(NAMES, kind)
}

/// `ibv_port_state_str`.
pub(crate) extern "C" fn ibv_port_state_str(state: c_int) -> Text {
    const NAMES: &[&CStr] =
        &[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    name(NAMES, state)
}

/// `ibv_event_type_str`.
pub(crate) extern "C" fn ibv_event_type_str(kind: c_int) -> Text {
    const NAMES: &[&CStr] = &[
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key table change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
        c"device speed change",
    ];
    name(NAMES, kind)
}
