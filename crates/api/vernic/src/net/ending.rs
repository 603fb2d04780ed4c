//! How a connection ended, and waiting for that.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::error::OperationFailure;

/// Whether a side has ended the connection.
#[derive(Debug, Default)]
pub(super) struct Ending {
    by_us: AtomicBool,
    by_peer: AtomicBool,
    told: Notify,
}

impl Ending {
    /// This side ends it. The first side counts.
    pub(super) fn end(&self) {
        if !self.is_by_peer() {
            self.by_us.store(true, Ordering::Release);
        }
    }

    /// The peer has ended it, or agreed to that, or its device is gone.
    pub(super) fn note_peer(&self) {
        self.by_peer.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    pub(super) fn is_by_peer(&self) -> bool {
        self.by_peer.load(Ordering::Acquire)
    }

    /// Returns when [`note_peer`](Self::note_peer) was called.
    pub(super) async fn wait_peer(&self) {
        let mut told = pin!(self.told.notified());
        told.as_mut().enable();
        if !self.is_by_peer() {
            told.await;
        }
    }

    /// Why operations fail, if a side has ended the connection.
    pub(super) fn reason(&self) -> Option<OperationFailure> {
        if self.by_us.load(Ordering::Acquire) {
            return Some(OperationFailure::Closed);
        }
        self.is_by_peer().then_some(OperationFailure::Disconnected)
    }
}
