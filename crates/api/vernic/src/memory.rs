//! Memory that work requests and peers may reach, and why there are only copies.
//!
//! # Why there are only copies
//!
//! A registered region can change at any moment: a receive completes, a peer WRITEs, an atomic
//! runs. A `&[u8]` over such bytes would be undefined behaviour, a `&mut [u8]` more so, and a
//! scheme of loans checked at run time would have to know when *peers* are done, which nobody
//! knows. So no reference into a [`Buffer`] exists: not in this API, and not in the engine below
//! it. The program copies in and out, and each copy is made of accesses that may race by
//! definition: naturally aligned words of 8 bytes are read and written whole, bytes ascend, the
//! last word is stored last.
//!
//! What follows:
//! - reading while the device writes is allowed and gives some mix of old and new words, never
//!   anything worse; a program that waits for the completion first sees exactly the message;
//! - dropping an [`Mr`] while work still names it is allowed: the drop waits for copies in flight,
//!   after that the key is dead, and the work fails with
//!   [`WcStatus::LocalProtection`](crate::WcStatus); no byte of freed memory is touched;
//! - the same [`Buffer`] may be registered several times, with different rights.
//!
//! A program that spins on memory instead of polling completions uses [`Mr::load_u64`].

pub use crate::buffer::Buffer;
pub use crate::mr::{Gather, Inline, Mr, MrSlice, Piece, Scatter};
pub use crate::raw::{RawMr, RawSlice};
