//! Memory that others may change at any time. Only this module has `unsafe`.
//!
//! The caller of [`crate::Memory::register`] promises that the bytes stay mapped until the region
//! is deregistered and the lanes have passed a barrier. This module owns that promise, and all code
//! that relies on it:
//! - [`Region`] carries the promise and checks bounds.
//! - [`Slot`] publishes the promise to the data path.
//! - `copy` accesses the memory; `address_space` does so for a region over the whole address space.
//! - [`HostBuffer`] is memory of this process, made to be registered.
//! - [`PeerMapping`] and [`PeerRange`] are granted memory of other processes.
//!
//! A C program, another thread or another process may read and write the same bytes at the same
//! time. So no code here forms a reference to such bytes. A plain Rust access would be a data race,
//! which is undefined behaviour. Each access is a relaxed (or stronger) atomic, or an assembly
//! move, which the compiler must treat alike.

mod address_space;
mod copy;
mod host_buffer;
mod inline_data;
mod liveness;
#[cfg(not(miri))]
mod memfd;
mod peer;
mod peer_copies;
mod ptracer;
mod region;
#[cfg(not(miri))]
mod shared_pages;
mod shares;
mod slice;
mod slot;
mod words;

pub(crate) use address_space::is_reachable;
pub use copy::{read_words, write_words};
pub use host_buffer::HostBuffer;
pub use inline_data::InlineData;
pub(crate) use liveness::LivenessPage;
pub use liveness::LivenessWord;
pub use peer::{PeerList, PeerMapping, PeerPiece, PeerRange};
pub(crate) use peer_copies::CopyBatch;
pub use ptracer::{PtracePermit, asks_traced_process, permitted_ptracer};
pub(crate) use region::{Region, flush_fence};
#[cfg(not(miri))]
pub use shared_pages::{MAX_SHARED_BYTES, NotShared, SharedPages, share_pages};
pub use shares::SharedRange;
pub(crate) use shares::find as find_share;
pub(crate) use slice::{AccessLifetime, with_access_lifetime};
pub use slice::{RacySlice, RacySliceMut};
pub(crate) use slot::{Entry, Kind, Slot};
pub(crate) use words::SharedWords;
