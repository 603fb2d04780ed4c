//! RDMA wire formats: from bytes to meaning and back.
//!
//! This crate owns every format that Vernic puts on or takes off a wire:
//! - the InfiniBand transport headers, and the opcode table that lists the headers of a packet,
//! - the invariant CRC,
//! - the management datagrams of communication management,
//! - the Ethernet, IP and UDP headers around packets in captures,
//! - [`iwarp`], the formats of RDMA over TCP.
//!
//! All other crates may call this one. It calls no other crate of Vernic, holds no state, allocates
//! nothing, and has no clock and no `unsafe`.
//!
//! - Each header has a file of its own, and all files have the same shape: layout picture, `LEN`,
//!   repr, `parse`, `emit`, `Display`, tests. A reader who knows [`Bth`] knows them all.
//! - Parsing never panics, and never rejects a value only because it is unknown. Fields with open
//!   value sets are newtypes with named constants. Reserved bits are kept, so `emit(parse(b)) ==
//!   b`.
//! - Emitting always succeeds, unless the buffer is too short. That is the caller's mistake, and
//!   panics.
//! - [`Packet`] is the view for the receive path: checked once, then read without checks that can
//!   fail. [`Headers`] is the repr for the send path.
#![no_std]
#![forbid(unsafe_code)]

mod aeth;
mod atomic;
mod atomic_ack;
mod bth;
pub mod cm;
mod deth;
mod error;
mod feth;
mod frame;
mod grh;
pub mod icrc;
mod ieth;
mod immdt;
pub mod iwarp;
mod lrh;
pub mod mad;
pub mod net;
pub mod num;
pub mod opcode;
pub mod packet;
mod rdeth;
mod reth;
mod xrceth;

pub use aeth::{Aeth, AethCode, CreditCode, NakCode, Syndrome};
pub use atomic::AtomicEth;
pub use atomic_ack::AtomicAckEth;
pub use bth::Bth;
pub use deth::Deth;
pub use error::ParseError;
pub use feth::{Feth, Placement, Selectivity};
pub use frame::Frame;
pub use grh::Grh;
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub use lrh::Lrh;
pub use num::{AckTimeout, Gid, Lkey, Mtu, Pkey, PortNum, Psn, Qkey, Qpn, Rkey, RnrTimer, Srqn};
pub use opcode::{HeaderSet, Kind, Opcode, OpcodeInfo, Position, Service, Tail};
pub use packet::{Headers, Packet};
pub use rdeth::Rdeth;
pub use reth::Reth;
pub use xrceth::Xrceth;
