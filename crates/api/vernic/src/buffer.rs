//! Buffers: memory that may be registered.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use vernic_mem::HostBuffer;

use crate::CreateError;
use crate::error::RangeError;

/// Page-aligned memory to be registered, shared with no reference: see [`memory`](crate::memory).
///
/// It is registered whole, so a peer process of this host that is granted access may map it: what
/// that peer is not to see belongs into another buffer.
///
/// A clone is another handle to the same bytes.
#[derive(Clone, Debug)]
pub struct Buffer(Arc<HostBuffer>);

impl Buffer {
    /// `len` zeroed bytes. No page is touched until it is used. A child of `fork` does not have
    /// them: it is ended by SIGSEGV if it accesses them.
    ///
    /// # Errors
    /// [`CreateError::Os`], typically out of memory.
    pub fn zeroed(len: usize) -> Result<Self, CreateError> {
        let memory = HostBuffer::new(len)
            .map_err(|source| CreateError::Os { what: "allocate a buffer", source })?;
        Ok(Self(Arc::new(memory)))
    }

    /// A buffer with a copy of `bytes`.
    ///
    /// # Errors
    /// As [`Buffer::zeroed`].
    pub fn copy_of(bytes: &[u8]) -> Result<Self, CreateError> {
        let buffer = Self::zeroed(bytes.len())?;
        // The length is the buffer's own, so the copy fits.
        let _ = buffer.0.write_at(0, bytes);
        Ok(buffer)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Copies bytes from `offset` on into `dst`.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside; nothing is copied.
    pub fn read_at(&self, offset: usize, dst: &mut [u8]) -> Result<(), RangeError> {
        let len = dst.len();
        let done = self.0.read_at(offset, dst).map_err(|_| self.out_of_range(offset, len));
        // A reader that found a flag set must then see what was stored before the flag.
        fence(Ordering::Acquire);
        done
    }

    /// Copies `src` to `offset` and on.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside; nothing is copied.
    pub fn write_at(&self, offset: usize, src: &[u8]) -> Result<(), RangeError> {
        self.0.write_at(offset, src).map_err(|_| self.out_of_range(offset, src.len()))
    }

    pub(crate) fn memory(&self) -> &HostBuffer {
        &self.0
    }

    fn out_of_range(&self, offset: usize, len: usize) -> RangeError {
        RangeError { start: offset, end: offset.saturating_add(len), len: self.len() }
    }
}

/// Offset and length of a range within `len` bytes.
pub(crate) fn resolve(
    range: impl RangeBounds<usize>,
    len: usize,
) -> Result<(usize, usize), RangeError> {
    let start = match range.start_bound() {
        Bound::Included(&n) => n,
        Bound::Excluded(&n) => n.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&n) => n.saturating_add(1),
        Bound::Excluded(&n) => n,
        Bound::Unbounded => len,
    };
    if start > end || end > len || end - start > u32::MAX as usize {
        return Err(RangeError { start, end, len });
    }
    Ok((start, end - start))
}
