//! The connection manager by IP address: what programs know as `rdma_cm`.
//!
//! Owns the ids of a process (an id is a listener, a connection or a datagram address), their event
//! channels, port spaces, and the way from an IP address to a connected queue pair: which device,
//! which path, which attributes in which state. Called by the safe API (`vernic::cm`), by
//! `librdmacm.so.1` and by rsockets; calls `vernic-engine` for devices, queue pairs and the
//! exchange of messages.
//!
//! Start with [`Manager::new`] and [`Manager::create_id`]. What an id does next is asynchronous:
//! the call returns, and an [`Event`] on the id's [`EventChannel`] tells the outcome. An event's
//! share of the work (a queue pair's transitions, the last message of a handshake) is done by the
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
//! | `manager.rs` `device.rs` | the devices of this process, opened when first needed |
//! | `channel.rs` `event.rs` `registry.rs` | events, and which id and channel they are for |
//! | `id.rs`, `id/` | ids: state, and a file per kind of call |
//! | `ports.rs` | port spaces |
//! | `carrier.rs` | what carries the exchanges of a device: messages of RoCE, or streams of iWARP |
//! | `agent.rs` | what is asked of the engine, of RoCE |
//! | `streams.rs`, `streams/` | listening sockets and start-ups, of iWARP |
//! | `keeper.rs` | what is done on nobody's thread |
//! | `route.rs` | from a destination to the source address and its device |
//! | `search.rs` | destinations whose next hop is not known yet |
//! | `error.rs` | what is refused, and the errno of it |
//!
//! Over iWARP the same ids, calls and events are TCP connections with MPA's start-up: its request,
//! reply and rejecting reply are REQ, REP and REJ, there is no RTU and no TIMEWAIT, the end of the
//! stream is DREQ, and ports are TCP's own. Which of both ids use is a setting
//! ([`Config::transport`](vernic_engine::Config)), for an address does not tell.
//!
//! Limits: three descriptors for each device at which this process listens to a port of RoCE, one
//! where it is bound (`vernic_io::host`); an id has as many events waiting as its state machine can
//! raise, less than ten; requests of a listener that nobody takes are at most its backlog, events
//! that the program writes itself 1024; start-ups of iWARP whose request is not here 1024 per
//! listener.
#![deny(unsafe_code)]

mod agent;
mod carrier;
mod channel;
mod device;
mod error;
mod event;
mod id;
mod keeper;
mod manager;
mod param;
mod ports;
mod registry;
mod route;
mod search;
mod silent_host;
mod streams;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use channel::EventChannel;
pub use error::{Error, StreamError};
pub use event::{ConnInfo, Event, EventKind, Param, UdInfo};
pub use id::{CommEstablished, Id, IdOption, JoinState, State};
pub use manager::Manager;
pub use param::{ConnParam, UDP_QKEY};
pub use ports::v6_only;
pub use streams::StartupCounters;

pub use vernic_engine::{
    AddressVector, AttrMask, Config, Context, DeviceInfo, Qp, QpAttr, QpState, QpType,
};
pub use vernic_proto::cm::CmPath;
pub use vernic_wire::cm::{PortSpace, RejReason, SidrStatus};
