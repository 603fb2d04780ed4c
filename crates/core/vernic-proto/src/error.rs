//! Errors, in values: what was refused, why, and what it means at each end.
//!
//! `class` and `violation` are tables of what a peer can do wrong, on InfiniBand's transport and on
//! iWARP; `access` has the checks of memory, `status` what a completion says, and `cause` why a
//! queue pair failed, `stall` what one waits for; `post` why a request was not taken. Imports
//! nothing of the state machines, which all import it.

mod access;
mod cause;
mod class;
mod post;
mod stall;
mod status;
mod stream_end;
mod violation;

pub use access::{AccessCheck, AccessFault, RemoteRange};
pub use cause::{Cause, Failure};
pub use class::{ERRORS, ErrorClass, ErrorRow, requester_status};
pub use post::PostError;
pub(crate) use stall::STALL_NANOS;
pub use stall::Stall;
pub use status::WcStatus;
pub use stream_end::{Ending, StreamEnd};
pub use violation::{VIOLATIONS, Violation, ViolationRow, terminated_status};
