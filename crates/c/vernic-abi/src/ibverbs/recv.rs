//! Posting receives.

use std::ffi::c_int;

use libc::{EINVAL, EIO};
use vernic_engine::PostRecvError;

use super::refusals::{Cause, Refusals};
use super::wr_list::{self, Copies, List};
use crate::boundary::{guard, of_recv, refused};
use crate::layout::qp::ibv_qp;
use crate::layout::srq::ibv_srq;
use crate::layout::wr::ibv_recv_wr;
use crate::pointer::{Handle, In, Out};

/// Tells C what became of a list.
fn outcome(
    (name, refusals): (&str, &Refusals),
    list: &List<'_, ibv_recv_wr>,
    posted: Result<(), PostRecvError>,
    bad: Out<In<ibv_recv_wr>>,
) -> c_int {
    let why = posted.err();
    let Some((request, errno)) = list.bad(why.as_ref().map(of_recv)) else { return 0 };
    match &why {
        Some(why) => refusals.log(name, why.into(), why),
        None => refusals.log(name, Cause::Malformed, &"bad list of entries"),
    }
    bad.write(request);
    refused(errno)
}

/// `ibv_post_recv`.
pub(crate) extern "C" fn post_recv(
    qp: Handle<ibv_qp>,
    list: In<ibv_recv_wr>,
    bad: Out<In<ibv_recv_wr>>,
) -> c_int {
    guard(EIO, || {
        let Some(object) = qp.find() else {
            bad.write(list);
            return refused(EINVAL);
        };
        let copies = Copies::default();
        let mut list = wr_list::receives(list, &copies);
        let posted = object.engine.post_recv_from(&mut list);
        outcome(("ibv_post_recv", &object.shared.refusals), &list, posted, bad)
    })
}

/// `ibv_post_srq_recv`.
pub(crate) extern "C" fn post_srq_recv(
    srq: Handle<ibv_srq>,
    list: In<ibv_recv_wr>,
    bad: Out<In<ibv_recv_wr>>,
) -> c_int {
    guard(EIO, || {
        let Some(object) = srq.find() else {
            bad.write(list);
            return refused(EINVAL);
        };
        let copies = Copies::default();
        let mut list = wr_list::receives(list, &copies);
        let posted = object.engine.post_recv_from(&mut list);
        outcome(("ibv_post_srq_recv", &object.shared.refusals), &list, posted, bad)
    })
}
