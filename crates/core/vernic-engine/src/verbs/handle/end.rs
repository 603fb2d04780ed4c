//! The end of a queue pair: it is reset, destroyed or dropped.
//!
//! Called by `handle.rs` and by applications. `tables.rs` changes the entries of the lane's tables.

use std::sync::atomic::Ordering;

use vernic_proto::{AttrMask, QpAttr};

use super::Qp;
use crate::device::explanation::Explanation;
use crate::error::Busy;
use crate::qp::state::QpCore;
use crate::support::events::{Element, lock};

impl Qp {
    /// Destroys the queue pair. From then on its number is free, and its work requests complete no
    /// more. Its completions are removed from its completion queues (IBTA 11.2.4.4).
    ///
    /// For an XRC target, completions of messages that it received stay in the completion queues of
    /// the shared receive queues. If the target was opened again
    /// ([`Xrcd::open_tgt`](crate::Xrcd::open_tgt)), each call closes one handle, and only the last
    /// one destroys the target.
    ///
    /// # Errors
    /// [`Busy`] while the queue pair is attached to multicast groups.
    pub fn destroy(&self) -> Result<(), Busy> {
        if self.context().is_orphan() {
            return Ok(());
        }
        match self.groups.load(Ordering::Acquire) {
            0 => {
                let domain = self.domain.as_ref();
                if domain.is_none_or(|domain| domain.close_target(self.qpn(), &self.handles)) {
                    self.shut_down();
                }
                Ok(())
            }
            users => Err(Busy { object: "queue pair", users, by: "multicast groups" }),
        }
    }

    /// Clears the state outside of the protocol machine, when the queue pair enters Reset. `past`
    /// explains why the queue pair had failed, if it had; the device remembers it.
    pub(super) fn forget(&self, core: &mut QpCore, past: Option<Explanation>) {
        if let Some(past) = past {
            lock(self.engine().past_failures()).keep(past);
        }
        self.inner.forget(&mut core.side);
    }

    fn shut_down(&self) {
        if self.context().is_orphan() {
            return;
        }
        if self.gone.swap(true, Ordering::AcqRel) {
            return;
        }
        let engine = self.engine();
        if let Some(domain) = &self.domain {
            // Done before `close_qp` frees the number, because afterwards a new target may get the
            // same number.
            domain.forget_target(self.inner.qpn());
        }
        // From here on, no packet reaches the queue pair, and the lane has no reference to it.
        engine.close_qp(self.inner.qpn());
        {
            let mut core = lock(&self.inner.core);
            let attr = QpAttr::default();
            let past = self.inner.explanation(engine, &core);
            // Reset can be entered from every state. The machine calls nothing of its host then.
            let now = engine.now();
            self.inner.with_host(engine, now, &mut core, |machine, host| {
                let _ = machine.modify(&attr, AttrMask::STATE, now, host);
            });
            self.inner.publish_state(engine, &mut core);
            self.forget(&mut core, past);
        }
        engine.memory().unbind_qp_windows(self.inner.qpn());
        engine.memory().wait_for_revocations();
        let element = Element::Qp(self.inner.qpn());
        engine.events().purge(|event| event.element != element);
        self.inner.cqs().for_each(|cq| cq.release());
        if let Some(srq) = &self.srq {
            srq.release();
        }
        if let Some(domain) = &self.domain {
            domain.release();
        }
        self.pd.release();
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if self.context().is_orphan() {
            // In a child of `fork`: these objects are not freed, because another thread of the
            // parent may have been using them at the time of the fork.
            std::mem::forget((self.inner.clone(), self.engine.clone(), self.domain.clone()));
        }
        self.shut_down();
    }
}
