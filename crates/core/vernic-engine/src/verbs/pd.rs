//! Protection domains (IBTA 10.2.3): groups of objects that may be used together.

use std::sync::Arc;

use vernic_mem::{AccessError, Check, PdError, PdId, Sge};

use crate::error::CreateError;
use crate::verbs::context::Context;

/// A protection domain. It is freed when nothing refers to it or to an object in it any more.
#[derive(Debug)]
pub struct Pd {
    context: Arc<Context>,
    id: PdId,
}

impl Context {
    /// Allocates a protection domain.
    pub fn alloc_pd(self: &Arc<Self>) -> Arc<Pd> {
        Pd::new(self)
    }
}

impl Pd {
    pub(crate) fn new(context: &Arc<Context>) -> Arc<Self> {
        let orphan = context.is_orphan();
        let id = if orphan { PdId::NONE } else { context.engine().memory().alloc_pd() };
        Arc::new(Self { context: context.clone(), id })
    }

    /// Returns the device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the id of the domain.
    pub fn id(&self) -> PdId {
        self.id
    }

    /// Checks that work requests can write to the memory of a scatter/gather list, or else read
    /// from it (`ibv_advise_mr` with a prefetch). Nothing is prefetched, because memory is never
    /// pinned.
    ///
    /// # Errors
    /// [`AccessError`] of the first entry whose key, rights or bounds do not allow the access.
    pub fn advise(&self, sges: &[Sge], write: bool) -> Result<(), AccessError> {
        if self.context.is_orphan() {
            let key = sges.first().map_or(0, |sge| sge.lkey.value());
            return Err(AccessError { check: Check::KeyStale, key, addr: 0, len: 0 });
        }
        self.context.engine().memory().check_local(self.id, sges, write)
    }

    /// Checks that the domain has no objects any more. The domain is freed when its last reference
    /// is dropped.
    ///
    /// # Errors
    /// [`PdError::Busy`] with the objects that the domain still has.
    pub fn destroy(&self) -> Result<(), PdError> {
        if self.context.is_orphan() {
            return Ok(());
        }
        self.context.engine().memory().dealloc_pd(self.id)
    }

    pub(crate) fn hold(&self) {
        // This fails only for a domain that was destroyed. Its keys then refuse all accesses.
        let _ = self.context.engine().memory().hold_pd(self.id);
    }

    pub(crate) fn release(&self) {
        if !self.context.is_orphan() {
            self.context.engine().memory().release_pd(self.id);
        }
    }

    /// Returns an error if nothing may be created: in a child of `fork`, or on a closed device.
    pub(crate) fn alive(&self) -> Result<(), CreateError> {
        self.context.alive()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // All objects in the domain held a reference to it, so it is empty now, or was destroyed
        // before.
        let _ = self.destroy();
    }
}
