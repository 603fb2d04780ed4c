//! What the handles of an XRC domain, its targets and its shared receive queues have in common.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vernic_mem::PdId;
use vernic_wire::Qpn;

use crate::support::events::lock;
use crate::verbs::context::Context;
use crate::verbs::pd::Pd;

/// What the handles of a domain share.
#[derive(Debug)]
pub(crate) struct Domain {
    /// Where the targets live: they need a protection domain, and reach nothing in it.
    pub(super) pd: Arc<Pd>,
    /// Handles that are open. Changed under the lock of the context's files where it has one.
    pub(super) handles: AtomicU32,
    /// Targets and shared receive queues.
    pub(super) users: AtomicU32,
    /// The open targets: of the type that `xrc.rs` knows.
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

    /// Its name: that of its protection domain, which is never used again.
    pub(crate) fn id(&self) -> PdId {
        self.pd.id()
    }

    pub(crate) fn hold(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// A target is gone.
    pub(crate) fn forget_target(&self, qpn: Qpn) {
        lock(&self.targets).remove(&qpn);
    }

    /// A handle of the target is closed; true if it was the last, and nobody can open it any more.
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
