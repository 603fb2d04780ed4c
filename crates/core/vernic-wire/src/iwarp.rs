//! iWARP: RDMA over TCP in three layers, MPA (RFC 5044, 6581), DDP (RFC 5041) and RDMAP (RFC 5040,
//! 7306; code points in RFC 6580).
//!
//! ```text
//!   start-up, once, without markers and CRC      then, in each direction
//!   +----------+----------------------------+    +--------+-------------------------+-----+-----+
//!   | MpaStart | MpaEnhanced, private data  |    | length | ULPDU: a DDP segment    | pad | CRC |
//!   +----------+----------------------------+    +--------+-------------------------+-----+-----+
//!     20         0 to 512                          2      | DdpHeader | RDMAP header| 0-3   4
//!                                                         |  14 / 18  | and payload |
//! ```
//! What follows the length is an FPDU's; a [`Marker`] stands in the stream at every 512th byte
//! where the receiver asked for them. What an RDMAP message is, which queue it goes to and which
//! header follows, is a row of [`RdmapOpcode`]'s table; what a Terminate says is a row of
//! [`TermCode`]'s.
//!
//! A Steering Tag (STag) is what InfiniBand calls an R_Key, and has its type,
//! [`Rkey`](crate::Rkey).

mod atomic_request;
mod atomic_response;
mod control;
mod crc32c;
mod ddp;
mod fpdu;
mod immediate;
mod marker;
mod mpa_enhanced;
mod mpa_start;
mod opcode;
mod queue;
mod read_request;
mod tagged;
mod term_code;
mod terminate;
mod untagged;

pub use atomic_request::{AtomicCode, AtomicRequest};
pub use atomic_response::AtomicResponse;
pub use control::Control;
pub use crc32c::Crc32c;
pub use ddp::{DdpHeader, Segment};
pub use fpdu::{CRC_LEN, FpduHeader, MAX_MULPDU, MIN_MULPDU, mulpdu, pad_of};
pub use immediate::Immediate;
pub use marker::{INTERVAL, Marker, markers_in};
pub use mpa_enhanced::{DepthCode, MpaEnhanced};
pub use mpa_start::{MAX_PRIVATE_DATA, MpaKey, MpaStart};
pub use opcode::{RdmapHeader, RdmapInfo, RdmapOpcode};
pub use queue::QueueNumber;
pub use read_request::ReadRequest;
pub use tagged::Tagged;
pub use term_code::{TERM_CODES, TermCode, TermRow};
pub use terminate::Terminate;
pub use untagged::{Msn, Untagged};
