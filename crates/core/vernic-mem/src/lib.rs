//! Registered memory: regions, windows, keys, access checks, and the copies themselves.
//!
//! Owns the key table of one device ([`Memory`]): protection domains, memory regions (MR), memory
//! windows (MW). It is the only crate that touches user buffers.
//!
//! Called by the engine: the control path (`register`, `bind_mw`, `deregister`...) from any thread,
//! behind one lock; the data path (`read_local`, `write_remote`, `atomic_cmp_swap`...) from threads
//! that run a lane, lock-free and without writing to anything shared.
//!
//! ```text
//!   key (32 bits) = index (24) . generation (8)
//!                      | look up (no arithmetic leads from one to another: `index`, `keys`)
//!                      v
//!   slot table: [ seq | key | kind | pd | qpn | access | iova | base, len ]   one cache line each
//!                      | snapshot under the sequence count, then
//!                      v check: key -> pd -> qpn -> rights -> bounds
//!   copy from or to raw memory (module `racy`): never a `&[u8]` over it
//! ```
//!
//! # When may the application free its memory?
//!
//! [`Memory::deregister`] kills the key: an access that *starts* afterwards is refused. One that
//! has passed its check may still be copying. So the caller of `deregister` must let every lane
//! that was running pass a barrier (take and release each lane's lock) before it tells the
//! application that the region is gone. The engine does so; it is the second half of the safety
//! contract of [`Memory::register`].
//!
//! `deregister` is refused while windows are bound, as the verb has to be. An owner who drops the
//! memory cannot take no for an answer: [`Memory::retire`] unbinds the region's windows and ends
//! the region under one hold of the control lock.
//!
//! # What a spinning reader may rely on
//!
//! Programs poll the last byte of a buffer that a remote WRITE fills. Each write here stores in
//! ascending order of addresses, and the naturally aligned word (up to 8 bytes) that holds the last
//! byte is stored last, with release order: whoever sees the last byte (acquire) sees all the
//! others. An aligned 8-byte word inside the range is stored and loaded whole. Of what this process
//! writes into another's memory ([`Memory::write_peer`]) only that last word is ordered, and words
//! are whole if both ends are aligned alike.
//!
//! # Memory of other processes
//!
//! A process of this host may be granted access to a region ([`Memory::grant`]): it then copies by
//! itself, with [`Memory::write_peer`] and its like, until the owner closes the key's gate, as
//! every change of the key does; `gates` has the order of it.
//!
//! Limits: 16,776,191 keys, 2^47 bytes per region, [`u32::MAX`] protection domains over a lifetime.
//!
//! Clauses: IBTA 10.6 (memory management), 11.2.8 (verbs for it), 9.7.4.1 and 9.9 (responder
//! checks).
#![deny(unsafe_code)]

mod access;
mod control;
mod data;
mod error;
mod grant;
mod in_place;
mod index;
mod keys;
mod memory;
mod pd;
mod peer;
#[allow(unsafe_code)]
mod racy;
mod random;
mod registration;
mod revocation;
mod sg;
mod table;
mod window;

pub use access::{Access, RemoteAccess};
pub use control::MwType;
pub use error::{
    AccessError, BindError, Check, DeregisterError, InvalidateError, PdError, RegisterError,
};
pub use grant::{Grant, GrantError};
pub use in_place::{InPlace, Named};
pub use memory::Memory;
pub use pd::PdId;
pub use peer::{PeerFault, Reach, WordOp};
pub use racy::{
    HostBuffer, HostList, PeerList, PeerMemory, PeerPiece, PeerProcess, RacySlice, RacySliceMut,
    Sentinel, SharedRange, admit, put_words, take_words,
};
#[cfg(not(miri))]
pub use racy::{MAX_SHARED_BYTES, NotShared, SharedPages, share_pages};
pub use registration::{Mr, MrHandle, Reregister};
pub use revocation::{GatePass, MAX_GATES, PATIENCE, PeerGates, Visit, Visitor, VisitorId};
pub use sg::{SgCursor, Sge, total_len};
pub use window::{Bind, Mw, MwHandle};

#[cfg(test)]
#[allow(unsafe_code)]
mod tests;
