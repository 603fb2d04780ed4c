//! The RDMA device: everything between the verbs and the links.
//!
//! Owns ports, GIDs, protection domains, memory regions and windows, queue pairs, completion queues
//! and channels, shared receive queues, address handles, asynchronous events, counters, and the
//! progress of all these objects. Called by the safe verbs API (`vernic`) and by the C ABI. Calls
//! `vernic-proto` for the transport, `vernic-mem` for registered memory, and `vernic-io` for
//! packets.
//!
//! Start with [`Context::open`]. Every object holds a reference to its context, so a context
//! outlives its objects. Dropping an object is enough to destroy it. The `destroy` methods are for
//! callers (the C ABI) that must learn whether an object is still in use.
//!
//! | file or folder | what |
//! |---|---|
//! | `verbs/` | the verbs objects, as applications hold them |
//! | `device/` | the device: its addresses, limits, paths, table changes and link stack |
//! | `qp/` | a queue pair as the lane sees it, and what posted work requests keep |
//! | `progress/` `policy/` | which thread runs the lane, and when |
//! | `sched/` | which queue pair has its turn next, and when the lane must run |
//! | `lane/` | receiving, sending, timers, acknowledgements and QP1 |
//! | `local/` | packets to and from processes of this host, through shared memory |
//! | `iwarp/` `streams/` | TCP connections, and the queue pairs that they carry |
//! | `cm/` `agent/` | communication management over QP1, and its calls |
//! | `config/` `counters/` `error.rs` | settings, counters, and the errors of the control path |
//! | `support/` | locks, event queues, threads and the timer wheel |
//!
//! Limits: those of [`limits`]. The data path allocates nothing and makes no system call per small
//! packet. It takes only one lock that several queue pairs share, the lane's, and only if the lock
//! is free.
#![deny(unsafe_code)]

mod agent;
mod cm;
pub mod config;
mod counters;
mod device;
mod error;
pub mod iwarp;
mod lane;
mod local;
mod mad;
pub mod management;
mod policy;
mod progress;
mod qp;
mod sched;
mod streams;
mod support;
#[cfg(test)]
mod testing;
mod verbs;

pub use agent::{CmAgent, CmAttachError, CmCallError, ListenError};
pub use cm::CmSink;
pub use config::{
    Config, ConfigError, DirectAccess, EcnChoice, Origin, PeerRefused, Peers, Settings,
    TransportChoice,
};
pub use counters::{DeviceCounters, DirectCounters, StreamCounters};
pub use device::alarms::Offender;
pub use device::book::{TOPICS, Topic, more};
pub use device::explanation::{Circumstances, Explanation, LivePeer};
pub use device::file_objects::XrcdFile;
pub use device::gid::{GidEntry, GidType};
pub use device::limits;
pub use device::limits::{DeviceAttr, PortAttr};
pub use device::listing::{
    DeviceInfo, PortInfo, address_transport, configured_devices, device_with, devices,
    looks_for_transport, no_device,
};
pub use device::opened::Clocks;
pub use device::peer_end::PeerEnd;
pub use device::peer_qp::{PeerFinding, PeerQp};
pub use device::transport::Transport;
pub use error::{
    Busy, CqOverrun, CreateError, DmRangeError, FreeError, McastError, ModifyError, OpenError,
    PathError, ResizeError,
};
pub use qp::cap::QpCap;
pub use qp::completions::{EMPTY_WC, Wc};
pub use qp::payload::{Payload, SendRefusal};
pub use qp::recv_queue::{PostRecvError, RecvRefusal, RecvWr};
pub use support::events::{AsyncEvent, CqId, Element, EventKind, EventQueue, MAX_EVENTS, SrqId};
pub use support::threads::spawn;
pub use verbs::ah::Ah;
pub use verbs::channel::CompChannel;
pub use verbs::context::Context;
pub use verbs::cq::Cq;
pub use verbs::dm::DeviceMemory;
pub use verbs::handle::Qp;
pub use verbs::mr::{Mr, MrChange, Mw};
pub use verbs::pd::Pd;
pub use verbs::place::Placed;
pub use verbs::qp_init::QpInit;
pub use verbs::route::{Route, WhyWire, YamaForbids};
pub use verbs::srq::{Srq, SrqInit};
pub use verbs::status::{
    PORT_COUNTERS, ProcessStatus, QpStatus, RequestLife, TracedQp, processes, processes_of_all,
    trace_requests,
};
pub use verbs::wr::{Dest, PostSendError, SendWr};
pub use verbs::xrc::{XrcIniInit, Xrcd, XrcdError, XrcdOpen};
pub use vernic_local::ConnectFailure;

pub use vernic_io::{
    Gate, HopState, LinkCounters, LinkError, LinkPort, LocalAddr, NameError, NextHop,
    Origin as ProcessOrigin, PortState, ServiceName, ServiceScope, TxPath, has_foreign_rights,
    random,
};
pub use vernic_mem::{
    Access, AccessError, BindError, Check, DeregisterError, InlineData, MwType, PdError, PdId,
    RegisterError, Sge,
};
pub use vernic_proto::congestion;
pub use vernic_proto::{
    AddressVector, AttrMask, Cause, DropReason, Failure, MwBind, PathMigState, PostError, QpAttr,
    QpCounters, QpState, QpType, RateLimit, Remote, RemoteRange, SendFlags, SendOp, Tag, Time,
    WcOpcode, WcStatus,
};
pub use vernic_wire::{
    AckTimeout, Gid, Grh, Lid, Lkey, Mtu, Pkey, PortNum, Psn, Qkey, Qpn, Rkey, RnrTimer,
    RoceVersion, Service, Srqn, StaticRate,
};
