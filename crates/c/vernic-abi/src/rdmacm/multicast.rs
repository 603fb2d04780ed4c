//! Multicast groups of datagram ids.

use std::ffi::{c_int, c_void};

use vernic_cm::JoinState;

use super::id::{IdObject, and_complete};
use crate::boundary::{self, Failure};
use crate::layout::cm::{join_flags, join_mask, rdma_cm_id, rdma_cm_join_mc_attr_ex};
use crate::pointer::{Handle, In, SockAddr, plain};

plain! { rdma_cm_join_mc_attr_ex }

/// Joins; the event that follows carries `context`.
fn join(
    id: &IdObject,
    group: SockAddr,
    state: JoinState,
    context: *mut c_void,
) -> Result<(), Failure> {
    let group = group.require("the address of a group")?;
    id.engine.join_multicast(group, state, context.expose_provenance())?;
    id.show_device(&*id.device()?);
    Ok(())
}

/// `rdma_join_multicast`.
pub(crate) extern "C-unwind" fn rdma_join_multicast(
    id: Handle<rdma_cm_id>,
    group: SockAddr,
    context: *mut c_void,
) -> c_int {
    and_complete("rdma_join_multicast", id, |id| join(id, group, JoinState::FullMember, context))
}

/// `rdma_join_multicast_ex`: as a full member, or to send only.
pub(crate) extern "C-unwind" fn rdma_join_multicast_ex(
    id: Handle<rdma_cm_id>,
    attr: In<rdma_cm_join_mc_attr_ex>,
    context: *mut c_void,
) -> c_int {
    and_complete("rdma_join_multicast_ex", id, |id| {
        let attr = attr.require("the attributes")?;
        let unknown = attr.comp_mask & !(join_mask::ADDRESS | join_mask::JOIN_FLAGS);
        if unknown != 0 {
            return Err(Failure::unsupported(format_args!("comp_mask {unknown:#x}")));
        }
        if attr.comp_mask & join_mask::ADDRESS == 0 {
            return Err(Failure::invalid("comp_mask lacks RDMA_CM_JOIN_MC_ATTR_ADDRESS"));
        }
        let flags = match attr.comp_mask & join_mask::JOIN_FLAGS {
            0 => join_flags::FULL_MEMBER,
            _ => attr.join_flags,
        };
        let state = match flags {
            join_flags::FULL_MEMBER => JoinState::FullMember,
            join_flags::SEND_ONLY_FULL_MEMBER => JoinState::SendOnlyFullMember,
            other => return Err(Failure::invalid(format!("join_flags {other}"))),
        };
        join(id, attr.addr, state, context)
    })
}

/// `rdma_leave_multicast`: `EADDRNOTAVAIL` for a group that the id has not joined.
pub(crate) extern "C" fn rdma_leave_multicast(id: Handle<rdma_cm_id>, group: SockAddr) -> c_int {
    boundary::minus_one("rdma_leave_multicast", || {
        id.get()?.engine.leave_multicast(group.require("the address of a group")?)?;
        Ok(0)
    })
}
