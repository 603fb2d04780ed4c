//! What connections of a process share: open devices, and a protection domain on each.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::{CreateError, Device, Error, Pd, cm};

/// The devices of this machine for connections by IP address. A clone is another handle to it.
///
/// A device is opened when an address first needs it, and closed with the last connection and
/// handle. All connections on a device share its protection domain, so regions may be used by each
/// of them.
#[derive(Clone, Debug)]
pub struct Network(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    manager: cm::Manager,
    pds: Mutex<Vec<Pd>>,
}

/// The network of those who do not name one, while there is a connection of it.
static COMMON: Mutex<Weak<Inner>> = Mutex::new(Weak::new());

impl Network {
    /// A network that opens devices with the settings of file and environment.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn open() -> Result<Self, Error> {
        Ok(Self::of(cm::Manager::open()?))
    }

    /// A network over the devices of a manager.
    pub fn of(manager: cm::Manager) -> Self {
        Self(Arc::new(Inner { manager, pds: Mutex::default() }))
    }

    /// The network that all callers of this process share.
    pub(super) fn common() -> Result<Self, Error> {
        let mut common = COMMON.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = common.upgrade() {
            return Ok(Self(inner));
        }
        let network = Self::open()?;
        *common = Arc::downgrade(&network.0);
        Ok(network)
    }

    /// The manager that makes its connections.
    pub fn manager(&self) -> &cm::Manager {
        &self.0.manager
    }

    /// The protection domain of its connections on a device of its manager.
    ///
    /// # Errors
    /// [`CreateError::Orphan`] in a child of the process that opened the device.
    pub fn pd(&self, device: &Device) -> Result<Pd, CreateError> {
        let mut pds = self.0.pds.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of = |pd: &Pd| Arc::ptr_eq(pd.device().context(), device.context());
        if let Some(pd) = pds.iter().find(|pd| is_of(pd)) {
            return Ok(pd.clone());
        }
        // Those that nothing else uses are of devices that are gone.
        pds.retain(|pd| Arc::strong_count(pd.inner()) > 1);
        let pd = device.alloc_pd()?;
        pds.push(pd.clone());
        Ok(pd)
    }
}
