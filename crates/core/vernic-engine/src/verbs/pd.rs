//! Protection domains (IBTA 10.2.3): which objects may be used together.

use std::sync::Arc;

use vernic_mem::{AccessError, Check, PdError, PdId, Sge};

use crate::error::CreateError;
use crate::verbs::context::Context;

/// A protection domain. It is freed when the last reference to it, and to everything in it, is
/// gone.
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

    /// Checks that work requests can write to the memory of a scatter/gather list, or read from it
    /// (`ibv_advise_mr` with a prefetch). Nothing has to be fetched: no memory is ever pinned.
    ///
    /// # Errors
    /// [`AccessError`] of the first entry that is refused, because of its key, its rights or its
    /// bounds.
    pub fn advise(&self, sges: &[Sge], write: bool) -> Result<(), AccessError> {
        if self.context.is_orphan() {
            let key = sges.first().map_or(0, |sge| sge.lkey.value());
            return Err(AccessError { check: Check::KeyStale, key, addr: 0, len: 0 });
        }
        self.context.engine().memory().check_local(self.id, sges, write)
    }

    /// Checks that nothing lives in the domain any more. The domain is freed with its last
    /// reference.
    ///
    /// # Errors
    /// [`PdError::Busy`] with what lives in it.
    pub fn destroy(&self) -> Result<(), PdError> {
        if self.context.is_orphan() {
            return Ok(());
        }
        self.context.engine().memory().dealloc_pd(self.id)
    }

    pub(crate) fn hold(&self) {
        // Fails only for a destroyed domain; uses of such a domain are refused by their keys.
        let _ = self.context.engine().memory().hold_pd(self.id);
    }

    pub(crate) fn release(&self) {
        if !self.context.is_orphan() {
            self.context.engine().memory().release_pd(self.id);
        }
    }

    /// Returns an error in the domain of an orphan or of a closed device, where nothing may be
    /// made.
    pub(crate) fn alive(&self) -> Result<(), CreateError> {
        self.context.alive()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // Everything in the domain held a reference, so the domain is empty; or it was destroyed
        // before.
        let _ = self.destroy();
    }
}
