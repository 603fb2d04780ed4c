//! An InfiniBand fabric without I/O: links with credits and virtual lanes, switches, channel
//! adapters, and the agents that a subnet manager talks to.
//!
//! Owns what happens to a packet between the adapter that sends it and the one that receives it
//! (IBTA volume 1, chapters 7, 13, 14, 16 and 18). It has no clock, socket or thread: its owner
//! passes the present in, carries bytes from one end of a cable to the other, and asks when
//! something is due. The simulator and `vernic fabric` are such owners.
//!
//! | module | owns |
//! |---|---|
//! | [`attributes`] | what subnet management reads and writes of a node, as plain values |
//! | [`management`] | the agents that answer a subnet manager and a performance manager |
//! | [`topology`] | the plan of a fabric: nodes and cables, their text, usual shapes, a picture |
#![forbid(unsafe_code)]

pub mod attributes;
pub mod management;
pub mod topology;

pub use vernic_proto::Time;
