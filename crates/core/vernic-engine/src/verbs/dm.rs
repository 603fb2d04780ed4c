//! Device memory (`ibv_alloc_dm`): memory that belongs to the device and has no address in the
//! application.
//!
//! The device is a library in the application's process, so its memory is a buffer that the library
//! owns. The application copies data in and out, and its work requests use the buffer by memory
//! regions whose addresses begin at 0.
//!
//! Another process of this host may be granted access to such a region. If the region covers the
//! whole buffer, that process maps the buffer. Otherwise that process copies by system calls, and
//! its atomics are sent as packets.
//!
//! Limits: [`MAX_DM_BYTES`](crate::device::limits::MAX_DM_BYTES) in total per open device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vernic_mem::HostBuffer;

use crate::device::limits::MAX_DM_ALIGN_LOG2;
use crate::error::{Busy, CreateError, DmRangeError, os};
use crate::verbs::context::Context;

/// A buffer of device memory, at first filled with zeros. It is freed when the handle and all
/// regions over it are gone.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    buffer: HostBuffer,
    regions: AtomicU32,
}

impl Context {
    /// Allocates `len` bytes of device memory, filled with zeros and aligned to 2^`align_log2`.
    ///
    /// # Errors
    /// [`CreateError::Limit`] if `len` is 0 or more than the device has left (of
    /// [`MAX_DM_BYTES`](crate::device::limits::MAX_DM_BYTES)), or if the alignment is too large;
    /// [`CreateError::Os`].
    pub fn alloc_dm(
        self: &Arc<Self>,
        len: u64,
        align_log2: u32,
    ) -> Result<Arc<DeviceMemory>, CreateError> {
        DeviceMemory::new(self, len, align_log2)
    }
}

impl DeviceMemory {
    pub(crate) fn new(
        context: &Arc<Context>,
        len: u64,
        align_log2: u32,
    ) -> Result<Arc<Self>, CreateError> {
        if context.is_closed() {
            return Err(CreateError::Closed);
        }
        // Allowed in a child of `fork`, too: it only takes memory of the calling process, and no
        // lock.
        let limit = |what, value, min, max| Err(CreateError::Limit { what, value, min, max });
        if align_log2 > MAX_DM_ALIGN_LOG2 {
            let (value, max) = (u64::from(align_log2), u64::from(MAX_DM_ALIGN_LOG2));
            return limit("log2 of the alignment of device memory", value, 0, max);
        }
        let in_use = &context.engine().in_use();
        if let Err(free) = in_use.take_device_memory(len) {
            return limit("bytes of device memory", len, 1, free);
        }
        // A `len` that does not fit into `usize` was refused above, because it is beyond the limit.
        let buffer = HostBuffer::new(len as usize).map_err(|error| {
            in_use.give_back_device_memory(len);
            os("allocate device memory", error)
        })?;
        Ok(Arc::new(Self { context: context.clone(), buffer, regions: AtomicU32::new(0) }))
    }

    /// Returns the device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the length of the buffer in bytes.
    pub fn len(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Returns false: device memory never has a length of 0.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Copies `from` into the buffer at `offset` (`ibv_memcpy_to_dm`). A peer that reads at the
    /// same time sees old and new bytes, but never a mixture within an aligned 8-byte word.
    ///
    /// # Errors
    /// [`DmRangeError`].
    pub fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), DmRangeError> {
        let range = self.range(offset, from.len())?;
        self.buffer.write_at(range, from).map_err(|_| self.outside(offset, from.len()))
    }

    /// Copies `to.len()` bytes out of the buffer, from `offset` on (`ibv_memcpy_from_dm`).
    ///
    /// # Errors
    /// [`DmRangeError`].
    pub fn copy_out(&self, offset: u64, to: &mut [u8]) -> Result<(), DmRangeError> {
        let (range, len) = (self.range(offset, to.len())?, to.len());
        self.buffer.read_at(range, to).map_err(|_| self.outside(offset, len))
    }

    /// Checks that no memory region covers the buffer. The buffer is freed when its last reference
    /// is dropped.
    ///
    /// # Errors
    /// [`Busy`] while regions cover the buffer.
    pub fn destroy(&self) -> Result<(), Busy> {
        match self.regions.load(Ordering::Acquire) {
            0 => Ok(()),
            _ if self.context.is_orphan() => Ok(()),
            users => Err(Busy { object: "device memory", users, by: "memory regions" }),
        }
    }

    pub(crate) fn hold(&self) {
        self.regions.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn release(&self) {
        self.regions.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns the address of a range's first byte; an error if the range is not inside the buffer.
    pub(crate) fn place(&self, offset: u64, len: u64) -> Result<*mut u8, DmRangeError> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        Ok(self.buffer.as_mut_ptr().wrapping_add(self.range(offset, len)?))
    }

    fn range(&self, offset: u64, len: usize) -> Result<usize, DmRangeError> {
        let end = offset.checked_add(len as u64).filter(|&end| end <= self.len());
        end.map(|_| offset as usize).ok_or_else(|| self.outside(offset, len))
    }

    fn outside(&self, offset: u64, len: usize) -> DmRangeError {
        DmRangeError { offset, len: len as u64, size: self.len() }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.context.engine().in_use().give_back_device_memory(self.len());
    }
}
