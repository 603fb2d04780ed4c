//! The only module with `unsafe`: telling the engine which memory it may access.
//!
//! Owns [`Registered`], which ties a registration to the buffer under it so that the buffer cannot
//! go first, and [`RawMr`], for memory that the caller vouches for. With the feature `tokio` also
//! the one call of tokio that asks for a promise about a descriptor.
#![allow(unsafe_code)]

use std::sync::Arc;

use vernic_engine as engine;
use vernic_mem::{Access as Bits, Sge};

use crate::buffer::Buffer;
use crate::buffer::resolve;
use crate::error::RangeError;
use crate::{Access, CreateError, DeviceMemory, Lkey, Pd, RemoteMr, Rkey};

/// A registration together with the buffer that it covers. A clone is another reference to both.
///
/// Invariant: `mr` was registered over `buffer`; whatever has a reference to that registration has
/// one to `buffer` too, and drops `mr` first (fields drop in the order in which they are declared).
/// So the last reference to the registration goes while there is the buffer.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    mr: Arc<engine::Mr>,
    buffer: Buffer,
}

impl Registered {
    pub(crate) fn new(pd: &Pd, buffer: Buffer, access: Access) -> Result<Self, CreateError> {
        let memory = buffer.memory();
        let addr = memory.as_mut_ptr();
        let iova = iova(addr, access);
        // SAFETY: the range is the buffer's mapping, readable and writable. It lives at least as
        // long as this value or a clone of it holds `buffer`, and each drops its `mr` first. So the
        // drop of the last `mr`, which ends the registration and waits for accesses in flight,
        // comes before that of the last `buffer`. There are no references into the mapping:
        // `Buffer` copies in and out by racy accesses only.
        let mr = unsafe { pd.inner().reg_mr(addr, memory.len() as u64, iova, access.mem())? };
        Ok(Self { mr, buffer })
    }

    pub(crate) fn mr(&self) -> &engine::Mr {
        &self.mr
    }

    /// Changes the rights.
    pub(crate) fn rereg(&self, access: Access) -> Result<(), CreateError> {
        let change = engine::MrChange { access: Some(access.mem()), ..Default::default() };
        // SAFETY: the memory stays the buffer's, which is readable and writable whatever the
        // rights.
        unsafe { self.mr.rereg(change) }
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Ends the registration, whatever else has a reference to it.
    pub(crate) fn into_buffer(self) -> Buffer {
        self.mr.end();
        self.buffer
    }
}

fn iova(addr: *mut u8, access: Access) -> u64 {
    if access.mem().contains(Bits::ZERO_BASED) { 0 } else { addr.addr() as u64 }
}

/// A region over memory that the caller owns (shared with C, mapped from a file) or the device.
///
/// Made by [`Pd::register_raw`] and [`Pd::register_dm`]. There are no methods to look at the bytes:
/// the caller has them. Dropping it ends the registration and waits for accesses in flight; then
/// the memory may go.
#[derive(Debug)]
pub struct RawMr {
    mr: Arc<engine::Mr>,
}

impl Pd {
    /// Registers part of a device's memory. Work requests and peers count its addresses from 0.
    ///
    /// ```
    /// use vernic::{Access, Device};
    /// let device = Device::open("lo")?;
    /// let dm = device.alloc_dm(4096)?;
    /// let mr = device.alloc_pd()?.register_dm(&dm, 1024, 64, Access::NONE.remote_atomic())?;
    /// assert_eq!((mr.remote().addr, mr.len()), (0, 64));
    /// let mut counter = [0; 8];
    /// dm.copy_out(1024, &mut counter)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CreateError`]: a range that is not inside, memory of another device.
    pub fn register_dm(
        &self,
        dm: &Arc<DeviceMemory>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<RawMr, CreateError> {
        Ok(RawMr { mr: self.inner().reg_dm_mr(dm, offset, len, access.mem())? })
    }

    /// Registers memory that stays the caller's. No page is touched or pinned, whatever the length.
    ///
    /// [`Pd::register`] does the same for memory that the region owns, and needs no promise.
    ///
    /// # Safety
    /// Until the returned region has been dropped:
    /// - `addr..addr + len` stays mapped and readable, and writable if `access` has
    ///   [`local_write`](Access::local_write);
    /// - all accesses to it by other code are atomic or volatile, or from another language or
    ///   process, or do not overlap in time with work requests and operations of peers that
    ///   conflict with them. While such operations may run there is no `&mut` to the bytes and, if
    ///   they write, no `&` either.
    ///
    /// # Errors
    /// [`CreateError`]: null with a length, a range that wraps, no key left.
    pub unsafe fn register_raw(
        &self,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<RawMr, CreateError> {
        let iova = iova(addr, access);
        // SAFETY: the caller promises it until the region is dropped, whose only reference to the
        // registration ends it then.
        let mr = unsafe { self.inner().reg_mr(addr, len as u64, iova, access.mem())? };
        Ok(RawMr { mr })
    }
}

impl RawMr {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.mr.len() as usize
    }
    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.mr.is_empty()
    }
    /// Key for local work requests.
    pub fn lkey(&self) -> Lkey {
        self.mr.lkey()
    }
    /// Key for peers.
    pub fn rkey(&self) -> Rkey {
        self.mr.rkey()
    }
    /// What a peer needs to reach it, to be sent there.
    pub fn remote(&self) -> RemoteMr {
        RemoteMr { addr: self.mr.iova(), rkey: self.mr.rkey(), len: self.mr.len() }
    }
    /// A part of it, for work requests.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside.
    pub fn slice(
        &self,
        range: impl std::ops::RangeBounds<usize>,
    ) -> Result<RawSlice<'_>, RangeError> {
        let (offset, len) = resolve(range, self.len())?;
        Ok(RawSlice { mr: self, offset, len })
    }
}

