//! Waiting in a tokio runtime (feature `tokio`).
//!
//! Wraps the descriptors of completion channels and of asynchronous events; nothing else of the API
//! blocks, so nothing else needs a wrapper.

use std::io;
use std::os::fd::AsRawFd;

use tokio::io::unix::AsyncFd;
use vernic_engine::AsyncEvent;

use crate::event::Events;
use crate::raw::watch;
use crate::{CompChannel, Cq, CreateError, Device, Error, Wc};

/// Waits until `next` finds something.
pub(crate) async fn next<T: AsRawFd, E>(
    fd: &AsyncFd<T>,
    next: impl Fn(&T) -> Option<E>,
) -> io::Result<E> {
    // Each turn waits for the descriptor, which is readable while something is queued.
    loop {
        if let Some(found) = next(fd.get_ref()) {
            return Ok(found);
        }
        let mut ready = fd.readable().await?;
        match next(fd.get_ref()) {
            Some(found) => {
                // More may be queued: readiness stays.
                ready.retain_ready();
                return Ok(found);
            }
            None => ready.clear_ready(),
        }
    }
}

/// A completion queue whose completions can be awaited. It has a channel of its own.
///
/// For work that one posts oneself. Connections with an await per operation are in
/// [`net`](crate::net).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), vernic::Error> {
/// use std::time::Duration;
/// use vernic::{AsyncCq, Device, Wc};
/// let device = Device::open("lo")?;
/// let cq = AsyncCq::new(&device, 64)?; // for QpBuilder: cq.cq()
/// let mut wcs = [Wc::default(); 8];
/// let waited = tokio::time::timeout(Duration::from_millis(1), cq.wait(&mut wcs)).await;
/// assert!(waited.is_err(), "nobody has posted anything");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct AsyncCq {
    cq: Cq,
    channel: AsyncFd<CompChannel>,
}

impl AsyncCq {
    /// A completion queue of `depth` completions. Call it inside a runtime.
    ///
    /// # Errors
    /// [`CreateError`]: depth out of range, no descriptor left, no runtime here.
    ///
    /// # Panics
    /// In a runtime that was built without its I/O driver, as everything of tokio that has a
    /// descriptor.
    pub fn new(device: &Device, depth: u32) -> Result<Self, CreateError> {
        let channel = device.create_channel()?;
        let cq = device.create_cq_on(depth, &channel)?;
        let channel = watch(channel)
            .map_err(|source| CreateError::Os { what: "watch a completion channel", source })?;
        Ok(Self { cq, channel })
    }

    /// The queue itself.
    pub fn cq(&self) -> &Cq {
        &self.cq
    }

    /// As [`Cq::wait`], without a limit: takes the completions that wait, and sleeps until there is
    /// one. Cancelling loses nothing.
    ///
    /// # Errors
    /// [`Error::Wait`] if the queue has overflowed; [`Error::Io`] if the runtime is shutting down.
    pub async fn wait<'w>(&self, wcs: &'w mut [Wc]) -> Result<&'w [Wc], Error> {
        // Each turn sleeps until the queue, once armed, has reported.
        loop {
            let mut taken = self.cq.poll(wcs)?.len();
            if taken == 0 && !wcs.is_empty() {
                self.cq.arm();
                taken = self.cq.poll(wcs)?.len();
            }
            if taken > 0 || wcs.is_empty() {
                return Ok(&wcs[..taken]);
            }
            next(&self.channel, CompChannel::try_next).await?;
        }
    }
}

/// The asynchronous events of a device, to be awaited.
#[derive(Debug)]
pub struct AsyncEvents(AsyncFd<Events>);

impl AsyncEvents {
    /// The events of `device`. Call it inside a runtime.
    ///
    /// # Errors
    /// What the runtime says about one more descriptor, or that there is none here.
    ///
    /// # Panics
    /// As [`AsyncCq::new`].
    pub fn new(device: &Device) -> io::Result<Self> {
        Ok(Self(watch(device.events())?))
    }

    /// As [`Events::wait`], without a limit: the next event. Cancelling loses nothing.
    ///
    /// # Errors
    /// If the runtime is shutting down.
    pub async fn wait(&self) -> io::Result<AsyncEvent> {
        next(&self.0, Events::try_next).await
    }
}
