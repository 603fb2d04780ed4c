//! Memory that work requests and peers may reach, and how the program looks at it. See
//! [`crate::memory`].

use std::ops::RangeBounds;

use vernic_mem::Sge;

use crate::buffer::{Buffer, resolve};
use crate::error::RangeError;
use crate::raw::{RawMr, RawSlice, Registered};
use crate::service::Sealed;
use crate::{Access, CreateError, Lkey, Pd, RemoteMr, Rkey};

/// A memory region: a registered [`Buffer`] (IBTA 10.6.3). Deregistered when dropped, as by
/// [`Mr::deregister`]; if operations of a `net::Connection` (feature `tokio`) use it then, with the
/// last of them.
///
/// ```
/// use vernic::{Access, Buffer, Device};
/// let pd = Device::open("lo")?.alloc_pd()?;
/// let mr = pd.register(Buffer::zeroed(4096)?, Access::NONE.remote_read())?;
/// mr.write_at(100, b"hello")?;
/// let mut word = [0; 5];
/// mr.read_at(100, &mut word)?;
/// assert_eq!(&word, b"hello");
/// println!("peers reach it as {:?}", mr.remote());
/// # Ok::<(), vernic::Error>(())
/// ```
#[derive(Debug)]
pub struct Mr {
    registered: Registered,
    access: Access,
}

impl Pd {
    /// Registers memory: work requests reach it by its lkey and, with remote rights, peers by its
    /// rkey. Costs the same for any length; no page is touched or pinned.
    ///
    /// # Errors
    /// [`CreateError::Memory`] when all keys are in use.
    pub fn register(&self, buffer: Buffer, access: Access) -> Result<Mr, CreateError> {
        Mr::new(self, buffer, access)
    }

    /// A region of `len` zeroed bytes: [`Buffer::zeroed`] and [`Pd::register`] together.
    ///
    /// # Errors
    /// As those.
    pub fn alloc_mr(&self, len: usize, access: Access) -> Result<Mr, CreateError> {
        self.register(Buffer::zeroed(len)?, access)
    }
}

impl Mr {
    pub(crate) fn new(pd: &Pd, buffer: Buffer, access: Access) -> Result<Self, CreateError> {
        Ok(Self { registered: Registered::new(pd, buffer, access)?, access })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.registered.buffer().len()
    }
    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Its rights.
    pub fn access(&self) -> Access {
        self.access
    }
    /// Changes its rights; its keys stay, and [zero-based](Access::zero_based) stays what it was.
    /// Work and peers that need a right which is gone are refused when this returns.
    ///
    /// ```
    /// use vernic::{Access, Device};
    /// let mut mr = Device::open("lo")?.alloc_pd()?.alloc_mr(4096, Access::NONE.remote_write())?;
    /// let rkey = mr.rkey();
    /// mr.set_access(Access::NONE.remote_read())?;
    /// assert_eq!((mr.rkey(), mr.access()), (rkey, Access::NONE.remote_read()));
    /// # Ok::<(), vernic::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CreateError::Memory`] while memory windows are bound to it. Nothing changed then.
    pub fn set_access(&mut self, access: Access) -> Result<(), CreateError> {
        let access = access.based_as(self.access);
        self.registered.rereg(access)?;
        self.access = access;
        Ok(())
    }
    /// Key for local work requests.
    pub fn lkey(&self) -> Lkey {
        self.registered.mr().lkey()
    }
    /// Key for peers.
    pub fn rkey(&self) -> Rkey {
        self.registered.mr().rkey()
    }
    /// The memory under the region, as one more handle to it.
    pub fn buffer(&self) -> Buffer {
        self.registered.buffer().clone()
    }

    /// What a peer needs to reach the region, to be sent there.
    pub fn remote(&self) -> RemoteMr {
        let mr = self.registered.mr();
        RemoteMr { addr: mr.iova(), rkey: mr.rkey(), len: mr.len() }
    }

    /// Copies bytes from `offset` on into `dst`. What a peer writes meanwhile may be seen old or
    /// new, aligned 8-byte words whole.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside; nothing is copied.
    pub fn read_at(&self, offset: usize, dst: &mut [u8]) -> Result<(), RangeError> {
        self.registered.buffer().read_at(offset, dst)
    }

    /// Copies `src` to `offset` and on.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside; nothing is copied.
    pub fn write_at(&self, offset: usize, src: &[u8]) -> Result<(), RangeError> {
        self.registered.buffer().write_at(offset, src)
    }

