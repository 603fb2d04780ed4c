//! The connection manager: `rdma/rdma_cma.h`.
//!
//! What a program may read while calls on other threads change it is made of atomics. Addresses and
//! the path record are so many words, which a call stores one by one.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU64, Ordering};

use super::ah::ibv_ah_attr;
use super::context::ibv_context;
use super::cq::{ibv_comp_channel, ibv_cq};
use super::pd::ibv_pd;
use super::port::ibv_gid;
use super::qp::ibv_qp;
use super::srq::ibv_srq;
use super::{offsets, sizes};
use crate::pointer::{Handle, SockAddr};

/// `enum rdma_port_space`.
pub(crate) mod port_space {
    pub(crate) const IPOIB: u32 = 0x0002;
    pub(crate) const TCP: u32 = 0x0106;
    pub(crate) const UDP: u32 = 0x0111;
    pub(crate) const IB: u32 = 0x013F;
}

/// Flags of `rdma_addrinfo`.
pub(crate) mod rai {
    use std::ffi::c_int;

    pub(crate) const PASSIVE: c_int = 1;
    pub(crate) const NUMERICHOST: c_int = 1 << 1;
    pub(crate) const FAMILY: c_int = 1 << 3;
    /// Since rdma-core 58: names of InfiniBand's subnet administration.
    pub(crate) const SA: c_int = 1 << 4;
}

/// Levels and names of `rdma_set_option`.
pub(crate) mod option {
    use std::ffi::c_int;

    pub(crate) const LEVEL_ID: c_int = 0;
    pub(crate) const LEVEL_IB: c_int = 1;
    pub(crate) const ID_TOS: c_int = 0;
    pub(crate) const ID_REUSEADDR: c_int = 1;
    pub(crate) const ID_AFONLY: c_int = 2;
    pub(crate) const ID_ACK_TIMEOUT: c_int = 3;
    pub(crate) const IB_PATH: c_int = 1;
}

/// So many bytes of 8 that a program reads and only this library writes.
#[repr(transparent)]
pub(crate) struct Words<const N: usize>([AtomicU64; N]);

impl<const N: usize> Words<N> {
    /// Zeros.
    pub(crate) fn zero() -> Self {
        Self([const { AtomicU64::new(0) }; N])
    }

    /// Shows these bytes, and zeros behind them.
    pub(crate) fn show(&self, bytes: &[u8]) {
        for (n, word) in self.0.iter().enumerate() {
            let mut eight = [0; 8];
            let from = bytes.get(n * 8..).unwrap_or_default();
            let count = from.len().min(8);
            eight[..count].copy_from_slice(&from[..count]);
            word.store(u64::from_ne_bytes(eight), Ordering::Relaxed);
        }
    }

    /// The first bytes of what is shown.
    pub(crate) fn first(&self) -> [u8; 8] {
        self.0[0].load(Ordering::Relaxed).to_ne_bytes()
    }
}

/// `struct sockaddr_storage`.
pub(crate) type Storage = Words<16>;

/// `struct rdma_ib_addr`: GIDs and P_Key, the last in network byte order.
#[repr(C)]
pub(crate) struct rdma_ib_addr {
    pub(crate) sgid: Words<2>,
    pub(crate) dgid: Words<2>,
    pub(crate) pkey: Words<1>,
}

/// `struct rdma_addr`.
#[repr(C)]
pub(crate) struct rdma_addr {
    pub(crate) src_storage: Storage,
    pub(crate) dst_storage: Storage,
    pub(crate) addr: rdma_ib_addr,
}

/// `struct rdma_route`.
#[repr(C)]
pub(crate) struct rdma_route {
    pub(crate) addr: rdma_addr,
    pub(crate) path_rec: AtomicPtr<PathRecord>,
    pub(crate) num_paths: AtomicI32,
}

/// The place of an `ibv_sa_path_rec` that a program reads.
pub(crate) type PathRecord = Words<8>;

/// `struct ibv_sa_path_rec`, of which only the places of its fields are used.
#[repr(C)]
#[allow(dead_code, reason = "says where the fields are")]
pub(crate) struct ibv_sa_path_rec {
    pub(crate) dgid: ibv_gid,
    pub(crate) sgid: ibv_gid,
    pub(crate) dlid: u16,
    pub(crate) slid: u16,
    pub(crate) raw_traffic: c_int,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) reversible: c_int,
    pub(crate) numb_path: u8,
    pub(crate) pkey: u16,
    pub(crate) sl: u8,
    pub(crate) mtu_selector: u8,
    pub(crate) mtu: u8,
    pub(crate) rate_selector: u8,
    pub(crate) rate: u8,
    pub(crate) packet_life_time_selector: u8,
    pub(crate) packet_life_time: u8,
    pub(crate) preference: u8,
}

/// `struct rdma_event_channel`.
#[repr(C)]
pub(crate) struct rdma_event_channel {
    pub(crate) fd: c_int,
}