/// A part of a [`RawMr`].
#[derive(Clone, Copy, Debug)]
pub struct RawSlice<'m> {
    mr: &'m RawMr,
    offset: usize,
    len: usize,
}

impl RawSlice<'_> {
    pub(crate) fn sge(&self) -> Sge {
        Sge {
            addr: self.mr.mr.iova().wrapping_add(self.offset as u64),
            length: self.len as u32,
            lkey: self.mr.lkey(),
        }
    }
    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A value that keeps one descriptor open and the same for as long as it lives.
///
/// # Safety
/// `as_raw_fd` gives the same open descriptor each time, until the value is dropped, whatever is
/// done to it through `&` and `&mut`.
#[cfg(feature = "tokio")]
pub(crate) unsafe trait OneDescriptor: std::os::fd::AsRawFd {}

// SAFETY: the descriptor belongs to the channel that the value holds a reference to for its whole
// life; it is closed with the last of these. The field is private and never replaced.
#[cfg(feature = "tokio")]
unsafe impl OneDescriptor for crate::CompChannel {}
// SAFETY: the descriptor belongs to the device that the value holds a reference to, as above.
#[cfg(feature = "tokio")]
unsafe impl OneDescriptor for crate::Events {}

// SAFETY: the value owns its descriptor, and closes it when it is dropped.
#[cfg(feature = "tokio")]
unsafe impl OneDescriptor for std::os::fd::OwnedFd {}

/// The channel of a connection or a listener, watched.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub(crate) struct WatchedChannel(std::sync::Arc<vernic_cm::EventChannel>);

#[cfg(feature = "tokio")]
impl WatchedChannel {
    pub(crate) fn new(channel: std::sync::Arc<vernic_cm::EventChannel>) -> Self {
        Self(channel)
    }

    pub(crate) fn get(&self) -> &std::sync::Arc<vernic_cm::EventChannel> {
        &self.0
    }
}

#[cfg(feature = "tokio")]
impl std::os::fd::AsRawFd for WatchedChannel {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

// SAFETY: the descriptor belongs to the channel that the value holds a reference to for its whole
// life, as above.
#[cfg(feature = "tokio")]
unsafe impl OneDescriptor for WatchedChannel {}

/// Has the runtime watch the value's descriptor for input.
#[cfg(feature = "tokio")]
pub(crate) fn watch<T: OneDescriptor>(value: T) -> std::io::Result<tokio::io::unix::AsyncFd<T>> {
    tokio::runtime::Handle::try_current().map_err(std::io::Error::other)?;
    let interest = tokio::io::Interest::READABLE;
    // SAFETY: the descriptor stays open and the same as long as `AsyncFd` owns the value.
    let watched = unsafe { tokio::io::unix::AsyncFd::register_with_interest(value, interest) };
    watched.map_err(Into::into)
}
