//! Completions of send requests, in the order of the posts.
//!
//! Used by the requesters of all services.

use vernic_wire::LocalRoute;

use crate::completion::{Completion, Tag};
use crate::cx::Cx;
use crate::error::WcStatus;
use crate::host::Host;
use crate::segment::meaning;
use crate::sq::{Entry, SendQueue};

/// Delivers the completions of all finished requests, oldest first.
pub(crate) fn retire(sq: &mut SendQueue, cx: &Cx<'_>, host: &mut impl Host) {
    while let Some(entry) = sq.retire() {
        if entry.is_signaled() {
            host.complete_send(completion(entry, cx, WcStatus::Success, 0));
        }
    }
}

/// The completion of a send request.
pub(crate) fn completion(
    entry: &Entry,
    cx: &Cx<'_>,
    status: WcStatus,
    vendor_err: u32,
) -> Completion {
    let (_, _, opcode) = meaning(&entry.wqe.op);
    Completion {
        wr_id: entry.wqe.wr_id,
        status,
        opcode,
        byte_len: entry.wqe.length,
        tag: Tag::None,
        qpn: cx.qpn,
        src_qpn: cx.attr.dest_qpn,
        solicited: false,
        grh: false,
        route: LocalRoute::NONE,
        vendor_err,
    }
}
