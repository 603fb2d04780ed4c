//! iWARP: a queue pair over a TCP connection (RFC 5040, 5041, 5044, 6581, 7306).
//!
//! Owns the protocol between a stream of bytes and the verbs: start-up, framing, placement,
//! messages and their order, how a stream ends. The work requests, completions, states and the
//! [`Host`](crate::Host) are those of the other services, so an owner can hold either kind of queue
//! pair. RC is what the verbs call it; opcodes, retries and path attributes of RC have no meaning
//! here.
//!
//! # The sans-I/O contract
//!
//! [`Startup`] is a connection until both ends have agreed, [`Qp`] from then on. Neither has a
//! clock, a socket, a thread or memory. The owner of a `Qp`
//! 1. receives into a buffer, or into the place that [`Qp::rx_next`] names, and passes bytes to
//!    [`Qp::handle_bytes`] or says so with [`Qp::handle_placed`]; it keeps what was not consumed,
//!    which is less than [`MAX_FPDU`] bytes;
//! 2. takes FPDUs with [`Qp::poll_transmit`], or with [`Qp::poll_fpdu`] and [`Qp::commit_fpdu`],
//!    while there is room to send, and says with [`Qp::handle_sent`] how far the connection has
//!    taken them;
//! 3. does with the connection what [`Qp::poll_shutdown`] says, and tells with [`Qp::handle_end`]
//!    when it ends;
//! 4. calls [`Qp::handle_timeout`] when [`Qp::next_deadline`] has come.
//!
//! The second step has work while [`Qp::wants_transmit`] says so, valid until the next call with
//! `&mut self`. Completions, memory accesses and events go through the host inside these calls.
//! What was committed before an error still precedes the Terminate on the stream: an owner that
//! cannot send it any more resets the connection. Every method's work is bounded by the bytes that
//! are passed in, by the size of one FPDU, or by the size of the queues.
//!
//! # Direct placement
//!
//! ```text
//!   socket  --recvmsg-->  [ registered memory ][ buffer: pad, CRC, the next FPDU's headers ]
//!                           RxNext::Place        handle_bytes
//! ```
//! Where payload goes is known, and checked, once a segment's header is here; the rest of it can be
//! received there by the same system call that receives what follows. With CRCs that is the owner's
//! choice ([`StreamConfig::place_before_crc`]): see the head of `deframer` for what it costs. Keys
//! are checked for every segment, and again by whoever writes.

mod agreed;
mod answers;
mod asked;
mod deframer;
mod ending;
mod greeting;
mod inbound;
mod layout;
mod qp;
mod requester;
mod startup;
mod stream;
#[cfg(test)]
mod tests;

pub use crate::error::{Ending, StreamEnd, VIOLATIONS, Violation, ViolationRow, terminated_status};
pub use agreed::{Agreed, Role, RtrSet};
pub use greeting::Greeting;
pub use inbound::Target;
pub use layout::{Fpdu, MAX_FPDU, Source};
pub use qp::{Qp, StartError};
pub use startup::{MPA_REVISION, Startup, StartupConfig, StartupError, StartupState};
pub use stream::{Extensions, Place, RxNext, Shutdown, StreamConfig};
