//! Simulation of a whole InfiniBand subnet: hosts with real queue pairs, adapters, cables, switches
//! and a subnet manager, in virtual time.
//!
//! Owns no protocol. Called by the command (`--fabric`, `--tree`) and by tests; calls
//! `vernic-fabric` for all that is between two adapters, `vernic-proto` for what is at their ends.
//! A run depends on its plan, and a plan on its seed, and on nothing else.
//!
//! # How a run works
//!
//! ```text
//!   Plan: topology, routing, messages, what breaks
//!
//!   Qp <-> EndHost   one for each peer       Books: what each has received from each other
//!    | packets: LRH, BTH, ..., ICRC          ^
//!    v                                       | every byte, every completion
//!   World --submit--> Subnet: adapter -> cable -> switch -> ... -> adapter --take--> World
//!                       ^ directed routes, LIDs, tables
//!                     ManagerHost at h1: vernic_fabric::manager
//! ```
//! First the manager brings the subnet up, as on hardware: nobody else gives LIDs or writes tables.
//! Then each host sends messages to each other one over a reliable connection, a SEND or an RDMA
//! WRITE with immediate data. Hosts begin with different peers, so that all are busy. Cables are
//! cut and mended while that goes on, and bits are damaged.
//!
//! # What is proven
//!
//! | property | where |
//! |---|---|
//! | each message arrives exactly once, in order, with the right bytes at their place | [`end`] |
//! | a send completes after its message was received, in order, with success | [`end`] |
//! | no request fails while cables are cut and the manager leads packets around | [`end`] |
//! | each packet arrives at the port and queue pair that it was sent to, from the peer's LID | [`world`] |
//! | no packet is lost, dropped or repeated in a fabric that nothing disturbs | [`world`], at the end |
//! | all ends | [`world`]: bounds on virtual time and steps |
//!
//! That the oracle can fail is tested: [`Mutation`].

mod end;
mod manager;
mod plan;
mod world;

pub use plan::{Deed, Mutation, Plan, TreeOptions};
pub use world::{Report, Totals, run};
