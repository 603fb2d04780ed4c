//! Address handles, and addresses from what was received.

use std::ffi::c_int;
use std::sync::Arc;

use vernic_engine::{
    AddressVector, Ah, Gid, Grh, Lid, PortNum, RoceVersion, StaticRate, Transport,
};

use crate::boundary::{self, Failure};
use crate::ibverbs::shared::Shared;
use crate::layout::ah::{ibv_ah, ibv_ah_attr, ibv_global_route, ibv_grh};
use crate::layout::context::ibv_context;
use crate::layout::cq::{ibv_wc, wc_flags};
use crate::layout::pd::ibv_pd;
use crate::layout::port::ibv_gid;
use crate::object::Use;
use crate::pointer::{CObject, Handle, In, Out, plain};

plain! { ibv_ah_attr, ibv_grh }

/// An address handle.
#[repr(C)]
pub(crate) struct AhObject {
    base: ibv_ah,
    shared: Arc<Shared>,
    pub(crate) engine: Arc<Ah>,
    _pd: Use,
}

// SAFETY: `base` comes first.
unsafe impl CObject for ibv_ah {
    type Object = AhObject;
    const NAME: &'static str = "an address handle";
}

/// The engine's address vector, for a device of this transport.
///
/// # Errors
/// `EINVAL` without a global route on RoCE, which has no other. On InfiniBand a global route that
/// leads to no GID.
pub(crate) fn to_vector(
    attr: &ibv_ah_attr,
    transport: Transport,
) -> Result<AddressVector, Failure> {
    let is_global = attr.is_global != 0;
    if !is_global && transport == Transport::Roce {
        return Err(Failure::invalid("is_global is 0: RoCE needs the global route (grh)"));
    }
    let vector = vector(attr);
    match transport == Transport::InfiniBand {
        true if !is_global => Ok(AddressVector { dgid: Gid::ZERO, ..vector }),
        true if vector.dgid.is_zero() => {
            Err(Failure::invalid("is_global is 1, and the destination GID (grh.dgid) is zero"))
        }
        _ => Ok(vector),
    }
}

/// The parts of an address.
fn vector(attr: &ibv_ah_attr) -> AddressVector {
    AddressVector {
        dgid: Gid(attr.grh.dgid.raw),
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        flow_label: attr.grh.flow_label & 0xF_FFFF,
        sl: attr.sl & 0xF,
        port: PortNum(attr.port_num),
        dlid: Lid(attr.dlid),
        path_bits: attr.src_path_bits & 0x7F,
        static_rate: StaticRate(attr.static_rate),
    }
}

/// What [`to_vector`] was given.
pub(crate) fn from_vector(av: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: av.dgid.0 },
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        dlid: av.dlid.value(),
        sl: av.sl,
        src_path_bits: av.path_bits,
        static_rate: av.static_rate.0,
        is_global: u8::from(!av.dgid.is_zero()),
        port_num: av.port.0,
    }
}

/// `ibv_create_ah`.
pub(crate) extern "C" fn ibv_create_ah(
    pd: Handle<ibv_pd>,
    attr: In<ibv_ah_attr>,
) -> Handle<ibv_ah> {
    boundary::pointer("ibv_create_ah", || create(pd, &attr.require("the address")?))
}

fn create(pd: Handle<ibv_pd>, attr: &ibv_ah_attr) -> Result<Handle<ibv_ah>, Failure> {
    let domain = pd.get()?;
    let engine = domain.engine()?.create_ah(to_vector(attr, domain.transport())?)?;
    let base = ibv_ah { context: domain.context(), pd, handle: domain.shared.next_handle() };
    let (shared, _pd) = (domain.shared.clone(), domain.users.hold());
    Ok(Handle::hand_out(Box::new(AhObject { base, shared, engine, _pd })))
}

/// `ibv_destroy_ah`. Datagrams that were posted with it are sent all the same.
pub(crate) extern "C" fn ibv_destroy_ah(ah: Handle<ibv_ah>) -> c_int {
    boundary::errno("ibv_destroy_ah", || {
        if ah.get()?.shared.is_orphan() {
            return Ok(());
        }
        // SAFETY: this is the call that ends it.
        drop(unsafe { ah.take_back() });
        Ok(())
    })
}

/// What routers mark in the traffic class (RFC 3168): of the datagram's way, not of the answer's.
const ECN_BITS: u8 = 3;

