//! How links are made: one factory for each kind.
//!
//! Called when a device is opened, with what the settings say and the process slots that the link
//! is to publish itself in. A kind that is not here implements [`LinkFactory`] where it is.

use std::io;
use std::sync::Arc;

use crate::closed::ClosedLink;
use crate::host::SlotTable;
use crate::link::Link;
use crate::udp::{UdpConfig, UdpLink};

/// What a link is to be made of.
#[derive(Clone, Debug)]
pub struct LinkSetup {
    /// The process slots of the device's engine: a link that processes of this host can reach by a
    /// door of its own says so there.
    pub slots: Arc<SlotTable>,
    /// False to do without the system's offloads.
    pub offload: bool,
    /// Send and receive buffer of each socket, bytes.
    pub socket_buffer_bytes: u32,
}

/// Makes links of one kind.
pub trait LinkFactory: Send + Sync {
    /// Makes one, which has no address yet.
    ///
    /// # Errors
    /// Of the system.
    fn open(&self, setup: &LinkSetup) -> io::Result<Box<dyn Link>>;
}

/// RoCEv2 over the system's UDP.
#[derive(Clone, Copy, Debug, Default)]
pub struct UdpFactory;

impl LinkFactory for UdpFactory {
    fn open(&self, setup: &LinkSetup) -> io::Result<Box<dyn Link>> {
        let config = UdpConfig {
            offload: setup.offload,
            receive_buffer_bytes: setup.socket_buffer_bytes,
            send_buffer_bytes: setup.socket_buffer_bytes,
        };
        Ok(Box::new(UdpLink::open(config, setup.slots.clone())))
    }
}

/// No link: of devices that have no packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLink;

impl LinkFactory for NoLink {
    fn open(&self, _setup: &LinkSetup) -> io::Result<Box<dyn Link>> {
        Ok(Box::new(ClosedLink::unused()))
    }
}
