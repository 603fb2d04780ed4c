//! What a device and its port are: limits, capabilities, clocks.

use std::ffi::c_int;

use vernic_engine::limits::PORT_MBPS;
use vernic_engine::{Context, LinkPort, PortAttr, PortNum, PortState, RateLimit, Transport};

use super::device::chars;
use crate::boundary::{self, Failure};
use crate::layout::context::{VALUES_RAW_CLOCK, ibv_context, ibv_values_ex};
use crate::layout::device::{
    ATOMIC_HCA, ATOMIC_NONE, cap, ibv_device_attr, ibv_device_attr_ex, ibv_odp_caps,
    ibv_query_device_ex_input, ibv_rss_caps, odp,
};
use crate::layout::port::{
    LINK_LAYER_ETHERNET, LINK_LAYER_INFINIBAND, OLD_PORT_ATTR_BYTES, PORT_IP_BASED_GIDS,
    ibv_port_attr,
};
use crate::layout::qp::qpt;
use crate::pointer::{Handle, In, Out, OutArray, plain};

plain! { ibv_device_attr, ibv_device_attr_ex, ibv_query_device_ex_input, ibv_port_attr, ibv_values_ex }

/// Port width 4X and speed of 10 Gb/s a lane, as their fields have them: [`PORT_MBPS`].
const WIDTH_4X: u8 = 2;
const SPEED_10_GBPS: u8 = 4;
/// The same in units of 100 Mb/s.
const SPEED_100_MBPS: u32 = PORT_MBPS / 100;
/// Physical states of a port: link up, disabled.
const LINK_UP: u8 = 5;
const DISABLED: u8 = 3;
/// Page sizes: every one from 4 KiB on, since no page is ever looked at.
const PAGE_SIZES: u64 = !0xFFF;
/// Of the completion clock: nanoseconds (as kHz).
const CLOCK_KHZ: u64 = 1_000_000;

