//! Keys of ids and devices within their process.

use vernic_engine::{DeviceInfo, Transport};

/// The number of an id, unique for the life of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IdKey(pub(crate) u64);

/// A device by the index of its netdev and its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DeviceKey {
    pub(crate) netdev: u32,
    pub(crate) transport: Transport,
}

impl DeviceKey {
    pub(crate) fn of(info: &DeviceInfo) -> Self {
        Self { netdev: info.port.netdev_index, transport: info.transport }
    }
}
