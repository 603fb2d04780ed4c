//! Completion queues (IBTA 11.2.6, 11.4.2).

use std::sync::Arc;
use std::time::{Duration, Instant};

use vernic_engine as engine;

use crate::error::{Error, ResizeError, WaitError};
use crate::{CreateError, Device, Wc, WcError};

/// How long [`Cq::wait`] polls without a pause: longer than a round trip on one host.
const SPIN: Duration = Duration::from_micros(50);
/// How long it then polls with `yield` in between, so that the peer's process gets the core.
const YIELD: Duration = Duration::from_micros(200);
/// Then it sleeps this long between polls.
const NAP: Duration = Duration::from_micros(100);

/// Shorter waits in vain are usual, as of a program that looks after something else in between, and
/// do not say what was waited for: that takes the lane from other threads.
const TELL_FROM: Duration = Duration::from_secs(1);

/// A completion queue. A clone is another handle to it; the last one, queue pairs included,
/// destroys it.
///
/// Polling is also what drives the device: with no completion waiting, [`Cq::poll`] makes progress
/// on the caller's thread.
#[derive(Clone, Debug)]
pub struct Cq {
    inner: Arc<engine::Cq>,
}

impl Device {
    /// A completion queue that holds `depth` completions: 1 to 1,048,576.
    ///
    /// # Errors
    /// [`CreateError::Limit`].
    pub fn create_cq(&self, depth: u32) -> Result<Cq, CreateError> {
        Ok(Cq::new(self.context().create_cq(depth, None)?))
    }
}

impl Cq {
    pub(crate) fn new(inner: Arc<engine::Cq>) -> Self {
        Self { inner }
    }

    pub(crate) fn inner(&self) -> &Arc<engine::Cq> {
        &self.inner
    }

    /// Its name in asynchronous events.
    pub fn id(&self) -> engine::CqId {
        self.inner.id()
    }

    /// Completions that it holds at most. One more loses it, and fails the queue and the queue
    /// pair.
    pub fn depth(&self) -> u32 {
        self.inner.depth()
    }

    /// Takes the completions that wait, oldest first, at most as many as `wcs` holds. Never blocks.
    ///
    /// A failed completion is among them like any other: look at [`Wc::status`], or pass each to
    /// [`Cq::check`].
    ///
    /// # Errors
    /// [`WaitError::Overflow`] once the queue has lost completions and those it had are taken.
    ///
    /// ```
    /// use vernic::{Device, Wc};
    /// let cq = Device::open("lo")?.create_cq(16)?;
    /// let mut wcs = [Wc::default(); 16];
    /// for wc in cq.poll(&mut wcs)? {
    ///     let wc = cq.check(wc)?;
    ///     println!("{:?} is done", wc.wr_id());
    /// }
    /// # Ok::<(), vernic::Error>(())
    /// ```
    pub fn poll<'w>(&self, wcs: &'w mut [Wc]) -> Result<&'w [Wc], WaitError> {
        let taken = if wcs.is_empty() { 0 } else { self.inner.poll(wcs)? };
        Ok(&wcs[..taken])
    }

    /// As [`Cq::poll`], but waits up to `timeout` for the first completion.
    ///
    /// It polls at first, then lets other threads run in between, then naps: right for a reply that
    /// is due. A program with nothing to do for long sleeps on a
    /// [`CompChannel`](crate::CompChannel) instead.
    ///
    /// # Errors
    /// [`WaitError`]: nothing came, or the queue overflowed.
    pub fn wait<'w>(&self, wcs: &'w mut [Wc], timeout: Duration) -> Result<&'w [Wc], WaitError> {
        let taken = self.poll(wcs)?.len();
        if taken > 0 || wcs.is_empty() {
            return Ok(&wcs[..taken]);
        }
        let start = Instant::now();
        // Ends with a completion or the deadline.
        loop {
            let taken = self.poll(wcs)?.len();
            if taken > 0 {
                return Ok(&wcs[..taken]);
            }
            let waited = start.elapsed();
            if waited >= timeout {
                return Err(self.timed_out(timeout));
            }
            if waited < SPIN {
                std::hint::spin_loop();
            } else if waited < YIELD {
                std::thread::yield_now();
            } else {
                std::thread::sleep(NAP.min(timeout - waited));
            }
        }
    }

    /// Waits for one completion and checks it: [`Cq::wait`] and [`Cq::check`] together.
    ///
    /// # Errors
    /// [`Error::Wait`], or [`Error::Completion`] if it has failed.
    pub fn wait_one(&self, timeout: Duration) -> Result<Wc, Error> {
        let mut wc = [Wc::default()];
        match self.wait(&mut wc, timeout)? {
            [wc] => Ok(self.check(wc)?),
            _ => Err(self.timed_out(timeout).into()),
        }
    }

    /// The error of a wait that was in vain.
    #[cold]
    fn timed_out(&self, timeout: Duration) -> WaitError {
        let awaited = if timeout < TELL_FROM { Vec::new() } else { self.inner.awaited() };
        WaitError::Timeout(timeout, awaited.join("; ").into())
    }

    /// The completion itself if it succeeded, else an error with the whole story: which peer, which
    /// packet, which check, how many transmissions, what it usually means.
    ///
    /// It takes the queue because the story is kept with the queue pair, and a [`Wc`] is a plain
    /// copy.
    ///
    /// # Errors
    /// [`WcError`] if the status is not success.
    pub fn check(&self, wc: &Wc) -> Result<Wc, WcError> {
        if wc.is_success() {
            return Ok(*wc);
        }
        Err(WcError::new(*wc, self.inner.context().explain(wc.qpn())))
    }

    /// Arms the queue: its next completion raises an event on its channel, once. Completions that
    /// wait already raise none, so poll once more after arming (IBTA 11.4.2.2). Without a channel
    /// it does nothing.
    pub fn arm(&self) {
        self.inner.req_notify(false);
    }

    /// As [`Cq::arm`], but only for a completion that has failed or whose sender asked for it.
    pub fn arm_solicited(&self) {
        self.inner.req_notify(true);
    }

    /// Changes how many completions it holds.
    ///
    /// # Errors
    /// [`ResizeError`] if more wait than would fit, or beyond the device's limit.
    pub fn resize(&self, depth: u32) -> Result<(), ResizeError> {
        self.inner.resize(depth)
    }
}
