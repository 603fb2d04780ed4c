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
pub mod congestion;
mod cx;
mod direct;
mod disposition;
mod error;
mod event;
mod host;
#[cfg(test)]
mod hostile;
mod inbound;
pub mod iwarp;
mod kept;
pub mod mad;
mod message;
mod migration;
mod notification;
mod outbound;
mod qp;
mod rate;
mod rc;
pub mod sa;
mod segment;
mod send_completion;
mod shares;
mod sq;
mod state;
#[cfg(test)]
mod test_host;
mod time;
mod transition;
mod transport;
mod uc;
mod ud;
mod wqe;

pub use completion::{Completion, Tag, WcOpcode};
pub use cx::QpInit;
pub use direct::{After, Direct, DirectOp};
pub use disposition::{Disposition, DropReason};
pub use error::{
    AccessCheck, AccessFault, Cause, ERRORS, ErrorClass, ErrorRow, Failure, PostError, RemoteRange,
    Stall, WcStatus, requester_status,
};
pub use event::QpEvent;
pub use host::{AtomicOp, Host, PullFault, QpCounters, RemoteAccess, RxMeta, SrqFault, Transmit};
pub use kept::{KeepBudget, Keeping, KeptPacket};
pub use message::{MessagePart, PartAck, RendezvousLimits};
pub use qp::Qp;
pub use rate::RateLimit;
pub use shares::{Shares, Source};
pub use sq::SendProgress;
pub use state::{AddressVector, AttrMask, ModifyError, PathMigState, QpAttr, QpState, QpType};
pub use time::Time;
pub use wqe::{MAX_MESSAGE, MwBind, RecvWqe, Remote, SendFlags, SendOp, SendWqe, UdDest};
