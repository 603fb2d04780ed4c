//! RDMA verbs without RDMA hardware: the safe Rust API of Vernic.
//!
//! Vernic is an RDMA NIC in user space. It speaks RoCEv2 on the wire through ordinary UDP sockets:
//! no kernel module, no root. This crate is its face for Rust programs: the verbs, with types that
//! make misuse a compile error where they can, and errors that explain themselves where they
//! cannot.
//!
//! Two queue pairs, one process, one RDMA WRITE:
//! ```
#![doc = include_str!("../examples/hello.rs")]
//! ```
//!
//! # Where to start
//!
//! | to | look at |
//! |---|---|
//! | find and open a device | [`Device`] |
//! | register memory, and why there are only copies | [`Mr`], [`memory`] |
//! | make, connect and use queue pairs | [`Qp`], [`Pd::qp`], [`Qp::connect`](Qp#method.connect) |
//! | connect by IP address and port, as `rdma_cm` does | [`cm`] |
//! | post many requests with one doorbell | [`SendBatch`], [`RecvBatch`] |
//! | wait for completions, learn why one failed | [`Cq`], [`WcError`], [`CompChannel`] |
//! | tell the peer where to connect | [`Endpoint`], [`RemoteMr`], [`oob`] |
//! | carry queue pairs over TCP | [`iwarp`] |
//! | send datagrams | [`Ud`], [`Ah`] |
//! | share receives, grant part of a region | [`Srq`], [`Mw`] |
//! | share connections, too | [`Xrcd`] |
//! | await operations, one by one, in tokio | `net` (feature `tokio`) |
//! | await completions in tokio | `AsyncCq` (feature `tokio`) |
//!
//! Programs to read and run are in `examples/`: ping-pong over RC, UC, UD, XRC and with a shared
//! receive queue, and one-sided operations. Those that begin with `learn_` go with the chapters of
//! `docs/learn-write.md`.
//!
//! # How it works
//!
//! There is no daemon: the device lives in this process. Calls to poll and post make progress on
//! the caller's thread; a background thread serves peers while the program computes. Everything is
//! `Send` and `Sync`; queue pairs share no lock with one another. Objects keep what they need
//! alive, so they may be dropped in any order. Nothing of the data path allocates.
//!
//! This crate owns the types of the API and nothing of the protocol; it calls `vernic-engine`.
//! Clauses of the InfiniBand specification are cited as IBTA with volume 1's numbers.
//!
//! Users need no `unsafe`. The crate itself has some in one module, where memory is registered.
#![deny(unsafe_code)]

mod access;
mod ah;
#[cfg(feature = "tokio")]
mod asynchronous;
mod buffer;
mod channel;
pub mod cm;
mod cq;
mod device;
mod endpoint;
pub mod error;
mod event;
pub mod iwarp;
pub mod memory;
mod mr;
mod mw;
#[cfg(feature = "tokio")]
pub mod net;
pub mod oob;
mod pd;
mod qp;
mod raw;
mod recv;
mod remote;
mod service;
mod srq;
mod sys;
mod wc;
mod xrc;

pub use access::Access;
pub use ah::{Ah, Destination};
#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncCq, AsyncEvents};
pub use channel::CompChannel;
pub use cq::Cq;
pub use device::Device;
pub use endpoint::{Endpoint, EndpointError, Path, SubnetPath};
#[doc(inline)]
pub use error::{
    BindError, ConfigError, ConnectError, CreateError, Error, McastError, ModifyError, OpenError,
    PathError, PostError, PostRecvError, RangeError, ResizeError, WaitError,
};
pub use event::Events;
#[doc(inline)]
pub use memory::{Buffer, Inline, Mr, MrSlice, RawMr, RawSlice};
pub use mw::{Mw, Type1, Type2, WindowType};
pub use pd::Pd;
pub use qp::{
    CanSend, Connect, InitAttr, Kind, Message, Missing, NamedRecvCq, NamedSendCq, OneSided,
    OwnQueue, Qp, QpBuilder, RcOptions, RcRtr, RcRts, SendBatch, SharedQueue, UcOptions, UcRtr,
    UdInit, Wr, XrcIniOptions, XrcIniRtr, XrcIniRts, XrcTgtOptions, XrcTgtRtr,
};
pub use recv::RecvBatch;
pub use remote::{RemoteAddr, RemoteMr};
pub use service::{
    CanReceive, Connected, Init, Peered, Rc, Reliable, Reset, Responds, Rtr, Rts, Service, State,
    Transport, Uc, Ud, XrcIni, XrcTgt,
};
pub use srq::{Basic, Srq, SrqKind, Xrc};
pub use wc::{Wc, WcError, WrId};
pub use xrc::Xrcd;

pub use vernic_engine::config::{EcnChoice, KEYS, Key, Origin, Settings, meant as meant_setting};
#[doc(inline)]
pub use vernic_engine::congestion;
pub use vernic_engine::{
    AckTimeout, AddressVector, AsyncEvent, Cause, Circumstances, Clocks, Config, CqId, DeviceAttr,
    DeviceCounters, DeviceInfo, DeviceMemory, DirectAccess, DmRangeError, DropReason, Element,
    EventKind, Explanation, Failure, Gid, GidEntry, GidType, Lid, LinkCounters, LinkPort, LivePeer,
    Lkey, LocalAddr, Mtu, PORT_COUNTERS, PathMigState, PeerEnd, PeerFinding, PeerQp, Pkey,
    PortAttr, PortInfo, PortNum, PortState, ProcessStatus, Psn, Qkey, QpAttr, QpCap, QpCounters,
    QpState, QpStatus, Qpn, RateLimit, RemoteRange, RequestLife, Rkey, RnrTimer, RoceVersion,
    Route, SrqId, Srqn, StaticRate, TOPICS, Topic, TracedQp, Transport as DeviceTransport,
    TransportChoice, TxPath, WcOpcode, WcStatus, WhyWire, YamaForbids, limits,
};

/// The example of the repository's README, tested.
#[cfg(doctest)]
#[doc = include_str!("../../../../README.md")]
pub struct Readme;

/// The example of the page for people who write programs, tested.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/rust.md")]
pub struct RustPage;

/// The examples of the page for people who write programs on tokio, tested.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../../../../docs/rust-async.md")]
pub struct RustAsyncPage;
