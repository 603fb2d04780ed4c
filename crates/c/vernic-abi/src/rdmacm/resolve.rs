//! Addresses and routes: binding, listening, and the way to a peer.

use std::ffi::c_int;
use std::time::Duration;

use super::id::{IdObject, and_complete};
use crate::boundary::{self, Failure};
use crate::layout::cm::rdma_cm_id;
use crate::pointer::{CmAddr, Handle, SockAddr};

/// A timeout of C's. A negative one is very long, as for the kernel, which takes it for a number
/// without sign.
fn timeout(ms: c_int) -> Duration {
    Duration::from_millis(ms.cast_unsigned().into())
}

/// Binds an id.
///
/// # Errors
/// Those of the engine; `EINVAL` for NULL or an address of another family.
pub(crate) fn bind(id: &IdObject, address: SockAddr) -> Result<(), Failure> {
    match address.read_any()?.ok_or_else(|| Failure::null("an address"))? {
        CmAddr::Ip(address) => id.engine.bind_addr(address)?,
        CmAddr::Gid(address) => id.engine.bind_gid(address)?,
    }
    id.show()
}

/// Looks for the way to a destination.
///
/// # Errors
/// Those of the engine; `EINVAL` for NULL, and for an address of another family, which source and
/// destination must have in common.
pub(crate) fn resolve_addr(
    id: &IdObject,
    src: SockAddr,
    dst: SockAddr,
    timeout_ms: c_int,
) -> Result<(), Failure> {
    let dst = dst.read_any()?.ok_or_else(|| Failure::null("a destination"))?;
    match (src.read_any()?, dst) {
        (None, CmAddr::Ip(dst)) => id.engine.resolve_addr(None, dst, timeout(timeout_ms))?,
        (Some(CmAddr::Ip(src)), CmAddr::Ip(dst)) => {
            id.engine.resolve_addr(Some(src), dst, timeout(timeout_ms))?;
        }
        (None, CmAddr::Gid(dst)) => id.engine.resolve_gid(None, dst)?,
        (Some(CmAddr::Gid(src)), CmAddr::Gid(dst)) => id.engine.resolve_gid(Some(src), dst)?,
        _ => return Err(Failure::invalid("source and destination are of different families")),
    }
    Ok(())
}

/// Looks for the route.
///
/// # Errors
/// Those of the engine.
pub(crate) fn resolve_route(id: &IdObject, timeout_ms: c_int) -> Result<(), Failure> {
    id.engine.resolve_route(timeout(timeout_ms))?;
    Ok(())
}

/// `rdma_bind_addr`.
pub(crate) extern "C" fn rdma_bind_addr(id: Handle<rdma_cm_id>, address: SockAddr) -> c_int {
    boundary::minus_one("rdma_bind_addr", || bind(id.get()?, address).map(|()| 0))
}

/// `rdma_resolve_addr`.
pub(crate) extern "C-unwind" fn rdma_resolve_addr(
    id: Handle<rdma_cm_id>,
    src: SockAddr,
    dst: SockAddr,
    timeout_ms: c_int,
) -> c_int {
    and_complete("rdma_resolve_addr", id, |id| resolve_addr(id, src, dst, timeout_ms))
}

/// `rdma_resolve_route`.
pub(crate) extern "C-unwind" fn rdma_resolve_route(
    id: Handle<rdma_cm_id>,
    timeout_ms: c_int,
) -> c_int {
    and_complete("rdma_resolve_route", id, |id| resolve_route(id, timeout_ms))
}

/// `rdma_listen`. A backlog of 0 or less is the largest.
pub(crate) extern "C" fn rdma_listen(id: Handle<rdma_cm_id>, backlog: c_int) -> c_int {
    boundary::minus_one("rdma_listen", || {
        let id = id.get()?;
        id.engine.listen(u32::try_from(backlog).unwrap_or(0))?;
        id.show()?;
        Ok(0)
    })
}
