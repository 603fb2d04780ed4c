//! Protection domains (IBTA 10.2.3): what may be used together.

use std::sync::Arc;

use vernic_engine as engine;

use crate::{CreateError, Device};

/// A protection domain. Work of a queue pair reaches only memory of its own domain. A clone is
/// another handle to it; it is freed with the last handle and the last object in it.
#[derive(Clone, Debug)]
pub struct Pd {
    inner: Arc<engine::Pd>,
    device: Device,
}

impl Device {
    /// A protection domain: what may be used together (IBTA 10.2.3).
    ///
    /// # Errors
    /// [`CreateError::Orphan`] in a child of the process that opened the device.
    pub fn alloc_pd(&self) -> Result<Pd, CreateError> {
        if self.is_orphan() {
            return Err(CreateError::Orphan);
        }
        Ok(Pd::new(self))
    }
}

impl Pd {
    pub(crate) fn new(device: &Device) -> Self {
        Self { inner: device.context().alloc_pd(), device: device.clone() }
    }

    pub(crate) fn inner(&self) -> &Arc<engine::Pd> {
        &self.inner
    }

    pub(crate) fn context(&self) -> &Device {
        &self.device
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}
