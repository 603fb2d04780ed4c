//! The connection manager by IP address, as `rdma_cm` is.
//!
//! Owns the ids of a process (an id is a listener, a connection or a datagram address), their event
//! channels and port spaces, and the steps from an IP address to a connected queue pair: the
//! device, the path, the attributes of each state. Called by the safe API (`vernic::cm`), by
//! `librdmacm.so.1` and by rsockets; calls `vernic-engine` for devices, queue pairs and the
//! exchange of messages.
//!
//! Start with [`Manager::new`] and [`Manager::create_id`]. Calls of an id are asynchronous: the
//! call returns, and an [`Event`] on the id's [`EventChannel`] reports the outcome. The work that
//! belongs to an event (a queue pair's transitions, the last message of a handshake) is done by the
//! call that takes the event.
//!
//! ```text
//!   active                                         passive
//!   resolve_addr   -> AddrResolved                 bind_addr, listen
//!   resolve_route  -> RouteResolved
//!   attach_qp, connect            -- REQ -->       -> ConnectRequest, with a new id
//!                                                  attach_qp, accept
//!   -> Established                <-- REP --
//!                                 -- RTU -->       -> Established
//!   disconnect                    -- DREQ ->       -> Disconnected
//!   -> Disconnected               <- DREP --       disconnect
//! ```
//!
//! | file | what |
//! |---|---|
//! | `manager.rs` | the manager: makes ids and channels |
//! | `id.rs`, `id/` | ids, a file per kind of call; their channels and events |
//! | `streams.rs`, `streams/` | iWARP: listening sockets and start-ups |
//! | `silent_host.rs` | RoCE: hosts that do not answer a request |
//! | `registry.rs`, `registry/` | events that wait: their id, their channel, their order |
//! | `worker.rs` | the background thread |
//! | `device.rs`, `device/` | the open devices, and the engine's interface for RoCE |
//! | `fabric.rs` | the IP interfaces of a host of an InfiniBand fabric |
//! | `ports.rs` | port spaces |
//! | `route.rs` | from a destination to the source address |
//! | `error.rs` | errors and their errno |
//! | `event.rs` `state.rs` `param.rs` `key.rs` | what events, ids and connections carry |
//!
//! Over iWARP the same ids, calls and events stand for TCP connections with MPA's start-up: the MPA
//! request, reply and rejecting reply are REQ, REP and REJ, there is no RTU and no TIMEWAIT, the
//! end of the stream is DREQ, and ports are TCP ports. The setting
//! [`Config::transport`](vernic_engine::Config) chooses the transport, because an address does not.
//!
//! Limits: three descriptors for each device at which this process listens to a RoCE port, one for
//! each at which it is bound (`vernic_io::host`). Fewer than ten events wait per id, as many as the
//! state machine can raise; untaken requests are limited by the listener's backlog, events that the
//! program writes to 1024, start-ups of iWARP without a request to 1024 per listener.
#![deny(unsafe_code)]

mod device;
mod error;
mod event;
mod fabric;
mod id;
mod key;
mod manager;
mod param;
mod ports;
mod registry;
mod route;
mod silent_host;
mod state;
mod streams;
mod sync;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod worker;

pub use error::{Error, StreamError};
pub use event::{ConnInfo, EventKind, Param, UdInfo};
pub use id::{CommEstablished, Event, EventChannel, GidAddr, Id, IdOption, JoinState, Place};
pub use manager::Manager;
pub use param::{ConnParam, UDP_QKEY};
pub use ports::v6_only;
pub use state::State;
pub use streams::StartupCounters;

pub use vernic_engine::{
    AddressVector, AttrMask, Config, Context, DeviceInfo, Qp, QpAttr, QpState, QpType,
};
pub use vernic_proto::cm::{AlternatePath, CmPath};
pub use vernic_wire::cm::{AprStatus, PortSpace, RejReason, SidrStatus};
