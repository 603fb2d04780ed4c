//! One-sided requests that the owner carries out itself, without packets.
//!
//! An owner that can reach the peer's memory (both run on one host) need not send a WRITE, READ or
//! atomic: it moves the bytes, and the request is complete. [`Qp::next_direct`] says which request
//! may be carried out so, [`Qp::direct_progress`] that a part of it is done, [`Qp::finish_direct`]
//! that all of it is, [`Qp::refuse_direct`] that packets must do it after all, from its beginning.
//!
//! Order is that of the queue. A request is carried out directly only when everything before it is
//! acknowledged, and nothing behind it is sent before it is finished. It takes no sequence number,
//! so the peer's protocol machine does not learn of it, and its check of keys, rights and bounds is
//! the owner's affair: what it does not grant for certain must take packets, so that the responder
//! finds the error. Fences, SQD, signaling and flushing are those of any request.

use super::Qp;
use super::machine::{Machine, each};
use crate::cx::Cx;
use crate::direct::{self, After, Direct};
use crate::host::Host;
use crate::state::QpState;
use crate::time::Time;
use crate::transport::Transport;

impl Qp {
    /// The request that its owner may carry out itself: a WRITE, READ, compare-and-swap or
    /// fetch-and-add (RC), or a WRITE (UC), of which no packet has left. It need not: until
    /// [`direct_progress`](Self::direct_progress) is called, [`poll_request`](Self::poll_request)
    /// sends it.
    #[inline]
    pub fn next_direct(&self) -> Option<Direct> {
        let sends = matches!(self.attr.state, QpState::Rts | QpState::Sqd);
        if !sends || self.needs.packets() {
            return None;
        }
        each!(&self.machine, m => m.next_direct())
    }

    /// The requests behind the one of [`next_direct`](Self::next_direct), up to the first that the
    /// owner may not carry out itself. If the owner carries out the next request and some of these
    /// in their order, it then calls [`finish_direct`](Self::finish_direct) once for each. There
    /// are none if the next request waits, or if SQD holds back what is behind it.
    #[inline]
    pub fn directs_behind(&self) -> impl Iterator<Item = Direct> {
        let sq = each!(&self.machine, m => m.send_queue());
        // The length is all that most callers need to know.
        let may = sq.len() > 1 && self.attr.state == QpState::Rts && self.direct_now().is_some();
        may.then(|| direct::behind(sq)).into_iter().flatten()
    }

    /// `bytes` more of the request are done. Until all of it is, no packet of the send queue
    /// leaves, and SQD is not drained.
    pub fn direct_progress(&mut self, bytes: u32) {
        if let Some(direct) = self.direct_now() {
            let done = direct.done.saturating_add(bytes).min(direct.length);
            each!(&mut self.machine, m => m.send_queue_mut().set_direct(Some(done)));
        }
    }

    /// The request is carried out as a whole: completes it in its turn, if it is signaled. Does
    /// nothing where [`next_direct`](Self::next_direct) has none, or one that waits.
    pub fn finish_direct(&mut self, now: Time, host: &mut impl Host) {
        if self.direct_now().is_none() {
            return;
        }
        self.counters.messages_sent += 1;
        let cx = cx!(self, now);
        each!(&mut self.machine, m => m.finish_direct(cx, host));
    }

    /// The request takes packets from its beginning, whatever was done of it. Needed only after
    /// [`direct_progress`](Self::direct_progress).
    pub fn refuse_direct(&mut self) {
        let mtu = self.attr.path_mtu.bytes();
        if self.direct_now().is_none() {
            return;
        }
        // Begun, it counts as started: SQD waits for it.
        each!(&mut self.machine, m => {
            if m.send_queue().is_direct() {
                m.start_in_packets(mtu);
            }
        });
    }

    /// The request that may be carried out now. Inlined, since most callers only need to know that
    /// there is one.
    #[inline]
    fn direct_now(&self) -> Option<Direct> {
        self.next_direct().filter(|direct| direct.after == After::Nothing)
    }
}