fn count(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// What every device can do.
const COMMON_FLAGS: u32 = cap::CURR_QP_STATE_MOD
    | cap::PORT_ACTIVE_EVENT
    | cap::SYS_IMAGE_GUID
    | cap::N_NOTIFY_CQ
    | cap::MEM_WINDOW
    | cap::MEM_WINDOW_TYPE_2B;

/// What RoCE devices can do besides.
const ROCE_FLAGS: u32 =
    cap::AUTO_PATH_MIG | cap::BAD_PKEY_CNTR | cap::BAD_QKEY_CNTR | cap::RC_RNR_NAK_GEN | cap::XRC;

fn is_iwarp(context: &Context) -> bool {
    context.info().transport == Transport::Iwarp
}

fn device_attr(context: &Context) -> ibv_device_attr {
    let attr = &context.device_attr();
    // Atomics take a peer that has them, and none says so.
    let (flags, atomic_cap) = match is_iwarp(context) {
        true => (COMMON_FLAGS, ATOMIC_NONE),
        false => (COMMON_FLAGS | ROCE_FLAGS, ATOMIC_HCA),
    };
    ibv_device_attr {
        fw_ver: chars(attr.firmware),
        node_guid: attr.node_guid.to_be(),
        sys_image_guid: attr.node_guid.to_be(),
        max_mr_size: attr.max_mr_bytes,
        page_size_cap: PAGE_SIZES,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: 0,
        max_qp: count(attr.max_qp),
        max_qp_wr: count(attr.max_qp_wr),
        device_cap_flags: flags,
        max_sge: count(attr.max_sge),
        max_sge_rd: count(attr.max_sge),
        max_cq: count(attr.max_cq),
        max_cqe: count(attr.max_cqe),
        max_mr: count(attr.max_mr),
        max_pd: count(attr.max_pd),
        max_qp_rd_atom: c_int::from(attr.max_qp_rd_atom),
        max_ee_rd_atom: 0,
        max_res_rd_atom: count(u32::from(attr.max_qp_rd_atom).saturating_mul(attr.max_qp)),
        max_qp_init_rd_atom: c_int::from(attr.max_qp_init_rd_atom),
        max_ee_init_rd_atom: 0,
        atomic_cap,
        max_ee: 0,
        max_rdd: 0,
        max_mw: count(attr.max_mw),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: count(attr.max_mcast_groups),
        max_mcast_qp_attach: count(attr.max_mcast_qps),
        max_total_mcast_qp_attach: count(attr.max_mcast_groups.saturating_mul(attr.max_mcast_qps)),
        max_ah: count(attr.max_ah),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: count(attr.max_srq),
        max_srq_wr: count(attr.max_srq_wr),
        max_srq_sge: count(attr.max_srq_sge),
        max_pkeys: attr.max_pkeys,
        local_ca_ack_delay: context.config().ack_delay(),
        phys_port_cnt: attr.ports,
    }
}

/// `ibv_query_device`. It and the next take no lock, and so answer in a forked process, too.
pub(crate) extern "C" fn ibv_query_device(
    context: Handle<ibv_context>,
    out: Out<ibv_device_attr>,
) -> c_int {
    boundary::errno("ibv_query_device", || {
        let shared = context.get()?.shared_by_any()?;
        if out.is_null() {
            return Err(Failure::null("the attributes"));
        }
        out.write(device_attr(&shared.engine));
        Ok(())
    })
}

/// On-demand paging: memory is never pinned, so every region has it.
fn odp_caps(context: &Context) -> ibv_odp_caps {
    let implicit = if context.device_attr().implicit_odp { odp::IMPLICIT } else { 0 };
    let general_caps = odp::SUPPORT | implicit;
    if is_iwarp(context) {
        let rc_odp_caps = odp::WITHOUT_ATOMICS;
        return ibv_odp_caps { general_caps, rc_odp_caps, ..ibv_odp_caps::default() };
    }
    ibv_odp_caps {
        general_caps,
        rc_odp_caps: odp::RELIABLE,
        uc_odp_caps: odp::UNRELIABLE | odp::SRQ_RECV,
        ud_odp_caps: odp::DATAGRAM | odp::SRQ_RECV,
    }
}

/// Rate limits of queue pairs: least and largest in kb/s, and the types that have them.
fn packet_pacing_caps(context: &Context) -> [u32; 3] {
    let types = match is_iwarp(context) {
        true => 1 << qpt::RC,
        false => 1 << qpt::RC | 1 << qpt::UC | 1 << qpt::UD | 1 << qpt::XRC_SEND,
    };
    [1, RateLimit::MAX_KBPS, types]
}

/// `ibv_query_device_ex`: fills as much as the program's struct has room for.
pub(crate) extern "C" fn query_device_ex(
    context: Handle<ibv_context>,
    input: In<ibv_query_device_ex_input>,
    mut out: OutArray<u8>,
    room: usize,
) -> c_int {
    boundary::errno("ibv_query_device_ex", || {
        let shared = context.get()?.shared_by_any()?;
        if input.read().is_some_and(|input| input.comp_mask != 0) {
            return Err(Failure::invalid("comp_mask: no bit is known"));
        }
        if out.is_null() || room < size_of::<ibv_device_attr>() {
            return Err(Failure::invalid("no room for the attributes"));
        }
        let attr = shared.engine.device_attr();
        let basic = device_attr(&shared.engine);
        let extended = ibv_device_attr_ex {
            orig_attr: basic,
            comp_mask: 0,
            odp_caps: odp_caps(&shared.engine),
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: CLOCK_KHZ,
            device_cap_flags_ex: u64::from(basic.device_cap_flags),
            tso_caps: [0; 2],
            rss_caps: ibv_rss_caps::default(),
            max_wq_type_rq: 0,
            packet_pacing_caps: packet_pacing_caps(&shared.engine),
            raw_packet_caps: 0,
            tm_caps: [0; 5],
            cq_mod_caps: [0; 2],
            max_dm_size: attr.max_dm_bytes,
            pci_atomic_caps: [0; 3],
            xrc_odp_caps: if is_iwarp(&shared.engine) { 0 } else { odp::RELIABLE },
            phys_port_cnt_ex: u32::from(attr.ports),
        };
        out.fill_prefix(&extended, room);
        Ok(())
    })
}

fn port_attr(context: &Context, attr: &PortAttr) -> ibv_port_attr {
    if let Some(link) = &attr.link {
        return infiniband_port_attr(attr, link);
    }
    let gid_flags = if is_iwarp(context) { 0 } else { PORT_IP_BASED_GIDS };
    ibv_port_attr {
        state: attr.state as c_int,
        max_mtu: attr.max_mtu as c_int,
        active_mtu: attr.active_mtu as c_int,
        gid_tbl_len: attr.gid_table_len as c_int,
        port_cap_flags: attr.cap_flags | gid_flags,
        max_msg_sz: attr.max_msg_bytes,
        bad_pkey_cntr: attr.bad_pkey_count as u32,
        qkey_viol_cntr: attr.bad_qkey_count as u32,
        pkey_tbl_len: attr.pkey_table_len,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_10_GBPS,
        phys_state: if attr.state == PortState::Active { LINK_UP } else { DISABLED },
        link_layer: LINK_LAYER_ETHERNET,
        // As a kernel has it: the same bits, with room for more.
        active_speed_ex: u32::from(SPEED_10_GBPS),
        ..ibv_port_attr::default()
    }
}

/// The attributes of a port that a subnet manager sets up.
fn infiniband_port_attr(attr: &PortAttr, link: &LinkPort) -> ibv_port_attr {
    ibv_port_attr {
        state: attr.state as c_int,
        max_mtu: link.max_mtu.unwrap_or(attr.max_mtu) as c_int,
        active_mtu: attr.active_mtu as c_int,
        gid_tbl_len: attr.gid_table_len as c_int,
        port_cap_flags: link.capabilities,
        max_msg_sz: attr.max_msg_bytes,
        bad_pkey_cntr: attr.bad_pkey_count as u32,
        qkey_viol_cntr: attr.bad_qkey_count as u32,
        pkey_tbl_len: attr.pkey_table_len,
        lid: link.lid.value(),
        sm_lid: link.sm_lid.value(),
        lmc: link.lmc,
        max_vl_num: vl_code(link.max_lanes),
        sm_sl: link.sm_service_level,
        subnet_timeout: link.subnet_timeout,
        init_type_reply: link.init_type_reply,
        active_width: link.active_width,
        active_speed: link.active_speed,
        phys_state: link.physical_state,
        link_layer: LINK_LAYER_INFINIBAND,
        active_speed_ex: u32::from(link.active_speed),
        ..ibv_port_attr::default()
    }
}

/// The code of a number of data lanes (VLCap, IBTA 14.2.5.6).
const fn vl_code(lanes: u8) -> u8 {
    match lanes {
        0..=1 => 1,
        2..=3 => 2,
        4..=7 => 3,
        8..=14 => 4,
        _ => 5,
    }
}

/// `ibv_query_port` of new programs: fills as much as the program's struct has room for.
pub(crate) extern "C" fn query_port(
    context: Handle<ibv_context>,
    port: u8,
    mut out: OutArray<u8>,
    room: usize,
) -> c_int {
    boundary::errno("ibv_query_port", || {
        let shared = context.get()?.shared()?;
        if out.is_null() {
            return Err(Failure::null("the attributes"));
        }
        let attr = shared.engine.port_attr(PortNum(port))?;
        out.fill_prefix(&port_attr(&shared.engine, &attr), room);
        Ok(())
    })
}

/// `ibv_query_port` of old programs, whose struct is shorter.
pub(crate) extern "C" fn ibv_query_port(
    context: Handle<ibv_context>,
    port: u8,
    out: OutArray<u8>,
) -> c_int {
    query_port(context, port, out, OLD_PORT_ATTR_BYTES)
}

/// `ibv_query_port_speed`, since rdma-core 60: units of 100 Mb/s.
pub(crate) extern "C" fn ibv_query_port_speed(
    context: Handle<ibv_context>,
    port: u32,
    speed: Out<u64>,
) -> c_int {
    boundary::errno("ibv_query_port_speed", || {
        let shared = context.get()?.shared()?;
        let port = u8::try_from(port).map_err(|_| Failure::invalid(format!("port {port}")))?;
        shared.engine.port_attr(PortNum(port))?;
        speed.write(u64::from(SPEED_100_MBPS));
        Ok(())
    })
}

/// `ibv_query_rt_values_ex`: the clock of completions, in its ticks (nanoseconds).
pub(crate) extern "C" fn query_rt_values(
    context: Handle<ibv_context>,
    values: Out<ibv_values_ex>,
) -> c_int {
    boundary::errno("ibv_query_rt_values_ex", || {
        let shared = context.get()?.shared()?;
        let mut answer = values.require("the values")?;
        if answer.comp_mask & !VALUES_RAW_CLOCK != 0 {
            return Err(Failure::invalid(format!("comp_mask {:#x}", answer.comp_mask)));
        }
        if answer.comp_mask & VALUES_RAW_CLOCK != 0 {
            // As mlx5 does it, and so as programs read it: all ticks in the second field.
            let ticks = shared.engine.clocks().device_ns;
            answer.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: ticks as i64 };
        }
        values.write(answer);
        Ok(())
    })
}
