//! Memory that others change while we look: the only module with `unsafe`.
//!
//! Owns the promise that [`crate::Memory::register`] takes from its caller ("these bytes stay
//! mapped until the region is deregistered and the lanes have passed") and everything that leans on
//! it: [`Region`] carries the promise and checks bounds, [`Slot`] publishes it to the data path,
//! `copy` does the accesses (`address_space` those to a region over everything), [`HostBuffer`] is
//! memory of our own to register, [`PeerMemory`] and [`PeerProcess`] are memory of other processes
//! that offered it.
//!
//! The other side of every access here may be a C program, another thread or another process, which
//! reads and writes the same bytes at the same time. So nothing in this module forms a reference to
//! such bytes, and no access is a plain Rust access, whose race would be undefined behaviour: each
//! is a relaxed (or stronger) atomic, or an assembly move, which the compiler must treat alike.

mod address_space;
mod copy;
mod host_buffer;
mod host_list;
mod liveness;
#[cfg(not(miri))]
mod memfd;
mod peer;
mod region;
#[cfg(not(miri))]
mod shared_pages;
mod shares;
mod slice;
mod slot;
mod words;

pub(crate) use address_space::is_reachable;
pub use copy::{put_words, take_words};
pub use host_buffer::HostBuffer;
pub use host_list::HostList;
pub(crate) use liveness::LivenessPage;
pub use liveness::Sentinel;
pub(crate) use peer::Batch;
pub use peer::{PeerList, PeerMemory, PeerPiece, PeerProcess, admit};
pub(crate) use region::{Region, flush_fence};
#[cfg(not(miri))]
pub use shared_pages::{MAX_SHARED_BYTES, NotShared, SharedPages, share_pages};
pub use shares::SharedRange;
pub(crate) use shares::find as find_share;
pub(crate) use slice::{AccessLifetime, with_access_lifetime};
pub use slice::{RacySlice, RacySliceMut};
pub(crate) use slot::{Entry, Kind, Slot};
pub(crate) use words::SharedWords;