    /// The bytes of a range, copied out.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside.
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Result<Vec<u8>, RangeError> {
        let (offset, len) = resolve(range, self.len())?;
        let mut bytes = vec![0; len];
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// The 8 bytes at `offset` as a host-endian number, for programs that wait for a peer's WRITE
    /// or atomic by looking at memory. At a multiple of 8 they are read whole, and a program that
    /// sees the last byte of a message there sees all the others too.
    ///
    /// The device makes progress in verbs calls and, when they stop, in its background thread: a
    /// loop of nothing but this waits for that thread. Call
    /// [`Device::progress`](crate::Device::progress) in it.
    ///
    /// # Errors
    /// [`RangeError`] if the 8 bytes are not inside.
    pub fn load_u64(&self, offset: usize) -> Result<u64, RangeError> {
        let mut word = [0; 8];
        self.read_at(offset, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// The registration, which lives as long as what this returns.
    #[cfg(feature = "tokio")]
    pub(crate) fn keep(&self) -> Registered {
        self.registered.clone()
    }

    /// A part of the region, for work requests.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside or longer than 2^32 - 1 bytes.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<MrSlice<'_>, RangeError> {
        let (offset, len) = resolve(range, self.len())?;
        Ok(MrSlice { mr: self, offset, len })
    }

    /// Everything from `offset` to the end.
    ///
    /// # Errors
    /// As [`Mr::slice`].
    pub fn at(&self, offset: usize) -> Result<MrSlice<'_>, RangeError> {
        self.slice(offset..)
    }

    /// Ends the registration and gives the memory back. Its keys are dead and no access is in
    /// flight when this returns.
    ///
    /// Windows bound to it are unbound, in the same step: a [`Type1`](crate::Type1) window as by
    /// [`Mw::unbind`](crate::Mw::unbind), a [`Type2`](crate::Type2) window as if invalidated. They
    /// live on and may be bound again. Windows over other regions are left alone.
    pub fn deregister(self) -> Buffer {
        self.registered.into_buffer()
    }
}

/// A part of an [`Mr`]: an element of the scatter or gather list of a work request.
///
/// It borrows the region only while the request is posted; see [`memory`](crate::memory) for what
/// happens to work whose region is dropped.
#[derive(Clone, Copy, Debug)]
pub struct MrSlice<'m> {
    mr: &'m Mr,
    offset: usize,
    len: usize,
}

impl MrSlice<'_> {
    /// The region.
    #[cfg(feature = "tokio")]
    pub(crate) fn mr(&self) -> &Mr {
        self.mr
    }
    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the first bytes of the part into `dst`.
    ///
    /// # Errors
    /// [`RangeError`] if `dst` is longer than the part.
    pub fn copy_to(&self, dst: &mut [u8]) -> Result<(), RangeError> {
        resolve(..dst.len(), self.len)?;
        self.mr.read_at(self.offset, dst)
    }

    /// Copies `src` to the beginning of the part.
    ///
    /// # Errors
    /// [`RangeError`] if `src` is longer than the part.
    pub fn copy_from(&self, src: &[u8]) -> Result<(), RangeError> {
        resolve(..src.len(), self.len)?;
        self.mr.write_at(self.offset, src)
    }
}

/// One piece of memory in a list: a region or a part of one.
pub trait Piece: Sealed {
    #[doc(hidden)]
    fn sge(&self) -> Sge;
}

impl Sealed for MrSlice<'_> {}
impl Piece for MrSlice<'_> {
    fn sge(&self) -> Sge {
        let addr = self.mr.registered.mr().iova().wrapping_add(self.offset as u64);
        Sge { addr, length: self.len as u32, lkey: self.mr.lkey() }
    }
}
impl Sealed for RawSlice<'_> {}
impl Piece for RawSlice<'_> {
    fn sge(&self) -> Sge {
        self.sge()
    }
}
impl Sealed for &Mr {}
impl Piece for &Mr {
    fn sge(&self) -> Sge {
        // Longer regions than a message can be are cut: 2^31 bytes are the limit anyway.
        MrSlice { mr: self, offset: 0, len: self.len().min(u32::MAX as usize) }.sge()
    }
}
impl Sealed for &RawMr {}
impl Piece for &RawMr {
    fn sge(&self) -> Sge {
        let len = self.len().min(u32::MAX as usize) as u32;
        Sge { addr: self.remote().addr, length: len, lkey: self.lkey() }
    }
}

/// Pieces on the stack, one more than any queue takes: a list that is too long is refused for it.
#[derive(Debug)]
pub(crate) struct SgeList {
    sges: [Sge; 33],
    len: usize,
}

