//! RDMA wire formats: bytes to meaning and back.
//!
//! Owns every format that Vernic puts on or takes off a wire: the InfiniBand transport headers, the
//! opcode table that says which of them a packet has, the invariant and the variant CRC, the
//! packets of an InfiniBand link, management datagrams of communication management and of subnet
//! administration, the Ethernet, IP and UDP headers around them in captures; [`ipoib`], IP over
//! InfiniBand; and [`iwarp`], the formats of RDMA over TCP. Everyone above calls it; it calls
//! nothing of ours, holds no state, allocates nothing, has no clock and no `unsafe`.
//!
//! - One header per file, with the same shape: layout picture, `LEN`, repr, `parse`, `emit`,
//!   `Display`, tests. Learn [`Bth`] and you know all.
//! - Parsing never panics and never rejects a value only because it is unknown: fields with open
//!   value sets are newtypes with named constants. Reserved bits are kept, so
//!   `emit(parse(b)) == b`.
//! - Emitting is total but for a buffer that is too short, which is the caller's mistake and
//!   panics.
//! - [`Packet`] is the receive path's view: checked once, then read without checks that can fail.
//!   [`Headers`] is the send path's repr.
#![no_std]
#![forbid(unsafe_code)]

mod aeth;
mod atomic;
mod atomic_ack;
mod bth;
pub mod cm;
mod deth;
mod erf;
mod error;
mod feth;
mod flow_control;
mod frame;
mod frame_v1;
mod grh;
pub mod icrc;
mod ieth;
mod immdt;
pub mod ipoib;
pub mod iwarp;
mod kept_map;
mod link_error;
pub mod link_packet;
mod lrh;
pub mod mad;
pub mod net;
pub mod num;
pub mod opcode;
pub mod packet;
pub mod pma;
mod rdeth;
mod reth;
mod rmpp;
mod roce_version;
pub mod sa;
pub mod smp;
mod static_rate;
pub mod vcrc;
mod xrceth;

pub use aeth::{Aeth, AethCode, CreditCode, NakCode, Syndrome};
pub use atomic::AtomicEth;
pub use atomic_ack::AtomicAckEth;
pub use bth::Bth;
pub use deth::Deth;
pub use erf::{Erf, ErfTimestamp, ErfType};
pub use error::ParseError;
pub use feth::{Feth, Placement, Selectivity};
pub use flow_control::{FlowControl, FlowControlOp};
pub use frame::Frame;
pub use frame_v1::FrameV1;
pub use grh::Grh;
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub use kept_map::KeptMap;
pub use link_error::LinkError;
pub use link_packet::{LinkLimits, LinkPacket};
pub use lrh::{LocalRoute, Lrh};
pub use num::{
    AckTimeout, Gid, Guid, Lid, Lkey, Mtu, Pkey, PortNum, Psn, Qkey, Qpn, Rkey, RnrTimer,
    ServiceLevel, Srqn, VirtualLane,
};
pub use opcode::{HeaderSet, Kind, Opcode, OpcodeInfo, Position, Service, Tail};
pub use packet::{Headers, Packet};
pub use rdeth::Rdeth;
pub use reth::Reth;
pub use rmpp::{Rmpp, RmppFlags, RmppStatus, RmppType};
pub use roce_version::RoceVersion;
pub use static_rate::StaticRate;
pub use xrceth::Xrceth;
