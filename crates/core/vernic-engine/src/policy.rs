//! What threads tell each other about who makes progress, without a lock.

use std::sync::atomic::{AtomicBool, AtomicU64};

/// The background thread's next look is not planned: it will look by itself, or must not be woken.
pub(crate) const LOOKS_BY_ITSELF: u64 = 0;
/// The background thread sleeps until a descriptor is readable.
pub(crate) const SLEEPS: u64 = u64::MAX;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    /// When a call last made progress on an application's thread, nanoseconds.
    pub(crate) called_at: AtomicU64,
    /// When the background thread looks next, in nanoseconds, or one of the values above. Changed
    /// to a later time only under the lane's lock.
    pub(crate) looks_at: AtomicU64,
    /// The background thread ignores sockets because inline progress is active.
    pub(crate) backs_off: AtomicBool,
}
