//! The state that all handles of an XRC domain share with its targets and shared receive queues.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vernic_mem::PdId;
use vernic_wire::Qpn;

use crate::support::events::lock;
use crate::verbs::context::Context;
use crate::verbs::pd::Pd;

/// The state of an XRC domain.
#[derive(Debug)]
pub(crate) struct Domain {
    /// A protection domain for the targets, because a queue pair must have one. It has no memory
    /// that a target could access.
    pub(super) pd: Arc<Pd>,
    /// The number of open handles. If the domain belongs to a file, it changes only under the lock
    /// of the device's table of files (`Engine::xrcds`).
    pub(super) handles: AtomicU32,
    /// The number of targets and shared receive queues in the domain.
    pub(super) users: AtomicU32,
    /// The targets that can be opened, as a type that `xrc.rs` downcasts.
    pub(super) targets: Mutex<HashMap<Qpn, Weak<dyn Any + Send + Sync>>>,
}

impl Domain {
    pub(crate) fn new(context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            pd: context.alloc_pd(),
            handles: AtomicU32::new(0),
            users: AtomicU32::new(0),
            targets: Mutex::default(),
        })
    }

    /// Returns the domain's id: the id of its protection domain, which no other domain ever gets.
    pub(crate) fn id(&self) -> PdId {
        self.pd.id()
    }

    pub(crate) fn hold(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Removes a target that is being destroyed.
    pub(crate) fn forget_target(&self, qpn: Qpn) {
        lock(&self.targets).remove(&qpn);
    }

    /// Closes a handle of a target. Returns true if it was the last one. Then the target cannot be
    /// opened any more.
    pub(crate) fn close_target(&self, qpn: Qpn, handles: &AtomicU32) -> bool {
        let mut targets = lock(&self.targets);
        let left = handles.load(Ordering::Acquire).saturating_sub(1);
        handles.store(left, Ordering::Release);
        if left == 0 {
            targets.remove(&qpn);
        }
        left == 0
    }
}
