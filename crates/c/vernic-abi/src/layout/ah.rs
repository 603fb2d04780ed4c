//! Address handles and what addresses are made of.

use super::context::ibv_context;
use super::pd::ibv_pd;
use super::port::ibv_gid;
use super::{offsets, sizes};
use crate::pointer::Handle;

/// `struct ibv_ah`.
#[repr(C)]
pub(crate) struct ibv_ah {
    pub(crate) context: Handle<ibv_context>,
    pub(crate) pd: Handle<ibv_pd>,
    pub(crate) handle: u32,
}

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_global_route {
    pub(crate) dgid: ibv_gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_ah_attr {
    pub(crate) grh: ibv_global_route,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// `struct ibv_grh`, as the 40 bytes that are in front of a datagram.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_grh {
    pub(crate) raw: [u8; 40],
}

impl ibv_ah_attr {
    /// Nowhere.
    pub(crate) const ZERO: Self = Self {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: [0; 16] },
            flow_label: 0,
            sgid_index: 0,
            hop_limit: 0,
            traffic_class: 0,
        },
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 0,
        port_num: 0,
    };
}

sizes! { ibv_ah = 24, ibv_global_route = 24, ibv_ah_attr = 32, ibv_grh = 40 }
offsets! {
    ibv_global_route { flow_label = 16, sgid_index = 20, hop_limit = 21, traffic_class = 22 }
    ibv_ah_attr { dlid = 24, sl = 26, src_path_bits = 27, static_rate = 28, is_global = 29, port_num = 30 }
}
