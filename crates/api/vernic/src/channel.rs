//! Completion channels: sleeping until a completion comes (IBTA 11.4.2.2).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use vernic_engine as engine;

use crate::{Cq, CreateError, Device, sys};

/// A completion channel: queues that were armed report here. A clone is another handle to it.
///
/// Its descriptor is readable while a report waits: for `epoll` and the like, level-triggered. The
/// order that loses nothing is: arm, poll until empty, wait, and so on.
///
/// ```
/// use std::time::Duration;
/// use vernic::{Device, Wc};
/// let device = Device::open("lo")?;
/// let channel = device.create_channel()?;
/// let cq = device.create_cq_on(16, &channel)?;
/// let mut wcs = [Wc::default(); 16];
/// # for _ in 0..1 {
/// cq.arm();
/// if cq.poll(&mut wcs)?.is_empty() {
///     let _ = channel.wait(Some(Duration::from_millis(1)))?;
/// }
/// # }
/// # Ok::<(), vernic::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CompChannel {
    inner: Arc<engine::CompChannel>,
}

impl Device {
    /// A completion queue that reports on a channel when armed.
    ///
    /// # Errors
    /// [`CreateError::Limit`]; [`CreateError::OtherDevice`] if the channel is another's.
    pub fn create_cq_on(&self, depth: u32, channel: &CompChannel) -> Result<Cq, CreateError> {
        Ok(Cq::new(self.context().create_cq(depth, Some(channel.inner()))?))
    }

    /// A completion channel.
    ///
    /// # Errors
    /// [`CreateError::Os`] when the process has no descriptor left.
    pub fn create_channel(&self) -> Result<CompChannel, CreateError> {
        Ok(CompChannel::new(self.context().create_channel()?))
    }
}

impl CompChannel {
    pub(crate) fn new(inner: Arc<engine::CompChannel>) -> Self {
        Self { inner }
    }

    pub(crate) fn inner(&self) -> &Arc<engine::CompChannel> {
        &self.inner
    }

    /// Sleeps until a queue reports, and returns it; it must be armed again for its next report.
    /// `None` after `timeout`; without one it waits for ever. Returns early with `None` when a
    /// signal comes.
    ///
    /// # Errors
    /// What `poll` says about the descriptor.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<Cq>> {
        if let Some(cq) = self.try_next() {
            return Ok(Some(cq));
        }
        sys::wait_readable(self.as_fd(), timeout)?;
        Ok(self.try_next())
    }

    /// A queue that has reported, if there is one; never waits.
    pub fn try_next(&self) -> Option<Cq> {
        self.inner.try_next().map(Cq::new)
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}
