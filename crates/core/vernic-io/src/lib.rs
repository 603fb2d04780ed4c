//! Links for RDMA packets: UDP with GSO and GRO, capture, fault injection, trace.
//!
//! This crate owns sockets and everything that touches the operating system to move packets.
//! `vernic-engine` (the data path) and `vernic-cli` (captures, listings) call it. It may call
//! `vernic-wire` for the bytes, and the operating system for the rest.
//!
//! The unit of work is the *batch*, not the packet: a system call per packet caps a link at a third
//! of what the kernel can carry. See [`batch`] for the two batches, [`link`] for the interface
//! between the engine and a link, [`udp`] for the RoCEv2 link.
//!
//! | file | what |
//! |---|---|
//! | `address.rs`, `path.rs` | addresses of this host; where packets go, and how |
//! | `endpoint.rs` | paths and packets as links over UDP have them: IP addresses and ports |
//! | `buffer.rs` | the memory of sockets |
//! | `batch.rs` | `TxBatch`, `RxBatch`: packets on their way out and in |
//! | `link.rs` | the `Link` trait, limits, counters, errors |
//! | `link_port.rs` | ports of links that have subnet management |
//! | `lanes.rs` | a batch for each virtual lane of a link |
//! | `udp.rs`, `udp/` | the RoCEv2 link; one file per feature of the system |
//! | `infiniband.rs`, `infiniband/` | the link of a host of an InfiniBand fabric |
//! | `roce_v1.rs`, `roce_v1/` | frames of RoCEv1, which the link of RoCE sends and receives too |
//! | `tcp.rs` | TCP connections, and the readiness of many: they carry iWARP |
//! | `icrc.rs` | the ICRC where the Identification cannot be seen |
//! | `host.rs`, `host/` | several processes on one host: slots, names, packets handed over |
//! | `clock.rs` | the time, read from the processor's counter |
//! | `netdev.rs` | network devices, their addresses, and changes of them |
//! | `nexthop.rs` | whether the first machine on a route is there |
//! | `closed.rs` | the link of a device that was closed |
//! | `factory.rs` | factories that make links of each kind |
//! | `capture.rs`, `fault.rs`, `trace.rs` | middlewares: links that wrap a link |
//! | `status.rs` | reports of a process about its open devices |
//! | `wait.rs` | sleeping until a link can be read, and being woken |
//!
//! Limits: no `unsafe`; system calls are `vernic-sys`'s.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::print_stdout))] // tests say why they skip

mod address;
pub mod batch;
mod buffer;
pub mod capture;
mod clock;
mod closed;
mod endpoint;
mod factory;
pub mod fault;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod host;
mod icrc;
pub mod infiniband;
mod lanes;
pub mod link;
mod link_port;
pub mod netdev;
mod nexthop;
mod path;
mod port_probe;
mod roce_v1;
pub mod status;
mod sum;
pub mod tcp;
#[cfg(test)]
mod testing;
pub mod trace;
pub mod udp;
pub mod wait;

pub use address::{Address, LocalAddr};
pub use batch::{Door, Icrc, LinkLimits, RxBatch, RxMeta, RxPacket, TxBatch, TxRun};
pub use clock::Clock;
pub use closed::ClosedLink;
pub use factory::{LinkFactory, LinkSetup, NoLink, UdpFactory};
pub use host::{HandoverResult, NameError, ServiceName, ServiceScope, Slot, SlotTable};
pub use lanes::{MAX_LANES, TxLanes};
pub use link::{
    Departure, Link, LinkCounters, LinkError, Nanos, NoPath, OpenPath, PathRequest, Paths,
    SendReport, route_hint,
};
pub use link_port::{LinkPort, PortState, PortWatch};
pub use nexthop::{HopState, NextHop};
pub use path::{MAX_RECEIVER_PAGES, PathId, Peer, ProcessId, ReceiverPageId, TxPath};
pub use port_probe::PortProbe;
pub use roce_v1::may_use_roce_v1;
pub use status::StatusSocket;
pub use udp::{UdpConfig, UdpLink};
pub use vernic_sys::{
    Gate, Origin, ask_for_exact_timeouts, ask_for_short_slices, has_foreign_rights, random,
};
pub use wait::{Sleeper, Waker, Woken, bell, raise};

/// The UDP destination port of RoCEv2 (IANA name `roce`; IBTA annex A17.9.2).
pub const ROCE_PORT: u16 = 4791;
