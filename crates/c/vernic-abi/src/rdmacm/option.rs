//! Options of ids, and what vendors agree on beside the standard (ECE), which is nothing here.

use std::ffi::c_int;

use vernic_cm::IdOption;
use vernic_wire::sa::PathRecord;

use crate::boundary::{self, Failure};
use crate::layout::cm::{option, rdma_cm_id};
use crate::layout::qp::ibv_ece;
use crate::pointer::{Bytes, Handle, In, Out};

/// A value of so many bytes.
fn value<const N: usize>(bytes: Bytes, length: usize) -> Result<[u8; N], Failure> {
    let value = (length == N).then(|| bytes.slice(N).try_into().ok()).flatten();
    value.ok_or_else(|| {
        Failure::invalid(format!("a value of {length} bytes at {:?}: it has {N}", bytes.raw()))
    })
}

/// Bytes of a `struct ibv_path_data`: flags and a reserved word, then a record as on the wire.
const PATH_DATA: usize = 8 + PathRecord::LEN;
/// `IBV_PATH_FLAG_PRIMARY`, in the flags of a path.
const PRIMARY: u32 = 1 << 1;

/// The first path that is a primary one: an outbound path of the program's own.
fn primary(bytes: Bytes, length: usize) -> Result<PathRecord, Failure> {
    if length == 0 || !length.is_multiple_of(PATH_DATA) {
        let why = format!("{length} bytes of paths: each has {PATH_DATA}");
        return Err(Failure::invalid(why));
    }
    let all = bytes.slice(length);
    let is_primary = |path: &&[u8]| {
        path.first_chunk().is_some_and(|flags| u32::from_ne_bytes(*flags) & PRIMARY != 0)
    };
    let first = all.chunks_exact(PATH_DATA).find(is_primary);
    let first = first.ok_or_else(|| Failure::invalid("no path has IBV_PATH_FLAG_PRIMARY"))?;
    PathRecord::parse(&first[8..]).map_err(|error| Failure::invalid(error.to_string()))
}

/// `rdma_set_option`.
pub(crate) extern "C" fn rdma_set_option(
    id: Handle<rdma_cm_id>,
    level: c_int,
    name: c_int,
    bytes: Bytes,
    length: usize,
) -> c_int {
    boundary::minus_one("rdma_set_option", || {
        let byte = || Ok::<_, Failure>(value::<1>(bytes, length)?[0]);
        let flag = || Ok::<_, Failure>(i32::from_ne_bytes(value(bytes, length)?) != 0);
        let object = id.get()?;
        let option = match (level, name) {
            (option::LEVEL_ID, option::ID_TOS) => IdOption::Tos(byte()?),
            (option::LEVEL_ID, option::ID_REUSEADDR) => IdOption::ReuseAddr(flag()?),
            (option::LEVEL_ID, option::ID_AFONLY) => IdOption::AfOnly(flag()?),
            (option::LEVEL_ID, option::ID_ACK_TIMEOUT) => IdOption::AckTimeout(byte()?),
            (option::LEVEL_IB, option::IB_PATH) => {
                object.engine.set_path(&primary(bytes, length)?)?;
                return Ok(0);
            }
            _ => {
                let why = format!("there is no option {name} on level {level}");
                return Err(Failure::new(libc::ENOSYS, why));
            }
        };
        object.engine.set_option(option)?;
        Ok(0)
    })
}

/// `rdma_set_local_ece`: there are no vendor's enhancements to agree on.
pub(crate) extern "C" fn rdma_set_local_ece(id: Handle<rdma_cm_id>, ece: In<ibv_ece>) -> c_int {
    boundary::minus_one("rdma_set_local_ece", || {
        id.get()?;
        let ece = ece.require("the enhancements")?;
        if ece.vendor_id == 0 || ece.comp_mask != 0 {
            let why = format!("vendor {:#x}, comp_mask {:#x}", ece.vendor_id, ece.comp_mask);
            return Err(Failure::invalid(why));
        }
        Err(Failure::unsupported("enhanced connection establishment (ECE)"))
    })
}

/// `rdma_get_remote_ece`: of vendor 0, which says that the peer has sent none. It is for programs
/// that bring up their queue pairs themselves.
pub(crate) extern "C" fn rdma_get_remote_ece(id: Handle<rdma_cm_id>, ece: Out<ibv_ece>) -> c_int {
    boundary::minus_one("rdma_get_remote_ece", || {
        let id = id.get()?;
        id.heed_qp()?;
        if id.engine.qp().is_some() {
            return Err(Failure::invalid("the id brings its queue pair up itself"));
        }
        if ece.is_null() {
            return Err(Failure::null("a place for the enhancements"));
        }
        ece.write(ibv_ece::default());
        Ok(0)
    })
}
