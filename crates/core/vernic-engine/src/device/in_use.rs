//! What is in use of an open device: objects without a table of their own, and device memory.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::device::limits::MAX_DM_BYTES;

/// The counts of what is in use.
#[derive(Default)]
pub(crate) struct InUse {
    cqs: AtomicUsize,
    srqs: AtomicUsize,
    dm_bytes: AtomicU64,
}

impl InUse {
    /// Counts a completion queue that was created.
    pub(crate) fn add_cq(&self) {
        self.cqs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a completion queue as gone.
    pub(crate) fn remove_cq(&self) {
        self.cqs.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of open completion queues.
    pub(crate) fn cqs(&self) -> usize {
        self.cqs.load(Ordering::Relaxed)
    }

    /// Counts a shared receive queue that was created.
    pub(crate) fn add_srq(&self) {
        self.srqs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a shared receive queue as gone.
    pub(crate) fn remove_srq(&self) {
        self.srqs.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of open shared receive queues.
    pub(crate) fn srqs(&self) -> usize {
        self.srqs.load(Ordering::Relaxed)
    }

    /// Takes bytes of device memory, at least one.
    ///
    /// # Errors
    /// The number of free bytes, if it is less than asked.
    pub(crate) fn take_device_memory(&self, len: u64) -> Result<(), u64> {
        let take = |used: u64| used.checked_add(len).filter(|&all| len > 0 && all <= MAX_DM_BYTES);
        let taken = self.dm_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        taken.map(|_| ()).map_err(|used| MAX_DM_BYTES - used)
    }

    /// Gives bytes of device memory back.
    pub(crate) fn give_back_device_memory(&self, len: u64) {
        self.dm_bytes.fetch_sub(len, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_memory_is_taken_up_to_its_limit_and_can_be_taken_again() {
        let in_use = InUse::default();
        assert_eq!(in_use.take_device_memory(0), Err(MAX_DM_BYTES));
        assert_eq!(in_use.take_device_memory(MAX_DM_BYTES - 1), Ok(()));
        assert_eq!(in_use.take_device_memory(2), Err(1));
        assert_eq!(in_use.take_device_memory(u64::MAX), Err(1));
        assert_eq!(in_use.take_device_memory(1), Ok(()));
        in_use.give_back_device_memory(MAX_DM_BYTES);
        assert_eq!(in_use.take_device_memory(MAX_DM_BYTES), Ok(()));
    }
}
