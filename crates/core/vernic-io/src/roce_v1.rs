//! RoCEv1: packets straight on Ethernet (IBTA annex A16), beside those by UDP on the same link.
//!
//! Owns the frames: which sockets receive them, what is checked, how headers are made. Called by
//! the link of RoCE (`udp.rs`), which polls all sockets in one place, and by its paths. A path by
//! RoCEv1 has a [`PathId`](crate::PathId) that says so, and addresses of packets have another
//! variant ([`Address::RoceV1`](crate::Address::RoceV1)).
//!
//! | file | what |
//! |---|---|
//! | `control.rs` | opening: sockets of netdevs, paths, stations |
//! | `tx.rs`, `rx.rs` | frames out and in |
//! | `filter.rs` | which frames the kernel gives to which process |
//! | `mac.rs` | Ethernet addresses that follow from GIDs |
//!
//! Needs `CAP_NET_RAW`. See docs/rocev1.md.

pub(crate) mod control;
mod filter;
mod mac;
pub(crate) mod rx;
pub(crate) mod tx;

pub(crate) use control::Shared;
pub use control::may_use_roce_v1;
pub(crate) use filter::of_slots;
pub(crate) use mac::of_group;