/// `struct rdma_cm_id`.
#[repr(C)]
pub(crate) struct rdma_cm_id {
    pub(crate) verbs: AtomicPtr<ibv_context>,
    pub(crate) channel: AtomicPtr<rdma_event_channel>,
    pub(crate) context: AtomicPtr<c_void>,
    pub(crate) qp: AtomicPtr<ibv_qp>,
    pub(crate) route: rdma_route,
    pub(crate) ps: c_uint,
    pub(crate) port_num: AtomicU8,
    pub(crate) event: AtomicPtr<rdma_cm_event>,
    pub(crate) send_cq_channel: AtomicPtr<ibv_comp_channel>,
    pub(crate) send_cq: AtomicPtr<ibv_cq>,
    pub(crate) recv_cq_channel: AtomicPtr<ibv_comp_channel>,
    pub(crate) recv_cq: AtomicPtr<ibv_cq>,
    pub(crate) srq: AtomicPtr<ibv_srq>,
    pub(crate) pd: AtomicPtr<ibv_pd>,
    pub(crate) qp_type: c_uint,
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct rdma_conn_param {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

/// `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH`: as many as the device has.
pub(crate) const MAX_OF_DEVICE: u8 = 0xFF;

/// `struct rdma_ud_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct rdma_ud_param {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

/// `union param` of an event. Every part may be read: all are integers and one address.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union event_param {
    pub(crate) conn: rdma_conn_param,
    pub(crate) ud: rdma_ud_param,
    /// Since rdma-core 58.
    pub(crate) arg: u64,
}

/// `struct rdma_cm_event`.
#[repr(C)]
pub(crate) struct rdma_cm_event {
    pub(crate) id: Handle<rdma_cm_id>,
    pub(crate) listen_id: Handle<rdma_cm_id>,
    pub(crate) event: c_uint,
    pub(crate) status: c_int,
    pub(crate) param: event_param,
}

/// `struct rdma_addrinfo`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct rdma_addrinfo {
    pub(crate) ai_flags: c_int,
    pub(crate) ai_family: c_int,
    pub(crate) ai_qp_type: c_int,
    pub(crate) ai_port_space: c_int,
    pub(crate) ai_src_len: libc::socklen_t,
    pub(crate) ai_dst_len: libc::socklen_t,
    pub(crate) ai_src_addr: SockAddr,
    pub(crate) ai_dst_addr: SockAddr,
    pub(crate) ai_src_canonname: *mut c_char,
    pub(crate) ai_dst_canonname: *mut c_char,
    pub(crate) ai_route_len: usize,
    pub(crate) ai_route: *mut c_void,
    pub(crate) ai_connect_len: usize,
    pub(crate) ai_connect: *mut c_void,
    pub(crate) ai_next: *mut rdma_addrinfo,
}

/// `enum rdma_cm_join_mc_attr_mask`.
pub(crate) mod join_mask {
    pub(crate) const ADDRESS: u32 = 1;
    pub(crate) const JOIN_FLAGS: u32 = 1 << 1;
}

/// `enum rdma_cm_mc_join_flags`.
pub(crate) mod join_flags {
    pub(crate) const FULL_MEMBER: u32 = 0;
    pub(crate) const SEND_ONLY_FULL_MEMBER: u32 = 1;
}

/// `struct rdma_cm_join_mc_attr_ex`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct rdma_cm_join_mc_attr_ex {
    pub(crate) comp_mask: u32,
    pub(crate) join_flags: u32,
    pub(crate) addr: SockAddr,
}

sizes! {
    rdma_ib_addr = 40, rdma_addr = 296, rdma_route = 312, ibv_sa_path_rec = 64, PathRecord = 64,
    rdma_event_channel = 4, rdma_cm_id = 416, rdma_conn_param = 24, rdma_ud_param = 56,
    event_param = 56, rdma_cm_event = 80, rdma_addrinfo = 96, rdma_cm_join_mc_attr_ex = 16,
}
offsets! {
    rdma_ib_addr { dgid = 16, pkey = 32 }
    rdma_addr { dst_storage = 128, addr = 256 }
    rdma_route { path_rec = 296, num_paths = 304 }
    ibv_sa_path_rec {
        sgid = 16, dlid = 32, slid = 34, raw_traffic = 36, flow_label = 40, hop_limit = 44,
        traffic_class = 45, reversible = 48, numb_path = 52, pkey = 54, sl = 56, mtu_selector = 57,
        mtu = 58, rate_selector = 59, rate = 60, packet_life_time_selector = 61, packet_life_time = 62,
        preference = 63,
    }
    rdma_cm_id {
        channel = 8, context = 16, qp = 24, route = 32, ps = 344, port_num = 348, event = 352,
        send_cq_channel = 360, send_cq = 368, recv_cq_channel = 376, recv_cq = 384, srq = 392,
        pd = 400, qp_type = 408,
    }
    rdma_conn_param {
        private_data_len = 8, responder_resources = 9, initiator_depth = 10, flow_control = 11,
        retry_count = 12, rnr_retry_count = 13, srq = 14, qp_num = 16,
    }
    rdma_ud_param { private_data_len = 8, ah_attr = 16, qp_num = 48, qkey = 52 }
    rdma_cm_event { listen_id = 8, event = 16, status = 20, param = 24 }
    rdma_addrinfo {
        ai_family = 4, ai_qp_type = 8, ai_port_space = 12, ai_src_len = 16, ai_dst_len = 20,
        ai_src_addr = 24, ai_dst_addr = 32, ai_src_canonname = 40, ai_dst_canonname = 48,
        ai_route_len = 56, ai_route = 64, ai_connect_len = 72, ai_connect = 80, ai_next = 88,
    }
    rdma_cm_join_mc_attr_ex { join_flags = 4, addr = 8 }
}
