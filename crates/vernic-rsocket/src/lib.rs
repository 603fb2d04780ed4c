//! Sockets over RDMA: the protocol of rsockets, so that programs written for TCP run over RDMA.
//!
//! Owns the protocol: what travels ([`wire`]) and the machine of a stream ([`stream`]), which has no
//! memory, queue pair, clock or thread. Wire-compatible with rdma-core's rsockets.
#![forbid(unsafe_code)]

pub mod stream;
pub mod wire;
