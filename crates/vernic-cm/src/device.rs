//! The devices of this process, each opened when an id first needs it and then shared by all.

use std::sync::{Arc, Mutex};

use vernic_engine::{Config, Context, DeviceInfo, GidEntry, OpenError, device_with, devices};
use vernic_io::LocalAddr;

use crate::registry::lock;

/// An open device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) context: Arc<Context>,
}

impl Device {
    /// The row of an address, if it is one of this device.
    pub(crate) fn row_of(&self, local: LocalAddr) -> Option<GidEntry> {
        self.context.gid_table().into_iter().find(|row| row.local == local)
    }

    fn is(&self, info: &DeviceInfo) -> bool {
        self.context.info().netdev_index == info.netdev_index
    }
}

/// The open devices of a process.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    open: Mutex<Vec<Arc<Device>>>,
}

impl Devices {
    /// Those that are open.
    pub(crate) fn open(&self) -> Vec<Arc<Device>> {
        lock(&self.open).clone()
    }

    /// The device that has `local`, always that one.
    ///
    /// # Errors
    /// [`OpenError::NoSuchAddress`], with the devices and addresses that there are; those of opening
    /// the device.
    pub(crate) fn with(&self, local: LocalAddr, config: &Config) -> Result<Arc<Device>, OpenError> {
        // The table of an open device follows its addresses: the usual case asks the system nothing.
        let owner = self.open().into_iter().find(|device| device.row_of(local).is_some());
        if let Some(device) = owner {
            return Ok(device);
        }
        self.device(&device_with(local)?, config)
    }

    /// The device of this description.
    ///
    /// # Errors
    /// Those of opening it.
    pub(crate) fn device(
        &self,
        info: &DeviceInfo,
        config: &Config,
    ) -> Result<Arc<Device>, OpenError> {
        // Held while it is opened: two threads must not open it twice.
        let mut open = lock(&self.open);
        if let Some(device) = open.iter().find(|device| device.is(info)) {
            return Ok(device.clone());
        }
        let context = Context::open(Some(&info.netdev), config.clone())?;
        let device = Arc::new(Device { context });
        open.push(device.clone());
        Ok(device)
    }

    /// The device of this name, or of this netdev's.
    ///
    /// # Errors
    /// Those of opening it.
    pub(crate) fn named(&self, name: &str, config: &Config) -> Result<Arc<Device>, OpenError> {
        let named = |info: &&DeviceInfo| info.name == name || info.netdev == name;
        match devices()?.iter().find(named) {
            Some(info) => self.device(info, config),
            // For the error, which says what there is.
            None => Context::open(Some(name), config.clone())
                .map(|context| Arc::new(Device { context })),
        }
    }
}
