//! The state that the handles of an XRC domain, its targets and its shared receive queues share.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vernic_mem::PdId;
use vernic_wire::Qpn;

use crate::support::events::lock;
use crate::verbs::context::Context;
use crate::verbs::pd::Pd;

/// The state that the handles of a domain share.
#[derive(Debug)]
pub(crate) struct Domain {
    /// The protection domain of the targets, which must have one. It contains nothing that targets
    /// could access.
    pub(super) pd: Arc<Pd>,
    /// The number of open handles. If the domain has a file, changed under the lock of the device's
    /// files.
    pub(super) handles: AtomicU32,
    /// The number of targets and shared receive queues.
    pub(super) users: AtomicU32,
    /// The open targets, of the type that `xrc.rs` downcasts to.
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

    /// Returns the domain's id: that of its protection domain, which is never used again.
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

    /// Closes a handle of the target. Returns true if it was the last one; then the target can no
    /// longer be opened.
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
