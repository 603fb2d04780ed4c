//! Sans-I/O RDMA transport: the state machines of RC, XRC, UC and UD queue pairs, and of the
//! connection management that brings them together.
//!
//! Owns the protocol: sequence numbers, acknowledgements, retries, the order of checks, what each
//! violation means. Called by the engine with packets and time; it answers through [`Host`]. Uses
//! nothing but `vernic-wire`: no clock, socket, thread, random number or unsafe code.
//!
//! Start reading at [`Qp`], or at [`cm`] for how queue pairs get connected; at [`iwarp`] for queue
//! pairs over TCP.
#![forbid(unsafe_code)]

pub mod cm;
mod completion;
mod error;
mod host;
#[cfg(test)]
mod hostile;
mod inbound;
pub mod iwarp;
mod outbound;
mod qp;
mod rc;
mod segment;
mod shares;
mod sq;
mod state;
#[cfg(test)]
mod test_host;
mod time;
mod transition;
mod uc;
mod ud;
mod wqe;

pub use completion::{
    AccessCheck, AccessFault, Cause, Completion, Failure, RemoteRange, Tag, WcOpcode, WcStatus,
};
pub use error::{ERRORS, ErrorClass, ErrorRow, requester_status};
pub use host::{
    AtomicOp, Disposition, DropReason, Host, PullFault, QpCounters, QpEvent, RemoteAccess, Run,
    RunLimits, RxMeta, SrqFault, Transmit,
};
pub use qp::{After, Direct, DirectOp, MAX_MESSAGE, PostError, Qp, QpInit};
pub use shares::{Shares, Source};
pub use state::{AddressVector, AttrMask, ModifyError, QpAttr, QpState, QpType};
pub use time::Time;
pub use wqe::{MwBind, RecvWqe, Remote, SendFlags, SendOp, SendWqe, UdDest};