impl Default for SgeList {
    fn default() -> Self {
        Self { sges: [Sge::default(); 33], len: 0 }
    }
}

impl SgeList {
    pub(crate) fn push(&mut self, sge: Sge) {
        if let Some(place) = self.sges.get_mut(self.len) {
            *place = sge;
            self.len += 1;
        }
    }

    pub(crate) fn as_slice(&self) -> &[Sge] {
        &self.sges[..self.len]
    }
}

/// Where incoming bytes go: one [`Piece`], an array or slice of pieces, or `()` for none.
///
/// Receives, READs and atomics take this. At most 32 pieces, fewer if the queue was created for
/// fewer.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is nowhere to put incoming bytes",
    label = "no registered memory",
    note = "pass a region (`&mr`), a part of one (`mr.slice(..)?`), or an array of these; `Inline` \
            bytes are copied when they are posted, so they are a source only"
)]
pub trait Scatter: Sealed {
    #[doc(hidden)]
    fn for_each(&self, put: &mut dyn FnMut(Sge));
}

impl Sealed for () {}
impl Scatter for () {
    fn for_each(&self, _: &mut dyn FnMut(Sge)) {}
}

macro_rules! scatter_piece {
    ($($piece:ty),*) => {$(
        impl Scatter for $piece {
            fn for_each(&self, put: &mut dyn FnMut(Sge)) {
                put(Piece::sge(self));
            }
        }
    )*};
}
scatter_piece!(MrSlice<'_>, RawSlice<'_>, &Mr, &RawMr);

impl<P: Piece, const N: usize> Sealed for [P; N] {}
impl<P: Piece, const N: usize> Scatter for [P; N] {
    fn for_each(&self, put: &mut dyn FnMut(Sge)) {
        self.iter().for_each(|piece| put(piece.sge()));
    }
}
impl<P: Piece> Sealed for &[P] {}
impl<P: Piece> Scatter for &[P] {
    fn for_each(&self, put: &mut dyn FnMut(Sge)) {
        self.iter().for_each(|piece| put(piece.sge()));
    }
}

/// Where outgoing bytes come from: anything that is [`Scatter`], or [`Inline`] bytes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is nothing to send from",
    label = "neither registered memory nor `Inline` bytes",
    note = "pass a region (`&mr`), a part of one (`mr.slice(..)?`), an array of these, or \
            `Inline(&bytes)`"
)]
pub trait Gather: Sealed {
    #[doc(hidden)]
    fn for_each(&self, put: &mut dyn FnMut(Sge));
    #[doc(hidden)]
    fn inline(&self) -> Option<&[u8]> {
        None
    }
}

#[diagnostic::do_not_recommend]
impl<S: Scatter> Gather for S {
    fn for_each(&self, put: &mut dyn FnMut(Sge)) {
        Scatter::for_each(self, put);
    }
}

/// Bytes that are copied when the request is posted, and need no region: up to the queue pair's
/// `max_inline`.
#[derive(Clone, Copy, Debug)]
pub struct Inline<'b>(pub &'b [u8]);

impl Sealed for Inline<'_> {}
impl Gather for Inline<'_> {
    fn for_each(&self, _: &mut dyn FnMut(Sge)) {}
    fn inline(&self) -> Option<&[u8]> {
        Some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_resolved_or_refused_with_their_numbers() {
        assert_eq!(resolve(.., 8), Ok((0, 8)));
        assert_eq!(resolve(2..=3, 8), Ok((2, 2)));
        assert_eq!(resolve(8.., 8), Ok((8, 0)));
        assert_eq!(resolve(9.., 8), Err(RangeError { start: 9, end: 8, len: 8 }));
        assert_eq!(resolve(0..9, 8), Err(RangeError { start: 0, end: 9, len: 8 }));
        assert!(resolve(..=usize::MAX, 8).is_err());
    }

    #[test]
    fn buffers_are_copies_in_and_out_and_keep_their_bounds() {
        let buffer = Buffer::copy_of(b"0123456789").unwrap();
        let other = buffer.clone();
        other.write_at(8, b"ab").unwrap();
        let mut all = [0; 10];
        buffer.read_at(0, &mut all).unwrap();
        assert_eq!(&all, b"01234567ab");
        assert_eq!(other.write_at(9, b"xy"), Err(RangeError { start: 9, end: 11, len: 10 }));
        assert!(buffer.read_at(11, &mut []).is_err());
    }
}
