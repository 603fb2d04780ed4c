//! The header in front of a datagram, field by field.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use vernic_wire::mad::{MadAddress, MadGrh};
use vernic_wire::{Gid, Lid, Qkey, Qpn, ServiceLevel};

use crate::boundary;
use crate::layout::umad::{HEADER_BYTES, ib_mad_addr, ib_user_mad};
use crate::pointer::{In, Out, plain};

plain! { ib_mad_addr, ib_user_mad }

/// Changes the header, as far as there is one.
fn change(name: &str, umad: Out<ib_user_mad>, to: impl FnOnce(&mut ib_user_mad)) -> c_int {
    let said = boundary::negative(name, || {
        let mut header = umad.require("the datagram")?;
        to(&mut header);
        umad.write(header);
        Ok(0)
    });
    said as c_int
}

/// `umad_size`: bytes in front of a datagram in a buffer.
pub(crate) extern "C" fn umad_size() -> usize {
    HEADER_BYTES
}

/// `umad_get_mad`: the datagram in a buffer.
pub(crate) extern "C" fn umad_get_mad(umad: *mut c_void) -> *mut c_void {
    within(umad, HEADER_BYTES)
}

/// `umad_get_mad_addr`: the address in a buffer.
pub(crate) extern "C" fn umad_get_mad_addr(umad: *mut c_void) -> *mut c_void {
    within(umad, offset_of!(ib_user_mad, addr))
}

fn within(umad: *mut c_void, at: usize) -> *mut c_void {
    if umad.is_null() { umad } else { umad.wrapping_byte_add(at) }
}

/// `umad_status`: 0, or why a datagram of the agent comes back.
pub(crate) extern "C" fn umad_status(umad: In<ib_user_mad>) -> c_int {
    boundary::negative("umad_status", || Ok(umad.require("the datagram")?.status as isize)) as c_int
}

/// `umad_set_addr`: numbers are the host's.
pub(crate) extern "C" fn umad_set_addr(
    umad: Out<ib_user_mad>,
    dlid: c_int,
    dqp: c_int,
    sl: c_int,
    qkey: c_int,
) -> c_int {
    let (dlid, dqp, qkey) = ((dlid as u16).to_be(), (dqp as u32).to_be(), (qkey as u32).to_be());
    umad_set_addr_net(umad, dlid, dqp, sl, qkey)
}

/// `umad_set_addr_net`: numbers are big-endian, except for the service level.
pub(crate) extern "C" fn umad_set_addr_net(
    umad: Out<ib_user_mad>,
    dlid: u16,
    dqp: u32,
    sl: c_int,
    qkey: u32,
) -> c_int {
    change("umad_set_addr", umad, |header| {
        (header.addr.lid, header.addr.qpn, header.addr.qkey) = (dlid, dqp, qkey);
        header.addr.sl = sl as u8;
    })
}

/// `umad_set_grh`: from an address whose flow label is the host's; NULL for no GRH.
pub(crate) extern "C" fn umad_set_grh(umad: Out<ib_user_mad>, from: In<ib_mad_addr>) -> c_int {
    change("umad_set_grh", umad, |header| match from.read() {
        Some(from) => {
            let to = &mut header.addr;
            (to.grh_present, to.gid, to.flow_label) = (1, from.gid, from.flow_label.to_be());
            (to.hop_limit, to.traffic_class) = (from.hop_limit, from.traffic_class);
        }
        None => header.addr.grh_present = 0,
    })
}

/// `umad_set_pkey`: the index of the P_Key.
pub(crate) extern "C" fn umad_set_pkey(umad: Out<ib_user_mad>, index: c_int) -> c_int {
    change("umad_set_pkey", umad, |header| header.addr.pkey_index = index as u16)
}

/// `umad_get_pkey`.
pub(crate) extern "C" fn umad_get_pkey(umad: In<ib_user_mad>) -> c_int {
    let index = boundary::negative("umad_get_pkey", || {
        Ok(umad.require("the datagram")?.addr.pkey_index as isize)
    });
    index as c_int
}

/// What C's address says.
pub(super) fn from_c(addr: &ib_mad_addr) -> MadAddress {
    let grh = MadGrh {
        gid: Gid(addr.gid),
        gid_index: addr.gid_index,
        flow_label: u32::from_be(addr.flow_label),
        hop_limit: addr.hop_limit,
        traffic_class: addr.traffic_class,
    };
    MadAddress {
        qpn: Qpn::new(u32::from_be(addr.qpn)),
        qkey: Qkey(u32::from_be(addr.qkey)),
        lid: Lid(u16::from_be(addr.lid)),
        service_level: ServiceLevel::new(addr.sl),
        path_bits: addr.path_bits,
        pkey_index: addr.pkey_index,
        grh: (addr.grh_present != 0).then_some(grh),
    }
}

/// An address as C has it.
pub(super) fn to_c(address: &MadAddress) -> ib_mad_addr {
    let grh = address.grh.unwrap_or_default();
    ib_mad_addr {
        qpn: address.qpn.value().to_be(),
        qkey: address.qkey.0.to_be(),
        lid: address.lid.0.to_be(),
        sl: address.service_level.value(),
        path_bits: address.path_bits,
        grh_present: address.grh.is_some().into(),
        gid_index: grh.gid_index,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
        gid: grh.gid.0,
        flow_label: grh.flow_label.to_be(),
        pkey_index: address.pkey_index,
        reserved: [0; 6],
    }
}
