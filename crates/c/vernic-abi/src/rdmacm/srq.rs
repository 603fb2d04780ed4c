//! Shared receive queues of ids.

use std::ffi::c_int;

use super::id::IdObject;
use crate::boundary::{self, Failure};
use crate::ibverbs::srq::{create_srq_ex, ibv_destroy_srq};
use crate::layout::cm::rdma_cm_id;
use crate::layout::cq::ibv_cq;
use crate::layout::pd::ibv_pd;
use crate::layout::srq::{
    ibv_srq, ibv_srq_init_attr, ibv_srq_init_attr_ex, srq_init_mask, srq_type,
};
use crate::pointer::{Handle, Out};

impl IdObject {
    /// Makes a queue, with what the id has where the program gives nothing.
    ///
    /// # Errors
    /// `EINVAL` for an id that has one, or that has no device yet; those of making a queue.
    fn create_srq(
        &self,
        of_c: Handle<rdma_cm_id>,
        attr: &mut ibv_srq_init_attr_ex,
    ) -> Result<(), Failure> {
        let had: Handle<ibv_srq> = Handle::load(&self.base.srq);
        if !had.is_null() {
            return Err(Failure::invalid("the id has a shared receive queue already"));
        }
        let device = self.device()?;
        self.show_device(&device);
        let lacks = |bit, is_null: bool| attr.comp_mask & bit == 0 || is_null;
        if lacks(srq_init_mask::PD, attr.pd.is_null()) {
            attr.pd = Handle::load(&self.base.pd);
        }
        let mut known = srq_init_mask::TYPE | srq_init_mask::PD;
        if attr.srq_type == srq_type::XRC {
            if lacks(srq_init_mask::XRCD, attr.xrcd.is_null()) {
                attr.xrcd = device.xrcd()?;
            }
            if lacks(srq_init_mask::CQ, attr.cq.is_null()) {
                attr.cq = self.create_recv_cq(of_c, attr.attr.max_wr)?;
            }
            known |= srq_init_mask::XRCD | srq_init_mask::CQ;
        }
        attr.comp_mask |= known;
        let srq = create_srq_ex(device.context, Out::of(attr));
        if srq.is_null() {
            let error = std::io::Error::last_os_error();
            self.destroy_cqs();
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            return Err(Failure::new(errno, "a shared receive queue of the id"));
        }
        srq.store(&self.base.srq);
        Ok(())
    }

    /// Destroys its queue, and completion queues of its own that nothing uses.
    pub(crate) fn destroy_srq(&self) {
        let srq: Handle<ibv_srq> = Handle::load(&self.base.srq);
        if !srq.is_null() {
            ibv_destroy_srq(srq);
            Handle::NULL.store(&self.base.srq);
        }
        let qp: Handle<crate::layout::qp::ibv_qp> = Handle::load(&self.base.qp);
        if qp.is_null() {
            self.destroy_cqs();
        }
    }
}

/// `rdma_create_srq`: a basic one; an XRC one for an id of XRC targets.
pub(crate) extern "C" fn rdma_create_srq(
    id: Handle<rdma_cm_id>,
    pd: Handle<ibv_pd>,
    attr: Out<ibv_srq_init_attr>,
) -> c_int {
    boundary::minus_one("rdma_create_srq", || {
        let object = id.get()?;
        let init = attr.require("the attributes")?;
        let mut extended = ibv_srq_init_attr_ex {
            srq_context: init.srq_context,
            attr: init.attr,
            comp_mask: srq_init_mask::TYPE | srq_init_mask::PD,
            srq_type: match object.has_xrc_targets() {
                true => srq_type::XRC,
                false => srq_type::BASIC,
            },
            pd,
            xrcd: Handle::NULL,
            cq: Handle::<ibv_cq>::NULL,
            tm_cap: [0; 2],
        };
        object.create_srq(id, &mut extended)?;
        attr.write_attr(extended.attr);
        Ok(0)
    })
}

/// `rdma_create_srq_ex`.
pub(crate) extern "C" fn rdma_create_srq_ex(
    id: Handle<rdma_cm_id>,
    attr: Out<ibv_srq_init_attr_ex>,
) -> c_int {
    boundary::minus_one("rdma_create_srq_ex", || {
        let object = id.get()?;
        let mut init = attr.require_grown("the attributes")?;
        if init.comp_mask & srq_init_mask::TYPE == 0 {
            return Err(Failure::invalid("comp_mask lacks IBV_SRQ_INIT_ATTR_TYPE"));
        }
        object.create_srq(id, &mut init)?;
        attr.write_attr(init.attr);
        Ok(0)
    })
}

/// `rdma_destroy_srq`.
pub(crate) extern "C" fn rdma_destroy_srq(id: Handle<rdma_cm_id>) {
    boundary::nothing("rdma_destroy_srq", || {
        id.get()?.destroy_srq();
        Ok(())
    });
}
