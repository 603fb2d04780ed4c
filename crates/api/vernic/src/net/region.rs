//! Memory of awaited operations: what may be named, and what keeps it registered.

use vernic_mem::Sge;

use crate::memory::{Inline, Mr, MrSlice};
use crate::mr::Piece;
use crate::raw::Registered;
use crate::service::Sealed;

/// One piece of registered memory, with the registration.
#[derive(Debug)]
pub struct Part {
    pub(super) sge: Sge,
    pub(super) kept: Registered,
}

impl Part {
    fn new(slice: &MrSlice<'_>) -> Self {
        Self { sge: slice.sge(), kept: slice.mr().keep() }
    }

    fn whole(mr: &Mr) -> Self {
        Self { sge: Piece::sge(&mr), kept: mr.keep() }
    }
}

/// Bytes to send.
#[derive(Debug)]
pub enum Bytes<'b> {
    /// Bytes of registered memory.
    Part(Part),
    /// Bytes that are copied when the request is posted.
    Inline(&'b [u8]),
}

impl Bytes<'_> {
    /// How many there are.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Part(part) => part.sge.length.into(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// Where the bytes of an awaited operation come from: a region, a part of one, or [`Inline`] bytes.
///
/// A region stays registered until the operation has completed, also if the future and the [`Mr`]
/// are dropped before.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is nothing to send from",
    label = "neither registered memory nor `Inline` bytes",
    note = "register memory (`Connection::alloc_mr`) and pass `&mr` or `mr.slice(..)?`, or copy a \
            few bytes with `Inline(&bytes)`"
)]
pub trait Source: Sealed {
    #[doc(hidden)]
    fn bytes(&self) -> Bytes<'_>;
}

/// Where the bytes of an awaited operation go: a region, a part of one, or `()` for none.
///
/// A region stays registered as that of a [`Source`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is nowhere to put what the peer sends",
    label = "no registered memory",
    note = "register memory (`Connection::alloc_mr`) and pass `&mr` or `mr.slice(..)?`"
)]
pub trait Sink: Sealed {
    #[doc(hidden)]
    fn part(&self) -> Option<Part>;
}

impl Sink for () {
    fn part(&self) -> Option<Part> {
        None
    }
}
impl Sink for MrSlice<'_> {
    fn part(&self) -> Option<Part> {
        Some(Part::new(self))
    }
}
impl Sealed for &MrSlice<'_> {}
impl Sink for &MrSlice<'_> {
    fn part(&self) -> Option<Part> {
        Some(Part::new(self))
    }
}
impl Sink for &Mr {
    fn part(&self) -> Option<Part> {
        Some(Part::whole(self))
    }
}

impl Source for MrSlice<'_> {
    fn bytes(&self) -> Bytes<'_> {
        Bytes::Part(Part::new(self))
    }
}
impl Source for &MrSlice<'_> {
    fn bytes(&self) -> Bytes<'_> {
        Bytes::Part(Part::new(self))
    }
}
impl Source for &Mr {
    fn bytes(&self) -> Bytes<'_> {
        Bytes::Part(Part::whole(self))
    }
}
impl Source for Inline<'_> {
    fn bytes(&self) -> Bytes<'_> {
        Bytes::Inline(self.0)
    }
}
