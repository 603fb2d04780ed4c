//! Memory windows: remote rights over part of a region, given and taken without registering
//! (IBTA 10.6.7).

use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use vernic_engine as engine;
use vernic_mem::{Access as Bits, MwType};

use crate::error::{BindError, Error};
use crate::service::Sealed;
use crate::{Access, CreateError, Mr, Pd, Qpn, RemoteMr, Rkey};

/// The type of a window, as a type: [`Type1`] or [`Type2`].
pub trait WindowType: Sealed + std::fmt::Debug {
    #[doc(hidden)]
    const TYPE: MwType;
}

/// Bound by a call, reachable through every queue pair of its protection domain.
#[derive(Clone, Copy, Debug)]
pub struct Type1;
/// Bound by a work request, reachable through the queue pair on which it was bound (2B), and
/// invalidated by [`SendBatch::local_inv`](crate::SendBatch::local_inv) or by the peer's SEND with
/// invalidate.
#[derive(Clone, Copy, Debug)]
pub struct Type2;

impl Sealed for Type1 {}
impl Sealed for Type2 {}
impl WindowType for Type1 {
    const TYPE: MwType = MwType::Type1;
}
impl WindowType for Type2 {
    const TYPE: MwType = MwType::Type2;
}

/// A memory window. Its key dies when it is dropped.
///
/// ```
/// use vernic::{Access, Buffer, Device, Type1};
/// let pd = Device::open("lo")?.alloc_pd()?;
/// let mr = pd.register(Buffer::zeroed(4096)?, Access::NONE.local_write().bind_windows())?;
/// let window = pd.alloc_window::<Type1>()?;
/// let for_the_peer = window.bind(&mr, 1024..2048, Access::NONE.remote_write())?;
/// assert_eq!(for_the_peer.len, 1024);
/// assert_ne!(for_the_peer.rkey, mr.rkey());
/// # Ok::<(), vernic::Error>(())
/// ```
#[derive(Debug)]
pub struct Mw<T: WindowType> {
    inner: Arc<engine::Mw>,
    of_type: PhantomData<T>,
}

impl Pd {
    /// A memory window, bound to nothing yet.
    ///
    /// # Errors
    /// [`CreateError::Memory`] when all keys are in use.
    pub fn alloc_window<T: WindowType>(&self) -> Result<Mw<T>, CreateError> {
        Mw::new(self)
    }
}

impl<T: WindowType> Mw<T> {
    pub(crate) fn new(pd: &Pd) -> Result<Self, CreateError> {
        Ok(Self { inner: pd.inner().alloc_mw(T::TYPE)?, of_type: PhantomData })
    }

    /// Its present key.
    pub fn rkey(&self) -> Rkey {
        self.inner.rkey()
    }

    pub(crate) fn inner(&self) -> &engine::Mw {
        &self.inner
    }
}

impl Mw<Type1> {
    /// Gives peers rights over a range of a region, and returns what they need to reach it. What
    /// the window was bound to before is out of their reach (IBTA 11.2.8.11).
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Bind`] if the region does not permit windows, or is in another
    /// protection domain. The window stays as it was.
    pub fn bind(
        &self,
        mr: &Mr,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<RemoteMr, Error> {
        let target = Target::new(mr, range, access)?;
        let Target { addr, len, bits } = target;
        let rkey = self.inner.bind(Qpn::SMI, mr.lkey(), addr, len, bits)?;
        Ok(target.remote(rkey))
    }

    /// Takes all rights back.
    ///
    /// # Errors
    /// [`BindError`]: never for a window that lives.
    pub fn unbind(&self) -> Result<(), BindError> {
        self.inner.bind(Qpn::SMI, crate::Lkey(0), 0, 0, Bits::empty()).map(drop)
    }
}

/// What a window is to be bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) bits: Bits,
}

impl Target {
    pub(crate) fn new(
        mr: &Mr,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<Self, crate::RangeError> {
        let (offset, len) = crate::buffer::resolve(range, mr.len())?;
        let addr = mr.remote().addr.wrapping_add(offset as u64);
        Ok(Self { addr, len: len as u64, bits: access.remote_part() })
    }

    pub(crate) fn remote(&self, rkey: Rkey) -> RemoteMr {
        let zero_based = self.bits.contains(Bits::ZERO_BASED);
        RemoteMr { addr: if zero_based { 0 } else { self.addr }, rkey, len: self.len }
    }
}
