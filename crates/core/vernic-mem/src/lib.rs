//! Registered memory: regions, windows, keys, access checks, and the copies themselves.
//!
//! This crate owns the key table of one device ([`Memory`]): protection domains, memory regions
//! (MR) and memory windows (MW). No other crate touches user buffers.
//!
//! The engine calls this crate on two paths. The control path (`register`, `bind_mw`,
//! `deregister`...) may run on any thread and takes one lock. The data path (`read_local`,
//! `write_remote`, `atomic_cmp_swap`...) runs on the thread that holds a lane, which is what one
//! thread at a time moves packets with. It takes no lock and writes to nothing shared.
//!
//! ```text
//!   key (32 bits) = index (24) . generation (8)
//!                      | hash table (the index is not the slot's number: `index`, `keys`)
//!                      v
//!   slot table: [ seq | key | kind | pd | qpn | access | iova | base, len ]   one cache line each
//!                      | snapshot under the sequence count, then
//!                      v check: key -> pd -> qpn -> rights -> bounds
//!   copy from or to raw memory (module `racy`): never a `&[u8]` over it
//! ```
//!
//! # When may the application free its memory?
//!
//! [`Memory::deregister`] invalidates the key: an access that *starts* afterwards is refused. An
//! access that passed its check earlier may still be copying. So the caller of `deregister` must
//! make every running lane pass a barrier (take and release each lane's lock) before it tells the
//! application that the region is gone. The engine does so. This barrier is the second half of the
//! safety contract of [`Memory::register`].
//!
//! `deregister` fails while windows are bound to the region, as the verb requires. An owner that is
//! about to drop the memory cannot accept a failure. It calls [`Memory::force_deregister`], which
//! unbinds the windows and ends the region without releasing the control lock in between.
//!
//! # What a program that polls memory may rely on
//!
//! Programs poll the last byte of a buffer that a remote WRITE fills. Each write stores in
//! ascending order of addresses. The naturally aligned word (up to 8 bytes) that holds the last
//! byte is stored last, with release order. So a reader that sees the last byte (acquire) sees all
//! the other bytes. An aligned 8-byte word inside the range is stored and loaded whole.
//!
//! Writes into the memory of another process ([`RemoteMemory::write`]) promise less. Only the last
//! word is ordered after the others. Words are whole only if source and destination have the same
//! offset from a multiple of 8.
//!
//! # Memory of other processes
//!
//! The owner of a region may grant a process of this host access to it ([`Memory::grant`]). That
//! process then copies by itself, through [`RemoteMemory`], until the owner
//! revokes the key. Every change of a key revokes it. Module `revocation` describes the protocol.
//!
//! Limits: 16,776,191 keys, 2^47 bytes per region, [`u32::MAX`] protection domains over a lifetime.
//!
//! Clauses: IBTA 10.6 (memory management), 11.2.8 (its verbs), 9.7.4.1 and 9.9 (checks of the
//! responder).
#![deny(unsafe_code)]

mod access;
mod control;
mod data;
mod error;
mod grant;
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
mod slice_scope;
mod table;
mod window;

pub use access::{Access, RemoteAccess};
pub use control::MwType;
pub use error::{
    AccessError, BindError, Check, DeregisterError, InvalidateError, PdError, RegisterError,
};
pub use grant::{Grant, GrantError};
pub use memory::Memory;
pub use pd::PdId;
pub use peer::{Holds, LocalPart, PeerAtomic, PeerCopies, PeerCopyError, RemoteMemory};
pub use racy::{
    HostBuffer, InlineData, LivenessWord, PeerList, PeerMapping, PeerPiece, PeerRange,
    PtracePermit, RacySlice, RacySliceMut, SharedRange, asks_traced_process, permitted_ptracer,
    read_words, write_words,
};
#[cfg(not(miri))]
pub use racy::{MAX_SHARED_BYTES, NotShared, SharedPages, share_pages};
pub use registration::{Mr, MrHandle, Reregister};
pub use revocation::{
    GrantedProcess, GrantedProcessId, MAX_REVOCATION_WORDS, PeerAccess, PeerRevocationWords,
    REVOKE_TIMEOUT, RevocationToken,
};
pub use sg::{SgCursor, Sge, total_len};
pub use slice_scope::{SliceScope, Slices};
pub use window::{Bind, Mw, MwHandle};

#[cfg(test)]
#[allow(unsafe_code)]
mod tests;
