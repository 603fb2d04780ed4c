//! Factories that make links: one for each kind.
//!
//! Called when a device is opened, with the settings and the process slots that the link is to
//! publish itself in. A kind that is not here implements [`LinkFactory`] in its own crate.

use std::io;
use std::sync::Arc;

use crate::closed::ClosedLink;
use crate::host::SlotTable;
use crate::link::Link;
use crate::udp::{UdpConfig, UdpLink};

/// The settings and slots that a link is made with.
#[derive(Clone, Debug)]
pub struct LinkSetup {
    /// The process slots of the device's engine. A link with a private door for processes of this
    /// host publishes the door there.
    pub slots: Arc<SlotTable>,
    /// Whether to use the system's offloads.
    pub offload: bool,
    /// Whether packets of RoCEv1 are received from the start.
    pub receive_roce_v1: bool,
    /// Send and receive buffer of each socket, bytes.
    pub socket_buffer_bytes: u32,
}

/// A factory that makes links of one kind.
pub trait LinkFactory: Send + Sync {
    /// Makes a link, which has no address yet.
    ///
    /// # Errors
    /// The system's error.
    fn open(&self, setup: &LinkSetup) -> io::Result<Box<dyn Link>>;
}

/// The factory of RoCEv2 over the system's UDP.
#[derive(Clone, Copy, Debug, Default)]
pub struct UdpFactory;

impl LinkFactory for UdpFactory {
    fn open(&self, setup: &LinkSetup) -> io::Result<Box<dyn Link>> {
        let config = UdpConfig {
            offload: setup.offload,
            receive_roce_v1: setup.receive_roce_v1,
            receive_buffer_bytes: setup.socket_buffer_bytes,
            send_buffer_bytes: setup.socket_buffer_bytes,
        };
        Ok(Box::new(UdpLink::open(config, setup.slots.clone())))
    }
}

/// The factory of devices that have no packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLink;

impl LinkFactory for NoLink {
    fn open(&self, _setup: &LinkSetup) -> io::Result<Box<dyn Link>> {
        Ok(Box::new(ClosedLink::unused()))
    }
}
