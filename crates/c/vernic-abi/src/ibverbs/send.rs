//! Posting sends.

use std::ffi::c_int;

use libc::{EINVAL, EIO};

use super::refusals::Cause;
use super::wr_list::{self, Copies};
use crate::boundary::{guard, of_send, refused};
use crate::layout::qp::ibv_qp;
use crate::layout::wr::ibv_send_wr;
use crate::pointer::{Handle, In, Out};

/// `ibv_post_send`: one doorbell for the whole list. `bad` tells which request was refused; those
/// before it are on their way.
pub(crate) extern "C" fn post_send(
    qp: Handle<ibv_qp>,
    list: In<ibv_send_wr>,
    bad: Out<In<ibv_send_wr>>,
) -> c_int {
    guard(EIO, || {
        let Some(object) = qp.find() else {
            bad.write(list);
            return refused(EINVAL);
        };
        let copies = Copies::default();
        let mut list = wr_list::sends(list, object.engine.service(), &copies);
        let why = object.engine.post_send_from(&mut list).err();
        let errno = why.as_ref().map(of_send);
        let Some((request, errno)) = list.bad(errno) else { return 0 };
        let (log, qpn) = (&object.shared.refusals, object.engine.qpn());
        match &why {
            Some(why) => log.log("ibv_post_send", why.into(), &format_args!("queue pair {qpn}: {why}")),
            None => log.log(
                "ibv_post_send",
                Cause::Malformed,
                &format_args!("queue pair {qpn}: unknown opcode, bad list of entries, or no address handle or window"),
            ),
        }
        bad.write(request);
        refused(errno)
    })
}