/// The address to answer a datagram: from the IP header or the GRH that stands in the GRH area. On
/// InfiniBand the LID is enough, and a datagram without a GRH is answered without one.
fn answer_to(
    shared: &Shared,
    port: u8,
    wc: &ibv_wc,
    grh: Option<ibv_grh>,
) -> Result<ibv_ah_attr, Failure> {
    shared.engine.port_attr(PortNum(port))?;
    let is_infiniband = shared.engine.info().transport == Transport::InfiniBand;
    let way_back = ibv_ah_attr {
        dlid: wc.slid,
        sl: if is_infiniband { wc.sl } else { 0 },
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..ibv_ah_attr::default()
    };
    if is_infiniband && wc.wc_flags & wc_flags::GRH == 0 {
        return Ok(way_back);
    }
    let grh = match grh {
        Some(grh) if wc.wc_flags & wc_flags::GRH != 0 => grh.raw,
        _ => return Err(Failure::invalid("a completion without GRH: RoCE datagrams have one")),
    };
    let header = Header::parse(&grh);
    let mut rows = shared.engine.gid_table();
    rows.retain(|row| row.port == PortNum(port) && row.kind.roce_version() == header.version);
    let index = rows.iter().find(|row| row.gid == header.dst).or_else(|| {
        // To a multicast group: any row of the same IP version.
        let is_ipv4 = header.dst.to_ipv4().is_some();
        let same = rows.iter().find(|row| row.gid.to_ipv4().is_some() == is_ipv4);
        same.filter(|_| header.dst.is_multicast())
    });
    let index = index.map(|row| row.index);
    let sgid_index =
        index.ok_or_else(|| Failure::invalid(format!("{} is no GID of the port", header.dst)))?;
    Ok(ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: header.src.0 },
            flow_label: header.flow_label,
            sgid_index,
            hop_limit: 0xFF,
            traffic_class: header.traffic_class & !ECN_BITS,
        },
        is_global: 1,
        ..way_back
    })
}

/// What is of use in the IP header of a GRH area.
struct Header {
    src: Gid,
    dst: Gid,
    traffic_class: u8,
    flow_label: u32,
    version: RoceVersion,
}

impl Header {
    /// IPv4 in the last 20 bytes if the first say nothing, else IPv6 (IBTA A17.4.5.2), or the GRH
    /// of RoCEv1.
    fn parse(area: &[u8; 40]) -> Self {
        let octets =
            |at: usize| -> [u8; 4] { [area[at], area[at + 1], area[at + 2], area[at + 3]] };
        if area[0] >> 4 != 6 && area[20] >> 4 == 4 {
            let gid = |at| Gid::from_ip(std::net::Ipv4Addr::from(octets(at)).into());
            return Self {
                src: gid(32),
                dst: gid(36),
                traffic_class: area[21],
                flow_label: 0,
                version: RoceVersion::V2,
            };
        }
        let first = u32::from_be_bytes(octets(0));
        let gid = |at: usize| {
            let mut raw = [0; 16];
            raw.copy_from_slice(&area[at..at + 16]);
            Gid(raw)
        };
        Self {
            src: gid(8),
            dst: gid(24),
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xF_FFFF,
            version: match area[6] {
                Grh::NEXT_HEADER_IBA => RoceVersion::V1,
                _ => RoceVersion::V2,
            },
        }
    }
}

/// `ibv_init_ah_from_wc`.
pub(crate) extern "C" fn ibv_init_ah_from_wc(
    context: Handle<ibv_context>,
    port: u8,
    wc: In<ibv_wc>,
    grh: In<ibv_grh>,
    attr: Out<ibv_ah_attr>,
) -> c_int {
    boundary::minus_one("ibv_init_ah_from_wc", || {
        let shared = context.get()?.shared()?;
        attr.write(answer_to(&shared, port, &wc.require("the completion")?, grh.read())?);
        Ok(0)
    })
}

/// `ibv_create_ah_from_wc`.
pub(crate) extern "C" fn ibv_create_ah_from_wc(
    pd: Handle<ibv_pd>,
    wc: In<ibv_wc>,
    grh: In<ibv_grh>,
    port: u8,
) -> Handle<ibv_ah> {
    boundary::pointer("ibv_create_ah_from_wc", || {
        let domain = pd.get()?;
        domain.shared.check()?;
        let wc = wc.require("the completion")?;
        create(pd, &answer_to(&domain.shared, port, &wc, grh.read())?)
    })
}

/// `ibv_resolve_eth_l2_from_gid`: for drivers that build Ethernet headers, which the system does
/// here.
pub(crate) extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: Handle<ibv_context>,
    _attr: In<ibv_ah_attr>,
    mac: Out<[u8; 6]>,
    vid: Out<u16>,
) -> c_int {
    mac.write([0; 6]);
    vid.write(0);
    boundary::refused(libc::EOPNOTSUPP)
}
