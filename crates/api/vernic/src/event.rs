//! Asynchronous events (IBTA 11.6.3): what happens to a device and its objects outside any request.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use vernic_engine::AsyncEvent;

use crate::{Device, sys};

/// The asynchronous events of a device, in order. Each event is delivered once, to whoever asks
/// first. Its descriptor is readable while one waits.
///
/// ```
/// use std::time::Duration;
/// use vernic::Device;
/// let device = Device::open("lo")?;
/// if let Some(event) = device.events().wait(Some(Duration::ZERO))? {
///     println!("{:?} happened to {:?}", event.kind, event.element);
/// }
/// # Ok::<(), vernic::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Events {
    device: Device,
}

impl Device {
    /// Its asynchronous events.
    pub fn events(&self) -> Events {
        Events::new(self.clone())
    }
}

impl Events {
    pub(crate) fn new(device: Device) -> Self {
        Self { device }
    }

    /// Sleeps until an event comes. `None` after `timeout`, and early when a signal comes; without
    /// a timeout it waits for ever.
    ///
    /// # Errors
    /// What `poll` says about the descriptor.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<AsyncEvent>> {
        if let Some(event) = self.try_next() {
            return Ok(Some(event));
        }
        sys::wait_readable(self.as_fd(), timeout)?;
        Ok(self.try_next())
    }

    /// The next event, if there is one; never waits.
    pub fn try_next(&self) -> Option<AsyncEvent> {
        self.device.context().try_async_event()
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.context().async_fd()
    }
}

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.device.context().async_raw_fd()
    }
}
