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
//! The parts from length to CRC form an FPDU. If the receiver asked for markers, a [`Marker`]
//! stands in the stream at every 512th byte. The table of [`RdmapOpcode`] has a row for each RDMAP
//! message: its queue, and the header that follows. The table of [`TermCode`] has a row for each
//! reason of a Terminate.
//!
//! A Steering Tag (STag) is what InfiniBand calls an R_Key, so it has the type of one,
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
pub use queue::{Msn, QueueNumber};
pub use read_request::ReadRequest;
pub use tagged::Tagged;
pub use term_code::{TERM_CODES, TermCode, TermRow};
pub use terminate::Terminate;
pub use untagged::Untagged;
