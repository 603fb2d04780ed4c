//! An InfiniBand fabric without I/O: links with credits and virtual lanes, switches, channel
//! adapters, and the agents that a subnet manager talks to.
//!
//! Owns what happens to a packet between the adapter that sends it and the one that receives it
//! (IBTA volume 1, chapters 7, 13, 14, 16 and 18). It has no clock, socket or thread: its owner
//! passes the present in, carries bytes from one end of a cable to the other, and asks when
//! something is due (docs/fabric.md).
//!
//! | module | owns |
//! |---|---|
//! | [`adapter`] | where packets begin and end |
//! | [`attributes`] | what subnet management reads and writes of a node, as plain values |
//! | [`datagram`] | packets that carry a management datagram |
//! | [`link`] | one end of a cable: training, lanes, credits, arbitration, rate |
//! | [`management`] | the agents that answer a subnet manager and a performance manager |
//! | [`manager`] | a small subnet manager |
//! | [`subnet`] | all nodes, cables and agents of a plan in one process |
//! | [`switch`] | forwarding within a subnet |
//! | [`topology`] | the plan of a fabric: nodes and cables, their text, usual shapes, a picture |
#![forbid(unsafe_code)]

pub mod adapter;
pub mod attributes;
pub mod datagram;
pub mod link;
pub mod management;
pub mod manager;
pub mod subnet;
pub mod switch;
pub mod topology;

pub use vernic_proto::Time;
